# SPDX-License-Identifier: Apache-2.0
"""What the collector asks of its agents when more comes than it can take: coarser rows in fewer batches, nothing else.

Iterations, the ledger and what flows are come whole in every case. Fewer batches cost no detail: they are requested
before anything is late. Then an agent that sends far more than the others do gets a request alone, and is slowed
alone where that does not help; only then all agents get one. Requests follow the load at once. They are lifted slowly,
and more slowly whenever that was too early.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

from collector.settings import DEFAULT_RATES, Rates
from netmon.rate_limiter import RateLimiters
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_ROWS
from netmon.wire.tables import FLOWS, ITERATIONS, claimed

_MS = 1_000_000


@dataclass(frozen=True)
class BackpressureRequest:
    """What one agent is requested; the default: nothing."""

    bucket_ns: int = 0  # rows at least so wide
    batch_ns: int = 0  # batches no closer together
    rows_per_s: float = 0.0  # no more are accepted; 0: as they come
    within_ns: int = 0  # longest interval between batches; 0: nobody waits for them


@lru_cache
def request_of(bucket_ns: int, batch_ns: int, rows_per_s: float, within_ns: int = 0) -> BackpressureRequest:
    """The request of this; most agents get the same request, many times a second."""
    return BackpressureRequest(bucket_ns, batch_ns, rows_per_s, within_ns)


STEPS = (
    BackpressureRequest(),
    BackpressureRequest(0, 500 * _MS),
    BackpressureRequest(0, 1_000 * _MS),
    BackpressureRequest(5 * _MS, 1_000 * _MS),
    BackpressureRequest(20 * _MS, 1_000 * _MS),
)
"""From nothing to the most that an agent is requested. Fewer batches come first: they cost a second, no detail."""

_FEWER = 2  # of the steps, cost no detail
BATCHES_PER_S = 1_000
DEFAULT_BATCH_NS = WATCHED_NS = 200 * _MS
"""From one batch of an agent to the next where somebody looks at its host."""

TRAINING_NS = 400 * _MS
"""The same where it has ranks: verdicts wait for the rows of a second after an iteration's end."""


@dataclass(frozen=True)
class Sending:
    """What is known of one session. behind_s: how much later than normally its last batch was processed."""

    rows_per_s: float
    behind_s: float


@dataclass(frozen=True)
class Storing:
    """How the disk does. full: share of the memory for rows on their way to it that is used."""

    full: float = 0.0
    work_s: float = 0.0  # CPU time of the last flush; what else it takes is the disk's, which fewer rows do not help


