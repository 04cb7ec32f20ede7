# SPDX-License-Identifier: Apache-2.0
"""All sessions of the collector: who is connected, what waits for a tick, and what a tick has made final."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from collector.agent_checks import FailedSessionError, RefusedBatchError
from collector.dataset.sink import Sink
from collector.ending import end_tasks
from collector.entry import Came, Entry, check_sessions
from collector.failures import Failures
from collector.flushing import Flushing
from collector.full_resolution import FullResolution
from collector.host.batches import Settled
from collector.host.session import Session
from collector.host_limiter import HostLimiter
from collector.intake import Intake, weight
from collector.iteration_updates import IterationUpdates
from collector.job_exchange import SILENT_AFTER_S, JobExchange
from collector.jobs.link import JobLink
from collector.judging.advising import Advising
from collector.judging.judging import Judging
from collector.quarantine import Sent
from collector.session_close import SessionClose
from collector.settings import Settings
from collector.stages import Stages
from collector.stored_past import Dataset
from collector.triggers import PullRequest, Triggers
from collector.view.frozen import Frozen
from collector.view.job_views import Jobs
from collector.view.pages import page
from collector.view.sessions import Sessions
from collector.view.view import View
from netmon.errors import DataError, NetmonError, WireError
from netmon.records import Hello
from netmon.views import Selection, Snapshot, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches

_log = logging.getLogger(__name__)

# --- Full resolution of what a trigger wants, into the table `full`.


async def keep_full(
    entries: Iterable[Entry], full: FullResolution, flushing: Flushing, triggers: Triggers, wanted: PullRequest
) -> None:
    """Ask these agents for it, and put it where the next flush finds it."""
    for entry in entries:
        try:
            pulled = await full.pull(entry, wanted.since_ns, wanted.until_ns)
        except DataError as error:
            _log.warning(error)
            continue
        triggers.stored(len(pulled.rows))
        gap = f"; {pulled.gap}" if pulled.gap else ""
        _log.info(f"{wanted.reason}: {len(pulled.rows)} rows of {entry.session.hello.host}{gap}")
        if len(pulled.rows):
            flushing.full_rows.append(entry.session.full(pulled.rows, wanted.reason, pulled.gap))


# --- registry


_SILENT_AFTER_S = SILENT_AFTER_S
_LEAVE_AFTER_S = 60.0
_FORGET_AFTER_S = 3600.0
_OVERLAP_NS = 5_000_000_000  # what an earlier agent left behind is not later than this after the next one's beginning
_CAREFUL_S = 60.0
_MOST_QUEUED = 1 << 20  # rows, or as much of other things, between two ticks
_MOST_WAITING = 4 << 20  # rows that have not settled


class Registry:
    """Sessions by name; lives on one event loop, only files are touched in threads."""

    def __init__(self, sink: Sink, settings: Settings, jobs: JobLink) -> None:
        """Begin without sessions. jobs: the way to the job stage; the caller's to close."""
        self._sink, self._settings = sink, settings
        self._entries: dict[str, Entry] = {}
        self._newest_of: dict[str, Entry] = {}  # by host
        self._shown = False  # the view knows of these
        self._jobs = Jobs(settings.parameters)
        self.counts = self._jobs.counts
        self._begin()
        self.ticks = 0  # how often what viewers see has changed
        self._waiting: list[tuple[Entry, Sent]] = []  # for the next tick
        self._queued: Sequence[Came] = ()  # the same of another process
        self._queued_weight, self._careful_until = 0, 0.0
        self.failures = Failures(sink.directory)
        self.stored: Dataset | None = None  # of the dataset that the sink writes, where somebody can read them
        self.flushing = Flushing(sink, self._entries.values, lambda: self._stage.tables, self._discard, self.failures)
        self._job_exchange = JobExchange(jobs, self._entries.values)
        self.intake, self.host_limiter = Intake(self.flushing.storing), HostLimiter(lambda: settings.rates)
        self.full, self._triggers = FullResolution(), Triggers(settings)
        self.iterations = IterationUpdates(self._jobs, self._triggers)
        self._pulling: set[asyncio.Task[None]] = set()
        self._closing, self._opening = SessionClose(self._part), asyncio.Lock()

    def _begin(self) -> None:
        """A host stage without sessions, and what is made of it."""
        self._stages = Stages(self._settings)
        self._stage = self._stages.hosts
        self._sessions = Sessions(self._stage.tables)
        self._view = View(self._sessions, self._jobs, self._settings)
        self.judging = Judging(self._stage.tables, self._jobs, self._store_verdict, self._from_dataset)
        self.advising = Advising(self.judging, self._stage.tables, self._jobs)

    def _store_verdict(self, verdict: Verdict) -> None:
        self.flushing.verdicts.append(verdict)

    def _from_dataset(self, job: str, since_ns: int, until_ns: int) -> Sequence[Verdict]:
        return self.stored.verdicts(job, since_ns, until_ns) if self.stored else ()

    async def open(self, hello: Hello, news: asyncio.Event) -> Entry:
        """The session of an agent that connects, new, known or found in the dataset. Raises DataError, WireError.

        news: set when something of it is stored, and when it connects again.
        """
        self.failures.check(hello)
        check_sessions(self._entries, hello)
        async with self._opening:
            entry = self._entries.get(hello.session)
            if entry and entry.broken:
                await self.discard(entry)
                entry = None
            try:
                if entry is None:
                    async with self.flushing.now:  # what is on its way to the disk has to be there by then
                        pass
                    resume = await asyncio.to_thread(self._sink.resume, hello)
                    session = self._stage.session(self._stage.open(hello, resume))
                    entry = self._entries[hello.session] = Entry(session, self._job_exchange.host_updates(session))
                    self._find_newest(hello.host)
                elif entry.session.hello.host != hello.host:
                    raise WireError(f"session {hello.session} of {hello.host} is another host's")
                else:
                    entry.session.introduce_again(hello)
            except NetmonError:
                raise
            except Exception as error:
                raise FailedSessionError(self.failures.at_hello(hello, error)) from error
        entry.news.set()  # the connection before this one has to go
        entry.news = news
        entry.connections += 1
        entry.connected, entry.left, entry.refused = True, False, None
        entry.requests.clear()
        return entry

    async def discard(self, entry: Entry) -> None:
        """Forget a session that is not what it should be; it is taken up from the dataset when it connects again."""
        entry.broken = True
        async with self.flushing.now:  # what is on its way to the disk has to be there by then
            self._discard(entry)

    def _discard(self, entry: Entry) -> None:
        if self._entries.get(entry.session.hello.session) is entry:
            with contextlib.suppress(Exception):  # it is not what it should be
                self.disconnected(entry)
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self._view.forget_links(self._sessions.links_of(entry.session))
        self.judging.forget(entry.session.index)
        self._stage.close(entry.session.index)
        self._job_exchange.over(entry)
        self._triggers.forget(entry.session.hello.session)
        del self._entries[entry.session.hello.session]
        self._find_newest(entry.session.hello.host)

    def check_host_clock(self, entry: Entry, utc_ns: int) -> None:
        """A batch of that time has come of a session: whether another machine says that it is the same host."""
        host = entry.session.hello.host
        newest = self._newest_of.get(host, entry)
        begun_ns = newest.session.hello.clock.utc_ns
        if newest is not entry and newest.connected and utc_ns > begun_ns + _OVERLAP_NS:
            names = entry.session.hello.session, newest.session.hello.session
            line = f"two agents say that they are {host}: sessions {names[0]} and {names[1]}; only the second is shown"
            self.failures.notice(line)

    def add(self, entry: Entry, message: netmon_pb2.AgentMessage) -> None:
        """Queue a batch for the next tick."""
        if entry.refused is None and not entry.broken:
            now, batch, session = time.monotonic(), message.batch, entry.session
            entry.settled, entry.last_batch_s = False, now
            entry.timed = entry.timed or (batch.sequence, now)
            entry.recent.append(message)
            self._stage.add(session.index, batch)
            self.intake.add_waiting(session.hello.session, batch.buckets.rows, batch.horizon_ns)
            self._waiting.append((entry, message))
            self._queued_weight += weight(batch)
            if self._queued_weight > _MOST_QUEUED or self.careful:
                self.tick()

    @property
    def careful(self) -> bool:
        """Whether a tick is to take in one batch, so that it is known which one it fails at."""
        return time.monotonic() < self._careful_until

    def receive(self, came: Sequence[Came], many: ManyBatches) -> None:
        """Take in batches that another process has read, in the order of their indices; a tick, also of none."""
        now = time.monotonic()
        for entry, sequences, rows, horizon_ns, raw in came:
            entry.settled, entry.last_batch_s = False, now
            entry.timed = entry.timed or (sequences[0], now)
            entry.recent.extend(raw)
            self.intake.add_waiting(entry.session.hello.session, rows, horizon_ns, len(sequences))
        self._queued = came
        session_indices = np.repeat([one.entry.session.index for one in came], [len(one.sequences) for one in came])
        numbers = [sequence for one in came for sequence in one.sequences]
        self._tick(lambda: self._stages.take(session_indices.astype(np.int64), many, numbers))

    def tick(self) -> None:
        """Take in everything that is queued, and settle what is due on all hosts."""
        self._tick(self._stages.tick)

    def _tick(self, work: Callable[[], Settled]) -> None:
        self._guarded(work)
        if self._stage.tables.pending.count > _MOST_WAITING:
            self._settle_largest()

    def _settle_largest(self) -> None:
        """A session whose rows wait for a horizon that does not come holds no more memory."""
        waiting = np.bincount(self._stage.tables.pending.all()["session"])
        session_index = int(waiting.argmax())
        for entry in self._entries.values():
            if entry.session.index == session_index:
                entry.session.window.ranks.rejected.warn(
                    f"{entry.session.hello.host} is {waiting[session_index]} rows ahead of its horizon"
                )
                self._settle([entry], leaving=False)

    def _guarded(self, work: Callable[[], Settled]) -> None:
        """Let the stage work. It fails at single sessions by itself; where it fails as a whole, it begins anew."""
        try:
            settled = work()
        except Exception as error:
            self._begin_anew(error)
        else:
            self._made(settled)
        self._waiting, self._queued, self._queued_weight = [], (), 0
        self.intake.ticked()

    def _begin_anew(self, error: Exception) -> None:
        """Nothing in the stage is what it should be: all sessions are taken up from the dataset, one batch a tick."""
        entries = list(self._entries.values())
        came = [(one.entry, raw) for one in self._queued for raw in one.raw]
        self.failures.at_everything(entries, [*self._waiting, *came], error)
        self._job_exchange.begin_anew(entries)
        self._entries.clear()
        self._newest_of.clear()
        self._shown = False
        self._begin()
        self._careful_until = time.monotonic() + _CAREFUL_S

    def _made(self, settled: Settled) -> None:
        """What a tick has made final, and at what it has failed."""
        self.ticks += 1
        self._publish(settled)
        entries = {entry.session.index: entry for entry in self._entries.values()}
        for session_index, (sequence, reason) in settled.refused.items():
            entry = entries[session_index]
            entry.session.queued = entry.session.received
            entry.refused = RefusedBatchError(sequence, entry.session.hello.host, reason)
            entry.news.set()
        for session_index, (sequence, error) in settled.failed.items():
            self.failures.at_batch(entries[session_index], sequence, error)
        newest = (entry.session.index for entry in self._newest_of.values())
        sessions = {session_index: entry.session for session_index, entry in entries.items()}
        self._store_full(self.iterations.publish(settled, sessions, newest, self.judging))
        for entry in self._newest_of.values() if self._triggers.watches_rows else ():
            for output in settled.outputs.get(entry.session.index, ()):
                try:
                    self._store_full(self._triggers.check_rows(entry.session, output))
                except Exception as error:
                    self.failures.at_session(entry, "what has settled", error)
        self.judging.tick(settled)
        self.flushing.check_room()

    def _publish(self, settled: Settled) -> None:
        try:
            self._show()
            self._sessions.publish(settled, self._view)
        except Exception as error:  # rows do not need it
            self.failures.notice(f"what is shown is incomplete: {type(error).__name__}: {error}", error)

    def _store_full(self, wanted: Iterable[PullRequest]) -> None:
        for one in wanted:
            task = asyncio.get_running_loop().create_task(
                keep_full(self.recording(one.hosts), self.full, self.flushing, self._triggers, one)
            )
            self._pulling.add(task)
            task.add_done_callback(self._pulling.discard)

    @property
    def infer_rest_s(self) -> float:
        """How long to wait with it after the last time."""
        return self._job_exchange.rest_s

    async def infer(self, leaving: Collection[Entry] = ()) -> None:
        """Tell the job stage what is new, and take over what it answers; it computes elsewhere.

        It waits for the slowest host that is heard; leaving: sessions that have just said their last word.
        """
        try:
            last_words, calls = {e.session.hello.session for e in leaving}, self._stage.tables.rank_log.calls()
            marks, patterns = await self._job_exchange.exchange(self._newest(), last_words, self._jobs.marked(), calls)
            for entry, mark in marks:
                self._stage.add_marks(entry.session.index, mark)
            for job, pattern in patterns.items():
                self._jobs.pattern(job, pattern)
        except Exception as error:  # rows do not need it
            self.failures.notice(f"cannot infer from the traffic: {type(error).__name__}: {error}", error)

    def recording(self, hosts: Collection[str]) -> list[Entry]:
        """Of each of these hosts, of all where none is named, the session that lives."""
        live = [e for e in self._entries.values() if e.connected and (not hosts or e.session.hello.host in hosts)]
        # One that sends what was left behind may have connected later.
        newest = {e.session.hello.host: e for e in sorted(live, key=lambda e: e.session.hello.clock.utc_ns)}
        return list(newest.values())

    def disconnected(self, entry: Entry) -> None:
        """The connection of a session has broken."""
        entry.connected, entry.last_batch_s = False, time.monotonic()
        self.full.disconnected(entry)
        self.intake.left(entry.session.hello.session)
        if not entry.broken:
            entry.session.window.ranks.release()

    def settle(self, entry: Entry, leaving: bool) -> None:
        """Settle all that a session has sent."""
        self._settle([entry], leaving)

    def _settle(self, entries: list[Entry], leaving: bool) -> None:
        session_indices = sorted(entry.session.index for entry in entries if not entry.broken)
        if session_indices:
            self._guarded(lambda: self._stages.settle_all(session_indices, leaving))
        for entry in entries:
            entry.settled, entry.left = True, leaving

    def settle_everything(self) -> None:
        """Settle all sessions: the collector stops."""
        for connected in (True, False):
            self._settle([e for e in self._entries.values() if e.connected is connected], leaving=not connected)

    def tidy(self) -> None:
        """Settle sessions that have fallen silent, and let go of those that will not come back."""
        now = time.monotonic()
        entries = [*self._entries.values()]
        silent = [entry for entry in entries if not entry.settled and self._is_silent(entry, now)]
        self._settle(silent, leaving=False)
        for entry in silent:
            if not entry.broken:
                entry.session.window.ranks.release()
        gone = [e for e in entries if now - e.last_batch_s > _LEAVE_AFTER_S and not (e.connected or e.left)]
        self._settle(gone, leaving=True)
        for entry in list(self._entries.values()):
            replaced = self._newest_of[entry.session.hello.host] is not entry
            quiet_s = now - entry.last_batch_s
            is_over = entry.left and entry.session.idle and quiet_s > (_LEAVE_AFTER_S if replaced else _FORGET_AFTER_S)
            nothing = not entry.connected and not entry.session.queued and quiet_s > _SILENT_AFTER_S
            if is_over or nothing:
                self._forget(entry)

    def _is_silent(self, entry: Entry, now: float) -> bool:
        """Whether nothing comes of it, and not because we are late ourselves."""
        quiet_s, ours_s = now - entry.last_batch_s, now - self.intake.late_s
        return quiet_s > _LEAVE_AFTER_S or (min(quiet_s, ours_s) > _SILENT_AFTER_S and not entry.behind)

    async def part(self, entry: Entry) -> bool:
        """Settle and store all that a session which has said its last word has sent, as Parting.part."""
        return await self._closing.part(entry)

    async def _part(self, leaving: list[Entry]) -> bool:
        await self.infer(leaving)
        self._settle(leaving, leaving=True)
        return await self.flush()

    async def close(self) -> None:
        """Whatever still works for somebody ends."""
        await end_tasks(self._pulling)
        await self._closing.close()

    async def flush(self) -> bool:
        """Write all that has settled, and acknowledge it; False where the disk does not take it."""
        return await self.flushing.flush()

    def freeze(self) -> Frozen:
        """What viewers can be shown now: the newest session of each host."""
        lines = self.flushing.trouble, *self._job_exchange.trouble, *self.failures.notices
        self._show()
        self.advising.refresh()
        return self._view.freeze(time.time_ns(), [line for line in lines if line])

    def page(self, frozen: Frozen, selection: Selection) -> Snapshot:
        """What of it a viewer has asked for."""
        return page(frozen, selection, self._sessions, self._jobs)

    def snapshot(self, flows: int) -> Snapshot:
        """Everything as it is now, with so many of the largest flows."""
        return self.page(self.freeze(), Selection(flows=flows))

    def sessions(self) -> list[Session]:
        """The newest session of each host."""
        return [entry.session for entry in self._newest() if not entry.broken]

    def _newest(self) -> list[Entry]:
        """The newest session of each host."""
        return list(self._newest_of.values())

    def _find_newest(self, host: str) -> None:
        """A session of it has come or gone. What an earlier one left behind may arrive later than its successor."""
        own = [entry for entry in self._entries.values() if entry.session.hello.host == host]
        if own:
            self._newest_of[host] = sorted(own, key=lambda entry: entry.session.hello.clock.utc_ns)[-1]
        else:
            self._newest_of.pop(host, None)
        self._shown = False

    def _show(self) -> None:
        """Give the view its sessions, if they have changed: before it gets rows or is read."""
        if not self._shown:
            self._shown = True
            self._sessions.show(self._newest())
