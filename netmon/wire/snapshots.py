# SPDX-License-Identifier: Apache-2.0
"""Snapshots as messages, and what of one a viewer sees who may see jobs, classes and rates only."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import WireError
from netmon.records import CLASS_NAMES
from netmon.views import CAUSES, STEP, Incident, JobView, LinkView, Selection, Snapshot, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_TEXT
from netmon.wire.mapping import check, from_message, to_message


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
    ranks = tuple(replace(one, held_by=first) if one.held_by == verdict.culprit else one for one in verdict.ranks)
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
