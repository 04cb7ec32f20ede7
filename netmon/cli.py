# SPDX-License-Identifier: Apache-2.0
"""The list of commands, and the one place that catches errors and configures logging."""

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from netmon import __version__
from netmon.config import defaults_from
from netmon.errors import NetmonError, UsageError
from netmon.telemetry.logs import TEXT, configure_logs, log_error

COMMANDS = (
    *("agent", "collector", "top", "why", "advise", "export", "report", "trace", "replay", "lab", "doctor"),
    *("certificates", "bench"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Without argv it is the program: signals then end the command."""
    try:
        if argv is None:
            _heed_signals()
        configure_logs(TEXT)
        args = _parse(list(sys.argv[1:] if argv is None else argv))
        configure_logs(getattr(args, "log", TEXT))
        command: ModuleType = args.command
        status: int = command.run(args)
        return status
    except NetmonError as error:
        log_error(error)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `netmon top --once | head`
        sys.stderr.close()
        return 1


def _heed_signals() -> None:
    """SIGINT and SIGTERM end the command in order, and whom it starts at once, whatever was inherited.

    A shell ignores SIGINT for what a script puts into its background, and some launchers block signals; both go on to
    children. What is caught is not inherited: a command that has handlers of its own replaces these.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netmon", description="Whose traffic slowed your training, which step it hurt, and by how much."
    )
    parser.add_argument("--version", action="version", version=f"netmon {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Only the one that is meant: declaring all of them takes longer than a short one runs.
    for name in [name for name in COMMANDS if arguments[:1] == [name]] or COMMANDS:
        module = import_module(f"netmon.commands.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"examples:\n{module.EXAMPLES.rstrip()}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.arguments(command)
        command.set_defaults(command=module)
        if arguments[:1] == [name] and (config := _config(arguments)):
            defaults_from(config, command)
    return parser.parse_args(arguments)


def _config(arguments: list[str]) -> Path | None:
    """The value of --config, which must be known before the rest is parsed."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    found: Path | None = finder.parse_known_args(arguments)[0].config
    return found
