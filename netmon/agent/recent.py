# SPDX-License-Identifier: Apache-2.0
"""What a collector that has just started must be told: the flows and steps that are under way."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from netmon.records import Flow, Mark, Moment, Source
from netmon.wire import netmon_pb2

_IDLE_NS = 300_000_000_000
"""A flow so long without a packet is over for the agent."""
_SWEEP_NS = 10_000_000_000


class RecentFlows:
    """When each flow was last seen."""

    def __init__(self) -> None:
        """No flow yet."""
        self._seen_ns: dict[int, int] = {}
        self._sweep_ns = 0

    def over(self, flow_ids: npt.NDArray[np.uint32], now_ns: int, known: Collection[int]) -> list[int]:
        """flow_ids: (n,) of the rows just sent → those of the known flows that have been idle for too long."""
        self._seen_ns.update(dict.fromkeys(_distinct(flow_ids), now_ns))
        if now_ns < self._sweep_ns:
            return []
        self._sweep_ns = now_ns + _SWEEP_NS
        over = [i for i in known if now_ns - self._seen_ns.setdefault(i, now_ns) > _IDLE_NS]
        for flow_id in over:
            del self._seen_ns[flow_id]
        return over


def _distinct(flow_ids: npt.NDArray[np.uint32]) -> list[int]:
    """Flow ids are dense: marking them in an array of their range is cheaper than sorting them."""
    if not len(flow_ids):
        return []
    least = int(flow_ids.min())
    seen = np.zeros(int(flow_ids.max()) - least + 1, bool)
    seen[flow_ids - np.uint32(least)] = True
    distinct: list[int] = (np.flatnonzero(seen) + least).tolist()
    return distinct


class SentFlows:
    """The flows that are alive, each as it was last sent: the introduction is written often, flows change seldom."""

    def __init__(self) -> None:
        """No flow yet."""
        self._encoded: dict[int, bytes] = {}

    def add(self, flows: Sequence[Flow], messages: Iterable[netmon_pb2.Flow]) -> None:
        """Flows that are sent, and the messages made of them."""
        for flow, message in zip(flows, messages, strict=True):
            self._encoded[flow.flow_id] = netmon_pb2.Hello(flows=(message,)).SerializeToString()

    def introduce(self, hello: netmon_pb2.Hello) -> None:
        """Puts all of them into an introduction."""
        hello.MergeFromString(b"".join(self._encoded.values()))

    def forget(self, flow_ids: Iterable[int]) -> None:
        """These are over."""
        for flow_id in flow_ids:
            self._encoded.pop(flow_id, None)


class RecentMarks:
    """Of every rank and source: that it joined, and the marks of its current step."""

    def __init__(self) -> None:
        """No rank yet."""
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