class BackpressurePolicy:
    """The policy: figures in, orders out. It reads no clock, and knows of sessions only what it is given."""

    LATE_S, EASY_S = 1.0, 0.4
    """Behind by so much is too much; by less, easy."""

    TOO_LATE_S = 2.4
    """Behind by so much in spite of fewer batches, which are a second of it, rows have to become coarser."""

    BUSY, IDLE = 0.7, 0.35
    """A loop that works for such a share of its time gets fewer batches, before anything is late; less is easy."""

    FULL, EASY_FULL = 1 / 4, 1 / 16
    SLOW_S, QUICK_S = 1.0, 0.5
    """The same for what is on its way to the disk, and for the work of a flush."""

    SHARES = 4
    """So many times what the median session sends is more than a session's share."""

    LEAST_ROWS_PER_S = 1_000
    """No session's share is less."""

    _RESPONSE_S = 2.0  # for a request to be received, and for what was sent before it to be processed
    _PATIENCE_S, _MOST_PATIENCE_S = 10.0, 160.0

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._limits: dict[str, float] = {}  # rows/s
        self._blamed: set[str] = set()  # who sent more than their share
        self._behind_s = 0.0
        self._raised_s = self._eased_s = self._hard_s = float("-inf")
        self._patience_s = self._PATIENCE_S
        self._batch_ns = 0

    @property
    def coarsened(self) -> int:
        return len(self._steps)

    def order(self, session: str) -> BackpressureRequest:
        step = STEPS[self._steps.get(session, 0)]
        return request_of(step.bucket_ns, max(step.batch_ns, self._batch_ns), self.limit(session))

    def limit(self, session: str) -> float:
        """Rows/s that are taken in of it; 0: as they come."""
        return self._limits.get(session, 0.0)

    def spread(self, sessions: int) -> None:
        """So many agents are connected: what all of them send in a second is bounded, also before one of them sends."""
        self._batch_ns = _batch_ns(sessions)

    def decide(self, sessions: Mapping[str, Sending], storing: Storing, now_s: float, busy: float = 0.0) -> None:
        """Think it over, about once a second. sessions: those that send; busy: share of a core in use."""
        self._steps = {name: step for name, step in self._steps.items() if name in sessions}
        self._limits = {name: limit for name, limit in self._limits.items() if name in sessions}
        self._blamed &= sessions.keys()
        # Whom we slow down ourselves is late for that; and one agent's slow network is not our load.
        own = [sending.behind_s for name, sending in sessions.items() if name not in self._limits]
        behind_s, before_s = median(own) if own else 0.0, self._behind_s
        self._behind_s = behind_s
        stuck = storing.full > self.FULL or storing.work_s > self.SLOW_S
        if behind_s > self.LATE_S or stuck:
            self._hard_s = now_s
            too_late = stuck or (behind_s >= before_s and (behind_s > self.TOO_LATE_S or not self._fewer(sessions)))
            if too_late and now_s - self._raised_s >= self._RESPONSE_S:
                self._raise(sessions, now_s)
        elif busy > self.BUSY and (able := [name for name in sessions if self._steps.get(name, 0) < _FEWER]):
            self._hard_s = now_s
            if now_s - self._raised_s >= self._RESPONSE_S:
                self._raised_s = now_s
                self._step_up(able)
        elif not self._easy(behind_s, busy, storing):
            self._hard_s = now_s
        elif now_s - max(self._hard_s, self._eased_s) >= self._patience_s and (self._steps or self._limits):
            self._ease(now_s)

    def _easy(self, behind_s: float, busy: float, storing: Storing) -> bool:
        """Whether less may be requested.

        Coarser rows cost detail: finer ones are tried as soon as nothing is late, with more patience where that was too
        early. Fewer batches cost none: they are requested until there is little to do.
        """
        if self._limits or max(self._steps.values(), default=0) > _FEWER:
            full = (self.EASY_FULL + self.FULL) / 2
            return behind_s <= self.LATE_S and busy <= self.BUSY and storing.full <= full
        quick = storing.full <= self.EASY_FULL and storing.work_s <= self.QUICK_S
        return behind_s <= self.EASY_S and busy <= self.IDLE and quick

    def _fewer(self, sessions: Iterable[str]) -> bool:
        """Whether all send as few batches as they may be requested."""
        return all(self._steps.get(name, 0) >= _FEWER for name in sessions)

    def _raise(self, sessions: Mapping[str, Sending], now_s: float) -> None:
        if now_s - self._eased_s < 2 * self._patience_s:
            self._patience_s = min(self._MOST_PATIENCE_S, 2 * self._patience_s)
        elif not self._steps:
            self._patience_s = self._PATIENCE_S
        self._raised_s = now_s
        share = self._share(sessions)
        greedy = [name for name, sending in sessions.items() if sending.rows_per_s > share]
        self._blamed |= set(greedy)
        coarsened = [name for name in greedy if self._steps.get(name, 0) < len(STEPS) - 1]
        if coarsened:
            self._step_up(coarsened)
            return
        slowed = {name: share for name in greedy if name not in self._limits}
        self._limits |= slowed
        if not slowed:
            self._step_up(sessions)

    def _step_up(self, names: Iterable[str]) -> None:
        for name in names:
            self._steps[name] = min(self._steps.get(name, 0) + 1, len(STEPS) - 1)

    def _share(self, sessions: Mapping[str, Sending]) -> float:
        """Rows/s that nobody is blamed for. Of one session alone there is no more than its share."""
        if len(sessions) < 2:
            return float("inf")
        rates = sorted(sending.rows_per_s for sending in sessions.values())
        return max(self.LEAST_ROWS_PER_S, self.SHARES * rates[(len(rates) - 1) // 2])

    def _ease(self, now_s: float) -> None:
        """Those who kept to their share first."""
        self._eased_s = now_s
        eased = [name for name in self._steps if name not in self._blamed]
        if not eased and self._limits:
            self._limits.clear()
            return
        for name in eased or list(self._steps):
            self._steps[name] -= 1
        self._steps = {name: step for name, step in self._steps.items() if step}
        self._blamed &= self._steps.keys()


def _batch_ns(sessions: int) -> int:
    """From one batch of each to its next, so that all send no more than BATCHES_PER_S; 0: as they do by themselves."""
    least_ns = sessions * 1_000_000_000 // BATCHES_PER_S
    return min(least_ns, STEPS[-1].batch_ns) if least_ns > DEFAULT_BATCH_NS else 0


class Behind:
    """How much later than normally one session's batches are processed, whatever its clock shows."""

    _CREEP = 1e-3  # s per s: the baseline follows clocks that drift, and forgets
    _JUMP_S = 60.0  # later than the batch before: the host has slept, or was cut off

    def __init__(self) -> None:
        self._baseline_s = self._last_s = self._at_s = 0.0
        self._seen = False

    def processed(self, horizon_ns: int, now_s: float) -> float:
        """A batch of this horizon (the host's clock) was processed now (ours); s behind."""
        offset_s = now_s - horizon_ns / 1e9
        if not self._seen or offset_s - self._last_s > self._JUMP_S:
            self._baseline_s, self._at_s = offset_s, now_s
        self._baseline_s = min(offset_s, self._baseline_s + self._CREEP * (now_s - self._at_s))
        self._seen, self._last_s, self._at_s = True, offset_s, now_s
        return offset_s - self._baseline_s


# --- What each session brings, how far behind we are with it, and what its agent is requested therefore.

_log = logging.getLogger(__name__)
_DECIDE_EVERY_S = 1.0
_LATE_S = 2.0  # from one tick, or one batch of anybody, to the next: we were busy, or nobody let us work
_SILENT_S = 2.0  # agents send more often, also when they are requested fewer batches
MOST_ROWS, MOST_BATCHES = 1_000_000, 64
"""Of a session that wait for the tick."""

MOST_ROWS_OF_ALL = 2_000_000
_ROWS_PER_FLOW, _ROWS_PER_OTHER = 32, 8  # that take as much memory
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
        self._joined: set[str] = set()
        self._storing = storing
        self._backpressure = BackpressurePolicy()
        self._rows = 0  # that wait
        self.weight = 0
        """Of batches that wait to be decoded; see `weight`."""
        self._ticked = asyncio.Event()
        self.ticked_s = 0.0
        """When the last tick ended (monotonic clock)."""
        self.late_s = self._came_s = 0.0
        """When a tick came much later than it should, or something after nothing had come of anybody, the last time."""
        self._decided_s, self._worked_s = time.monotonic(), time.thread_time()
        self._said = 0

    @property
    def waiting_rows(self) -> int:
        """Of all sessions, until the next tick."""
        return self._rows

    def order(self, session: str) -> BackpressureRequest:
        return self._backpressure.order(session)

    async def turn(self, session: str) -> None:
        """Wait until the next batch of a session may come: for the tick where too much waits for it already.

        Meanwhile nothing is read from its agent, and no other one is kept waiting. A session that is slowed down waits
        for its rate besides.
        """
        while (coming := self._coming.get(session)) and self._full(coming):
            await self._ticked.wait()
        if coming and self._backpressure.limit(session):
            await asyncio.sleep(coming.free_s - time.monotonic())

    def _full(self, coming: _Coming) -> bool:
        return coming.rows > MOST_ROWS or coming.batches >= MOST_BATCHES or self._rows > MOST_ROWS_OF_ALL

    def add_waiting(self, session: str, rows: int, horizon_ns: int, batches: int = 1) -> None:
        """Batches wait for the tick; horizon_ns: of the last one."""
        now_s = time.monotonic()
        if now_s - self._came_s > _LATE_S:
            self.late_s = now_s
        self._came_s = now_s
        if session not in self._joined:  # of a bus: it had fallen silent
            self.joined(session)
        coming = self._coming.setdefault(session, _Coming())
        coming.rows, coming.batches = coming.rows + rows, coming.batches + batches
        coming.horizon_ns = horizon_ns
        self._rows += rows
        limit = self._backpressure.limit(session)
        if limit:
            coming.free_s = max(coming.free_s, now_s - _BURST_S) + rows / limit

    def silent_s(self, since_s: float) -> float:
        """How long others have sent while somebody who has sent nothing since then did not."""
        return self._came_s - max(since_s, self.late_s)

    def ticked(self) -> None:
        """All batches that came have been processed."""
        now, self._rows, self.weight = time.monotonic(), 0, 0
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

    def joined(self, session: str) -> None:
        """It is connected, and may send."""
        self._joined.add(session)
        self._backpressure.spread(len(self._joined))

    def left(self, session: str) -> None:
        self._coming.pop(session, None)
        self._joined.discard(session)
        self._backpressure.spread(len(self._joined))

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
            _log.warning(f"{self._said} of {len(sending)} agents are to send fewer batches, or coarser rows too")


def claimed_rows(batch: netmon_pb2.Batch) -> int:
    """Of buckets, before anything is checked: no more than a batch may have."""
    return min(int(batch.buckets.rows), MAX_ROWS)


def weight(batch: netmon_pb2.Batch) -> int:
    """How much memory a batch takes when it is decoded, as a number of rows."""
    rows = claimed(batch.tables)
    flows = rows.pop(FLOWS.name, 0)
    return claimed_rows(batch) + _ROWS_PER_FLOW * flows + _ROWS_PER_OTHER * sum(rows.values())


# --- How much of the collector one host may use, whatever it sends: seconds of its share, one for each that passes.
#
# What costs more waits: nothing is read from its agents meanwhile, so that it stays with them, and all others go on.
# Figures are far above what honest agents need, an hour's spool sent at once included.

SAVED_S = 60.0
"""What a host has not used is kept for it up to here."""

_MOST_HOSTS = 1 << 16


SESSION_S = 0.2
"""What an introduction costs in addition to its contents."""


class HostLimiter:
    """Of all hosts of one collector; lives on one event loop."""

    def __init__(self, rates: Callable[[], Rates] = lambda: DEFAULT_RATES) -> None:
        """Nobody has used anything. rates(): in force now."""
        self.rates = rates
        self._seconds = RateLimiters(1.0, SAVED_S, _MOST_HOSTS)

    def add_hello(self, host: str, hello: netmon_pb2.Hello) -> None:
        rates = self.rates()
        rows = [claimed(tables) for tables in hello.tables]
        flows, iterations = (sum(own.get(one.name, 0) for own in rows) for one in (FLOWS, ITERATIONS))
        self._spend(host, SESSION_S + flows / rates.flows + iterations / rates.iterations)

    def add_batch(self, host: str, batch: netmon_pb2.Batch) -> None:
        """A batch of a host has come, which may claim anything."""
        rates, rows = self.rates(), claimed(batch.tables)
        flows, iterations = (rows.pop(one.name, 0) for one in (FLOWS, ITERATIONS))
        cost_s = 1 / rates.batches + claimed_rows(batch) / rates.rows + sum(rows.values()) / rates.others
        self._spend(host, cost_s + flows / rates.flows + iterations / rates.iterations)

    def wait_s(self, host: str) -> float:
        """Until something more of a host is taken in; 0: now."""
        return max(0.0, -self._seconds.left(host, time.monotonic_ns()))

    async def turn(self, host: str) -> None:
        """Wait until then."""
        while wait_s := self.wait_s(host):
            await asyncio.sleep(wait_s)

    def _spend(self, host: str, cost_s: float) -> None:
        self._seconds.spend(host, cost_s, time.monotonic_ns())
