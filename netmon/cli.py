# SPDX-License-Identifier: Apache-2.0
"""The list of commands, and the one place that catches errors and configures logging."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from netmon.errors import NetmonError, UsageError
from netmon.options import as_written, defaults_from, to_toml
from netmon.telemetry.logs import TEXT, configure_logs, log_error
from netmon.version import __version__

COMMANDS = (
    *("agent", "collector", "top", "web", "why", "advise", "export", "report", "trace", "replay", "lab", "doctor"),
    *("steps", "certificates", "bench"),
)
_SERVICES = ("agent", "collector")  # that are configured by a file


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Without argv it is the program: signals then end the command."""
    try:
        if argv is None:
            _heed_signals()
            # numpy's BLAS, to which nobody here gives much, would start a thread with its memory for every CPU, in each
            # process that we start.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        configure_logs(TEXT)
        arguments = list(sys.argv[1:] if argv is None else argv)
        args = _parse(arguments)
        if _is_service(arguments) and args.print_config:
            print(_effective(arguments), end="")
            return 0
        configure_logs(getattr(args, "log", TEXT))
        args.parse_again = lambda: _parse(arguments)
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
    finally:
        # Where a signal was caught, but has passed through the exec() of a string, with which dataclasses are made,
        # Python remembers it as not caught until the next one, and `python -m` would end itself with SIGINT.
        exec("")


def _heed_signals() -> None:
    """SIGINT and SIGTERM end the command in order, and whom it starts at once, whatever was inherited.

    A shell ignores SIGINT for what a script puts into its background, and some launchers block signals; both go on to
    children. What is caught is not inherited: a command that has handlers of its own replaces these.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def make_parser(names: Sequence[str] = COMMANDS) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole parser, and those of the commands by their names. `--help`, man pages and completions come from
    here.
    """
    parser = argparse.ArgumentParser(
        prog="netmon", description="Whose traffic slowed your training, which step it hurt, and by how much."
    )
    parser.add_argument("--version", action="version", version=f"netmon {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
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
    return parser, {name: commands.choices[name] for name in names}


def _parse(arguments: list[str]) -> argparse.Namespace:
    # Only the one that is meant: declaring all of them takes longer than a short one runs.
    parser, commands = make_parser([name for name in COMMANDS if arguments[:1] == [name]] or COMMANDS)
    if config := _config(arguments):
        defaults_from(config, commands[arguments[0]], lambda key: _owner(key, arguments[0]))
    if _is_service(arguments) and "--print-config" in arguments:
        for action in commands[arguments[0]]._actions:
            action.required = False
    return parser.parse_args(arguments)


def _is_service(arguments: list[str]) -> bool:
    return any(arguments[:1] == [name] for name in _SERVICES)


def _effective(arguments: list[str]) -> str:
    """The configuration that these arguments and their file amount to, as a file."""
    parser, commands = make_parser(arguments[:1])
    command = commands[arguments[0]]
    as_written(command)
    if config := _config(arguments):
        defaults_from(config, command)
    return to_toml(command, parser.parse_args(arguments))


def _owner(key: str, command: str) -> str:
    """The other service that has an option of this name."""
    _, others = make_parser([name for name in _SERVICES if name != command])
    return next((name for name, other in others.items() if f"--{key}" in other._option_string_actions), "")


def _config(arguments: list[str]) -> Path | None:
    """The value of --config, which must be known before the rest is parsed."""
    if not _is_service(arguments):
        return None
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    found: Path | None = finder.parse_known_args(arguments)[0].config
    return found
