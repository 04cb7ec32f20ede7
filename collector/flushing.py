# SPDX-License-Identifier: Apache-2.0
"""The way of settled rows to the dataset, and of the news that they are there back to their agents."""

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from collector.backpressure import Storing
from collector.dataset.manifest import Resume
from collector.dataset.sink import ParquetSink
from collector.dataset.tables import SCHEMAS
from collector.ending import Together
from collector.host.iteration_rows import Accounted
from collector.host.session import Session
from collector.host.tables import Tables
from collector.host.unstored import SessionFlush, by_session, flush_tables
from collector.quarantine import Failures
from netmon.dl.verdict.verdict_text import columns
from netmon.errors import DataError
from netmon.records import Columns, Hello
from netmon.views import Hang, Verdict

_log = logging.getLogger(__name__)


# --- Verdicts and hangs as rows of their tables.


def verdict_table(verdicts: Sequence[Verdict]) -> pa.Table:
    """One row each."""
    return _table("verdicts", [columns(one) | {"ranks": [asdict(each) for each in one.ranks]} for one in verdicts])


def hang_table(hangs: Sequence[Hang]) -> pa.Table:
    """One row each."""
    return _table("hangs", [asdict(one) | {"what": one.what.name.lower()} for one in hangs])


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = []
    for column in schema:
        values = [row[column.name] for row in rows]
        word = pa.types.is_dictionary(column.type)
        arrays.append(pa.array(values, pa.string()).dictionary_encode() if word else pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


# --- How long agents wait for the word that a batch is stored: one batch of each session at a time is timed.

DELAY_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0)
"""Upper bounds of the histogram; what is longer has a class of its own."""


