# SPDX-License-Identifier: Apache-2.0
"""The host's part: for how long ranks were kept from running while the iteration went on.

A stopped rank neither runs nor waits for a CPU. A rank that waits for a CPU is compared with itself in baseline
iterations, in which it waits, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median, spread
from netmon.records import Table

_WHOSE = ("rank", "start_ns", "end_ns")
_COUNTED = {"waited_ns": "run_delay_ns"} | {name: name for name in ("throttled_ns", "stopped_ns", "cpu_ns")}
COLUMNS = (*_WHOSE, *_COUNTED.values())
"""Of the table `host`, of which WAITED is made."""

WAITED = np.dtype([(name, "<i8") for name in (*_WHOSE, *_COUNTED)])
"""How long the thread of a rank that waited most for a CPU did in a time (UTC), for how long the rank's CPU quota
throttled it, summed over CPUs, for how long the rank was stopped, by a signal or a debugger, and the CPU time of all
its threads; 0 where that is not known."""

KEPT = {"throttled_ns": "host", "waited_ns": "host"}
"""What keeps a rank from running, the clearer one first (a thread waits on any busy host, and while it is throttled),
and the share of an iteration's excess that it is."""

_FEWEST = 3  # baseline iterations of a rank that were watched, else there is no baseline
_CLEAR = 3.0  # standard deviations of them
_MOSTLY = 0.5  # of the time to explain
_ALIKE = 0.5  # of the longest stop, or wait for a CPU
_SHORTEST_NS = 40_000_000  # of a stop: half of a step of the agent's

_Span = tuple[float, float]


def waited_rows(columns: Mapping[str, npt.ArrayLike], count: int) -> Table:
    """`count` rows of WAITED, by COLUMNS, in which −1 or nan means not known."""
    waited = np.empty(count, WAITED)
    for name in _WHOSE:
        waited[name] = columns[name]
    for name, column in _COUNTED.items():
        waited[name] = np.maximum(np.nan_to_num(columns[column]), 0)
    return waited


def within(
    rows: Table, name: str, spans: Sequence[_Span] | npt.NDArray[np.int64], at_most: bool = False
) -> npt.NDArray[np.float64]:
    """(spans,): the sum of a column in each time; a row counts by the part of it that lies in the time.

    at_most: a row counts by as much as can lie in the time; the column is a duration within the row.
    """
    begin, end = np.asarray(spans, np.float64).reshape(-1, 2).T
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    # The rows of a time: from the first that has not ended to the last that has begun.
    over = np.maximum.accumulate(rows["end_ns"]).astype(np.float64)
    first, last = np.searchsorted(over, begin, "right"), np.searchsorted(rows["start_ns"].astype(np.float64), end)
    count = np.maximum(last - first, 0)
    of = np.repeat(np.arange(len(begin)), count)
    row = np.arange(len(of)) - np.repeat(np.cumsum(count) - count - first, count)
    parts = _parts(rows[row], name, begin[of], end[of], at_most)
    return np.asarray(np.bincount(of, parts, len(begin)), np.float64)


def _parts(
    rows: Table, name: str, begin: npt.NDArray[np.float64], end: npt.NDArray[np.float64], at_most: bool = False
) -> Any:
    """(rows,): what each adds to the sum of a time of its own."""
    overlap = np.clip(np.minimum(rows["end_ns"], end) - np.maximum(rows["start_ns"], begin), 0, None)
    if at_most:
        return np.minimum(overlap, rows[name])
    return overlap / np.maximum(rows["end_ns"] - rows["start_ns"], 1) * rows[name]


def kept_more(
    rows: Table, name: str, span: _Span, baseline: npt.NDArray[np.int64], late: Collection[int] = ()
) -> dict[int, float]:
    """By rank, ns that it waited, or was throttled, longer in a time than in baseline iterations; only what is clear.

    rows: of WAITED; name: one of KEPT, of which a row counts no more than its own length. Times are UTC; baseline:
    (iterations, 2), those of the baseline ones, of which some may not have been watched. late: ranks that are known to
    have been late; of them it is clear sooner: over a longer time, waits that come and go are nearer to their mean.
    A rank is throttled for one continuous part of a row; that part counts as being within this time as far as it can.
    A rank that ran for a clearly larger share of this time than in the baseline was not kept from running, however
    long one of its threads waited: it had more to do.
    """
    found: dict[int, float] = {}
    for rank in np.unique(rows["rank"][rows[name] > 0]).tolist():
        own = rows[rows["rank"] == rank]
        begin, end = own["start_ns"].min(), own["end_ns"].max()
        watched = baseline[(begin <= baseline[:, 0]) & (baseline[:, 1] <= end)]
        if len(watched) < _FEWEST or (name == "waited_ns" and _ran_more(own, span, watched)):
            continue
        own = own[own[name] > 0]
        own[name] = np.minimum(own[name], own["end_ns"] - own["start_ns"])
        now, *then = within(own, name, np.concatenate([[span], watched]), at_most=name == "throttled_ns")
        longer = (span[1] - span[0]) / (watched[:, 1] - watched[:, 0])
        kept = np.array(then) * longer
        more = float(now) - median(kept)
        spread_ns = spread(kept) / (max(1.0, median(longer)) ** 0.5 if rank in late else 1.0)
        if more > _CLEAR * spread_ns:
            found[rank] = more
    return {rank: ns for rank, ns in found.items() if ns > 0}


