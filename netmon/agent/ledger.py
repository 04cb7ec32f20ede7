# SPDX-License-Identifier: Apache-2.0
"""Samples of the byte account of every link: the NIC's counters beside our own, read together."""

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from netmon.agent.links import Links
from netmon.kernel import nic
from netmon.kernel.meter.meter import Meter
from netmon.kernel.nic import Nic
from netmon.records import KERNEL_LEDGER, Direction, Flow, LedgerSample
from netmon.wire import netmon_pb2

_INTERVAL_NS = 1_000_000_000
_REMEMBERED = 100_000  # flows that are over
_COUNTS = ("packets", "wire_bytes", "payload_bytes")
_KERNEL = tuple(name for name in KERNEL_LEDGER.names or () if name not in ("link", "pad"))

Link = tuple[int, Direction]
"""(number of the interface, direction)"""


class Ledger:
    """One per agent. The account begins when it is made. `lose` may be called from another thread."""

    def __init__(self, meter: Meter, links: Links, nics: Sequence[Nic], hooks: Sequence[tuple[str, str]]) -> None:
        """nics, hooks (rx, tx): in the order of the interfaces' numbers."""
        self._meter = meter
        self._links = links
        self._header_bytes: dict[Link, int] = {
            (number, d): nic.header_bytes_not_counted(card, d, rx)
            for number, (card, (rx, _)) in enumerate(zip(nics, hooks, strict=True), 1)
            for d in Direction
        }
        self._lost = {link: dict.fromkeys(_COUNTS, 0) for link in self._header_bytes}
        self._counted = dict.fromkeys(self._header_bytes, (0, 0))  # the NIC's counter when it was last read
        self._before = dict.fromkeys(self._header_bytes, (0, 0))  # what it had counted when it began anew
        self._over: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._due_ns = time.monotonic_ns() + _INTERVAL_NS
        self._first = self.read()

    def due(self, now_ns: int) -> list[LedgerSample]:
        """A sample per link when an interval is over, otherwise none; the first ones at the first call."""
        samples, self._first = self._first, []
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _INTERVAL_NS
            samples += self.read()
        return samples

    def finish(self) -> list[LedgerSample]:
        """A sample per link, now: the last ones. Before them the first ones, if nobody has asked for those yet."""
        samples, self._first = self._first, []
        return samples + self.read()

    def read(self) -> list[LedgerSample]:
        """A sample per link, now. An interface that is not there has none."""
        names = {self._links.name(number): number for number, _ in self._header_bytes}
        counters = nic.counters(names)
        now = time.monotonic_ns()
        kernel = self._meter.ledger()
        return [
            self._sample((names[name], d), now, counted[d], kernel)
            for name, counted in counters.items()
            for d in Direction
        ]

    def _sample(
        self, link: Link, now_ns: int, counted: tuple[int, int], kernel: Mapping[int, Mapping[str, int]]
    ) -> LedgerSample:
        number, direction = link
        nic_bytes, nic_packets = self._continued(link, counted)
        ours = {name.replace("lost_", "lost_kernel_"): 0 for name in _KERNEL}
        for index in self._links.indices(number):
            for name, count in kernel.get(index << 1 | direction, {}).items():
                ours[name.replace("lost_", "lost_kernel_")] += count
        with self._lock:
            lost = {f"lost_agent_{name}": count for name, count in self._lost[link].items()}
        return LedgerSample(
            interface=number,
            direction=direction,
            time_ns=now_ns,
            nic_bytes=nic_bytes,
            nic_packets=nic_packets,
            nic_header_bytes=self._header_bytes[link],
            **ours,
            **lost,
        )

    def _continued(self, link: Link, counted: tuple[int, int]) -> tuple[int, int]:
        """The NIC's counters as if an interface that was made again had gone on counting."""
        if counted[0] < self._counted[link][0]:
            last, before = self._counted[link], self._before[link]
            self._before[link] = (before[0] + last[0], before[1] + last[1])
        self._counted[link] = counted
        return self._before[link][0] + counted[0], self._before[link][1] + counted[1]

    def remember(self, flows: Sequence[Flow]) -> None:
        """Flows that are forgotten: rows of theirs may wait in the spool."""
        with self._lock:
            self._over.update({flow.flow_id: (flow.interface, flow.direction) for flow in flows})
            for flow_id in list(islice(self._over, max(0, len(self._over) - _REMEMBERED))):
                del self._over[flow_id]

    def lose(self, buckets: netmon_pb2.Buckets, flows: Mapping[int, Flow]) -> None:
        """Counts the rows of a batch as lost in the agent."""
        ids = np.frombuffer(buckets.flow_id, "<u4")
        for flow_id in np.unique(ids).tolist():
            flow = flows.get(flow_id)
            with self._lock:
                link = (flow.interface, flow.direction) if flow else self._over.get(flow_id)
            if link is None:
                continue
            rows = ids == flow_id
            with self._lock:
                lost = self._lost[link]
                for name in _COUNTS:
                    lost[name] += int(np.frombuffer(getattr(buckets, name), "<u4")[rows].sum())
