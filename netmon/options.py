# SPDX-License-Identifier: Apache-2.0
"""Options, each declared once: the fields of a dataclass, with what argparse has to know of them.

    @dataclass(frozen=True)
    class Settings:
        bucket_ns: int = option("10us", "bucket width (%(default)s)", **TIME)    # --bucket TIME
        security: Security = PLAIN                                               # the options of Security

The command line, the configuration file, man pages, completions and the reference are made from the parser that
`declare` fills; `read_options` makes the dataclass of what was parsed. A field's name may end in its unit.
"""

import argparse
import difflib
import functools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from netmon.errors import UsageError
from netmon.units import parse_duration, parse_rate, parse_size

TIME: dict[str, Any] = {"type": parse_duration, "metavar": "TIME"}
RATE: dict[str, Any] = {"type": parse_rate, "metavar": "RATE"}
SIZE: dict[str, Any] = {"type": parse_size, "metavar": "SIZE"}
DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}

_UNITS = ("_ns", "_bps")
_Options = TypeVar("_Options")


def option(default: Any, help: str, **keywords: Any) -> Any:
    """A field that is an option; False makes it a flag.

    default: as on the command line, if it is a text. keywords: of `add_argument`; `above="0s"` and
    `within=("1us", "1s")` bound the value; `positional=True` has no dashes.
    """
    if default is False:
        return field(default=False, metadata={"action": "store_true", "help": help})
    convert = keywords.get("type", str)
    value = convert(default) if isinstance(default, str) else default
    given = list(default) if isinstance(default, tuple) else default  # as argparse makes lists
    return field(default=value, metadata={"default": given, "help": help, **keywords})


def declare(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *options: type) -> None:
    """Adds the options of dataclasses to a parser, in their order."""
    for each in (each for one in options for each in fields(one)):
        if isinstance(each.type, type) and is_dataclass(each.type):
            declare(parser, each.type)
        elif each.metadata:
            name, keywords = f"--{option_name(each.name)}", dict(each.metadata)
            above, within = keywords.pop("above", None), keywords.pop("within", None)
            if above or within:
                keywords["type"] = _bounded(name, keywords["type"], above, within)
            if keywords.pop("positional", False):
                parser.add_argument(each.name, **keywords)
            else:
                parser.add_argument(name, dest=each.name, **keywords)


def read_options(options: type[_Options], args: argparse.Namespace) -> _Options:
    """The dataclass, of what was parsed; lists become tuples."""
    values: dict[str, Any] = {}
    for each in fields(options):  # type: ignore[arg-type]
        if isinstance(each.type, type) and is_dataclass(each.type):
            values[each.name] = read_options(each.type, args)
        elif each.metadata:
            value = getattr(args, each.name)
            values[each.name] = tuple(value) if isinstance(value, list) else value
    return options(**values)


def option_name(field_name: str) -> str:
    """`flush_ns` → `flush`, `record_time_ns` → `record-time`."""
    for unit in _UNITS:
        field_name = field_name.removesuffix(unit)
    return field_name.replace("_", "-")


def _bounded(
    name: str, parse: Callable[[str], Any], above: str | None, within: tuple[str, str] | None
) -> Callable[[str], Any]:
    @functools.wraps(parse)  # argparse and the configuration file distinguish numbers from texts by it
    def checked(text: str) -> Any:
        value = parse(text)
        if above and not value > parse(above):
            raise UsageError(f"{name} has to be more than {above}, not {text}")
        if within and not parse(within[0]) <= value <= parse(within[1]):
            raise UsageError(f"{name} has to be from {within[0]} to {within[1]}, not {text}")
        return value

    return checked


# --- Configuration files: a command's options in TOML, by their long names.
#
#     interface = ["eth0", "eth1"]
#     collector = "collector.example:9400"
#     bucket = "10us"
#
# The file changes the defaults of the command line, so whatever is given there wins.

_NOT_IN_A_FILE = {"help", "config", "print-config", "prepare"}
_WIDTH = 110