def _ran_more(own: Table, span: _Span, baseline: npt.NDArray[np.int64]) -> bool:
    """Whether a rank had the CPU for a larger share of a time than of baseline iterations, by more than these differ
    by. own: its rows of WAITED."""
    now, *then = within(own, "cpu_ns", np.concatenate([[span], baseline]))
    shares = then / (baseline[:, 1] - baseline[:, 0])
    return bool(now / (span[1] - span[0]) > median(shares) + spread(shares))


class Stopped(NamedTuple):
    """The ranks that were stopped in a time."""

    ranks: Mapping[int, float]  # ns, of those that were for about as long as the longest
    unseen: frozenset[int]  # others that may have been, in times of which their hosts reported nothing
    watched: int  # how many ranks are, in all


def stopped_in(rows: Table, span: _Span) -> Stopped:
    """The ranks that were stopped in a time (UTC)."""
    numbers, of = np.unique(rows["rank"], return_inverse=True)
    ranks: list[int] = numbers.tolist()
    inside = np.flatnonzero((rows["end_ns"] > span[0]) & (rows["start_ns"] < span[1]))
    near, of = rows[inside], of[inside]
    overlap = np.minimum(near["end_ns"], span[1]) - np.maximum(near["start_ns"], span[0])
    begin, end = (np.full(len(near), moment, np.float64) for moment in span)
    parts = _parts(near, "stopped_ns", begin, end)
    stopped, overlap_ns = (np.bincount(of, each, len(ranks)).tolist() for each in (parts, overlap))
    found = dict(zip(ranks, stopped, strict=True))
    unseen = {rank: span[1] - span[0] - seen for rank, seen in zip(ranks, overlap_ns, strict=True)}
    enough = max(_ALIKE * max(found.values(), default=0.0), _SHORTEST_NS)
    alike = {rank: ns for rank, ns in found.items() if ns >= enough}
    maybe = frozenset(rank for rank in ranks if rank not in alike and found[rank] + unseen[rank] >= enough)
    return Stopped(alike, maybe, len(ranks))


def alike(ns_of: Mapping[int, float]) -> set[int]:
    """The ranks whose time is about as long as the longest; only what is more than nothing."""
    enough = _ALIKE * max(ns_of.values(), default=0.0)
    return {rank for rank, ns in ns_of.items() if ns >= enough and ns > 0}


def explains(more_ns: Mapping[int, float], ns: float) -> int:
    """The rank that was kept from running for most of `ns`, by what is reported each; −1: none was."""
    rank = max(more_ns, key=lambda one: more_ns[one], default=-1)
    return rank if rank >= 0 and ns > 0 and more_ns[rank] >= _MOSTLY * ns else -1


def nothing_waited() -> npt.NDArray[np.void]:
    """For jobs whose hosts report no waits."""
    return np.empty(0, WAITED)


# --- Why a link was slower than its baseline, by what its host's NICs counted meanwhile.
#
# Hosts report once a second, all their NICs together. So it is a reason only if they counted clearly more than during
# baseline iterations.

REASONS = {
    "limited_packets": "the cloud's limit",
    "pause_packets": "paused by the switch",
    "congestion_packets": "slowed down by congestion marks",
}
"""By columns of the table `host`, the clearest one first."""

COUNTED = np.dtype([(name, "<i8") for name in ("start_ns", "end_ns", *REASONS)])
"""What a host's NICs counted in a time (UTC); −1: not known."""

Counted = Callable[[str], Table]
"""By host's name; called where a link was slow, or lost packets."""

_MORE, _FEWEST_COVERED, _ROW_NS = 3.0, 3, 1_000_000_000  # times the baseline; baseline iterations; a row's time


def nobody_counts(_: str) -> Table:
    return np.empty(0, COUNTED)


def why_slow(rows: Table, span: tuple[int, int], baseline: Sequence[tuple[int, int]]) -> str:
    """The reason, in words; empty: the NICs' counters show none. span: of the iteration, baseline: of others (UTC)."""
    away = [one for one in baseline if one[1] < span[0] - _ROW_NS or one[0] > span[1] + _ROW_NS]  # in other rows
    covered = [one for one in away if len(rows) and rows["start_ns"].min() <= one[0] and one[1] <= rows["end_ns"].max()]
    for name, words in REASONS.items():
        known = rows[rows[name] >= 0]
        if not len(known) or len(covered) < _FEWEST_COVERED:
            continue
        now, *then = within(known, name, [span, *covered]) / np.array([end - begin for begin, end in [span, *covered]])
        if now * _ROW_NS >= 1 and now > _MORE * max(median(then), float(np.quantile(then, 0.9))):
            return words
    return ""
