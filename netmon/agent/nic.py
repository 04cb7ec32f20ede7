# SPDX-License-Identifier: Apache-2.0
"""The NICs' own counters, as often as they are wanted and as they are cheap to read."""

import re
import time
from dataclasses import replace

from netmon.agent.links import Links
from netmon.kernel.counters import NicCounters
from netmon.rate_limiter import TimeLimiter
from netmon.records import NicSample

_WHOLE_NS = 60_000_000_000
_STILL = 4  # intervals between samples of counters that stand still, on a host without traffic


class NicSamples:
    """One per agent."""

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

    def most(self, counter: re.Pattern[str]) -> int:
        """Of the last samples, summed over interfaces: the largest of each one's counters that match; -1: none does.

        Drivers call the same packets by several names.
        """
        found: dict[str, int] = {}
        for sample in self._latest:
            for name, value in zip(sample.names, sample.values, strict=True):
                if sample.source != "rdma" and counter.search(name):
                    found[sample.device] = max(found.get(sample.device, 0), value)
        return sum(found.values()) if found else -1

    def _changed(self, sample: NicSample) -> NicSample:
        """Only the counters that are not as they were sent last: most of a driver's count what never happens."""
        changed = {
            (sample.device, sample.source, name): value for name, value in zip(sample.names, sample.values, strict=True)
        }
        news = {key: value for key, value in changed.items() if self._sent.get(key) != value}
        self._sent |= news
        return replace(sample, names=tuple(name for _, _, name in news), values=tuple(news.values()))