def defaults_from(path: Path, parser: argparse.ArgumentParser, owner: Callable[[str], str] | None = None) -> None:
    """Makes the file's values the parser's defaults; an option that the file sets is no longer required.

    Values are checked and converted as if they were on the command line. owner: the command that has an option of this
    name, or empty. Raises UsageError, which names the file, and the line where it can, for a file that cannot be
    read, a key that is no option or stands in a table, and a value that the option does not take.
    """
    options = _options(parser)
    text = _read(path)
    for key, value in _parsed(path, text).items():
        index = f"{path}:{line}" if (line := _line_of(key, text)) else str(path)
        tables = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]
        if tables:
            raise UsageError(f"{index}: [{key}] is a table{_misplaced(tables[0], options)}")
        if key not in options:
            raise UsageError(f"{index}: unknown key {key!r}{_nearest(key, options, owner)}")
        action = options[key]
        try:
            action.default = _converted(action, value)
        except (UsageError, ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise UsageError(f"{index}: cannot set {key!r} to {value!r}: {error}") from error
        action.required = False


def as_written(parser: argparse.ArgumentParser) -> None:
    """From here on the parser takes values as they are written, unchecked, and nothing is required: for `to_toml`."""
    for action in parser._actions:
        action.required = False
        if action.help:  # it may name the default, which a file changes
            action.help = parser._get_formatter()._expand_help(action).replace("%", "%%")
        if getattr(action.type, "__wrapped__", action.type) not in (None, int, float):
            action.type = str


def to_toml(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """What is in force, as a configuration file: each option with its help; those that are not set are commented out.

    parser: after `as_written`, when args were parsed.
    """
    blocks = []
    for name, action in _options(parser).items():
        words = textwrap.wrap(parser._get_formatter()._expand_help(action), _WIDTH, break_on_hyphens=False)
        value = getattr(args, action.dest)
        if action.nargs == 0:
            line = f"{name} = {json.dumps(value)}"
        elif not value or str(value) == "":
            line = f"# {name} = {_example(action)}"
        else:
            line = f"{name} = {_toml(value)}"
        blocks.append("\n".join([*(f"# {word}" for word in words), line]))
    return "\n\n".join(blocks) + "\n"


def _example(action: argparse.Action) -> str:
    text = _toml(action.metavar if isinstance(action.metavar, str) else "")
    return f"[{text}]" if action.nargs is not None else text


def _toml(value: Any) -> str:
    """JSON's texts, numbers and lists of them are TOML's."""
    if isinstance(value, list | tuple):
        return json.dumps([each if isinstance(each, int | float) else str(each) for each in value], ensure_ascii=False)
    return json.dumps(value if isinstance(value, int | float) else str(value), ensure_ascii=False)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8
        raise UsageError(f"cannot read the configuration {path}: {error}") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # only where there is a file: it takes long to import
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"cannot read the configuration {path}: {error}") from error


def _line_of(key: str, text: str) -> int:
    """Where a key, or the table of that name, stands first; 0: not found, as it is written in another way."""
    name = re.escape(key)
    found = re.search(rf"""^[ \t]*\[*[ \t]*["']?{name}["']?[ \t]*[\].=]""", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _misplaced(table: dict[str, Any], options: dict[str, argparse.Action]) -> str:
    known = [key for key in table if key in options]
    return (
        f": {known[0]!r} and all other keys stand above any table" if known else "; the keys are options, in no table"
    )


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    def named() -> Iterator[tuple[str, argparse.Action]]:
        for action in parser._actions:  # argparse offers no public way to list its options
            for name in action.option_strings:
                if name.startswith("--"):
                    yield name[2:], action

    return {name: action for name, action in named() if name not in _NOT_IN_A_FILE}


def _nearest(key: str, options: dict[str, argparse.Action], owner: Callable[[str], str] | None) -> str:
    if owner and (command := owner(key)):
        return f"; it is an option of `netmon {command}`"
    close = difflib.get_close_matches(key.replace("_", "-"), options, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(sorted(options))}"


def _converted(action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError("write true or false")
        return value
    if action.nargs is None:
        return _single(action, value)
    if not isinstance(value, list):
        raise UsageError("write a list, even of one")
    return [_single(action, item) for item in value]


def _single(action: argparse.Action, value: Any) -> Any:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise UsageError("write one text or number")
    converted = action.type(str(value)) if callable(action.type) else str(value)
    if action.choices is not None and converted not in action.choices:
        raise UsageError(f"choose from {', '.join(map(str, action.choices))}")
    return converted
