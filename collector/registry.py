# SPDX-License-Identifier: Apache-2.0
"""All sessions of the collector: who is connected, what waits for a tick, and what a tick has made final."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from collector.agent_checks import FailedBatchError, FailedSessionError, RefusedBatchError
from collector.backpressure import (
    TRAINING_NS,
    WATCHED_NS,
    BackpressureRequest,
    HostLimiter,
    Intake,
    claimed_rows,
    request_of,
    weight,
)
from collector.dataset.sink import ParquetSink
from collector.ending import Together
from collector.flushing import Flushing
from collector.host.session import Sent, Session
from collector.host.stage import HostStage, Settled
from collector.job_exchange import SILENT_AFTER_S, JobExchange
from collector.jobs.process import JobStageProcess
from collector.jobs.rank_registry import RankRegistry
from collector.live import Live
from collector.quarantine import Failures
from collector.settings import Settings
from collector.view.frozen import Frozen
from netmon.errors import NetmonError, WireError
from netmon.records import Hello
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches
from netmon.wire.batches import decode_batch

MOST_SESSIONS, MOST_OF_HOST = 8_192, 64
"""Sessions that are known at a time, of all hosts and of one: those that are connected, and those just over."""

_SILENT_AFTER_S = SILENT_AFTER_S
_LEAVE_AFTER_S = 60.0
_FORGET_AFTER_S = 3600.0
_OVERLAP_NS = 5_000_000_000  # what an earlier agent left behind is not later than this after the next one's beginning
_CAREFUL_S = 60.0
_MOST_QUEUED = 1 << 20  # rows, or as much of other things, between two ticks
_MOST_WAITING = 4 << 20  # rows that have not settled


class Came(NamedTuple):
    """Batches of a session that are read and accepted, at least one; rows: how many they have."""

    session: Session
    sequences: Sequence[int]
    rows: int
    horizon_ns: int  # of the last one
    raw: Sequence[bytes]


class Registry:
    """Sessions by name; lives on one event loop, only files are touched in threads."""

    def __init__(self, sink: ParquetSink, settings: Settings, jobs: JobStageProcess) -> None:
        """Begin without sessions. jobs: the way to the job stage; the caller's to close."""
        self._settings = settings
        self._known: dict[str, Session] = {}
        self._newest_of: dict[str, Session] = {}  # by host
        self._taking: list[tuple[Session, Sent]] = []  # batches of the next tick
        self._careful_until = 0.0
        self.failures = Failures(sink.directory)
        self.flushing = Flushing(sink, self._known.values, lambda: self._stage.tables, self._discard, self.failures)
        self.intake, self.host_limiter = Intake(self.flushing.storing), HostLimiter(lambda: settings.rates)
        self.live = Live(settings, self.flushing, self.failures, self._newest, self.recording, self.intake.silent_s)
        self._job_exchange = JobExchange(jobs)
        self._leaving: list[Session] = []  # that have said their last word
        self._closing, self._opening = Together(self._part), asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        """A host stage without sessions, and what is made of it."""
        self._stage = HostStage(self._settings, RankRegistry().answer)
        self.live.begin(self._stage.tables, self._stage.sessions)

    async def open(self, hello: Hello, news: asyncio.Event) -> Session:
        """The session of an agent that connects, new, known or found in the dataset. Raises DataError, WireError.

        news: set when something of it is stored, and when it connects again.
        """
        self.failures.check(hello)
        self._check_room(hello)
        async with self._opening:
            session = self._known.get(hello.session)
            if session and session.broken:
                await self.discard(session)
                session = None
            try:
                if session is None:
                    resume = await self.flushing.resume(hello)
                    session = self._known[hello.session] = self._stage.session(self._stage.open(hello, resume))
                    self._job_exchange.begin_session(session)
                    self._find_newest(hello.host)
                elif session.hello.host != hello.host:
                    raise WireError(f"session {hello.session} of {hello.host} is another host's")
                else:
                    session.introduce_again(hello)
            except NetmonError:
                raise
            except Exception as error:
                raise FailedSessionError(self.failures.at_hello(hello, error)) from error
        session.connect(hello.acknowledged, news)
        self.intake.joined(hello.session)
        return session

    def _check_room(self, hello: Hello) -> None:
        """Raise WireError where there is no room for one more."""
        if hello.session in self._known:
            return
        if len(self._known) >= MOST_SESSIONS:
            reason = f"there are {MOST_SESSIONS} sessions already"
            raise WireError(f"session {hello.session} of {hello.host} is refused: {reason}")
        if sum(session.hello.host == hello.host for session in self._known.values()) >= MOST_OF_HOST:
            raise WireError(f"session {hello.session} is refused: {hello.host} has {MOST_OF_HOST} sessions already")

    async def discard(self, session: Session) -> None:
        """Forget a session that is not what it should be; it is taken up from the dataset when it connects again."""
        session.broken = True
        async with self.flushing.now:  # what is on its way to the disk has to be there by then
            self._discard(session)

    def _discard(self, session: Session) -> None:
        if self._known.get(session.hello.session) is session:
            with contextlib.suppress(Exception):  # it is not what it should be
                self.disconnected(session)
            self._forget(session)

    def _forget(self, session: Session) -> None:
        self.live.forget(session)
        self._stage.close(session.index)
        self._job_exchange.end_session(session)
        del self._known[session.hello.session]
        self._find_newest(session.hello.host)

    def check_host_clock(self, session: Session, utc_ns: int) -> None:
        """A batch of that time has come of a session: whether another machine says that it is the same host."""
        host = session.hello.host
        newest = self._newest_of.get(host, session)
        begun_ns = newest.hello.clock.utc_ns
        if newest is not session and newest.connected and utc_ns > begun_ns + _OVERLAP_NS:
            names = session.hello.session, newest.hello.session
            line = f"two agents say that they are {host}: sessions {names[0]} and {names[1]}; only the second is shown"
            self.failures.notice(line)

    def add(self, session: Session, message: netmon_pb2.AgentMessage) -> None:
        if session.takes:
            batch = message.batch
            session.queue_batches(batch.sequence, [message], time.monotonic())
            self._stage.add(session.index, batch)
            self.intake.add_waiting(session.hello.session, claimed_rows(batch), batch.horizon_ns)
            self.intake.weight += weight(batch)
            self._taking.append((session, message))
            if self.intake.weight > _MOST_QUEUED or self.careful:
                self.tick()

    @property
    def careful(self) -> bool:
        """Whether a tick is to take in one batch, so that it is known which one it fails at."""
        return time.monotonic() < self._careful_until

    def receive(self, came: Sequence[Came], many: ManyBatches) -> None:
        """Take in batches that are read, in the order of their sessions' indices; a tick, also of none."""
        now = time.monotonic()
        for session, sequences, rows, horizon_ns, raw in came:
            session.queue_batches(sequences[0], raw, now)
            self.intake.add_waiting(session.hello.session, rows, horizon_ns, len(sequences))
            self._taking += [(session, data) for data in raw]
        session_indices = np.repeat([one.session.index for one in came], [len(one.sequences) for one in came])
        numbers = [sequence for one in came for sequence in one.sequences]
        self._tick(lambda: self._stage.take(session_indices.astype(np.int64), many, numbers))

    def tick(self) -> None:
        """Take in everything that is queued, and settle what is due on all hosts."""
        self._tick(self._stage.tick)

    def _tick(self, work: Callable[[], Settled]) -> None:
        self._guarded(work)
        if self._stage.tables.pending.count > _MOST_WAITING:
            self._settle_largest()

    def _settle_largest(self) -> None:
        """A session whose rows wait for a horizon that does not come holds no more memory."""
        waiting = np.bincount(self._stage.tables.pending.all()["session"])
        index = int(waiting.argmax())
        if session := self._stage.sessions.get(index):
            line = f"{session.hello.host} is {waiting[index]} rows ahead of its horizon"
            session.window.ranks.rejected.warn(line)
            self._settle([session], leaving=False)

    def _guarded(self, work: Callable[[], Settled]) -> None:
        """Let the stage work. It fails at single sessions by itself; where it fails as a whole, it begins anew."""
        try:
            settled = work()
        except Exception as error:
            self._begin_anew(error)
        else:
            self._made(settled)
        self._taking = []
        self.intake.ticked()

    def _begin_anew(self, error: Exception) -> None:
        """Nothing in the stage is what it should be: all sessions are taken up from the dataset, one batch a tick."""
        self.failures.at_everything(list(self._known.values()), self._taking, error)
        self._job_exchange.begin_anew()
        self._known.clear()
        self._newest_of.clear()
        self._begin()
        self._careful_until = time.monotonic() + _CAREFUL_S

    def _made(self, settled: Settled) -> None:
        """What a tick has made final, and at what it has failed."""
        try:
            self.live.publish(settled)
        except Exception as error:  # rows do not need it
            self.failures.notice(f"what is shown is incomplete: {type(error).__name__}: {error}", error)
        sessions = self._stage.sessions
        for session_index, (sequence, reason) in settled.refused.items():
            session = sessions[session_index]
            session.queued = session.received
            session.refuse(RefusedBatchError(sequence, session.hello.host, reason))
        for session_index, (sequence, failure) in settled.failed.items():
            self.failures.at_batch(sessions[session_index], sequence, failure)
        self.live.add(settled, self._newest_of.values())
        self.flushing.check_room()

    def order(self, session: Session) -> BackpressureRequest:
        """What an agent is requested: as much as we can take, and as soon as somebody waits for it."""
        within_ns = TRAINING_NS if session.trains else 0
        if self.live.watches(session.hello.host):
            within_ns = WATCHED_NS
        order = self.intake.order(session.hello.session)
        return request_of(order.bucket_ns, order.batch_ns, order.rows_per_s, within_ns)

    @property
    def infer_rest_s(self) -> float:
        """How long to wait with it after the last time."""
        return self._job_exchange.rest_s

    async def infer(self, leaving: Collection[Session] = ()) -> None:
        """Send the job stage what is new, and apply what it answers; it computes elsewhere.

        It waits for the slowest host that sends; leaving: sessions that have just said their last word.
        """
        try:
            last_words, calls = {e.hello.session for e in leaving}, self._stage.tables.rank_log.calls()
            marks, answer = await self._job_exchange.exchange(
                self._newest(), last_words, self.live.jobs.marked(), calls
            )
            for session, mark in marks:
                self._stage.add_marks(session.index, mark)
            for job, pattern in answer.patterns.items():
                self.live.jobs.pattern(job, pattern)
            self.live.jobs.forget(answer.mistaken)
        except Exception as error:  # rows do not need it
            self.failures.notice(f"cannot infer from the traffic: {type(error).__name__}: {error}", error)

    def recording(self, hosts: Collection[str]) -> list[Session]:
        """Of each of these hosts, of all where none is named, the session that lives."""
        live = [e for e in self._known.values() if e.connected and (not hosts or e.hello.host in hosts)]
        # One that sends what was left behind may have connected later.
        newest = {e.hello.host: e for e in sorted(live, key=lambda e: e.hello.clock.utc_ns)}
        return list(newest.values())

    def disconnected(self, session: Session) -> None:
        session.connected, session.last_batch_s = False, time.monotonic()
        self.live.full.disconnected(session)
        self.intake.left(session.hello.session)
        if not session.broken:
            session.window.ranks.release()

    def settle(self, session: Session, leaving: bool) -> None:
        self._settle([session], leaving)

    def _settle(self, sessions: list[Session], leaving: bool) -> None:
        session_indices = sorted(session.index for session in sessions if not session.broken)
        if session_indices:
            self._guarded(lambda: self._stage.settle_all(session_indices, leaving))
        for session in sessions:
            session.settled, session.left = True, leaving

    def settle_everything(self) -> None:
        """Settle all sessions: the collector stops."""
        for connected in (True, False):
            self._settle([e for e in self._known.values() if e.connected is connected], leaving=not connected)

    def tidy(self) -> None:
        """Settle sessions that have fallen silent, and let go of those that will not come back."""
        now = time.monotonic()
        sessions = [*self._known.values()]
        silent = [session for session in sessions if not session.settled and self._is_silent(session, now)]
        self._settle(silent, leaving=False)
        for session in silent:
            if not session.broken:
                session.window.ranks.release()
        gone = [e for e in sessions if now - e.last_batch_s > _LEAVE_AFTER_S and not (e.connected or e.left)]
        self._settle(gone, leaving=True)
        for session in list(self._known.values()):
            replaced = self._newest_of[session.hello.host] is not session
            quiet_s = now - session.last_batch_s
            is_over = session.left and session.idle and quiet_s > (_LEAVE_AFTER_S if replaced else _FORGET_AFTER_S)
            nothing = not session.connected and not session.queued and quiet_s > _SILENT_AFTER_S
            if is_over or nothing:
                self._forget(session)

    def _is_silent(self, session: Session, now: float) -> bool:
        """Whether nothing comes of it, and not because we are late ourselves."""
        quiet_s, ours_s = now - session.last_batch_s, now - self.intake.late_s
        return quiet_s > _LEAVE_AFTER_S or (min(quiet_s, ours_s) > _SILENT_AFTER_S and not session.behind)

    async def part(self, session: Session) -> bool:
        """Wait until all that a session which has said its last word has sent is settled and stored.

        False where the disk does not take it. Many agents may leave at one time: all who wait for the next flush get
        the same one.
        """
        self._leaving.append(session)
        return await self._closing.done()

    async def _part(self) -> bool:
        leaving, self._leaving = self._leaving, []
        await self.infer(leaving)
        self._settle(leaving, leaving=True)
        return await self.flush()

    async def close(self) -> None:
        """Whatever still works for somebody ends."""
        await self.live.close()
        await self._closing.close()

    async def flush(self) -> bool:
        """Write all that has settled, and acknowledge it; False where the disk does not take it."""
        return await self.flushing.flush()

    def freeze(self) -> Frozen:
        """What viewers can be shown now: the newest session of each host."""
        return self.live.freeze([self.flushing.trouble, *self._job_exchange.trouble, *self.failures.notices])

    def snapshot(self, flows: int) -> Snapshot:
        """Everything as it is now, with so many of the largest flows."""
        return self.live.page(self.freeze(), Selection(flows=flows))

    def sessions(self) -> list[Session]:
        return [session for session in self._newest() if not session.broken]

    def _newest(self) -> list[Session]:
        return list(self._newest_of.values())

    def _find_newest(self, host: str) -> None:
        """A session of it has come or gone. What an earlier one left behind may arrive later than its successor."""
        own = [session for session in self._known.values() if session.hello.host == host]
        if own:
            self._newest_of[host] = sorted(own, key=lambda session: session.hello.clock.utc_ns)[-1]
        else:
            self._newest_of.pop(host, None)
        self.live.sessions_changed()


