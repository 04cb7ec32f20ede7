# SPDX-License-Identifier: Apache-2.0
"""The rows of a second, in a few variants that hosts go through at different times.

What a host sends to the next rank in a variant, that one receives at the same time.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from netmon.bench.pipeline.load import Load
from netmon.records import COARSE, Table

MS = 1_000_000
SECOND_MS = 1000
STEP_MS = 250
SENDING_MS = (100, 220)
"""Of each step."""

TX, RX = 0, 1
"""Indices of a job's flows; the others follow."""

HEADERS = 66
"""Bytes of a packet that are no payload."""

_FRAME = 1514
_MOST_OWN = 400  # rows a second of a job's flow
_MOST_ROWS, _MOST_VARIANTS, _LEAST_VARIANTS = 1 << 16, 32, 2  # to be kept of a pattern
_SEED, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """What the rows of a host depend on. own: flows of the job; behind: how far the previous rank is."""

    rows: int
    own: int
    behind: int
    phase_ms: int  # of the steps


@cache
def pattern(load: Load, kind: Kind) -> "Pattern":
    """Shared by all hosts of the kind."""
    return Pattern(load, kind)


class Pattern:
    """Rows of COARSE whose flow_id is a place: of the job's flows, or behind them a slot that flows take in turn."""

    def __init__(self, load: Load, kind: Kind) -> None:
        """Make all variants."""
        self.own, self.others = kind.own, load.flows - kind.own
        self._kind, self._batches, self._span_ns = kind, load.batches, load.span_ms * MS
        self._own_rows = min(load.rows // 4, _MOST_OWN) if kind.own else 0
        self.rest = kind.rows - 2 * self._own_rows
        """Rows a second of the others."""
        self.variants = max(_LEAST_VARIANTS, min(_MOST_VARIANTS, _MOST_ROWS // kind.rows))
        self._parts = [self._cut(self._second(variant)) for variant in range(self.variants)]

    def variant(self, host: int, second: int) -> int:
        """Which one a host sends in a second."""
        return (host + 3 * second) % self.variants

    def part(self, variant: int, part: int) -> Table:
        """A batch's rows by time; times since the batch began."""
        return self._parts[variant][part]

    def _second(self, variant: int) -> Table:
        parts = []
        if self._own_rows:
            sending = (np.arange(SECOND_MS) - self._kind.phase_ms) % STEP_MS
            when = np.flatnonzero((sending >= SENDING_MS[0]) & (sending < SENDING_MS[1]))
            when = when[np.linspace(0, len(when) - 1, self._own_rows).astype(np.int64)]
            received = (variant - self._kind.behind) % self.variants
            parts = [_table(index, when, np.full(len(when), seed)) for index, seed in ((TX, variant), (RX, received))]
        number = np.arange(self.rest)
        each = -(-len(number) // self.others)
        slot = number % self.others
        apart = max(7, SECOND_MS // max(1, min(len(number), self.others)))
        when = (number // self.others * (SECOND_MS // each) + slot * apart) % SECOND_MS
        parts.append(_table(self.own + slot, when, self.variants + number * self.variants + variant))
        table = np.concatenate(parts)
        return table[np.argsort(table["bucket_start_ns"], kind="stable")]

    def _cut(self, second: Table) -> list[Table]:
        begins = np.arange(self._batches + 1) * self._span_ns
        edges = np.searchsorted(second["bucket_start_ns"].astype(np.int64), begins)
        parts = [second[a:b].copy() for a, b in pairwise(edges)]
        for begin, part in zip(begins.tolist(), parts, strict=False):
            part["bucket_start_ns"] -= np.uint64(begin)
        return parts


def _table(index: _Ints | int, when_ms: _Ints, seed: _Ints) -> Table:
    """Rows at these times of a second; what they carry looks random, and follows from time and seed."""
    table = np.zeros(len(when_ms), COARSE)
    table["flow_id"], table["bucket_start_ns"] = index, when_ms * MS
    bits = (when_ms.astype(np.uint64) + seed.astype(np.uint64) * np.uint64(SECOND_MS) + np.uint64(1)) * _SEED
    bits = (bits ^ bits >> np.uint64(27)) * _MIX
    few, more = (bits >> np.uint64(40)).astype(np.int64), (bits >> np.uint64(20) & np.uint64(0xFFFFF)).astype(np.int64)
    packets = 1 + few % 200
    wire = packets * _FRAME - more % 1400
    table["packets"], table["wire_bytes"], table["payload_bytes"] = packets, wire, wire - packets * HEADERS
    table["busy_buckets"] = np.minimum(packets, 1 + few // 200 % 8)
    table["peak_bytes"] = -(-wire // table["busy_buckets"])
    return table


def coarser(rows: Table, width_ms: int) -> Table:
    """Rows of COARSE → rows of the width, one per flow and bucket, by flow and time."""
    if not len(rows):
        return rows
    width = np.uint64(width_ms * MS)
    bucket = rows["bucket_start_ns"] // width
    key = rows["flow_id"].astype(np.uint64) << np.uint64(20) | bucket
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    merged = rows[order[first]]
    merged["bucket_start_ns"] = bucket[order[first]] * width
    for name in ("packets", "wire_bytes", "payload_bytes", "busy_buckets"):
        merged[name] = np.add.reduceat(rows[name][order], first)
    merged["peak_bytes"] = np.maximum.reduceat(rows["peak_bytes"][order], first)
    return merged
