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
import functools
from collections.abc import Callable
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
    @functools.wraps(parse)  # argparse and the configuration file tell numbers from texts by it
    def checked(text: str) -> Any:
        value = parse(text)
        if above and not value > parse(above):
            raise UsageError(f"{name} has to be more than {above}, not {text}")
        if within and not parse(within[0]) <= value <= parse(within[1]):
            raise UsageError(f"{name} has to be from {within[0]} to {within[1]}, not {text}")
        return value

    return checked
