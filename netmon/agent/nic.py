# SPDX-License-Identifier: Apache-2.0
"""The watched interfaces by numbers of our own, and the NICs' own counters."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from netmon.kernel.nic import NicCounters
from netmon.rate_limiter import TimeLimiter
from netmon.records import NicSample

log = logging.getLogger(__name__)


class Links:
    """Numbers are 1, 2, … in the order in which the interfaces were named; they stay when one is made again."""

    def __init__(self, indices: Sequence[int], names: Sequence[str]) -> None:
        """indices, names: of the interfaces as they are at the start."""
        self._names = tuple(names)
        self._now: list[tuple[int, str]] = list(zip(indices, names, strict=True))

    def name(self, number: int) -> str:
        """What it is called now; empty while it is not there."""
        return self._now[number - 1][1]

    def index(self, number: int) -> int:
        """Its ifindex; 0 while it is not there."""
        return self._now[number - 1][0]

    def follow(self, now: Sequence[tuple[int, str]]) -> None:
        """now: (ifindex, name) of each; (0, "") where it is not there. Says what has changed."""
        for number, ((index, name), (old_index, old_name)) in enumerate(zip(now, self._now, strict=True), 1):
            interfaces = self._names[number - 1]
            if old_index and not index:
                log.warning("%s is gone; waiting for it to come back", interfaces)
            elif index and not old_index:
                log.info("%s is back", interfaces)
            elif name != old_name:
                log.info("%s is called %s now; it stays %s in the dataset", old_name, name, interfaces)
        self._now = [(index, name) for index, name in now]


_WHOLE_NS = 60_000_000_000
_STILL = 4  # intervals between samples of counters that stand still, on a host without traffic


class NicSamples:
    """Counters, as often as they are wanted and as they are cheap to read. One per agent."""

    def __init__(self, links: Links, count: int, interval_ns: int) -> None:
        """count: of the interfaces; interval_ns: between samples, 0 for none at all."""
        self._links, self._numbers, self.interval_ns = links, range(1, count + 1), interval_ns
        self._counters = NicCounters()
        # Some drivers ask their firmware, and take milliseconds for it: samples then come less often.
        self._limiter = TimeLimiter(share=0.005, burst_ns=20_000_000)
        self._due_ns = time.monotonic_ns()
        self._sent: dict[tuple[str, str, str], int] = {}
        self._whole_ns, self._still = 0, False
        self._latest: list[NicSample] = []

    def due(self, now_ns: int, idle: bool = False) -> list[NicSample]:
        """A sample per device when an interval is over: of what has changed, now and then of everything.

        idle: there is no traffic that we see; as long as the counters show none either, they are read less often.
        """
        more_ns = (_STILL - 1) * self.interval_ns if idle and self._still else 0
        if not self.interval_ns or now_ns < self._due_ns + more_ns or not self._limiter.allows():
            return []
        self._due_ns = now_ns + self.interval_ns
        if now_ns >= self._whole_ns:
            self._sent.clear()
            self._whole_ns = now_ns + _WHOLE_NS
        with self._limiter:
            samples = self._counters.read(filter(None, map(self._links.name, self._numbers)))
        self._latest = samples
        changed = [news for sample in samples if (news := self._changed(sample)).names]
        self._still = not changed
        return changed

    def sum(self, counter: re.Pattern[str], of_device: Callable[[list[int]], int] = max, rdma: bool = False) -> int:
        """Of the last samples, over interfaces, or RDMA ports: each one's counters that match; −1: none does.

        of_device: what those of one come to; drivers call the same packets by several names.
        """
        found: dict[str, list[int]] = {}
        for sample in self._latest:
            for name, value in zip(sample.names, sample.values, strict=True):
                if (sample.source == "rdma") == rdma and counter.search(name):
                    found.setdefault(sample.device, []).append(value)
        return sum(map(of_device, found.values())) if found else -1

    def _changed(self, sample: NicSample) -> NicSample:
        """Only the counters that are not as they were sent last: most of a driver's count what never happens."""
        changed = {
            (sample.device, sample.source, name): value for name, value in zip(sample.names, sample.values, strict=True)
        }
        news = {key: value for key, value in changed.items() if self._sent.get(key) != value}
        self._sent |= news
        return replace(sample, names=tuple(name for _, _, name in news), values=tuple(news.values()))
