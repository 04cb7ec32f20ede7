# SPDX-License-Identifier: Apache-2.0
"""Bytes on a grid of time: rows of buckets into bins, and bins of one width into bins of another."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from netmon.records import CLASS_NAMES

DIRECTIONS = ("rx", "tx")
SERIES = len(DIRECTIONS) * len(CLASS_NAMES)
"""Of a host: by direction, then by class in the order of netmon.records.Class."""

ROW_COLUMNS = ["host", "direction", "class", "bucket_start_ns", "bucket_ns", "wire_bytes"]
_LEAST = 1e-3  # bytes: less is what sums leave over

Floats = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.int64]


def in_bins(
    series: _Indices,
    start_ns: npt.NDArray[np.int64],
    length_ns: npt.NDArray[np.int64],
    wire_bytes: npt.NDArray[np.int64],
    of: tuple[int, int, int, int],
) -> Floats:
    """(series, bins) bytes of rows; one that is wider than a bin is spread over those that it touches.

    series: of each row, below 0 to leave it out; of: how many series, begin (ns), width (ns) and number of the bins.
    """
    count, begin_ns, width_ns, bins = of
    first = (start_ns - begin_ns) // width_ns
    last = (start_ns + np.maximum(length_ns, 1) - 1 - begin_ns) // width_ns
    inside = (series >= 0) & (last >= 0) & (first < bins)
    row, first, last = series[inside], first[inside], last[inside]
    share = wire_bytes[inside] / (last - first + 1)
    begins = row * (bins + 1) + np.maximum(first, 0)
    ends = row * (bins + 1) + np.minimum(last, bins - 1) + 1
    size = count * (bins + 1)
    steps = np.bincount(begins, share, size) - np.bincount(ends, share, size)
    values: Floats = np.cumsum(steps.reshape(count, bins + 1), axis=1)[:, :bins]
    values[values < _LEAST] = 0
    return values


def resampled(
    values: npt.NDArray[np.float32], grid: tuple[int, int], begin_ns: int, width_ns: int, bins: int
) -> Floats:
    """(…, cells) bytes on one grid (begin, width in ns) → (…, bins) on another; outside of it there is nothing."""
    first_ns, cell_ns = grid
    cells = values.shape[-1]
    low = max(0, (begin_ns - first_ns) // cell_ns)
    high = min(cells, -(-(begin_ns + width_ns * bins - first_ns) // cell_ns))
    if high <= low:
        return np.zeros((*values.shape[:-1], bins))
    part = values[..., low:high].astype(np.float64)
    until = np.concatenate([np.zeros((*part.shape[:-1], 1)), np.cumsum(part, axis=-1)], axis=-1)
    edge = (begin_ns - first_ns + width_ns * np.arange(bins + 1, dtype=np.int64)) / cell_ns - low
    edge = np.clip(edge, 0, high - low)
    cell = np.minimum(edge.astype(np.int64), high - low - 1)
    return np.diff(until[..., cell] + (edge - cell) * part[..., cell], axis=-1)


class RowReader:
    """Batches of rows with ROW_COLUMNS, as arrays of numbers."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """hosts: those that count, in the order of their series."""
        self._host = {host: number for number, host in enumerate(hosts)}
        self._direction = {name: number for number, name in enumerate(DIRECTIONS)}
        self._class = {name: number for number, name in enumerate(CLASS_NAMES)}

    def read(self, batch: pa.RecordBatch) -> tuple[_Indices, _Indices, _Indices, _Indices]:
        """The series of each row, its start and width (ns) and its bytes."""
        host = numbers(batch.column("host"), self._host)
        direction = numbers(batch.column("direction"), self._direction)
        has_class = "class" in batch.schema.names  # a part of a dataset may have been cut out without it
        class_ = numbers(batch.column("class"), self._class) if has_class else np.zeros(len(host), np.int64)
        series = (host * len(DIRECTIONS) + direction) * len(CLASS_NAMES) + class_
        series[(host < 0) | (direction < 0) | (class_ < 0)] = -1
        start, width, wire = (
            batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
            for name in ("bucket_start_ns", "bucket_ns", "wire_bytes")
        )
        return series, start, width, wire


def row_columns(schema: pa.Schema) -> list[str]:
    """Those of ROW_COLUMNS that a table has."""
    return [name for name in ROW_COLUMNS if name in schema.names]


def numbers(column: pa.Array, known: Mapping[str, int]) -> _Indices:
    """The number of each row's word; -1: it has none."""
    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    lookup = np.array([*(known.get(str(word), -1) for word in words.dictionary.to_pylist()), -1], np.int64)
    found: _Indices = lookup[words.indices.fill_null(len(lookup) - 1).to_numpy(zero_copy_only=False)]
    return found
