# SPDX-License-Identifier: Apache-2.0
"""All sessions of the collector, and the way of their rows to the disk."""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from collector.dataset.resume import SessionState
from collector.dataset.sink import Sink
from collector.door import FailedBatchError, FailedSessionError, RefusedBatchError
from collector.full_resolution import FullResolution
from collector.host.incoming import gather
from collector.host.session import Flush, Session
from collector.host.stage import HostStage, Settled
from collector.host.telling import Teller, ToldFlows, apply, tell
from collector.host.window import Output
from collector.intake import Intake
from collector.jobs.common_numbers import Numbers
from collector.jobs.link import JobLink, JobsHere
from collector.jobs.rank_claims import Claims
from collector.jobs.remote_ends import Peers
from collector.set_aside import SetAside
from collector.settings import Settings
from collector.shedding import Storing
from collector.triggers import Triggers, Wanted
from collector.view.frozen import Frozen
from collector.view.job_views import Jobs
from collector.view.pages import page
from collector.view.sessions import Sessions
from collector.view.view import View
from netmon.errors import DataError, NetmonError, WireError
from netmon.records import Batch, Hello
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello
from netmon.wire.limits import MAX_ROWS

_log = logging.getLogger(__name__)
MOST_PENDING_BYTES = 512 << 20  # rows in memory while the disk does not take them
MOST_SESSIONS = 8_192
_SILENT_AFTER_S = 5.0  # agents send ten times a second; a broken connection may come back before
_LEAVE_AFTER_S = 60.0
_FORGET_AFTER_S = 3600.0
_MOST_FAILURES = 3  # of a session, until it is not taken in any more
_MOST_FAILED = 4_096  # sessions whose failures are remembered
_MOST_NOTICES = 100
_OVERLAP_NS = 5_000_000_000  # what an earlier agent left behind is not later than this after the next one's beginning
_MOST_RECENT = 8  # messages of a session, kept for a bug report
_CAREFUL_S = 60.0
_MOST_QUEUED = 1 << 20  # rows, or as much of other things, between two ticks
_MOST_WAITING = 4 << 20  # rows that have not settled
_ROWS_PER_FLOW, _ROWS_PER_MARK = 32, 8  # that take as much memory


@dataclass
class Entry:
    """A session and its connection."""

    session: Session
    teller: Teller
    connections: int = 0  # how often it has connected; a newer connection ends an older one
    connected: bool = False
    last_heard: float = 0.0
    settled: bool = True  # nothing has arrived since it was last settled altogether
    left: bool = False
    broken: bool = False  # the collector has failed at it: nothing more comes or goes, and it is to be discarded
    failure: str = ""  # at what, where that was no batch: its agent is to be told
    refused: RefusedBatchError | None = None  # a batch that was not taken in: its agent is to be told
    acknowledge: int = 0
    requests: deque[netmon_pb2.FullRequest] = field(default_factory=deque)  # to be sent
    recent: deque[netmon_pb2.AgentMessage] = field(default_factory=lambda: deque(maxlen=_MOST_RECENT))
    news: asyncio.Event = field(default_factory=asyncio.Event)  # acknowledge has risen, or there are requests


