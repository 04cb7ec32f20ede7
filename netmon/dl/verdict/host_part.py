# SPDX-License-Identifier: Apache-2.0
"""The host's part: for how long ranks were kept from running while the iteration went on.

A rank that is stopped neither runs nor waits for a CPU. One that waits for a CPU is held against itself in usual
iterations, in which it waits, too.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.usual import spread
from netmon.records import Table

WAITED = np.dtype([(name, "<i8") for name in ("rank", "start_ns", "end_ns", "waited_ns", "stopped_ns")])
"""How long the thread of a rank that waited most for a CPU did, or was throttled, in a time (UTC), and for how long the
rank was stopped, by a signal or a debugger."""

_FEWEST = 3  # usual iterations of a rank that were watched, else nothing is usual
_CLEAR = 3.0  # standard deviations of them
_MOSTLY = 0.5  # of what is to be explained
_ALIKE = 0.5  # of the longest stop, or wait for a CPU
_SHORTEST_NS = 40_000_000  # of a stop: half of a step of the agent's

_Span = tuple[float, float]


def within(rows: Table, name: str, spans: Sequence[_Span]) -> npt.NDArray[np.float64]:
    """(spans,): what a column sums up to in each time; rows count by the part of them that lies in it."""
    begin, end = (np.array([span[k] for span in spans], np.float64)[:, None] for k in (0, 1))
    length = np.maximum(rows["end_ns"] - rows["start_ns"], 1)
    overlap = np.minimum(rows["end_ns"], end) - np.maximum(rows["start_ns"], begin)
    found: npt.NDArray[np.float64] = (np.clip(overlap, 0, None) / length * rows[name]).sum(axis=1)
    return found


def waited_more(rows: Table, span: _Span, usual: Sequence[_Span], late: Collection[int] = ()) -> dict[int, float]:
    """By rank, ns that it waited longer in a time than it does in usual iterations; rows of WAITED; only what is clear.

    Times are UTC; usual: those of the usual iterations, of which some may not have been watched. late: ranks that are
    known to have been late; of them it is clear sooner: over a longer time, waits that come and go are nearer to their
    mean.
    """
    found: dict[int, float] = {}
    for rank in np.unique(rows["rank"]).tolist():
        own = rows[rows["rank"] == rank]
        begin, end = own["start_ns"].min(), own["end_ns"].max()
        watched = [one for one in usual if begin <= one[0] and one[1] <= end]
        if len(watched) < _FEWEST:
            continue
        longer = (span[1] - span[0]) / np.array([one[1] - one[0] for one in watched])
        waits = within(own, "waited_ns", watched) * longer
        more = float(within(own, "waited_ns", [span])[0] - np.median(waits))
        apart = spread(waits) / (max(1.0, float(np.median(longer))) ** 0.5 if rank in late else 1.0)
        if more > _CLEAR * apart:
            found[rank] = more
    return {rank: ns for rank, ns in found.items() if ns > 0}


class Stopped(NamedTuple):
    """Who was stopped in a time."""

    ranks: Mapping[int, float]  # ns, of those that were for about as long as the longest
    unseen: frozenset[int]  # others that may have been, in times of which their hosts told nothing
    watched: int  # how many ranks are, in all


def stopped_in(rows: Table, span: _Span) -> Stopped:
    """Who was stopped in a time (UTC)."""
    found, unseen = {}, {}
    ranks = np.unique(rows["rank"]).tolist()
    for rank in ranks:
        own = rows[rows["rank"] == rank]
        found[rank] = float(within(own, "stopped_ns", [span])[0])
        told = np.clip(np.minimum(own["end_ns"], span[1]) - np.maximum(own["start_ns"], span[0]), 0, None).sum()
        unseen[rank] = span[1] - span[0] - float(told)
    enough = max(_ALIKE * max(found.values(), default=0.0), _SHORTEST_NS)
    alike = {rank: ns for rank, ns in found.items() if ns >= enough}
    maybe = frozenset(rank for rank in ranks if rank not in alike and found[rank] + unseen[rank] >= enough)
    return Stopped(alike, maybe, len(ranks))


def alike(ns_of: Mapping[int, float]) -> set[int]:
    """The ranks whose time is about as long as the longest; only what is more than nothing."""
    enough = _ALIKE * max(ns_of.values(), default=0.0)
    return {rank for rank, ns in ns_of.items() if ns >= enough and ns > 0}


def explains(more_ns: Mapping[int, float], ns: float) -> int:
    """The rank whose wait for a CPU explains most of `ns`; −1: none does."""
    rank = max(more_ns, key=lambda one: more_ns[one], default=-1)
    return rank if rank >= 0 and ns > 0 and more_ns[rank] >= _MOSTLY * ns else -1


def nothing_waited() -> npt.NDArray[np.void]:
    """Where nobody tells."""
    return np.empty(0, WAITED)
