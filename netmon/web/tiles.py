# SPDX-License-Identifier: Apache-2.0
"""Tiles of the timeline for a browser, and columns of numbers as it reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import UsageError
from netmon.web.grid import Floats
from netmon.web.source import BLOCK, HOST, Catalogue, Lane, Source
from netmon.web.steps import PHASES, Lanes, density

_ALIGNED = 8
_TYPES = {"<f4": "f32", "<f8": "f64", "|u1": "u8", "<u2": "u16", "<u4": "u32", "<i4": "i32"}


def encode(head: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The message. Raises ValueError for a type that browsers have no array of."""
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    offset, indices = 0, {}
    for name, array in arrays.items():
        if array.dtype.str not in _TYPES:
            raise ValueError(f"column {name} is of {array.dtype.str}, which no typed array holds")
        indices[name] = [_TYPES[array.dtype.str], offset, array.size]
        offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
    text = json.dumps({**head, "columns": indices}, allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % _ALIGNED)
    parts = [len(text).to_bytes(4, "little"), text]
    for array in arrays.values():
        parts += [array.tobytes(), b"\0" * (-array.nbytes % _ALIGNED)]
    return b"".join(parts)


# --- Pieces of the timeline: so many bins of time of so many lanes, at a level of detail, as columns.

BINS = 512
FINEST_NS = 10_000
MOST_LEVEL = 20
"""At level L a bin is FINEST_NS · 2^L wide: 10 µs to 10.5 s."""

ALIGNED_NS = BINS * FINEST_NS << 24
"""Tiles of all levels begin at multiples of it."""

_MOST_INDEX = 1 << 40
_MOST_SLICES = 2_000  # that are reported one by one
_UNSETTLED_NS = 5_000_000_000  # rows may come so late


def origin(catalogue: Catalogue) -> int:
    """The time (UTC ns) that browsers count from."""
    return catalogue.begin_ns // ALIGNED_NS * ALIGNED_NS


def tile(source: Source, catalogue: Catalogue, position: tuple[int, int, int], full: bool) -> tuple[bytes, bool]:
    """The message for (level, index, block), and whether nothing more can come. Blocks. Raises UsageError."""
    level, index, block = position
    lanes = catalogue.lanes[block * BLOCK : (block + 1) * BLOCK]
    if not 0 <= level <= MOST_LEVEL or abs(index) > _MOST_INDEX or block < 0:
        raise UsageError("there is no such part of the timeline")
    width = FINEST_NS << level
    begin = origin(catalogue) + index * BINS * width
    end = begin + BINS * width
    state = source.state()
    hosts = list(dict.fromkeys(lane.host for lane in lanes if lane.kind == HOST))
    outside = end <= catalogue.begin_ns or begin >= state.end_ns + _UNSETTLED_NS
    columns: dict[str, npt.NDArray[Any]] = {}
    head: dict[str, Any] = {"level": level, "index": index, "block": block, "resolution_ns": width}
    pending = False
    if not outside:
        if hosts:
            found = source.rates(hosts, begin, width, BINS, full)
            pending, head["resolution_ns"] = found.pending, max(width, found.resolution_ns)
            columns |= _rates(lanes, hosts, found.wire_bytes * (8e9 / width))
        steps, more = source.steps(begin, end)
        pending |= more
        columns |= _phases(lanes, block * BLOCK, steps, begin, width)
        columns |= _slices(lanes, block * BLOCK, steps, begin, end)
    head["final"] = not pending and (not state.live or end <= state.end_ns - _UNSETTLED_NS)
    return encode(head, columns), bool(head["final"])


def _rates(lanes: Sequence[Lane], hosts: Sequence[str], rates: Floats) -> dict[str, npt.NDArray[Any]]:
    """Only of the series that are not silent."""
    index = {host: number for number, host in enumerate(hosts)}
    of = [(at, index[lane.host]) for at, lane in enumerate(lanes) if lane.kind == HOST]
    spoken = rates.max(axis=2, initial=0.0) > 0
    rows = [(at, number, series) for at, number in of for series in np.flatnonzero(spoken[number]).tolist()]
    picked = np.array(rows, np.int64).reshape(-1, 3)
    return {
        "rate_lane": picked[:, 0].astype(np.uint16),
        "rate_series": picked[:, 2].astype(np.uint8),
        "rate_bps": rates[picked[:, 1], picked[:, 2]].astype(np.float32).ravel(),
    }


def _phases(
    lanes: Sequence[Lane], first: int, steps: Sequence[Lanes], begin_ns: int, width_ns: int
) -> dict[str, npt.NDArray[Any]]:
    rows, shares = [], [np.zeros((0, len(PHASES), BINS), np.uint8)]
    for at, lane in enumerate(lanes):
        if lane.kind == HOST:
            continue
        parts = [density(one, first + at, begin_ns, width_ns, BINS) for one in steps]
        share = np.minimum(np.sum(parts, axis=0, dtype=np.uint16), 255).astype(np.uint8) if parts else None
        if share is not None and share.any():
            rows.append(at)
            shares.append(share[None])
    return {"phase_lane": np.array(rows, np.uint16), "phases": np.concatenate(shares).ravel()}


def _slices(
    lanes: Sequence[Lane], first: int, steps: Sequence[Lanes], begin_ns: int, end_ns: int
) -> dict[str, npt.NDArray[Any]]:
    """Iterations one by one, where there are few; times in ns from the begin of the tile."""
    rows = [
        (at, one, one.of(first + at, begin_ns, end_ns))
        for one in steps
        for at, lane in enumerate(lanes)
        if lane.kind != HOST
    ]
    if sum(part.stop - part.start for _, _, part in rows) > _MOST_SLICES:
        return {}
    rows = [row for row in rows if row[2].stop > row[2].start]
    none = np.empty(0)
    lane = [np.full(part.stop - part.start, at) for at, _, part in rows]
    bounds = [np.column_stack([one.bounds[part], one.end_ns[part]]) - begin_ns for _, one, part in rows]
    return {
        "slice_lane": np.concatenate([none, *lane]).astype(np.uint16),
        "slice_number": np.concatenate([none, *(one.number[part] for _, one, part in rows)]).astype(np.float64),
        "slice_known": np.concatenate([none, *(one.known[part] for _, one, part in rows)]).astype(np.uint8),
        "slice_ns": np.concatenate([np.empty((0, 6)), *bounds]).astype(np.float64).ravel(),
    }