class Registry:
    """Sessions by name; lives on one event loop, only files are touched in threads."""

    def __init__(self, sink: Sink, settings: Settings, jobs: JobLink | None = None) -> None:
        """Begin without sessions. jobs: the way to the job stage; the caller's to close; without one, it is in here."""
        self._sink, self._settings = sink, settings
        self._entries: dict[str, Entry] = {}
        self._newest_of: dict[str, Entry] = {}  # by host
        self._jobs = Jobs(settings.parameters)
        self._numbers, self._claims, self._peers = Numbers(), Claims(), Peers()
        self._stage = HostStage(settings, self._peers, self._numbers, self._claims)
        self._sessions = Sessions(self._stage.tables)
        self._view = View(self._sessions, self._jobs, settings)
        self.ticks = 0  # how often what viewers see has changed
        self._queued: list[tuple[Entry, netmon_pb2.AgentMessage]] = []  # for the next tick
        self._queued_weight = 0
        self._careful_until = 0.0  # until then a tick takes in one batch, so that it is known which one it fails at
        self._job_stage = jobs or JobsHere()
        self._told_flows = ToldFlows()
        self._places = 0  # that were given to sessions in what the job stage is told
        self._ended: list[int] = []  # places of sessions that are over, of which it has not been told
        self._untold = 0  # rows that it was not told
        self.intake = Intake(self._storing)
        self._writing_s = 0.0  # CPU time of the last flush
        self.full, self._triggers = FullResolution(), Triggers(settings)
        self._pulling: set[asyncio.Task[None]] = set()
        self._full_rows: list[pa.Table] = []
        self._flushing = asyncio.Lock()
        self._next_flush: asyncio.Future[bool] | None = None  # that has not begun
        self._leaving: list[Entry] = []  # who is to be parted with
        self._parting: asyncio.Future[bool] | None = None  # from them
        self._parting_now = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._inferring_now = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._trouble = ""  # why the last flush failed
        self._set_aside = SetAside(sink.directory)
        self._failures: Counter[str] = Counter()  # of whole sessions, by name
        self._notices: dict[str, None] = {}  # lines for viewers

    async def open(self, hello: Hello, news: asyncio.Event) -> Entry:
        """The session of an agent that connects, new, known or found in the dataset. Raises DataError, WireError.

        news: set when something of it is stored, and when it connects again.
        """
        if self._failures[hello.session] >= _MOST_FAILURES:
            raise WireError(
                f"session {hello.session} of {hello.host} is not taken in: the collector has failed at it "
                f"{_MOST_FAILURES} times; see {self._set_aside.folder}"
            )
        if len(self._entries) >= MOST_SESSIONS and hello.session not in self._entries:
            raise WireError(f"session {hello.session} of {hello.host} is not taken in: there are {MOST_SESSIONS}")
        async with self._opening:
            entry = self._entries.get(hello.session)
            if entry and entry.broken:
                await self.discard(entry)
                entry = None
            try:
                if entry is None:
                    async with self._flushing:  # what is on its way to the disk has to be there by then
                        pass
                    resume = await asyncio.to_thread(self._sink.resume, hello)
                    session = self._stage.session(self._stage.open(hello, resume))
                    self._places += 1
                    entry = Entry(session, Teller(self._places, session, self._told_flows))
                    self._entries[hello.session] = entry
                    self._find_newest()
                elif entry.session.hello.host != hello.host:
                    raise WireError(f"session {hello.session} of {hello.host} is another host's")
                else:
                    entry.session.introduce_again(hello)
            except NetmonError:
                raise
            except Exception as error:
                self._count_failure(hello)
                raise FailedSessionError(self.set_aside(hello, "its hello", [], error)) from error
        entry.news.set()  # the connection before this one has to go
        entry.news = news
        entry.connections += 1
        entry.connected, entry.left, entry.refused = True, False, None
        entry.requests.clear()
        return entry

    async def discard(self, entry: Entry) -> None:
        """Forget a session that is not what it should be; it is taken up from the dataset when it connects again."""
        entry.broken = True
        async with self._flushing:  # what is on its way to the disk has to be there by then
            self._discard(entry)

    def _discard(self, entry: Entry) -> None:
        if self._entries.get(entry.session.hello.session) is entry:
            with contextlib.suppress(Exception):  # it is not what it should be
                self.disconnected(entry)
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self._view.forget_links(self._sessions.links_of(entry.session))
        ranks = entry.session.window.ranks.names()
        self._stage.close(entry.session.place)
        self._claims.release_session(entry.session.hello.session)
        for job, rank in ranks:
            if not self._claims.held(job, rank):  # by a later session
                self._numbers.forget(job, rank)
        self._ended.append(entry.teller.place)
        self._triggers.forget(entry.session.hello.session)
        del self._entries[entry.session.hello.session]
        self._find_newest()

    def set_aside(self, hello: Hello, what: str, messages: Sequence[netmon_pb2.AgentMessage], error: Exception) -> str:
        """Keep what the collector failed at for a bug report, after the hello; returns what to tell its sender."""
        opening = netmon_pb2.AgentMessage(hello=encode_hello(hello))
        return self._set_aside.keep(hello.session, f"{what} of {hello.host}", [opening, *messages], error)

    def _fail(self, entry: Entry, what: str, error: Exception) -> None:
        """The collector has failed at a session as a whole: it is discarded, and all others go on."""
        hello = entry.session.hello
        if not entry.broken:
            self._count_failure(hello)
            entry.broken, entry.failure = True, self.set_aside(hello, what, list(entry.recent), error)
            entry.news.set()

    def _count_failure(self, hello: Hello) -> None:
        self._failures[hello.session] += 1
        for name in list(self._failures)[:-_MOST_FAILED]:
            del self._failures[name]

    def heard_at(self, entry: Entry, utc_ns: int) -> None:
        """A batch of that time has come of a session: whether another machine says that it is the same host."""
        host = entry.session.hello.host
        newest = self._newest_of.get(host, entry)
        begun_ns = newest.session.hello.clock.utc_ns
        if newest is not entry and newest.connected and utc_ns > begun_ns + _OVERLAP_NS:
            names = entry.session.hello.session, newest.session.hello.session
            line = f"two agents say that they are {host}: sessions {names[0]} and {names[1]}; only the second is shown"
            self._notice(line)

    def add(self, entry: Entry, message: netmon_pb2.AgentMessage) -> None:
        """Queue a batch for the next tick."""
        if entry.refused is None and not entry.broken:
            entry.settled, entry.last_heard = False, time.monotonic()
            entry.recent.append(message)
            self._stage.add(entry.session.place, message.batch)
            self.intake.came(entry.session.hello.session, message.batch.buckets.rows, message.batch.horizon_ns)
            self._queued.append((entry, message))
            self._queued_weight += _weight(message.batch)
            if self._queued_weight > _MOST_QUEUED or time.monotonic() < self._careful_until:
                self.tick()

    def tick(self) -> None:
        """Take in everything that is queued, and settle what is due on all hosts."""
        self._guarded(self._stage.tick)
        if self._stage.tables.pending.count > _MOST_WAITING:
            self._settle_largest()

    def _settle_largest(self) -> None:
        """A session whose rows wait for a horizon that does not come holds no more memory."""
        waiting = np.bincount(self._stage.tables.pending.all()["session"])
        place = int(waiting.argmax())
        for entry in self._entries.values():
            if entry.session.place == place:
                entry.session.window.ranks.warn(
                    f"{entry.session.hello.host} is {waiting[place]} rows ahead of its horizon"
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
        self._queued, self._queued_weight = [], 0
        self.intake.ticked()

    def _begin_anew(self, error: Exception) -> None:
        """Nothing in the stage is what it should be: every session is taken up from the dataset, one batch at a time.

        A batch that was alone is to blame; else it is found when it comes again.
        """
        queued, told = self._queued, "the collector failed, and takes every session up from the dataset"
        alone = len(queued) == 1
        for entry, message in queued[:_MOST_RECENT]:
            hello, sequence = entry.session.hello, message.batch.sequence
            if alone:
                why = self.set_aside(hello, f"batch {sequence}", [message], error)
                entry.refused = FailedBatchError(sequence, hello.host, why)
            else:
                self.set_aside(hello, f"batch {sequence}, or another one of those", [message], error)
        if not queued:
            _log.error(told, exc_info=error)
        for entry in self._entries.values():
            entry.broken, entry.failure = True, told
            entry.news.set()
        self._ended += [entry.teller.place for entry in self._entries.values()]
        self._entries.clear()
        self._find_newest()
        self._numbers, self._claims, self._peers = Numbers(), Claims(), Peers()
        self._stage = HostStage(self._settings, self._peers, self._numbers, self._claims)
        self._told_flows = ToldFlows()
        self._sessions = Sessions(self._stage.tables)
        self._view = View(self._sessions, self._jobs, self._settings)
        self._careful_until = time.monotonic() + _CAREFUL_S

    def take(self, entry: Entry, batch: Batch) -> None:
        """Take in one batch at once."""
        entry.settled, entry.last_heard = False, time.monotonic()
        self._guarded(lambda: self._stage.take([entry.session.place], gather([batch])))

    def _made(self, settled: Settled) -> None:
        """What a tick has made final, and at what it has failed."""
        self.ticks += 1
        self._tell_viewers(settled)
        entries = {entry.session.place: entry for entry in self._entries.values()}
        for place, (sequence, reason) in settled.refused.items():
            entry = entries[place]
            entry.session.queued = entry.session.received
            entry.refused = RefusedBatchError(sequence, entry.session.hello.host, reason)
            entry.news.set()
        for place, (sequence, error) in settled.failed.items():
            self._fail_at(entries[place], sequence, error)
        for place, outputs in settled.outputs.items():
            for output in outputs:
                try:
                    self._arrived(entries[place], output)
                except Exception as error:
                    self._fail(entries[place], "what has settled", error)
        if self._pending_bytes > MOST_PENDING_BYTES:
            self._room.clear()

    def _tell_viewers(self, settled: Settled) -> None:
        try:
            self._sessions.tell(settled, self._view)
        except Exception as error:  # rows do not need it
            self._notice(f"what is shown is incomplete: {type(error).__name__}: {error}", error)

    def _fail_at(self, entry: Entry, sequence: int, error: Exception) -> None:
        """The collector has failed at a batch: the session begins anew, from the dataset."""
        hello = entry.session.hello
        if not sequence:
            return self._fail(entry, "its rows", error)
        messages = [message for message in entry.recent if message.batch.sequence == sequence]
        told = self.set_aside(hello, f"batch {sequence}", messages, error)
        entry.broken, entry.refused = True, FailedBatchError(sequence, hello.host, told)
        entry.news.set()
        return None

    def _arrived(self, entry: Entry, output: Output) -> None:
        """Something of a session has become final."""
        host = entry.session.hello.host
        if self._newest_of.get(host) is entry:  # viewers see the present
            for iteration in output.ended:
                self._jobs.ended(host, iteration)
            for iteration, tally in output.iterations:
                self._jobs.accounted(iteration, tally)
            for wanted in self._triggers.look(entry.session, output, self._jobs):
                task = asyncio.get_running_loop().create_task(self._keep_full(wanted))
                self._pulling.add(task)
                task.add_done_callback(self._pulling.discard)

    def _notice(self, line: str, error: Exception | None = None) -> None:
        """Log a line once, and keep it for viewers."""
        if line not in self._notices and len(self._notices) < _MOST_NOTICES:
            self._notices[line] = None
            _log.warning(line, exc_info=error)

    @property
    def _pending_bytes(self) -> int:
        return sum(entry.session.pending_bytes for entry in self._entries.values())

    def _storing(self) -> Storing:
        return Storing(self._pending_bytes / MOST_PENDING_BYTES, self._writing_s)

    def close_intake(self) -> None:
        """Take nothing in any more: what agents have not been told is stored, they keep."""
        self._closing = True
        self._room.clear()

    async def infer(self, leaving: Collection[Entry] = ()) -> None:
        """Tell the job stage what is new, and take over what it answers; it computes elsewhere.

        It waits for the slowest host that is heard; leaving: sessions that have just said their last word.
        """
        async with self._inferring_now:
            try:
                await self._exchange({entry.session.hello.session for entry in leaving})
            except Exception as error:  # rows do not need it
                self._notice(f"cannot infer from the traffic: {type(error).__name__}: {error}", error)

    async def _exchange(self, last_words: Collection[str]) -> None:
        """last_words: sessions that are heard although they have gone."""
        soon = time.monotonic() - _SILENT_AFTER_S
        newest = [entry for entry in self._newest() if not entry.broken]
        heard = [
            entry.teller
            for entry in newest
            if entry.session.hello.session in last_words or (entry.connected and entry.last_heard > soon)
        ]
        if not self._job_stage.alive or not (heard or self._ended):
            return
        ended, self._ended = self._ended, []
        news = tell(heard, [entry.teller for entry in newest if entry.connected and entry.session.received], ended)
        self._untold += news.untold
        answer = await self._job_stage.exchange(news)
        entries = {entry.teller.place: entry for entry in self._entries.values() if not entry.broken}
        if answer.begins_anew:
            for entry in entries.values():
                entry.teller.begin_anew()
            return
        for place, marks in apply(answer, {place: entry.session for place, entry in entries.items()}).items():
            self._stage.tell(entries[place].session.place, marks)
        for job, pattern in answer.patterns.items():
            self._jobs.pattern(job, pattern)

    async def _keep_full(self, wanted: Wanted) -> None:
        """Full resolution of what a trigger wants, into the table `full`."""
        for entry in self.recording(wanted.hosts):
            hello = entry.session.hello
            try:
                pulled = await self.full.pull(entry, wanted.since_ns, wanted.until_ns)
            except DataError as error:
                _log.warning(error)
                continue
            self._triggers.stored(len(pulled.rows))
            _log.info(
                f"{wanted.reason}: {len(pulled.rows)} rows of {hello.host}" + (f"; {pulled.gap}" if pulled.gap else "")
            )
            if len(pulled.rows):
                self._full_rows.append(entry.session.full(pulled.rows, wanted.reason, pulled.gap))

    def recording(self, hosts: Collection[str]) -> list[Entry]:
        """Of each of these hosts, of all where none is named, the session that lives."""
        live = [e for e in self._entries.values() if e.connected and (not hosts or e.session.hello.host in hosts)]
        # One that sends what was left behind may have connected later.
        newest = {e.session.hello.host: e for e in sorted(live, key=lambda e: e.session.hello.clock.utc_ns)}
        return list(newest.values())

    async def room(self) -> None:
        """Wait until rows may come in; at once unless the disk does not keep up."""
        await self._room.wait()

    def disconnected(self, entry: Entry) -> None:
        """The connection of a session has broken."""
        entry.connected, entry.last_heard = False, time.monotonic()
        self.full.disconnected(entry)
        self.intake.left(entry.session.hello.session)
        if not entry.broken:
            entry.session.window.ranks.release()

    def settle(self, entry: Entry, leaving: bool) -> None:
        """Settle all that a session has sent."""
        self._settle([entry], leaving)

    def _settle(self, entries: list[Entry], leaving: bool) -> None:
        places = sorted(entry.session.place for entry in entries if not entry.broken)
        if places:
            self._guarded(lambda: self._stage.settle_all(places, leaving))
        for entry in entries:
            entry.settled, entry.left = True, leaving

    def settle_everything(self) -> None:
        """Settle all sessions: the collector stops."""
        for connected in (True, False):
            self._settle([e for e in self._entries.values() if e.connected is connected], leaving=not connected)

    def tidy(self) -> None:
        """Settle sessions that have fallen silent, and let go of those that will not come back."""
        now = time.monotonic()
        entries = list(self._entries.values())
        silent = [e for e in entries if now - e.last_heard > _SILENT_AFTER_S and not e.settled]
        self._settle(silent, leaving=False)
        for entry in silent:
            if not entry.broken:
                entry.session.window.ranks.release()
        gone = [e for e in entries if now - e.last_heard > _LEAVE_AFTER_S and not (e.connected or e.left)]
        self._settle(gone, leaving=True)
        for entry in list(self._entries.values()):
            replaced = self._newest_of[entry.session.hello.host] is not entry
            quiet_s = now - entry.last_heard
            told = entry.left and entry.session.idle and quiet_s > (_LEAVE_AFTER_S if replaced else _FORGET_AFTER_S)
            nothing = not entry.connected and not entry.session.queued and quiet_s > _SILENT_AFTER_S
            if told or nothing:
                self._forget(entry)

    async def part(self, entry: Entry) -> bool:
        """Settle and store all that a session which has said its last word has sent, with those that leave beside it.

        False where the disk does not take it.
        """
        self._leaving.append(entry)
        if self._parting is None:
            self._parting = asyncio.ensure_future(self._part())
        return await asyncio.shield(self._parting)

    async def _part(self) -> bool:
        async with self._parting_now:
            leaving, self._leaving, self._parting = self._leaving, [], None
            await self.infer(leaving)
            self._settle(leaving, leaving=True)
            return await self.flush()

    async def flush(self) -> bool:
        """Write all that has settled, and acknowledge it; False where the disk does not take it."""
        # Once begun, it runs to its end whoever asked: a thread that writes cannot be called off. Whoever asks while
        # another one waits for its turn gets the same.
        if self._next_flush is None:
            self._next_flush = asyncio.ensure_future(self._flush())
        return await asyncio.shield(self._next_flush)

    async def _flush(self) -> bool:
        async with self._flushing:
            self._next_flush = None
            # Nothing that a settled session has sent is needed any more, not even for what it leaves open.
            for entry in [entry for entry in self._entries.values() if entry.broken]:
                self._discard(entry)
            whole = [(entry, entry.session.received) for entry in self._entries.values() if entry.settled]
            due = self._due()
            full, self._full_rows = self._full_rows, []
            try:
                failed = await asyncio.to_thread(self._write, due, full)
            except BaseException as error:
                for _, flush in due:
                    flush.undone()
                self._full_rows = full + self._full_rows
                if not isinstance(error, DataError):
                    raise
                if str(error) != self._trouble:
                    _log.error(error)
                self._trouble = str(error)
                return False
            for entry, built in failed:
                self._fail(entry, "the rows to be stored", built)
            for entry, flush in due:
                if not entry.broken:
                    flush.done()
                    self._acknowledge(entry, flush.acknowledge or 0)
            for entry, sequence in whole:
                if not entry.broken:
                    self._acknowledge(entry, sequence)
            if self._trouble:
                _log.warning(f"{self._sink.directory} takes rows again")
            self._trouble = ""
            if not self._closing:
                self._room.set()
            return True

    def _due(self) -> list[tuple[Entry, Flush]]:
        """What each session has to be stored; the collector may fail at one, which costs only that one."""
        due = []
        for entry in self._entries.values():
            try:
                flush = None if entry.broken else entry.session.flush()
                if flush:
                    due.append((entry, flush))
            except Exception as error:
                self._fail(entry, "the rows to be stored", error)
        return due

    def _write(self, due: list[tuple[Entry, Flush]], full: list[pa.Table]) -> list[tuple[Entry, Exception]]:
        """Write all that can be built; returns the sessions at which that fails. Raises DataError; may be a thread."""
        began_s = time.thread_time()
        built, failed = [], []
        for entry, flush in due:
            try:
                built.append((entry, flush.build(), flush.state))
            except Exception as error:
                failed.append((entry, error))
        try:
            self._store(built, full)
        except DataError:
            raise
        except Exception:  # the rows of one are not what they should be: those of all others are stored without them
            for one in built:
                try:
                    self._store([one], [])
                except Exception as error:
                    failed.append((one[0], error))
        self._writing_s = time.thread_time() - began_s
        return failed

    def _store(self, built: Sequence[tuple[Entry, Mapping[str, pa.Table], SessionState]], full: list[pa.Table]) -> None:
        tables: dict[str, list[pa.Table]] = {"full": full} if full else {}
        for _, own, _ in built:
            for name, rows in own.items():
                tables.setdefault(name, []).append(rows)
        states = {entry.session.hello.session: state for entry, _, state in built}
        self._sink.write({name: pa.concat_tables(rows) for name, rows in tables.items()}, states)

    @staticmethod
    def _acknowledge(entry: Entry, sequence: int) -> None:
        if sequence > entry.acknowledge:
            entry.acknowledge = sequence
            entry.news.set()

    def freeze(self) -> Frozen:
        """What viewers can be shown now: the newest session of each host."""
        untold = f"{self._untold} rows were not told to the inference: it falls behind" if self._untold else ""
        lines = self._trouble, *self._job_stage.trouble, untold, *self._notices
        return self._view.freeze(time.time_ns(), [line for line in lines if line])

    def page(self, frozen: Frozen, asked: Selection) -> Snapshot:
        """What of it a viewer has asked for."""
        return page(frozen, asked, self._sessions, self._jobs)

    def snapshot(self, flows: int) -> Snapshot:
        """Everything as it is now, with so many of the largest flows."""
        return self.page(self.freeze(), Selection(flows=flows))

    def _newest(self) -> list[Entry]:
        """The newest session of each host."""
        return list(self._newest_of.values())

    def _find_newest(self) -> None:
        """After a session has come or gone. What an earlier one left behind may arrive later than its successor."""
        by_age = sorted(self._entries.values(), key=lambda entry: entry.session.hello.clock.utc_ns)
        self._newest_of = {entry.session.hello.host: entry for entry in by_age}
        self._sessions.show(self._newest())


def _weight(batch: netmon_pb2.Batch) -> int:
    """How much memory a batch takes when it is decoded, as a number of rows."""
    marks = len(batch.marks) + len(batch.nic) + len(batch.exchanges) + len(batch.ledger)
    return min(batch.buckets.rows, MAX_ROWS) + _ROWS_PER_FLOW * len(batch.flows) + _ROWS_PER_MARK * marks
