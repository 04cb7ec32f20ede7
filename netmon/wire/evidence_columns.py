# SPDX-License-Identifier: Apache-2.0
"""What TCP says of connections, and the host's part: tables ↔ protobuf, a message's columns at once."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from netmon import columnar
from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT, UNKNOWN
from netmon.marks import MOST_RANKS
from netmon.records import Table
from netmon.wire import netmon_pb2
from netmon.wire.details import read_name
from netmon.wire.limits import (
    FURTHEST_NS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_HOST_PART,
    MAX_MONO_NS,
    MAX_PACKETS,
    MAX_SPAN_NS,
    MAX_TRANSPORT,
)

_U32 = 2**32 - 1
_FIXED = {
    "flow_id": _U32,
    "reverse_flow_id": _U32,
    "start_ns": MAX_MONO_NS,
    "end_ns": MAX_MONO_NS,
    "application_limited": 1,
    "delivery_bps": MAX_COUNT,
    "job": MAX_HOST_PART,
    "rank": MOST_RANKS - 1,
    "pid": _U32,
    "softnet_dropped": MAX_PACKETS,
    "softnet_squeezed": MAX_PACKETS,
}
_BY_UNIT = {"ns": MAX_SPAN_NS, "bytes": MAX_BYTES, "packets": MAX_PACKETS}
_MOST_ROWS = {TRANSPORT: MAX_TRANSPORT, HOST_PART: MAX_HOST_PART}
_NAMES = {TRANSPORT: "Transport", HOST_PART: "HostPart"}
_STOPPED = (HOST_PART.names or ()).index("stopped_ns")
"""The column of HOST_PART that came later than the others, and travels by itself."""
_JOB = (HOST_PART.names or ()).index("job")
_NEEDED = ("flow_id", "start_ns", "end_ns")

Columns = npt.NDArray[np.uint64]
"""Of one message: (columns, rows), each number plus one."""


def _most(dtype: np.dtype[np.void]) -> Columns:
    """The most that each column may hold, (columns, 1), as it travels."""
    names = dtype.names or ()
    return np.array([[_FIXED.get(name) or _BY_UNIT[name.rpartition("_")[2]]] for name in names], np.uint64) + np.uint64(
        1
    )


_MOST = {dtype: _most(dtype) for dtype in _MOST_ROWS}


def encode_evidence(table: Table, message: netmon_pb2.Transport | netmon_pb2.HostPart) -> None:
    """A table of TRANSPORT or HOST_PART into an empty message."""
    message.rows = len(table)
    # All columns are of one type and one after the other: a row is a row of a matrix.
    columns = np.frombuffer(table.tobytes(), "<i8").reshape(len(table), -1).T + 1
    if isinstance(message, netmon_pb2.HostPart):
        message.stopped = zlib.compress(columns[_STOPPED].tobytes(), 1)
        columns = columns[:_STOPPED]
    message.columns = zlib.compress(columns.tobytes(), 1)


def split_evidence(message: netmon_pb2.Transport | netmon_pb2.HostPart, dtype: np.dtype[np.void]) -> Columns:
    """Inflate a message's columns. Raises WireError with a one-line reason."""
    rows, columns, name = message.rows, len(dtype.names or ()), _NAMES[dtype]
    if rows > _MOST_ROWS[dtype]:
        raise WireError(f"{name}.rows is {rows}, more than {_MOST_ROWS[dtype]}")
    if not isinstance(message, netmon_pb2.HostPart):
        return _inflated(message.columns, f"{name}.columns", (columns, rows))
    found = np.zeros((columns, rows), np.uint64)  # an older agent sends no last column: it is unknown
    found[:_STOPPED] = _inflated(message.columns, f"{name}.columns", (columns - 1, rows))
    if message.stopped:
        found[_STOPPED:] = _inflated(message.stopped, f"{name}.stopped", (1, rows))
    return found


def _inflated(stream: bytes, name: str, shape: tuple[int, int]) -> Columns:
    size = 8 * shape[0] * shape[1]
    try:
        data = zlib.decompressobj().decompress(stream, size + 1) if size else b""
    except zlib.error as error:
        raise WireError(f"{name} cannot be inflated: {error}") from None
    if len(data) != size:
        raise WireError(f"{name} has {len(data)} bytes or more where {shape[1]} rows need {size}")
    return np.frombuffer(data, "<u8").reshape(shape)


def stack_evidence(
    pieces: Sequence[Columns], of: Sequence[int], horizons: Sequence[int], dtype: np.dtype[np.void]
) -> tuple[columnar.Columns, dict[int, str]]:
    """The columns of many messages → one table, dtype with `batch` in front, and why some messages are refused.

    of, horizons: of each piece, the number of its batch, and that batch's horizon.
    """
    if not pieces:
        return no_evidence(dtype), {}
    joined_columns, counts = np.concatenate(pieces, axis=1), [piece.shape[1] for piece in pieces]
    over = joined_columns > _MOST[dtype]
    is_over = bool(over.any())
    if is_over:
        joined_columns = np.where(over, 0, joined_columns)
    batch = np.repeat(np.asarray(of, np.int32), counts)
    table = columnar.Columns(
        {"batch": batch, **dict(zip(dtype.names or (), joined_columns.view(np.int64) - 1, strict=True))}
    )
    latest = np.repeat(np.asarray(horizons, np.int64), counts) + FURTHEST_NS
    begin_ns, end_ns = table["start_ns"], table["end_ns"]
    needed = [table[name] for name in _NEEDED if name in (dtype.names or ())]
    reasons = {
        "a number that is out of its range": over.any(axis=0) if is_over else None,
        "a row that does not say of what": np.minimum.reduce(needed) == UNKNOWN,
        "a time that ends before it begins": end_ns < begin_ns,
        "a time long after the batch's horizon": end_ns > latest,
    }
    faults: dict[int, str] = {}
    for reason, wrong in reasons.items():
        for index in np.unique(batch[wrong]).tolist() if wrong is not None and wrong.any() else ():
            faults.setdefault(index, f"{_NAMES[dtype]}.columns has {reason}")
    return table, faults


def no_evidence(dtype: np.dtype[np.void]) -> columnar.Columns:
    """No row of the dtype, with the number of the batch before it."""
    return columnar.Columns({name: np.zeros(0, np.int64) for name in ("batch", *(dtype.names or ()))})


def read_jobs(message: netmon_pb2.HostPart, columns: Columns) -> tuple[str, ...]:
    """The jobs that a message names; every place in `columns` is one of them. Raises WireError."""
    if len(message.jobs) > MAX_HOST_PART:
        raise WireError(f"HostPart.jobs are {len(message.jobs)}, more than {MAX_HOST_PART}")
    if columns.size and int(columns[_JOB].max()) > len(message.jobs):
        raise WireError("HostPart.columns names a job that HostPart.jobs does not have")
    return tuple([_read_job(job) for job in message.jobs])


@lru_cache(1024)
def _read_job(job: str) -> str:
    return read_name(job, "HostPart.jobs")