# --- One connection of a session, however its messages come: what is accepted, what its agent is sent, how it ends.

_log = logging.getLogger(__name__)


class Connection:
    """From an accepted hello to `leave`. A newer one of the same session ends it."""

    def __init__(self, registry: Registry, session: Session) -> None:
        """`open` makes one."""
        self._registry, self.session = registry, session
        self._number = session.connections

    @classmethod
    async def open(cls, registry: Registry, hello: Hello, news: asyncio.Event) -> "Connection":
        """news: set when there is something to report. As Registry.open."""
        session = await registry.open(hello, news)
        hooks = ", ".join(f"{i.name} ({i.hook_rx}/{i.hook_tx})" for i in hello.interfaces)
        _log.info(f"{hello.host} connected: session {hello.session}, {hooks}")
        return cls(registry, session)

    @property
    def current(self) -> bool:
        """Whether the session has not connected again since."""
        return self.session.connections == self._number

    @property
    def takes(self) -> bool:
        """Whether what comes is taken in."""
        return self.current and self.session.takes

    @property
    def order(self) -> BackpressureRequest:
        """What the agent is requested."""
        return self._registry.order(self.session)

    async def room(self) -> None:
        """Wait until the session's next batch may come."""
        await self._registry.host_limiter.turn(self.session.hello.host)
        await self._registry.intake.turn(self.session.hello.session)
        await self._registry.flushing.room()

    async def process(self, message: netmon_pb2.AgentMessage) -> None:
        """Take a message in. Raises NetmonError; FailedBatchError where the collector fails."""
        session, batch, host = self.session, message.batch, self.session.hello.host
        try:
            if message.WhichOneof("message") == "full":
                self._registry.live.full.answer(session, message.full)
                return
            if message.WhichOneof("message") != "batch":
                raise WireError(f"a message of {host} after its hello is not a batch")
            if session.accept(batch.sequence):
                self._registry.add(session, message)
                self._registry.host_limiter.add_batch(host, batch)
            else:
                session.describe_again(batch.sequence, lambda: decode_batch(batch).flows)
            self._registry.check_host_clock(session, batch.clock.utc_ns)
        except NetmonError:
            raise
        except Exception as error:
            failed = self._registry.failures.at_message(session, message, error)
            await self._registry.discard(session)
            raise failed from error

    def check(self) -> None:
        """Raise what the agent has to know, as Session.check."""
        if self.current:
            self.session.check()

    def acknowledgements(self) -> Iterator[netmon_pb2.Acknowledgement]:
        """What is stored, and what the agent is requested."""
        return self.session.acknowledgements(self.order)

    async def leave(self, complete: bool) -> bool:
        """It has ended; complete: because the agent has said all that it has to say, and that is stored now.

        Whether all of it is. Raises as `check` does.
        """
        if not self.current:
            return False
        session, hello = self.session, self.session.hello
        self._registry.disconnected(session)
        _log.info(f"{hello.host} {'left' if complete else 'is cut off'}: session {hello.session}")
        if not complete:
            return False
        stored = await self._registry.part(session)
        self.check()
        return stored

    async def cut_off(self, error: Exception) -> None:
        """End it because of this."""
        await self.leave(complete=False)
        if isinstance(error, FailedBatchError):
            await self._registry.discard(self.session)
