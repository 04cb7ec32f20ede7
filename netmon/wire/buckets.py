# SPDX-License-Identifier: Apache-2.0
"""Bucket rows ↔ protobuf, in few bytes (see Buckets in proto/netmon.proto); no loop over rows.

A flow's packets are mostly of one size, so wire bytes, headers and peak are what that size foretells, and seldom more.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmon.errors import WireError
from netmon.native import compiled
from netmon.records import BUCKET, COARSE, COUNTS, Table
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_MONO_NS, MAX_ROWS
from netmon.wire.mapping import check

_DEFLATED_BELOW = 1 << 18  # bytes; with more of them deflating costs more than they do
_FORETOLD = ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")
PLAIN = tuple(name for name in COUNTS if name not in _FORETOLD)
"""Counts that travel as they are, in columns behind all others."""

RUNS, COLUMNS, COLUMNS_COARSE = 4, 4 + len(PLAIN), 7 + len(PLAIN)
"""Columns of runs and of rows, the latter without and with those of coarse ones."""

_MOST_PLAIN = len(PLAIN)
_WIDTHS = (0, 1, 2, 4, 8)
_Numbers = npt.NDArray[np.uint64]
_Column = npt.NDArray[np.uint32] | _Numbers
_U32, _ONE = np.uint64(0xFFFFFFFF), np.uint32(1)


def encode_buckets(
    table: Table, bucket_ns: int, message: netmon_pb2.Buckets, deflate: bool = True
) -> netmon_pb2.Buckets:
    """Rows of BUCKET or COARSE, bucket_ns wide, into an empty message; returns it. Raises WireError.

    The rows of a flow keep their order. deflate: where it pays.
    """
    coarse = table.dtype == COARSE
    if not (coarse or table.dtype == BUCKET):
        raise WireError(f"cannot send Batch.buckets: dtype {table.dtype}, not BUCKET or COARSE")
    message.rows, message.bucket_ns, message.coarse = len(table), bucket_ns, coarse
    if not len(table):
        return message
    if compiled and not PLAIN:
        packed = compiled.pack_rows(np.ascontiguousarray(table), coarse, bucket_ns)
    else:
        packed = _pack_rows(table, coarse, bucket_ns)
    message.flows, message.base_ns, message.unit_ns, message.runs, message.columns = packed
    message.plain = len(PLAIN)
    if deflate and len(message.columns) <= _DEFLATED_BELOW:
        message.runs, message.columns = zlib.compress(message.runs, 1), zlib.compress(message.columns, 1)
        message.deflated = True
    return message


def _pack_rows(table: Table, coarse: bool, bucket_ns: int) -> tuple[int, int, int, bytes, bytes]:
    """flows, base_ns, unit_ns, runs and columns, without what is compiled, and with counts that it does not know."""
    order = _by_flow(table["flow_id"])
    flow = table["flow_id"][order]
    first = _run_starts(flow)
    rows = np.diff(np.append(first, len(table)))
    packets, wire, payload = (table[name][order] for name in ("packets", "wire_bytes", "payload_bytes"))
    headers, each = wire - payload, np.maximum(packets, 1)
    largest = [np.maximum.reduceat((column + (each - _ONE)) // each, first) for column in (wire, headers)]
    w, h = (np.repeat(column, rows) for column in largest)
    base, unit, starts = _in_units(table["bucket_start_ns"][order], bucket_ns)
    columns = [starts, packets, packets * w - wire, packets * h - headers]
    if coarse:
        peak, of = table["peak_bytes"][order], np.maximum(w, 1)
        pieces = (peak + (of - _ONE)) // of
        columns += [pieces, pieces * w - peak, table["busy_buckets"][order]]
    columns += [table[name][order] for name in PLAIN]
    return len(first), base, unit, _pack([flow[first], rows.astype(np.uint32), *largest]), _pack(columns)


def decode_buckets(message: netmon_pb2.Buckets) -> Table:
    """Message → rows of BUCKET or COARSE, checked. Raises WireError with a one-line reason."""
    count = message.rows
    check(count <= MAX_ROWS, f"Buckets.rows is {count}, more than {MAX_ROWS}")
    table = np.zeros(count, COARSE if message.coarse else BUCKET)
    if not count:
        return table
    check(0 < message.flows <= count, f"Buckets.flows is {message.flows} of {count} rows")
    runs, columns = plain_columns(message)
    wanted = COLUMNS_COARSE if message.coarse else COLUMNS
    start, packets, wire, headers, *rest = _unpack(columns, wanted, count, "columns")
    flow, rows, w, h = _unpack(runs, RUNS, message.flows, "runs")
    check(bool((rows <= count).all()) and int(rows.sum()) == count, f"Buckets.runs do not have {count} rows")
    rows = rows.astype(np.int64)
    latest = int(start.max()) * message.unit_ns + message.base_ns
    check(latest <= MAX_MONO_NS, f"Buckets.start has {latest}, more than {MAX_MONO_NS}")
    table["flow_id"] = np.repeat(flow, rows)
    table["bucket_start_ns"] = np.uint64(message.base_ns) + start * np.uint64(message.unit_ns)
    w, h = np.repeat(w, rows), np.repeat(h, rows)
    table["packets"] = packets
    wire = packets * w - wire & _U32
    table["wire_bytes"] = wire
    table["payload_bytes"] = wire - (packets * h - headers) & _U32
    if message.coarse:
        table["peak_bytes"] = rest[0] * w - rest[1] & _U32
        table["busy_buckets"] = rest[2]
    for name, column in zip(PLAIN, rest[len(rest) - len(PLAIN) :], strict=True):
        table[name] = column
    return table


def plain_columns(message: netmon_pb2.Buckets) -> tuple[bytes, bytes]:
    """The runs and the columns of a message that has rows, inflated. Raises WireError with a one-line reason.

    Counts that its sender did not know yet are columns of zeros.
    """
    runs, columns, lacks = message.runs, message.columns, _MOST_PLAIN - message.plain
    if lacks < 0:
        raise WireError(f"Buckets.plain is {message.plain}, more than {_MOST_PLAIN}")
    if message.deflated:
        wanted = COLUMNS_COARSE if message.coarse else COLUMNS
        runs = _inflate(runs, RUNS * (1 + 8 * message.flows), "runs")
        columns = _inflate(columns, wanted * (1 + 8 * message.rows), "columns")
    return runs, columns + bytes(lacks) if lacks else columns


def column_widths(data: bytes, wanted: int, count: int, name: str) -> Sequence[int]:
    """Bytes of a number in each column: a byte that says so, then `count` numbers. Raises WireError."""
    found: bytes | None = compiled.column_widths(data, wanted, count) if compiled else None
    return _column_widths(data, wanted, count, name) if found is None else found


def _column_widths(data: bytes, wanted: int, count: int, name: str) -> Sequence[int]:
    """The same without what is compiled, and what is wrong."""
    widths, offset = [], 0
    for _ in range(wanted):
        width = data[offset] if offset < len(data) else -1
        offset += 1 + width * count
        if width not in _WIDTHS or offset > len(data):
            raise WireError(f"Buckets.{name} is cut short or has a column of {width} bytes")
        widths.append(width)
    if offset != len(data):
        raise WireError(f"Buckets.{name} has {len(data) - offset} bytes too many")
    return widths


def _in_units(start: _Numbers, bucket_ns: int) -> tuple[int, int, _Column]:
    """base, unit, and what start is in units above base; the unit is the bucket where all start on its grid."""
    base = start.min()
    since = start - base
    near = since.max() <= _U32  # dividing 32 bits takes a fraction of the time
    since = since.astype(np.uint32) if near else since
    if 0 < bucket_ns <= int(_U32):
        units = since // since.dtype.type(bucket_ns)
        if (units * since.dtype.type(bucket_ns) == since).all():
            return int(base), bucket_ns, units
    return int(base), 1, since


def _by_flow(flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """An order in which rows of one flow follow each other, as they were among themselves."""
    least = flow_id.min()
    near = flow_id.max() - least <= np.uint32(0xFFFF)  # sorting 16 bits takes no comparisons
    return np.argsort((flow_id - least).astype(np.uint16) if near else flow_id, kind="stable")


def _run_starts(flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.concatenate([[True], flow_id[1:] != flow_id[:-1]]))


def _pack(columns: Sequence[_Column]) -> bytes:
    return b"".join(_plane(column) for column in columns)


def _plane(column: _Column) -> bytes:
    most = int(column.max())
    width = next(width for width in _WIDTHS if most < 1 << 8 * width)
    size = column.dtype.itemsize
    planes = column.astype(f"<u{size}", copy=False).view(np.uint8).reshape(-1, size)[:, :width].T
    return bytes([width]) + planes.tobytes()


def _unpack(data: bytes, wanted: int, count: int, name: str) -> list[_Numbers]:
    columns, offset = [], 0
    for width in column_widths(data, wanted, count, name):
        bytes_ = np.zeros((count, 8), np.uint8)
        bytes_[:, :width] = np.frombuffer(data, np.uint8, width * count, offset + 1).reshape(width, count).T
        columns.append(bytes_.view("<u8").reshape(count))
        offset += 1 + width * count
    return columns


def _inflate(data: bytes, most: int, name: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise WireError(f"Buckets.{name} cannot be inflated: {error}") from None
    check(inflater.eof and not inflater.unused_data, f"Buckets.{name} is more or less than one zlib stream")
    return plain
