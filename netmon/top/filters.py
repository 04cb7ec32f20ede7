# SPDX-License-Identifier: Apache-2.0
"""Filters as people type them: `host:h3 class:cross proc:iperf3 port:5201 -job:resnet rate:>100mbit`."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from netmon.errors import UsageError
from netmon.records import CLASS_NAMES
from netmon.units import parse_duration, parse_rate, parse_size

Values = Mapping[str, Sequence[str | float]]
"""What a row says of itself: field → its values, of which one has to match."""

TEXTS = {
    "host": "the host's name",
    "if": "the interface's name",
    "class": "",
    "proc": "the process's name",
    "container": "the container, systemd unit or Slurm job",
    "user": "the user whose process it is",
    "job": "the training job, by either of its names",
    "addr": "either address of the flow",
    "peer": "the host or address at the other end",
    "prefix": "the /24 (IPv6: /64) of the address at the other end",
    "cause": "why an iteration took long, as `cross` or `straggler`",
    "culprit": "whose bytes delayed it",
}
_CHOICES = {"class": CLASS_NAMES, "dir": ("rx", "tx"), "proto": ("tcp", "udp", "icmp", "icmpv6", "sctp", "other")}
NUMBERS = ("port", "pid", "rank", "iteration")
_QUANTITIES: dict[str, tuple[Callable[[str], int], str]] = {
    "rate": (parse_rate, "100mbit"),
    "bytes": (parse_size, "1GB"),
    "duration": (parse_duration, "300ms"),
    "rtt": (parse_duration, "1ms"),
}
FIELDS = (*TEXTS, "dir", "proto", *NUMBERS, *_QUANTITIES)
"""Every field, as it is typed."""

_OTHER_NAMES = {"process": "proc", "interface": "if", "direction": "dir", "protocol": "proto", "address": "addr"}
_TERM = re.compile(r'(?P<not>[-!]?)(?:(?P<field>[A-Za-z_]+):)?(?P<value>"[^"]*"?|\S*)')
_COMPARED = re.compile(r"(>=|<=|>|<)(.*)")
_MOST = 1_000  # characters


class FilterError(UsageError):
    """A filter that does not parse: where, and what would be possible there."""

    def __init__(self, index: int, problem: str, possible: str) -> None:
        """index: of the first character that cannot be, counted from 0."""
        super().__init__(f"filter, character {index + 1}: {problem}; possible: {possible}")
        self.place, self.problem, self.possible = index, problem, possible


@dataclass(frozen=True)
class Term:
    """One condition; without a field, any value of the row may match."""

    field: str
    negated: bool
    accepts: Callable[[str | float], bool]

    def holds(self, values: Values) -> bool:
        """A row that has no such field is not concerned."""
        if not self.field:
            found = any(self.accepts(value) for each in values.values() for value in each)
        elif self.field not in values:
            return True
        else:
            found = any(map(self.accepts, values[self.field]))
        return found != self.negated


@dataclass(frozen=True)
class Filter:
    """All of its terms have to hold."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def holds(self, values: Values) -> bool:
        return all(term.holds(values) for term in self.terms)


def parse(text: str) -> Filter:
    """Terms with blanks between them; texts are regular expressions, found anywhere. Raises FilterError."""
    if len(text) > _MOST:
        raise FilterError(_MOST, "too long", f"{_MOST} characters")
    terms, index = [], 0
    while index < len(text):
        if text[index].isspace():
            index += 1
            continue
        match = _TERM.match(text, index)
        assert match is not None
        terms.append(_term(match))
        index = max(match.end(), index + 1)
    return Filter(text.strip(), tuple(terms))


def hint(text: str) -> str:
    """What may follow at the end of an unfinished filter; empty where it is not known better than by its error."""
    word = re.split(r"\s", text)[-1].lstrip("-!")
    field, colon, value = word.partition(":")
    name = _OTHER_NAMES.get(field, field)
    if not colon:
        begin = [known for known in FIELDS if known.startswith(field)]
        return f"fields: {' '.join(f'{known}:' for known in begin)}" if begin else "any text of the row"
    return f"{name}: {_possible(name)}" if name in FIELDS and not value else ""


