# SPDX-License-Identifier: Apache-2.0
"""All sessions of the collector, and the way of their rows to the disk."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from collector.dataset.sink import Sink
from collector.full_resolution import FullResolution
from collector.host.session import Flush, Session
from collector.host.window import Output
from collector.jobs.clocks import Clocks
from collector.jobs.common_numbers import Numbers
from collector.jobs.inferring import Inferring
from collector.jobs.rank_claims import Claims
from collector.jobs.remote_ends import Peers
from collector.settings import Settings
from collector.triggers import Triggers, Wanted
from collector.view.job_views import Jobs
from collector.view.snapshot import take_snapshot
from netmon.dl.inference import Findings
from netmon.errors import DataError, WireError
from netmon.records import Hello
from netmon.views import Snapshot
from netmon.wire import netmon_pb2

_log = logging.getLogger(__name__)
MOST_PENDING_BYTES = 512 << 20  # rows in memory while the disk does not take them
_SILENT_AFTER_S = 5.0  # agents send ten times a second; a broken connection may come back before
_LEAVE_AFTER_S = 60.0
_FORGET_AFTER_S = 3600.0


@dataclass
class Entry:
    """A session and its connection."""

    session: Session
    connections: int = 0  # how often it has connected; a newer connection ends an older one
    connected: bool = False
    last_heard: float = 0.0
    settled: bool = True  # nothing has arrived since it was last settled altogether
    left: bool = False
    acknowledge: int = 0
    requests: deque[netmon_pb2.FullRequest] = field(default_factory=deque)  # to be sent
    news: asyncio.Event = field(default_factory=asyncio.Event)  # acknowledge has risen, or there are requests


class Registry:
    """Sessions by name; lives on one event loop, only files are touched in threads."""

    def __init__(self, sink: Sink, settings: Settings) -> None:
        """Begin without sessions."""
        self._sink, self._settings = sink, settings
        self._entries: dict[str, Entry] = {}
        self._newest_of: dict[str, Entry] = {}  # by host
        self._jobs, self._peers = Jobs(settings.parameters), Peers()
        self._numbers, self._claims = Numbers(), Claims()
        self._inferring = Inferring()
        self._clocks = Clocks()
        self.full, self._triggers = FullResolution(), Triggers(settings)
        self._pulling: set[asyncio.Task[None]] = set()
        self._full_rows: list[pa.Table] = []
        self._flushing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._inferring_now = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._trouble = ""  # why the last flush failed

    async def open(self, hello: Hello, news: asyncio.Event) -> Entry:
        """The session of an agent that connects, new, known or found in the dataset. Raises DataError, WireError.

        news: set when something of it is stored, and when it connects again.
        """
        async with self._opening:
            entry = self._entries.get(hello.session)
            if entry is None:
                resume = await asyncio.to_thread(self._sink.resume, hello)
                entry = Entry(Session(hello, self._settings, resume, self._peers, self._numbers, self._claims))
                self._entries[hello.session] = entry
                self._find_newest()
            elif entry.session.hello.host != hello.host:
                raise WireError(f"session {hello.session} of {hello.host} is another host's")
            else:
                entry.session.introduce_again(hello)
        entry.news.set()  # the connection before this one has to go
        entry.news = news
        entry.connections += 1
        entry.connected, entry.left = True, False
        entry.requests.clear()
        return entry

    async def discard(self, entry: Entry) -> None:
        """Forget a session that is not what it should be; it is taken up from the dataset when it connects again."""
        async with self._flushing:  # what is on its way to the disk has to be there by then
            if self._entries.get(entry.session.hello.session) is entry:
                self.disconnected(entry)
                entry.connections += 1
                entry.session.forget()
                del self._entries[entry.session.hello.session]
                self._find_newest()

    def arrived(self, entry: Entry, output: Output, heard: bool = True) -> None:
        """A batch has been processed; not heard: it did not come from the agent."""
        if heard:
            entry.settled, entry.last_heard = False, time.monotonic()
        if self._clocks.due(time.monotonic_ns()):
            self._clocks.compare(host.session.window.comparable() for host in self._newest() if host.connected)
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
        if sum(e.session.pending_bytes for e in self._entries.values()) > MOST_PENDING_BYTES:
            self._room.clear()

    async def infer(self, leaving: Entry | None = None) -> None:
        """Let the traffic tell what it can about training; the computing happens in a thread.

        It waits for the slowest host that is heard; leaving: a session that has just said its last word.
        """
        async with self._inferring_now:
            soon = time.monotonic() - _SILENT_AFTER_S
            heard = [e for e in self._newest() if e is leaving or (e.connected and e.last_heard > soon)]
            news = self._inferring.gather([entry.session for entry in heard])
            if news.until_ns:
                self._infer(await asyncio.to_thread(self._inferring.run, news))

    def _infer(self, findings: Findings) -> None:
        marks, patterns = self._inferring.apply(findings)
        for entry in self._newest():
            told = marks.get(entry.session.hello.host)
            if told:
                self.arrived(entry, entry.session.infer(told), heard=False)
        for job, pattern in patterns.items():
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
        entry.session.window.ranks.release()

    def settle(self, entry: Entry, leaving: bool) -> None:
        """Settle all that a session has sent."""
        heard = entry.last_heard
        self.arrived(entry, entry.session.settle_all(leaving))
        entry.settled, entry.left, entry.last_heard = True, leaving, heard

    def settle_everything(self) -> None:
        """Settle all sessions: the collector stops."""
        for entry in self._entries.values():
            self.settle(entry, leaving=not entry.connected)

    def tidy(self) -> None:
        """Settle sessions that have fallen silent, and let go of those that will not come back."""
        now = time.monotonic()
        for name, entry in list(self._entries.items()):
            silent = now - entry.last_heard
            if silent > _SILENT_AFTER_S and not entry.settled:
                self.settle(entry, leaving=False)
                entry.session.window.ranks.release()
            if silent > _LEAVE_AFTER_S and not entry.connected and not entry.left:
                self.settle(entry, leaving=True)
            replaced = self._newest_of[entry.session.hello.host] is not entry
            if entry.left and entry.session.idle and silent > (_LEAVE_AFTER_S if replaced else _FORGET_AFTER_S):
                entry.session.forget()
                del self._entries[name]
                self._find_newest()

    async def flush(self) -> bool:
        """Write all that has settled, and acknowledge it; False where the disk does not take it."""
        # Once begun, it runs to its end whoever asked: a thread that writes cannot be called off.
        return await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> bool:
        async with self._flushing:
            # Nothing that a settled session has sent is needed any more, not even for what it leaves open.
            whole = [(entry, entry.session.received) for entry in self._entries.values() if entry.settled]
            flushes = [(entry, entry.session.flush()) for entry in self._entries.values()]
            due = [(entry, flush) for entry, flush in flushes if flush]
            full, self._full_rows = self._full_rows, []
            try:
                await asyncio.to_thread(self._write, {e.session.hello.session: flush for e, flush in due}, full)
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
            for entry, flush in due:
                flush.done()
                self._acknowledge(entry, flush.acknowledge or 0)
            for entry, sequence in whole:
                self._acknowledge(entry, sequence)
            if self._trouble:
                _log.warning("the dataset takes rows again")
            self._trouble = ""
            self._room.set()
            return True

    def _write(self, flushes: dict[str, Flush], full: list[pa.Table]) -> None:
        built: dict[str, list[pa.Table]] = {"full": full} if full else {}
        for flush in flushes.values():
            for name, rows in flush.build().items():
                built.setdefault(name, []).append(rows)
        tables = {name: pa.concat_tables(rows) for name, rows in built.items()}
        self._sink.write(tables, {session: flush.state for session, flush in flushes.items()})

    @staticmethod
    def _acknowledge(entry: Entry, sequence: int) -> None:
        if sequence > entry.acknowledge:
            entry.acknowledge = sequence
            entry.news.set()

    def snapshot(self, flows: int) -> Snapshot:
        """What viewers see now: the newest session of each host."""
        windows = [(entry.session.window, entry.connected) for entry in self._newest()]
        trouble = tuple(line for line in (self._trouble, self._inferring.trouble) if line)
        return take_snapshot(windows, self._jobs, self._settings, time.time_ns(), flows, trouble)

    def _newest(self) -> list[Entry]:
        """The newest session of each host."""
        return list(self._newest_of.values())

    def _find_newest(self) -> None:
        """After a session has come or gone. What an earlier one left behind may arrive later than its successor."""
        by_age = sorted(self._entries.values(), key=lambda entry: entry.session.hello.clock.utc_ns)
        self._newest_of = {entry.session.hello.host: entry for entry in by_age}