@dataclass
class Delays:
    """A histogram since the collector's start."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DELAY_BOUNDS_S) + 1))  # by DELAY_BOUNDS_S
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(DELAY_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Delays":
        return Delays([*self.counts], self.seconds)


MOST_PENDING_BYTES = 512 << 20
"""Rows in memory while the disk does not take them."""
SLOW_S = 10.0
"""A write that takes longer is said, and the collector is not ready until it has ended."""


_Sessions = Sequence[tuple[Session, SessionFlush]]


@dataclass
class _Due:
    """What is to be written at one time."""

    sessions: _Sessions
    buckets: list[Columns]
    iterations: list[Accounted]
    others: dict[str, list[Columns]]  # of Tables.unstored_of
    jobs: list[str]  # by the rows' number
    full: list[pa.Table]
    verdicts: list[Verdict]
    hangs: list[Hang]


class Flushing:
    """One flush at a time; only its files are touched in a thread."""

    def __init__(
        self,
        sink: ParquetSink,
        sessions: Callable[[], Collection[Session]],
        tables: Callable[[], Tables],
        discard: Callable[[Session], None],
        failures: Failures,
    ) -> None:
        """sessions: all sessions that are known now; tables: theirs; discard: forget one that is broken."""
        self._sink, self._known, self._discard, self._failures = sink, sessions, discard, failures
        self._tables = tables
        self._together = Together(self._flush)
        self.trouble = ""
        """Why the last flush failed; empty: it did not."""
        self.full_rows: list[pa.Table] = []
        """Of the table `full`, for the next flush."""
        self.verdicts: list[Verdict] = []
        """For the next flush."""
        self.hangs: list[Hang] = []
        """The same."""
        self.delays = Delays()
        """Of batches until they are stored."""
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._writing_s = 0.0  # CPU time of the last flush

    @property
    def pending_bytes(self) -> int:
        return self._tables().unstored_bytes

    def storing(self) -> Storing:
        return Storing(self.pending_bytes / MOST_PENDING_BYTES, self._writing_s)

    @property
    def open(self) -> bool:
        """Whether rows may come in."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until rows may come in; at once unless the disk does not keep up."""
        await self._room.wait()

    def check_room(self) -> None:
        """After rows have settled."""
        if self.pending_bytes > MOST_PENDING_BYTES:
            self._room.clear()

    def close_intake(self) -> None:
        """Accept nothing any more. Agents keep what is not acknowledged."""
        self._closing = True
        self._room.clear()

    async def flush(self) -> bool:
        """Write all that has settled, and acknowledge it; False where the disk does not take it."""
        return await self._together.done()

    @property
    def now(self) -> asyncio.Lock:
        """Locked while rows are on their way to the disk."""
        return self._together.now

    async def resume(self, hello: Hello) -> Resume:
        """What is stored of a session, with what is on its way to the disk. Raises DataError."""
        async with self.now:
            pass
        return await asyncio.to_thread(self._sink.resume, hello)

    async def _flush(self) -> bool:
        for session in [session for session in self._known() if session.broken]:
            self._discard(session)
        # Nothing that a settled session has sent is needed any more, not even for what it leaves open.
        sessions = list(self._known())
        whole = [(session, session.received) for session in sessions if session.settled]
        tables, due = self._tables(), self._due(sessions)
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._be_slow)
        try:
            failed, elsewhere = await asyncio.to_thread(self._write, due)
        except BaseException as error:
            slow.cancel()
            for _, flush in due.sessions:
                flush.undone()
            known = set(map(id, self._known()))
            there = {flush.session for session, flush in due.sessions if id(session) in known}
            tables.unstored.put_back(due.buckets, there)
            tables.iterations.put_back(due.iterations, there)
            for name, rows in due.others.items():
                tables.unstored_of[name].put_back(rows, there)
            self.full_rows, self.verdicts = due.full + self.full_rows, due.verdicts + self.verdicts
            self.hangs[:0] = due.hangs
            if not isinstance(error, DataError):
                raise
            if str(error) != self.trouble:
                _log.error(error)
            self.trouble = str(error)
            return False
        slow.cancel()
        for session, built in failed:
            self._failures.at_session(session, "the rows to be stored", built)
        for session in sessions if elsewhere else ():
            if session.hello.host in elsewhere:  # whoever has it stores what is not acknowledged
                session.broken = True
        for session, flush in due.sessions:
            if not session.broken:
                flush.done()
                self._acknowledge(session, flush.acknowledge or 0)
        for session, sequence in whole:
            if not session.broken:
                self._acknowledge(session, sequence)
        if self.trouble:
            _log.warning(f"{self._sink.directory} takes rows again")
        self.trouble = ""
        if not self._closing:
            self._room.set()
        return True

    def _acknowledge(self, session: Session, sequence: int) -> None:
        session.stored(sequence)
        if (since := session.waited_since()) is not None:
            self.delays.add(time.monotonic() - since)

    def _be_slow(self) -> None:
        """A write takes longer than any disk that is well: it may never end, and nothing is acknowledged meanwhile."""
        if not self.trouble:
            self.trouble = f"{self._sink.directory} has not taken rows for {SLOW_S:.0f} s; they stay in memory"
            _log.error(self.trouble)

    def _due(self, sessions: Sequence[Session]) -> _Due:
        """What each session has to be stored; the collector may fail at one, which costs only that one."""
        flushes, flows = [], self._tables().flows
        changed, grown = flows.unstored(grown=False), flows.unstored(grown=True)
        for session in sessions:
            try:
                flush = session.flush(changed.get(session.index, []), grown.get(session.index, []))
                if flush:
                    flushes.append((session, flush))
            except Exception as error:
                self._failures.at_session(session, "the rows to be stored", error)
        tables, full, verdicts = self._tables(), self.full_rows, self.verdicts
        self.full_rows, self.verdicts = [], []
        hangs = [*self.hangs]
        self.hangs.clear()
        jobs = list(tables.flows.jobs)
        others = {name: rows.take() for name, rows in tables.unstored_of.items()}
        return _Due(flushes, tables.unstored.take(), tables.iterations.take(), others, jobs, full, verdicts, hangs)

    def _write(self, due: _Due) -> tuple[list[tuple[Session, Exception]], set[str]]:
        """Write all that can be built; raises DataError; may be a thread.

        Returns the sessions at which that fails, and the hosts that another worker has.
        """
        began_s = time.thread_time()
        sessions, failed = due.sessions, list[tuple[Session, Exception]]()
        elsewhere = set[str]()
        try:
            tables = _tables_of(sessions, due.buckets, due)
        except Exception:  # the rows of one are not what they should be: those of all others are stored without them
            sessions, failed = _tried(due)
            tables = _tables_of(sessions, due.buckets, due)
        try:
            elsewhere |= self._store(sessions, tables, due)
        except DataError:
            raise
        except Exception:
            buckets = by_session(due.buckets)
            for one in sessions:
                try:
                    elsewhere |= self._store([one], _tables_of([one], buckets.get(one[1].session, []), due))
                except Exception as error:
                    failed.append((one[0], error))
        self._writing_s = time.thread_time() - began_s
        return failed, elsewhere

    def _store(self, sessions: _Sessions, tables: dict[str, pa.Table], due: _Due | None = None) -> frozenset[str]:
        states = {flush.origin.hello.session: flush.state for _, flush in sessions}
        if due and due.full:
            tables = tables | {"full": pa.concat_tables(due.full)}
        if due and due.verdicts:
            tables = tables | {"verdicts": verdict_table(due.verdicts)}
        if due and due.hangs:
            tables = tables | {"hangs": hang_table(due.hangs)}
        return self._sink.write(tables, states)


def _tables_of(sessions: _Sessions, buckets: Sequence[Columns], due: _Due) -> dict[str, pa.Table]:
    flushes = [flush for _, flush in sessions]
    return flush_tables(flushes, buckets, due.jobs, due.iterations, due.others)


def _tried(due: _Due) -> tuple[_Sessions, list[tuple[Session, Exception]]]:
    """The sessions whose tables can be built, and those of which they cannot."""
    buckets = by_session(due.buckets)
    good, failed = [], []
    for one in due.sessions:
        try:
            _tables_of([one], buckets.get(one[1].session, []), due)
            good.append(one)
        except Exception as error:
            failed.append((one[0], error))
    return good, failed
