# SPDX-License-Identifier: Apache-2.0
"""What the two services have in common: a configuration file, and SIGHUP, which reads it again."""

import argparse
import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import NetmonError
from netmon.options import FILE, option, option_name
from netmon.telemetry.logs import AUTO, KINDS

_NO_OPTIONS = {"command", "parse_again", "config", "print_config"}
_AT_ONCE = {"log_level"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Service:
    """Options that both have in addition to their own."""

    config: Path | None = option(
        None, "TOML with these options' long names; the command line wins. SIGHUP reads it again", **FILE
    )
    print_config: bool = option(False, "print the configuration in force, as such a file, and end")
    log: str = option(
        AUTO,
        "lines for people (text), one JSON object a line, or fields in systemd's journal (auto: the journal where "
        "systemd has started it, else text)",
        choices=KINDS,
    )
    log_level: str = option("info", "what is logged (%(default)s)", choices=("debug", "info", "warning", "error"))


Adjust = Callable[[argparse.Namespace, Collection[str]], Collection[str]]


def heed_hangup(args: argparse.Namespace, adjust: Adjust = lambda read, changed: ()) -> None:
    """Sets the log level, and where there is a file, does so again from it on SIGHUP. Blocks for some milliseconds
    then.

    adjust: called with the options as they are now, and which of them have changed since they were in force; puts what
    it can into force, and returns the names of that; raises NetmonError for values that cannot be.

    Certificates and tokens are read again whenever their files change, without a signal. What else has changed in the
    file waits for a restart, and is named. A file that cannot be used changes nothing.
    """
    _set_level(args)

    def reload(*_: object) -> None:
        try:
            read = args.parse_again()
            old, new = vars(args), vars(read)
            changed = {name for name in new if name not in _NO_OPTIONS and new[name] != old.get(name)}
            in_force = {*adjust(read, changed), *(_AT_ONCE & changed)}
        except (NetmonError, SystemExit) as error:
            log.warning("the configuration was not read again: %s", error)
            return
        old.update({name: new[name] for name in in_force})
        _set_level(args)
        remarks = [
            f"; {what}: {', '.join(sorted(map(option_name, names)))}"
            for what, names in (
                ("in force now", in_force),
                ("changed, and in force after a restart", changed - in_force),
            )
            if names
        ]
        log.warning("read the configuration again%s", "".join(remarks))

    if args.config:
        signal.signal(signal.SIGHUP, reload)


def _set_level(args: argparse.Namespace) -> None:
    logging.getLogger().setLevel(args.log_level.upper())
