# SPDX-License-Identifier: Apache-2.0
"""The flows and steps that are under way."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from netmon.records import Flow, Mark, Moment, Source

_IDLE_NS = 300_000_000_000
"""A flow so long without a packet is over for the agent."""
_SWEEP_NS = 10_000_000_000

_MANY = 5_000
"""With more flows than that, the others than training's are over sooner."""
_CROWDED_IDLE_NS = 10_000_000_000
_CROWDED_SWEEP_NS = 2_000_000_000


class RecentFlows:
    """When each flow was last seen."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}
        self._sweep_ns = 0

    def over(self, seen: npt.NDArray[np.uint32], now_ns: int, known: Mapping[int, Flow]) -> list[int]:
        """seen: (n,) distinct, of the rows just sent → those of the known flows that have been idle for too long.

        An aggregate is never over: its members keep their slots, and the next packet of one is a row of it.
        """
        self._seen_ns.update(dict.fromkeys(seen.tolist(), now_ns))
        crowded = len(known) > _MANY
        if now_ns < self._sweep_ns - (_SWEEP_NS - _CROWDED_SWEEP_NS) * crowded:
            return []
        self._sweep_ns = now_ns + _SWEEP_NS
        idle = {i: now_ns - self._seen_ns.setdefault(i, now_ns) for i, flow in known.items() if not flow.members}
        over = [i for i, ns in idle.items() if ns > _IDLE_NS]
        if crowded:
            over = [i for i, ns in idle.items() if ns > (_IDLE_NS if known[i].owner.job else _CROWDED_IDLE_NS)]
        for flow_id in over:
            del self._seen_ns[flow_id]
        return over


def distinct_ids(flow_ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Of (n,) rows, ascending. Ids are dense: marking them in an array of their range is cheaper than sorting them."""
    if not len(flow_ids):
        return np.zeros(0, np.uint32)
    least = int(flow_ids.min())
    if int(flow_ids.max()) - least > 100 * len(flow_ids) + _MANY:  # old flows alongside new ones
        return np.unique(flow_ids)
    seen = np.zeros(int(flow_ids.max()) - least + 1, bool)
    seen[flow_ids - np.uint32(least)] = True
    return (np.flatnonzero(seen) + least).astype(np.uint32)


class RecentMarks:
    """Of every rank and source: that it joined, and the marks of its current step."""

    def __init__(self) -> None:
        self._joined: dict[tuple[str, int, Source], Mark] = {}
        self._current: dict[tuple[str, int, Source], list[Mark]] = {}

    def add(self, marks: Iterable[Mark]) -> None:
        """Marks in the order in which they came."""
        for mark in marks:
            key = (mark.job, mark.rank, mark.source)
            current = self._current.setdefault(key, [])
            if mark.moment is Moment.JOIN:
                self._joined[key] = mark
            elif mark.moment is Moment.LEAVE:
                self._joined.pop(key, None)
                del self._current[key]
            else:
                if current and current[-1].iteration != mark.iteration:
                    current.clear()
                current.append(mark)

    def all(self) -> tuple[Mark, ...]:
        """Joins first, then the steps under way."""
        return (*self._joined.values(), *(mark for marks in self._current.values() for mark in marks))
