# SPDX-License-Identifier: Apache-2.0
"""The NICs' own counters, as often as they are wanted and as they are cheap to read."""

import time

from netmon.agent.links import Links
from netmon.kernel.counters import NicCounters
from netmon.kernel.pace import Pace
from netmon.records import NicSample


class NicSamples:
    """One per agent."""

    def __init__(self, links: Links, count: int, interval_ns: int) -> None:
        """count: of the interfaces; interval_ns: between samples, 0 for none at all."""
        self._links, self._numbers, self._interval_ns = links, range(1, count + 1), interval_ns
        self._counters = NicCounters()
        # Some drivers ask their firmware, and take milliseconds for it: samples then come less often.
        self._pace = Pace(share=0.005, stock_ns=20_000_000)
        self._due_ns = time.monotonic_ns()

    def due(self, now_ns: int) -> list[NicSample]:
        """A sample per device when an interval is over, otherwise none."""
        if not self._interval_ns or now_ns < self._due_ns or not self._pace.allows():
            return []
        self._due_ns = now_ns + self._interval_ns
        with self._pace:
            return self._counters.read(filter(None, map(self._links.name, self._numbers)))