def exactly(field: str, value: str | float) -> str:
    if field in TEXTS and field not in _CHOICES:
        text = f"^{re.escape(str(value))}$"
        return f"{field}:{text}" if not re.search(r"\s", text) and text else f'{field}:"{text}"'
    return f"{field}:{value:g}" if isinstance(value, float) else f"{field}:{value}"


def _term(match: re.Match[str]) -> Term:
    field_name, value, index = match["field"], match["value"], match.start("value")
    negated = bool(match["not"])
    if field_name is None:
        if not value:
            raise FilterError(index, f"{match['not']} of what?", "a field or a regular expression")
        return Term("", negated, _any(value, index))
    field = _OTHER_NAMES.get(field_name.lower(), field_name.lower())
    if field not in FIELDS:
        near = get_close_matches(field, FIELDS, 3, 0.5) or FIELDS
        raise FilterError(match.start("field"), f"no field {field_name!r}", ", ".join(near))
    if not value:
        raise FilterError(index, f"{field}: what?", _possible(field))
    return Term(field, negated, _accepts(field, value, index))


def _accepts(field: str, value: str, index: int) -> Callable[[str | float], bool]:
    if field in NUMBERS:
        return _numbers(field, value, index)
    if field in _QUANTITIES:
        return _quantity(field, value, index)
    found = _text(value, index)
    if field in _CHOICES and not any(map(found, _CHOICES[field])):
        raise FilterError(index, f"no {field} is like {value!r}", ", ".join(_CHOICES[field]))
    return found


def _text(value: str, index: int) -> Callable[[str | float], bool]:
    quoted = value.startswith('"')
    pattern = value.strip('"')
    if quoted and (len(value) < 2 or not value.endswith('"')):
        raise FilterError(index + len(value), "the quotation does not end", '"')
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        at = index + quoted + (error.pos or 0)
        raise FilterError(at, error.msg, "a regular expression, such as h3, ^gpu-1$ or iperf.*") from None
    return lambda text: compiled.search(str(text)) is not None


def _any(value: str, index: int) -> Callable[[str | float], bool]:
    found = _text(value, index)
    return lambda text: isinstance(text, str) and found(text)


def _numbers(field: str, value: str, index: int) -> Callable[[str | float], bool]:
    """`80,443`, `5000-5300`, `>1024`."""
    tests = []
    for part in value.split(","):
        compared, (low, dash, high) = _COMPARED.fullmatch(part), part.partition("-")
        number = compared[2] if compared else low
        if not number.isdecimal() or (dash and not compared and not high.isdecimal()):
            raise FilterError(index, f"{part!r} is no number", _possible(field))
        if compared:
            tests.append(_comparison(compared[1], int(number)))
        else:
            tests.append(_between(int(low), int(high) if dash else int(low)))
        index += len(part) + 1
    return lambda one: isinstance(one, int | float) and any(test(one) for test in tests)


def _quantity(field: str, value: str, index: int) -> Callable[[str | float], bool]:
    compared = _COMPARED.fullmatch(value)
    if not compared:
        raise FilterError(index, f"{field} is compared", _possible(field))
    read, _ = _QUANTITIES[field]
    try:
        test = _comparison(compared[1], read(compared[2]))
    except UsageError:
        raise FilterError(index + len(compared[1]), f"cannot read {compared[2]!r}", _possible(field)) from None
    return lambda one: isinstance(one, int | float) and test(one)


def _comparison(sign: str, than: int) -> Callable[[float], bool]:
    compare = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}[sign]
    return lambda one: bool(compare(one, than))


def _between(low: int, high: int) -> Callable[[float], bool]:
    return lambda one: low <= one <= high


def _possible(field: str) -> str:
    if field in _CHOICES:
        return ", ".join(_CHOICES[field])
    if field in NUMBERS:
        return "a number, a list (1,2), a range (5000-5300), or a comparison (>1024)"
    if field in _QUANTITIES:
        return f"a comparison, such as {field}:>{_QUANTITIES[field][1]}"
    return f"a regular expression for {TEXTS[field]}"
