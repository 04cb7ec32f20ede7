# SPDX-License-Identifier: Apache-2.0
"""What each session brings, how far behind we are with it, and what its agent is requested therefore."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from collector.backpressure import BackpressurePolicy, BackpressureRequest, Behind, Sending, Storing
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_ROWS

_log = logging.getLogger(__name__)
_DECIDE_EVERY_S = 1.0
_LATE_S = 2.0  # from one tick to the next: we were busy, or nobody let us work
_SILENT_S = 2.0  # agents send more often, also when they are requested fewer batches
MOST_ROWS, MOST_BATCHES = 1_000_000, 64
"""Of a session that wait for the tick."""

MOST_ROWS_OF_ALL = 2_000_000
_ROWS_PER_FLOW, _ROWS_PER_MARK = 32, 8  # that take as much memory
_weighing = attrgetter("marks", "nic", "exchanges", "ledger", "flows", "buckets")
_BURST_S = 1.0  # a session that is slowed down may save up


@dataclass
class _Coming:
    """What comes from one session."""

    behind: Behind = field(default_factory=Behind)
    behind_s: float = 0.0
    horizon_ns: int = -1  # of the newest batch that waits; −1: none does
    rows: int = 0  # that wait
    batches: int = 0
    counted: int = 0  # rows since the last decision
    rows_per_s: float = 0.0
    at_s: float = 0.0  # the last batch was processed
    free_s: float = 0.0  # when the next batch may come, where it is slowed down


class Intake:
    """Of all sessions that are connected; lives on one event loop."""

    def __init__(self, storing: Callable[[], Storing]) -> None:
        """Nobody is connected. storing(): how the disk does now."""
        self._coming: dict[str, _Coming] = {}
        self._storing = storing
        self._backpressure = BackpressurePolicy()
        self._rows = 0  # that wait
        self._ticked = asyncio.Event()
        self.ticked_s = 0.0
        """When the last tick ended (monotonic clock)."""
        self.late_s = 0.0
        """When one came much later than it should, the last time."""
        self._decided_s, self._worked_s = time.monotonic(), time.thread_time()
        self._said = 0

    @property
    def waiting_rows(self) -> int:
        """Of all sessions, until the next tick."""
        return self._rows

    def order(self, session: str) -> BackpressureRequest:
        """What its agent is requested."""
        return self._backpressure.order(session)

    async def turn(self, session: str) -> None:
        """Wait until the next batch of a session may come: for the tick where too much waits for it already.

        Meanwhile nothing is read from its agent, and no other one is kept waiting. A session that is slowed down waits
        for its rate besides.
        """
        while (coming := self._coming.get(session)) and self._full(coming):
            await self._ticked.wait()
        if coming and self.order(session).rows_per_s:
            await asyncio.sleep(coming.free_s - time.monotonic())

    def free(self, session: str) -> bool:
        """Whether the next batch of a session may come at once."""
        coming = self._coming.get(session)
        return not (coming and (self._full(coming) or self.order(session).rows_per_s))

    def _full(self, coming: _Coming) -> bool:
        return coming.rows > MOST_ROWS or coming.batches >= MOST_BATCHES or self._rows > MOST_ROWS_OF_ALL

    def add_waiting(self, session: str, rows: int, horizon_ns: int, batches: int = 1) -> None:
        """Batches wait for the tick; horizon_ns: of the last one."""
        coming = self._coming.setdefault(session, _Coming())
        coming.rows, coming.batches = coming.rows + rows, coming.batches + batches
        coming.horizon_ns = horizon_ns
        self._rows += rows
        limit = self.order(session).rows_per_s
        if limit:
            coming.free_s = max(coming.free_s, time.monotonic() - _BURST_S) + rows / limit

    def ticked(self) -> None:
        """All batches that came have been processed."""
        now, self._rows = time.monotonic(), 0
        if now - self.ticked_s > _LATE_S:
            self.late_s = now
        for coming in self._coming.values():
            if coming.horizon_ns >= 0:
                coming.behind_s, coming.at_s = coming.behind.processed(coming.horizon_ns, now), now
                coming.counted += coming.rows
                coming.rows, coming.batches, coming.horizon_ns = 0, 0, -1
        self._ticked.set()
        self._ticked, self.ticked_s = asyncio.Event(), time.monotonic()
        if now - self._decided_s >= _DECIDE_EVERY_S:
            self._decide(now)

    async def next_tick(self) -> None:
        """Wait until everything that has come until now has been processed. One tick serves all who wait."""
        await self._ticked.wait()

    def left(self, session: str) -> None:
        """Its connection has ended."""
        self._coming.pop(session, None)

    def _decide(self, now: float) -> None:
        elapsed, self._decided_s = now - self._decided_s, now
        worked_s = time.thread_time()
        busy, self._worked_s = (worked_s - self._worked_s) / elapsed, worked_s
        sending = {}
        for session, coming in self._coming.items():
            rate, coming.counted = coming.counted / elapsed, 0
            coming.rows_per_s = (coming.rows_per_s + rate) / 2 if coming.rows_per_s else rate
            silent_s = max(0.0, now - coming.at_s - _SILENT_S)
            sending[session] = Sending(coming.rows_per_s, coming.behind_s + silent_s)
        self._backpressure.decide(sending, self._storing(), now, busy)
        if self._backpressure.coarsened != self._said:
            self._said = self._backpressure.coarsened
            _log.warning(f"{self._said} of {len(sending)} agents are asked for fewer batches, or for coarser rows too")


def weight(batch: netmon_pb2.Batch) -> int:
    """How much memory a batch takes when it is decoded, as a number of rows."""
    marks, nic, exchanges, ledger, flows, buckets = _weighing(batch)
    others = len(marks) + len(nic) + len(exchanges) + len(ledger)
    rows: int = min(buckets.rows, MAX_ROWS)
    return rows + _ROWS_PER_FLOW * len(flows) + _ROWS_PER_MARK * others
