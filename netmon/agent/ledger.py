# SPDX-License-Identifier: Apache-2.0
"""Samples of the byte account of every link: the NIC's counters alongside our own, read together."""

import threading
import time
from collections.abc import Mapping, Sequence

from netmon.agent.downtime import OWN_COUNTERS, Beginning, LinkAccount, encode_accounts
from netmon.agent.link_totals import COUNTS
from netmon.agent.nic import Links
from netmon.kernel import nic
from netmon.kernel.meter.meter import Meter
from netmon.kernel.nic import Nic
from netmon.records import KERNEL_LEDGER, Direction, LedgerSample, Table

_INTERVAL_NS = 1_000_000_000
_KERNEL = tuple(name for name in KERNEL_LEDGER.names or () if name != "pad")

Link = tuple[int, Direction]
"""(number of the interface, direction)"""


class Ledger:
    """One per agent. The account begins when it is made. `lose` may be called from another thread."""

    def __init__(
        self, meter: Meter, links: Links, nics: Sequence[Nic], hooks: Sequence[tuple[str, str]], began_ns: int
    ) -> None:
        """nics, hooks (rx, tx): in the order of the interfaces' numbers. began_ns: mono, before they were attached."""
        self._meter = meter
        self._links = links
        self._header_bytes: dict[Link, int] = {
            (number, d): nic.header_bytes_not_counted(card, d, rx)
            for number, (card, (rx, _)) in enumerate(zip(nics, hooks, strict=True), 1)
            for d in Direction
        }
        self._lost = {link: dict.fromkeys(COUNTS, 0) for link in self._header_bytes}
        self._counted = dict.fromkeys(self._header_bytes, (0, 0))  # the NIC's counter when it was last read
        self._before = dict.fromkeys(self._header_bytes, (0, 0))  # what it had counted when it began anew
        self._lock = threading.Lock()
        self._due_ns = time.monotonic_ns() + _INTERVAL_NS
        self._first = [_before_hook(sample, began_ns) for sample in self.read()]
        counters = {
            (link.name, link.index, link.sample.direction): link.counter for link in self._accounts(self._first)
        }
        self.began = Beginning(began_ns, counters)

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

    def account(self, samples: Sequence[LedgerSample]) -> bytes:
        """For the next agent, should this one be killed; samples: those that are reported. Empty: there are none."""
        return encode_accounts(self._accounts(samples)) if samples else b""

    def _accounts(self, samples: Sequence[LedgerSample]) -> list[LinkAccount]:
        found = []
        for sample in samples:
            number, before = sample.interface, self._before[sample.interface, sample.direction]
            counter = sample.nic_bytes - before[0], sample.nic_packets - before[1]
            found.append(LinkAccount(self._links.name(number), self._links.index(number), counter, sample))
        return found

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
        for name, count in kernel.get(number << 1 | direction, {}).items():
            ours[name.replace("lost_", "lost_kernel_")] = count
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

    def lose(self, totals: Table) -> None:
        """Counts what batches carried (dtype LINK_TOTALS) as lost in the agent."""
        with self._lock:
            for interface, direction, *counts in totals.tolist():
                lost = self._lost[interface, Direction(direction)]
                for name, count in zip(COUNTS, counts, strict=True):
                    lost[name] += count


def _before_hook(sample: LedgerSample, began_ns: int) -> LedgerSample:
    """A first sample as it would have been when nothing was counted: every row is in an interval."""
    frames = sample.frames
    return LedgerSample(
        interface=sample.interface,
        direction=sample.direction,
        time_ns=began_ns,
        nic_bytes=sample.nic_bytes - (sample.frame_bytes - sample.nic_header_bytes * frames),
        nic_packets=sample.nic_packets - frames,
        nic_header_bytes=sample.nic_header_bytes,
        **dict.fromkeys(OWN_COUNTERS, 0),
    )
