# SPDX-License-Identifier: Apache-2.0
"""Samples of the byte account of every link: the NIC's counters beside our own, read together."""

import threading
import time
from collections.abc import Mapping

import numpy as np

from netmon.kernel import nic
from netmon.kernel.meter import Meter
from netmon.kernel.nic import Nic
from netmon.records import Direction, Flow, LedgerSample
from netmon.wire import netmon_pb2

_INTERVAL_NS = 1_000_000_000
_COUNTS = ("packets", "wire_bytes", "payload_bytes")

Link = tuple[int, Direction]
"""(ifindex, direction)"""


class Ledger:
    """One per agent. The account begins when it is made. `lose` may be called from another thread."""

    def __init__(self, meter: Meter, nics: list[Nic], hooks: Mapping[int, tuple[str, str]]) -> None:
        """hooks: (rx, tx) by ifindex."""
        self._meter = meter
        self._nics = nics
        self._header_bytes = {
            (card.index, d): nic.header_bytes_not_counted(card, d, hooks[card.index][0])
            for card in nics
            for d in Direction
        }
        self._lost = {link: dict.fromkeys(_COUNTS, 0) for link in self._header_bytes}
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

    def read(self) -> list[LedgerSample]:
        """A sample per link, now. An interface that is gone has none."""
        counters = nic.counters([card.name for card in self._nics])
        now = time.monotonic_ns()
        kernel = self._meter.ledger()
        return [
            self._sample(card.index, d, now, counters[card.name][d], kernel.get(card.index << 1 | d, {}))
            for card in self._nics
            if card.name in counters
            for d in Direction
        ]

    def _sample(
        self, index: int, direction: Direction, now_ns: int, counted: tuple[int, int], kernel: Mapping[str, int]
    ) -> LedgerSample:
        link = (index, direction)
        with self._lock:
            lost = {f"lost_agent_{name}": count for name, count in self._lost[link].items()}
        ours = {name.replace("lost_", "lost_kernel_"): count for name, count in kernel.items()}
        nothing = dict.fromkeys((f"{kind}_{name}" for kind in ("overflow", "lost_kernel") for name in _COUNTS), 0)
        return LedgerSample(
            interface=index,
            direction=direction,
            time_ns=now_ns,
            nic_bytes=counted[0],
            nic_packets=counted[1],
            nic_header_bytes=self._header_bytes[link],
            **({"frames": 0, "frame_bytes": 0, "wire_bytes": 0} | nothing | ours | lost),
        )

    def lose(self, buckets: netmon_pb2.Buckets, flows: Mapping[int, Flow]) -> None:
        """Counts the rows of a batch as lost in the agent."""
        ids = np.frombuffer(buckets.flow_id, "<u4")
        for flow_id in np.unique(ids).tolist():
            flow = flows.get(flow_id)
            if flow is None:
                continue
            rows = ids == flow_id
            with self._lock:
                lost = self._lost[(flow.interface, flow.direction)]
                for name in _COUNTS:
                    lost[name] += int(np.frombuffer(getattr(buckets, name), "<u4")[rows].sum())
