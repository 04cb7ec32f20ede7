# SPDX-License-Identifier: Apache-2.0
"""How much of the collector one host may use, whatever it sends: seconds of its share, one for each that passes.

What costs more waits: nothing is read from its agents meanwhile, so that it stays with them, and all others go on.
Figures are far above what honest agents need, an hour's spool sent at once included.
"""

import asyncio
import time
from collections.abc import Callable

from collector.settings import DEFAULT_RATES, Rates
from netmon.rate_limiter import RateLimiters
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_ROWS

SAVED_S = 60.0
"""What a host has not used is kept for it up to here."""

_MOST_HOSTS = 1 << 16


SESSION_S = 0.2
"""What an introduction costs beside what is in it."""


class HostLimiter:
    """Of all hosts of one collector; lives on one event loop."""

    def __init__(self, rates: Callable[[], Rates] = lambda: DEFAULT_RATES) -> None:
        """Nobody has used anything. rates(): in force now."""
        self.rates = rates
        self._seconds = RateLimiters(1.0, SAVED_S, _MOST_HOSTS)

    def add_hello(self, host: str, hello: netmon_pb2.Hello) -> None:
        """An agent of a host has connected."""
        rates = self.rates()
        self._spend(host, SESSION_S + len(hello.flows) / rates.flows + len(hello.marks) / rates.marks)

    def add_batch(self, host: str, batch: netmon_pb2.Batch) -> None:
        """A batch of a host has come, which may claim anything."""
        rates, others = self.rates(), len(batch.nic) + len(batch.exchanges) + len(batch.ledger)
        cost_s = 1 / rates.batches + min(batch.buckets.rows, MAX_ROWS) / rates.rows + others / rates.others
        self._spend(host, cost_s + len(batch.flows) / rates.flows + len(batch.marks) / rates.marks)

    def wait_s(self, host: str) -> float:
        """Until something more of a host is taken in; 0: now."""
        return max(0.0, -self._seconds.left(host, time.monotonic_ns()))

    async def turn(self, host: str) -> None:
        """Wait until then."""
        while wait_s := self.wait_s(host):
            await asyncio.sleep(wait_s)

    def _spend(self, host: str, cost_s: float) -> None:
        self._seconds.spend(host, cost_s, time.monotonic_ns())
