# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses ↔ protobuf messages, field for field by name.

The field types of the dataclass say how each value travels: numbers, texts and IntEnums as they are, dataclasses
as sub-messages, tuples of either as repeated fields. Columns of numbers are the caller's (see `columns`): it names
them in `given` and copies them itself. A keyword of Python loses its trailing underscore on the wire (`class_`).
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from netmon.errors import WireError
from netmon.records import CLASS_NAMES
from netmon.views import CAUSES, STEP, Incident, JobView, LinkView, Selection, Snapshot, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_NUMBER, MAX_TEXT

R = TypeVar("R")
M = TypeVar("M", bound=Message)
Read = Callable[[Any, str], Any]
"""(value on the wire, name of the field for an error) → value of the record."""


class _Field(NamedTuple):
    read: Read
    has_default: bool
    on_wire: str  # its name there
    plain: bool  # a number, a text or an IntEnum


def to_message(record: Any, message: M, given: Collection[str] = ()) -> M:
    """Copy a dataclass into an empty message of the same fields, but for the `given` ones; returns the message.

    Raises WireError where a value does not fit its field.
    """
    for name, field in _fields(type(record)).items():
        if name not in given:
            try:
                if field.plain:
                    setattr(message, field.on_wire, getattr(record, name))
                else:
                    _write(message, field.on_wire, getattr(record, name))
            except (TypeError, ValueError) as error:
                raise WireError(f"cannot send {type(record).__name__}.{name}: {error}") from None
    return message


def from_message(message: Message, record: type[R], **given: object) -> R:
    """The reverse of to_message: a record from the message's fields and the `given` values.

    A sub-message that is missing becomes the record's default. Raises WireError with the field and the reason
    where there is no default, an enum value is unknown, or a text or number is too large.
    """
    values = {
        name: given[name] if name in given else _read(message, name, f"{record.__name__}.{name}", field)
        for name, field in _fields(record).items()
    }
    return record(**{name: value for name, value in values.items() if value is not dataclasses.MISSING})


def check(holds: bool, reason: str) -> None:
    """Raise WireError with the reason unless it holds."""
    if not holds:
        raise WireError(reason)


def _write(message: Message, name: str, value: Any) -> None:
    if dataclasses.is_dataclass(value):
        target = getattr(message, name)
        target.SetInParent()
        to_message(value, target)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        target = getattr(message, name)
        for item in value:
            if dataclasses.is_dataclass(item):
                _add_message(item, target)
            else:
                target.append(item)
    else:
        setattr(message, name, value)


def _add_message(record: Any, target: Any) -> None:
    """Append a record's message to a repeated field: its plain fields at once, which takes half of one by one.

    Raises TypeError, ValueError or WireError where a value does not fit its field.
    """
    plain = _plain_fields(type(record))
    values = dict(zip(plain.on_wire, plain.values(record), strict=True))
    if None in values.values():  # it would be left out
        to_message(record, target.add())
    try:
        message = target.add(**values)
    except (TypeError, ValueError):
        to_message(record, target.add())  # says which field it is
        raise
    for name, on_wire in plain.others:
        try:
            _write(message, on_wire, getattr(record, name))
        except (TypeError, ValueError) as error:
            raise WireError(f"cannot send {type(record).__name__}.{name}: {error}") from None


class _PlainFields(NamedTuple):
    on_wire: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    others: tuple[tuple[str, str], ...]  # fields that are not plain, and their names on the wire


_known_plain: dict[type[Any], _PlainFields] = {}


def _plain_fields(record: type[Any]) -> _PlainFields:
    if record not in _known_plain:
        fields = _fields(record)
        names = tuple(name for name, field in fields.items() if field.plain)
        on_wire = tuple(fields[name].on_wire for name in names)
        values = attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
        others = tuple((name, field.on_wire) for name, field in fields.items() if not field.plain)
        _known_plain[record] = _PlainFields(on_wire, values, others)
    return _known_plain[record]


def _read(message: Message, name: str, label: str, field: _Field) -> Any:
    on_wire = field.on_wire
    value = getattr(message, on_wire)
    if field.plain:
        return field.read(value, label)
    if isinstance(value, Message) and not message.HasField(on_wire):
        check(field.has_default, f"{label} is missing")
        return dataclasses.MISSING
    return field.read(value, label)


_known: dict[type[Any], dict[str, _Field]] = {}


def _fields(record: type[Any]) -> dict[str, _Field]:
    """The fields of a dataclass in its order; looked up in its annotations once."""
    if record not in _known:
        hints = get_type_hints(record)
        _known[record] = {
            field.name: _Field(
                _reader(hints[field.name]), _has_default(field), field.name.rstrip("_"), _is_plain(hints[field.name])
            )
            for field in dataclasses.fields(record)
        }
    return _known[record]


def _is_plain(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, int | float | str)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _reader(hint: Any) -> Read:
    """How a value of this type is read; decided once for each field of each dataclass."""
    if dataclasses.is_dataclass(hint):
        return lambda value, label: from_message(value, hint)  # type: ignore[arg-type]
    if get_origin(hint) in (tuple, Sequence):
        item = _reader(get_args(hint)[0])
        return lambda value, label: tuple(item(one, label) for one in value)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return lambda value, label: _member(hint, value, label)
    if hint is str:
        return _text
    return _number if hint is int else _as_it_is


def _member(enum: type[IntEnum], value: int, label: str) -> IntEnum:
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in enum)
        raise WireError(f"{label} is {value}, not one of {known}") from None


def _as_it_is(value: Any, _: str) -> Any:
    return value


