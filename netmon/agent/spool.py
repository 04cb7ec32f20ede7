# SPDX-License-Identifier: Apache-2.0
"""Batches that the collector has not acknowledged: they outlive a collector's absence and the agent itself.

What is promised: a batch up to `spooled` reaches a collector, now or sent by a later agent, unless it is counted as
lost. A thread of its own writes the file and reads from it; nothing else touches the disk, which may hang or fail as
long as it likes. What the file does not have waits in memory, and goes there in its order: what is on the disk when the
agent is killed has no gap. What exceeds the bound loses its buckets first, the oldest before the others, and only when
no batch but the newest has any are whole batches given up: no row is kept whose flow is given up.

With the batches are kept the flows that they name. A batch describes a flow once, and later ones have rows of it. A
collector that gets these, but is new or has forgotten the flow, needs it all the same: so the introduction reports
every flow of which rows may still be sent, but for those that a batch to come describes.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from netmon.agent.spool_folder import NO_ACCOUNT, BatchTable, Change, Description, FlowRow, Kept, SpoolFolder
from netmon.errors import DataError
from netmon.records import Flow, Table
from netmon.wire.batches import within_a_message

COUNTS = ("packets", "wire_bytes", "payload_bytes")
LINK_TOTALS = np.dtype([("interface", "<u4"), ("direction", "<u4"), *((name, "<u8") for name in COUNTS)])
"""One row per link. It travels through the spool as bytes."""

NOTHING = np.zeros(0, LINK_TOTALS)


def link_totals(buckets: Table, flows: Mapping[int, Flow]) -> Table:
    """buckets: dtype BUCKET; flows: at least those of the buckets → dtype LINK_TOTALS."""
    if not len(buckets):
        return NOTHING
    ids, indices = np.unique(buckets["flow_id"], return_inverse=True)
    links = np.array([flows[flow_id].interface << 1 | flows[flow_id].direction for flow_id in ids.tolist()], np.int64)
    found, index_of = np.unique(links, return_inverse=True)
    table = np.zeros(len(found), LINK_TOTALS)
    table["interface"], table["direction"] = found >> 1, found & 1
    rows = index_of[indices]
    for name in COUNTS:
        table[name] = np.bincount(rows, weights=buckets[name], minlength=len(found))  # exact below 2**53
    return table


def summed(tables: list[bytes]) -> Table:
    """Sums tables given as bytes; dtype LINK_TOTALS."""
    rows = np.frombuffer(b"".join(tables), LINK_TOTALS)
    keys, indices = np.unique(rows["interface"].astype(np.int64) << 1 | rows["direction"], return_inverse=True)
    table = np.zeros(len(keys), LINK_TOTALS)
    table["interface"], table["direction"] = keys >> 1, keys & 1
    for name in COUNTS:
        np.add.at(table[name], indices, rows[name])
    return table


def described(table: npt.NDArray[np.void]) -> str:
    """For a line of the log."""
    packets, wire = int(table["packets"].sum()), int(table["wire_bytes"].sum())
    return f"{packets:,} packets, {wire:,} B"


log = logging.getLogger(__name__)

MOST_IN_MEMORY = 32 << 20
"""Of what the file does not have."""
_RECENT_BYTES = 4 << 20
"""Of the newest batches: these need not be read from the disk, which may not answer."""
_AT_ONCE, _AT_ONCE_BYTES = 64, 1 << 20  # go to the disk, or come from it, together
_ANSWERS_S = 0.5  # a disk that takes longer is said not to answer
_AGAIN_S = 5.0  # what has failed is tried again; sooner when a batch is appended
_LAST_TRIES = 3  # that may fail at the end
_UNREADABLE_S = 30.0  # then what is on the disk is given up
_REASONS = 5  # logged of one trouble

Lose = Callable[[Table], None]
"""Counts what is given up (dtype LINK_TOTALS) as lost in the agent."""


@dataclass
class _Waiting:
    """A batch that is not acknowledged."""

    sequence: int
    size: int  # bytes of its message
    buckets: int  # bytes of these that are its buckets
    link_totals: bytes  # of its buckets
    batch: Kept | None = None  # where it is in memory
    ledger: bytes = b""  # as it was reported last by then


@dataclass
class _Flow:
    first: int  # batch that has described it
    last: int  # the same
    over: int | None  # no later batch has rows of it
    message: bytes

    def row(self, number: int) -> FlowRow:
        """Of the file; number: its id."""
        return number, self.first, self.last, self.over, self.message


class Spool:
    """One session's batches. Thread-safe; nobody who calls waits for the disk, but for what only the disk has."""

    def __init__(
        self, folder: SpoolFolder, session: str, limit_bytes: int, lose: Lose, left: BatchTable | None = None
    ) -> None:
        """Takes a file there; where the disk has none to give, batches wait in memory until it has.

        left: what a session left behind; nothing can be appended then. Raises sqlite3.Error where it cannot be read.
        """
        self.session, self.folder = session, folder
        self.limit_bytes = limit_bytes  # of all messages that wait, but for the newest
        self.given_up = self.acknowledged = 0  # whole batches, for which a collector needs a fresh introduction
        self.handed_out = 0  # the highest number that `after` has given
        self.ledger = b""  # as batches reported it last, for the next agent
        self.size = self.memory_bytes = 0
        """Bytes that wait; and those of them that only memory has, which the end of the agent would take."""
        self.ring: Callable[[], None] = lambda: None
        """Called where `after` may find something, for who does not wait in it; from any thread, must not block."""
        self._lose = lose
        lock = threading.RLock()
        self._changed, self._ready = threading.Condition(lock), threading.Condition(lock)  # for the disk; for `after`
        self._batches: dict[int, _Waiting] = {}  # all that wait, ascending, as the next two
        self._whole: dict[int, None] = {}  # those that have buckets
        self._recent: dict[int, int] = {}  # those that are in memory, and how much of it each takes
        self._recent_bytes = 0
        self._read: dict[int, Kept] = {}  # what was read last
        self._flows: dict[int, _Flow] = {}
        self._ended: dict[int, int] = {}  # of these, the last batch with rows of each that is over, ascending
        self._newest = self._stored_to = 0  # up to this number batches are in the file
        self._full = self._closed = False
        # What the thread has to do other than writing and reading batches:
        self._hello, self._hello_waits = b"", False
        self._tidied_to = 0  # up to here what is acknowledged is forgotten in the file
        self._gone: set[int] = set()  # batches that are to be forgotten there
        self._stripped: set[int] = set()  # those that are to lose their buckets there
        self._changed_flows: set[int] = set()
        self._refused: deque[tuple[int, bytes]] = deque()  # messages that are kept for a report
        self._wanted = 0  # to be read; 0: nothing
        self._unreadable: sqlite3.Error | None = None
        self._unreadable_since = 0.0
        self._at_once = _AT_ONCE
        # The file, and how it does:
        self._table, self._files, self._left = left, 0, left is not None
        self._busy_since = self._silent_s = 0.0
        self.trouble = ""
        self._reasons: set[str] = set()  # that were reported, of the trouble that there is
        if left:
            self._take(left)
        self._writer = threading.Thread(target=self._work, name="spool", daemon=True)
        self._writer.start()

    def _take(self, left: BatchTable) -> None:
        for sequence, size, buckets, totals in left.batches():
            self._batches[sequence] = _Waiting(sequence, size, buckets, totals)
            self.size += size
            if buckets:
                self._whole[sequence] = None
        for number, first, last, over, message in left.flows():
            self._flows[number] = _Flow(first, last, over, message)
            if over is not None:
                self._ended[number] = over
                self.size += len(message)
        self._hello = left.hello()
        self._newest = self._stored_to = left.last()

    @property
    def spooled(self) -> int:
        """Up to this number batches are on the disk, acknowledged, or counted as lost."""
        with self._changed:
            waiting = self._following(self._stored_to)
            return self._newest if waiting is None else waiting - 1

    @property
    def silent_s(self) -> float:
        """For how long the disk has not answered, all in all."""
        return self._silent_s + (time.monotonic() - self._busy_since if self.silent else 0.0)

    @property
    def silent(self) -> bool:
        """Whether it does not answer."""
        since = self._busy_since
        return since > 0 and time.monotonic() - since > _ANSWERS_S

    @property
    def waits(self) -> bool:
        """Whether anything has not been acknowledged."""
        return bool(self._batches)

    @property
    def newest(self) -> int:
        """The number of the batch that was appended last."""
        return self._newest

    def link_totals(self) -> Table:
        """What the batches that wait carry, dtype LINK_TOTALS."""
        with self._changed:
            return summed([waiting.link_totals for waiting in self._batches.values()])

    @property
    def hello(self) -> bytes:
        """As written last; empty before."""
        return self._hello

    @hello.setter
    def hello(self, message: bytes) -> None:
        with self._changed:
            self._hello, self._hello_waits = message, True
            self._changed.notify_all()

    def append(
        self, sequence: int, body: bytes, buckets: bytes, totals: bytes, flows: Collection[Description] = ()
    ) -> None:
        """Keeps a batch until it is acknowledged: in memory until `spooled` says so. body + buckets: the message.

        totals: of its buckets, dtype LINK_TOTALS.

        flows: that it describes, each as an introduction with this flow alone.
        """
        batch = Kept(sequence, body, buckets, totals)
        with self._changed:
            for number, message in flows:
                known = self._flows.setdefault(number, _Flow(sequence, sequence, None, message))
                self.size += len(message) - len(known.message) if known.over is not None else 0
                known.last, known.message = sequence, message
                self._changed_flows.add(number)
            self._batches[sequence] = _Waiting(sequence, batch.size, len(buckets), totals, batch, self.ledger)
            if buckets:
                self._whole[sequence] = None
            self._recent[sequence] = batch.nbytes
            self._recent_bytes += batch.nbytes
            self._newest = sequence
            self.size += batch.size
            self.memory_bytes += batch.size
            self._bound()
            self._forget_recent()
            if self.silent:
                self._note("the disk does not answer")
            self._changed.notify_all()
            self._notify()

    def end_flows(self, flow_ids: Collection[int]) -> None:
        """No batch that follows has rows of these flows."""
        with self._changed:
            for number in flow_ids:
                flow = self._flows.get(number)
                if flow:
                    self.size += len(flow.message) if flow.over is None else 0
                    self._ended.pop(number, None)
                    flow.over = self._ended[number] = self._newest
                    self._changed_flows.add(number)

    def introduction(self) -> tuple[bytes, bytes]:
        """What a connection begins with: the agent's own part, and the flows that no batch to come describes."""
        with self._changed:
            flows = [flow for flow in self._flows.values() if flow.first not in self._batches]
            latest_first = sorted(flows, key=lambda flow: flow.last, reverse=True)
            return self._hello, b"".join(within_a_message(flow.message for flow in latest_first))

    def acknowledge(self, sequence: int) -> None:
        """Forgets all batches up to this one."""
        with self._changed:
            if not self.acknowledged < sequence <= self._newest:
                return
            self.acknowledged = sequence
            while self._batches and (oldest := next(iter(self._batches))) <= sequence:
                self._remove(oldest)
            self._forget_flows(sequence)
            self._ready.notify_all()

    def after(
        self, sequence: int, leave: Callable[[], bool], patience: Callable[[], float | None] = lambda: None
    ) -> Kept | None:
        """The first batch above this number; blocks until there is one, then None if leave() holds.

        patience(): how many seconds to wait for one before None; None: for ever. A disk that does not answer is waited
        for, too. Raises DataError where the disk does not give it back.
        """
        with self._changed:
            while not leave():
                found = self._find(max(sequence, self.acknowledged))
                if found:
                    self.handed_out = max(self.handed_out, found.sequence)
                    return found
                longest_s = patience()
                if longest_s is not None and longest_s <= 0:
                    return None
                self._ready.wait(longest_s)
            return None

    def wake(self) -> None:
        """Whoever waits in `after` looks at its leave() again."""
        with self._ready:
            self._notify()

    def _notify(self) -> None:
        self._ready.notify_all()
        self.ring()

    def set_aside(self, sequence: int) -> Table | None:
        """Takes a batch that cannot be sent out of the way, and counts it; its totals, None: it is not there."""
        with self._changed:
            waiting = self._batches.get(sequence)
            if waiting is None:
                return None
            batch = waiting.batch or self._read.get(sequence)
            if batch:
                self._refused.append((sequence, batch.body + batch.buckets))
            self._changed.notify_all()
            return self._give_up(waiting)

    def close(self) -> None:
        """Releases the session, with all that waits on the disk if it answers; removes its file when nothing waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._ready.notify_all()
        while self._writer.is_alive() and not self.silent:
            self._writer.join(_ANSWERS_S)
        if self.memory_bytes and not self._left:
            log.warning("%d bytes that waited in memory are lost: %s", self.memory_bytes, self.trouble)

    # --- what waits

    def _following(self, sequence: int) -> int | None:
        """The lowest number above it."""
        if sequence + 1 in self._batches:
            return sequence + 1
        return next((number for number in self._batches if number > sequence), None)

    def _find(self, sequence: int) -> Kept | None:
        """The first batch above this number; None: there is none, or it is on its way from the disk."""
        number = self._following(sequence)
        if number is None:
            return None
        found = self._batches[number].batch or self._read.get(number)
        if found is None:
            if self._unreadable:
                error, self._unreadable = self._unreadable, None
                raise DataError(f"cannot read {self.folder.directory}: {error}") from error
            self._wanted = number
            self._changed.notify_all()
        return found

    def _give_up(self, waiting: _Waiting) -> Table:
        """Counts a batch as lost, and forgets it."""
        lost = summed([waiting.link_totals])
        self._lose(lost)
        self.given_up += 1
        self._remove(waiting.sequence)
        return lost

    def _remove(self, sequence: int) -> None:
        waiting = self._batches.pop(sequence)
        self._whole.pop(sequence, None)
        self._read.pop(sequence, None)
        self._shrink(waiting, waiting.size)
        self._drop_recent(sequence)
        if sequence > self.acknowledged:
            self._gone.add(sequence)

    def _shrink(self, waiting: _Waiting, size: int) -> None:
        self.size -= size
        if waiting.sequence > self._stored_to:
            self.memory_bytes -= size

    def _drop_recent(self, sequence: int) -> None:
        self._recent_bytes -= self._recent.pop(sequence, 0)

    def _forget_recent(self) -> None:
        """The oldest that the file has, where all in memory are too many; the newest stays."""
        while self._recent_bytes > _RECENT_BYTES and (oldest := next(iter(self._recent))) < self._newest:
            if oldest > self._stored_to:
                return
            self._batches[oldest].batch = None
            self._drop_recent(oldest)

    def _forget_flows(self, sequence: int) -> None:
        """Those of which only batches up to this one have rows."""
        while self._ended and self._ended[number := next(iter(self._ended))] <= sequence:
            del self._ended[number]
            self.size -= len(self._flows.pop(number).message)
            self._changed_flows.add(number)

    # --- the bound

    def _bound(self) -> None:
        if not (self._over() or self._over_memory()):
            self._full = False
            return
        if not self._full:
            self._full = True
            log.warning("%d bytes wait for the collector: the oldest of them lose their buckets", self.size)
        for over, since in ((self._over, 0), (self._over_memory, self._stored_to)):
            while over() and (number := next((n for n in self._whole if n > since), self._newest)) < self._newest:
                self._strip(self._batches[number])
            while over() and (found := self._following(since)) is not None and found < self._newest:
                self._give_up(self._batches[found])

    def _over(self) -> bool:
        return self.size > self.limit_bytes

    def _over_memory(self) -> bool:
        return self.memory_bytes > MOST_IN_MEMORY

    def _strip(self, waiting: _Waiting) -> None:
        """It loses its buckets; with them go the flows of which no batch has rows any more."""
        self._lose(summed([waiting.link_totals]))
        self._shrink(waiting, waiting.buckets)
        del self._whole[waiting.sequence]
        waiting.size, waiting.buckets, waiting.link_totals = waiting.size - waiting.buckets, 0, b""
        self._read.pop(waiting.sequence, None)
        if waiting.batch:
            waiting.batch = replace(waiting.batch, buckets=b"", link_totals=b"")
            self._recent_bytes += waiting.batch.nbytes - self._recent[waiting.sequence]
            self._recent[waiting.sequence] = waiting.batch.nbytes
        if waiting.sequence <= self._stored_to:
            self._stripped.add(waiting.sequence)
        self._forget_flows(next(iter(self._whole), self._newest) - 1)

    # --- the thread that has the disk

    def _work(self) -> None:
        """Makes the file what it should be, whenever it is not, and reads what is wanted."""
        failed, tries = False, 0
        while True:
            with self._changed:
                newest = self._newest if failed else -1
                self._changed.wait_for(partial(self._must_work, newest), _AGAIN_S if failed else None)
                change, wanted = self._change(), self._wanted
                if self._closed and (change is None or tries == _LAST_TRIES):
                    break
            few, done = self._at_once <= 1, change is None or self._done(partial(self._write, change))
            failed = few and not done  # many may have no room where few have
            tries += self._closed and not done
            if wanted:
                self._load(wanted)
        self._done(self._leave)

    def _must_work(self, newest: int) -> bool:
        """newest: batch when it failed; −1: it has not."""
        return self._closed or self._wanted > 0 or (self._is_due if newest < 0 else self._newest > newest)

    @property
    def _is_due(self) -> bool:
        """What can wait goes with the next batch, or at the end."""
        if self._table is None:
            return not self._left
        now = self._gone or self._stripped or self._refused or self._following(self._stored_to) is not None
        later = self._hello_waits or self._changed_flows or self._tidied_to < self.acknowledged
        return bool(now or (self._closed and later))

    def _change(self) -> Change | None:
        """What to do to the file next."""
        if not self._is_due:
            return None
        batches, ledger, size, number = list[Kept](), b"", 0, self._following(self._stored_to)
        while number is not None and len(batches) < self._at_once and size < _AT_ONCE_BYTES:
            waiting = self._batches[number]
            assert waiting.batch
            batches.append(waiting.batch)
            ledger, size, number = waiting.ledger, size + waiting.size, self._following(number)
        flows = {number: self._flows.get(number) for number in self._changed_flows}
        return Change(
            hello=self._hello if self._hello_waits or self._table is None else None,
            batches=batches,
            account=(batches[-1].sequence, ledger) if batches else NO_ACCOUNT,
            flows=[flow.row(number) for number, flow in flows.items() if flow],
            flows_gone=[number for number, flow in flows.items() if not flow],
            acknowledged=self.acknowledged,
            gone=list(self._gone),
            stripped=list(self._stripped),
        )

    def _write(self, change: Change) -> None:
        """Raises sqlite3.Error, OSError."""
        while self._refused:
            self.folder.keep_refused(self.session, *self._refused.popleft())
        table = self._table or self.folder.open_session(self._file)
        try:
            table.apply(change)
        finally:
            self._table = table
        with self._changed:
            self._has(change)

    def _has(self, change: Change) -> None:
        """The file is so now; some of it may have changed again meanwhile."""
        for batch in change.batches:
            waiting = self._batches.get(batch.sequence)
            if waiting:
                self.memory_bytes -= waiting.size
                self._stripped |= {batch.sequence} if len(batch.buckets) > waiting.buckets else set()
            elif batch.sequence > self.acknowledged:
                self._gone.add(batch.sequence)
            self._stored_to = batch.sequence
        self._gone.difference_update(change.gone)
        self._stripped.difference_update(change.stripped)
        same = {row[0] for row in change.flows if (flow := self._flows.get(row[0])) and flow.row(row[0]) == row}
        self._changed_flows -= same | {number for number in change.flows_gone if number not in self._flows}
        self._hello_waits = self._hello_waits and self._hello != change.hello
        self._tidied_to = max(self._tidied_to, change.acknowledged)
        self._at_once = min(_AT_ONCE, 2 * self._at_once or 1)
        self._forget_recent()
        if self._following(self._stored_to) is None:
            self._note("")

    def _done(self, action: Callable[[], None]) -> bool:
        """Whether it went well; what does not is tried again, first without batches: a full disk may still forget."""
        try:
            with self._busy():
                action()
        except (sqlite3.Error, OSError) as error:
            with self._changed:
                self._note(str(error))
                self._at_once = 0
                nothing_to_lose = not self._left and next(iter(self._batches), self._newest + 1) > self._stored_to
            if self._table and nothing_to_lose:  # another file may do better
                self._set_aside(remove=True)
            return False
        return True

    def _load(self, wanted: int) -> None:
        try:
            with self._busy():
                if self._table is None:
                    raise sqlite3.OperationalError("there is no file")
                found = self._table.read(wanted, _AT_ONCE_BYTES)
        except sqlite3.Error as error:
            if self._cannot_read(error):
                self._set_aside(remove=False)
            found = []
        with self._changed:
            if found:
                self._unreadable, self._unreadable_since = None, 0.0
            self._read = {
                one.sequence: one if waiting.buckets else replace(one, buckets=b"", link_totals=b"")
                for one in found
                if (waiting := self._batches.get(one.sequence))
            }
            self._wanted = 0
            self._notify()

    def _cannot_read(self, error: sqlite3.Error) -> bool:
        """Whether all that only the file has is given up: it has been so for long, or will not be read any more."""
        with self._changed:
            now = time.monotonic()
            self._unreadable, self._unreadable_since = error, self._unreadable_since or now
            if now - self._unreadable_since < _UNREADABLE_S and isinstance(error, sqlite3.OperationalError):
                return False
            lost = [waiting for waiting in self._batches.values() if waiting.batch is None]
            totals = summed([waiting.link_totals for waiting in lost])
            log.error(
                "cannot read %s: %s; given up: %d batches (%s)",
                *(self.folder.directory, error, len(lost), described(totals)),
            )
            for waiting in lost:
                self._give_up(waiting)
            self._unreadable, self._unreadable_since = None, 0.0
            return True

    def _set_aside(self, remove: bool) -> None:
        """Goes on without this file; remove: it, else it is set aside. The next is another one, with all that waits."""
        table, self._table = self._table, None
        with self._busy():
            if table:
                table.close()
            (self.folder.remove if remove else self.folder.set_aside)(self._file)
        with self._changed:
            self._files += 1
            self.memory_bytes, self._stored_to = sum(waiting.size for waiting in self._batches.values()), 0
            self._gone.clear()
            self._stripped.clear()
            self._tidied_to, self._hello_waits = self.acknowledged, True
            self._changed_flows = set(self._flows)

    def _leave(self) -> None:
        table, self._table = self._table, None
        if table:
            table.close()
        if not self._batches:
            self.folder.remove(self._file)

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._silent_s, self._busy_since = self.silent_s, 0.0

    @property
    def _file(self) -> str:
        return f"{self.session}.{self._files}" if self._files else self.session

    def _note(self, trouble: str) -> None:
        """Says how the disk does, each reason once; empty: all is well."""
        if trouble and not self.trouble:
            log.warning("cannot write to %s: %s; batches wait in memory", self.folder.directory, trouble)
        elif trouble and trouble not in self._reasons and len(self._reasons) < _REASONS:
            log.info("%s takes no batches yet: %s", self.folder.directory, trouble)
        self._reasons = {*self._reasons, trouble} if trouble else set()
        if self.trouble and not trouble:
            log.warning("%s takes batches again", self.folder.directory)
        self.trouble = trouble
