# SPDX-License-Identifier: Apache-2.0
"""Configuration files: a command's options in TOML, by their long names.

    interface = ["eth0", "eth1"]
    collector = "collector.example:9400"
    bucket = "10us"

The file changes the defaults of the command line, so whatever is given there wins.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netmon.errors import UsageError

_NOT_IN_A_FILE = {"help", "config"}


class _Replaced(list[Any]):
    """A list default that `append` and `extend` options start afresh from: the command line wins, it does not add."""

    def __copy__(self) -> list[Any]:
        return []


def defaults_from(path: Path, parser: argparse.ArgumentParser) -> None:
    """Makes the file's values the parser's defaults; an option that the file sets is no longer required.

    Values are checked and converted as if they stood on the command line. Raises UsageError, which names the
    file, for a file that cannot be read, a key that is no option, and a value that the option does not take.
    """
    options = _options(parser)
    for key, value in _read(path).items():
        if key not in options:
            raise UsageError(f"{path}: unknown key {key!r}{_nearest(key, options)}")
        action = options[key]
        try:
            action.default = _converted(action, value)
        except (UsageError, ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise UsageError(f"{path}: cannot set {key!r} to {value!r}: {error}") from error
        action.required = False


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # only where there is a file: it takes long to import
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"cannot read the configuration {path}: {error}") from error


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    def named() -> Iterator[tuple[str, argparse.Action]]:
        for action in parser._actions:  # argparse offers no public way to ask what it takes
            for name in action.option_strings:
                if name.startswith("--"):
                    yield name[2:], action

    return {name: action for name, action in named() if name not in _NOT_IN_A_FILE}


def _nearest(key: str, options: dict[str, argparse.Action]) -> str:
    close = difflib.get_close_matches(key.replace("_", "-"), options, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(sorted(options))}"


def _converted(action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:
        return _flag(action, value)
    many = action.nargs is not None and action.nargs != "?"
    if many or isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise UsageError("write a list, even of one")
        return _Replaced([_single(action, item) for item in value])
    return _single(action, value)


def _flag(action: argparse.Action, value: Any) -> Any:
    if not isinstance(value, bool):
        raise UsageError("write true or false")
    return action.const if value else action.default


def _single(action: argparse.Action, value: Any) -> Any:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise UsageError("write one text or number")
    convert = action.type or str
    converted = convert(str(value)) if callable(convert) else value
    if action.choices is not None and converted not in action.choices:
        raise UsageError(f"choose from {', '.join(map(str, action.choices))}")
    return converted