def _text(value: str, label: str) -> str:
    check(len(value) <= MAX_TEXT, f"{label} has {len(value)} characters, more than {MAX_TEXT}")
    return value


def _number(value: int, label: str) -> int:
    check(value <= MAX_NUMBER, f"{label} is {value}, more than an int64 holds")
    return value


def request_without_flows(selection: Selection) -> Selection:
    """The same selection without flows, so that the collector does not collect them."""
    return replace(selection, flows=0)


def without_names(snapshot: Snapshot) -> Snapshot:
    """The same without what is not said above."""
    return replace(snapshot, flows=(), warnings=(), jobs=tuple(map(_job, snapshot.jobs)))


def _job(job: JobView) -> JobView:
    return replace(
        job,
        verdicts=tuple(map(verdict_without_names, job.verdicts)),
        incidents=tuple(map(incident_without_names, job.incidents)),
    )


def verdict_without_names(verdict: Verdict) -> Verdict:
    first = verdict.culprit if CAUSES[verdict.cause].names_job else ""
    second = verdict.second_culprit if CAUSES[verdict.second_cause].names_job else ""
    ranks = tuple(replace(one, stalled_by=first) if one.stalled_by == verdict.culprit else one for one in verdict.ranks)
    return replace(verdict, culprit=first, second_culprit=second, culprit_user="", sender="", receiver="", ranks=ranks)


def incident_without_names(incident: Incident) -> Incident:
    """Its ends may be addresses."""
    culprit = incident.culprit if CAUSES[incident.cause].names_job else ""
    return replace(incident, culprit=culprit, culprit_user="", sender="", receiver="")


# --- What a viewer receives: Snapshot ↔ protobuf. Decoding trusts nothing and raises WireError with the reason.

# --- Columns of numbers ↔ packed little-endian bytes; one copy each way, never a loop over rows.


def pack(column: npt.NDArray[Any], dtype: str) -> bytes:
    """The column's numbers as dtype (`<u4`, `<f8`, …), row after row."""
    return np.ascontiguousarray(column, dtype).tobytes()


def unpack(data: bytes, dtype: str, rows: int, name: str) -> npt.NDArray[Any]:
    """A read-only view (rows,) of packed numbers. Raises WireError naming the column where the length is wrong."""
    expected = rows * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise WireError(f"{name} has {len(data)} bytes where {rows} rows need {expected}")
    return np.frombuffer(data, dtype)


# --- snapshots


_CLASSES = len(CLASS_NAMES)
_SERIES = ("links", "jobs")
_OF_STEP = len(STEP.names or ())


def encode_snapshot(snapshot: Snapshot) -> netmon_pb2.Snapshot:
    """Snapshot → message. Raises WireError where a value does not fit its field."""
    message = to_message(snapshot, netmon_pb2.Snapshot(), given=(*_SERIES, "warnings"))
    # Names of others stand in them: one that is too long must not cost a viewer the whole snapshot.
    message.warnings.extend(line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…" for line in snapshot.warnings)
    for link in snapshot.links:
        _encode_link(link, message.links)
    for job in snapshot.jobs:
        _encode_job(job, message.jobs.add())
    return message


def decode_snapshot(message: netmon_pb2.Snapshot) -> Snapshot:
    """Message → Snapshot, checked. Raises WireError with a one-line reason."""
    links = tuple(_decode_link(link) for link in message.links)
    jobs = tuple(_decode_job(job) for job in message.jobs)
    return from_message(message, Snapshot, links=links, jobs=jobs)


def encode_selection(selection: Selection, interval_ms: int) -> netmon_pb2.WatchRequest:
    """What a viewer asks for, and how often. Raises WireError where a value does not fit its field."""
    return to_message(selection, netmon_pb2.WatchRequest(interval_ms=interval_ms))


def decode_selection(message: netmon_pb2.WatchRequest) -> Selection:
    """The reverse, but for the interval. Raises WireError with a one-line reason."""
    return from_message(message, Selection)


def _encode_link(link: LinkView, links: Any) -> None:
    columns = len(link.wire_bps)
    check(
        link.wire_bps.shape == (columns, _CLASSES),
        f"cannot send LinkView.wire_bps: shape {link.wire_bps.shape}, not (time, {_CLASSES})",
    )
    given = {"columns": columns, "wire_bps": pack(link.wire_bps, "<f8")}
    try:  # field by field takes five times as long, and there may be thousands
        links.add(**vars(link) | given)
    except (TypeError, ValueError):
        to_message(link, links.add(), given=("wire_bps",))  # says which field it is
        raise


def _decode_link(message: netmon_pb2.LinkView) -> LinkView:
    rates = unpack(message.wire_bps, "<f8", message.columns * _CLASSES, "LinkView.wire_bps")
    return from_message(message, LinkView, wire_bps=rates.reshape(-1, _CLASSES))


def _encode_job(job: JobView, message: netmon_pb2.JobView) -> None:
    to_message(job, message, given=("durations_ns", "steps"))
    message.durations_ns = pack(job.durations_ns, "<i8")
    message.steps = pack(np.ascontiguousarray(job.steps).view("<i8"), "<i8")


def _decode_job(message: netmon_pb2.JobView) -> JobView:
    data = message.durations_ns
    durations = unpack(data, "<i8", len(data) // np.dtype("<i8").itemsize, "JobView.durations_ns")
    steps = unpack(message.steps, "<i8", len(message.steps) // STEP.itemsize * _OF_STEP, "JobView.steps")
    return from_message(message, JobView, durations_ns=durations, steps=steps.view(STEP))
