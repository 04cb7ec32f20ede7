# SPDX-License-Identifier: Apache-2.0
"""Batches that the collector has not acknowledged: they outlive a collector's absence and the agent itself.

What is promised: a batch up to `spooled` reaches a collector, now or sent by a later agent, unless it is counted as
lost. One that the disk would not take waits in memory, all later ones behind it, and they go there in their order as
soon as the disk takes them: what is on the disk when the agent is killed has no gap. What exceeds the bound loses its
buckets first, the oldest before the others, and only when no batch but the newest has any are whole batches given up:
no row is kept whose flow is given up.

With the batches are kept the flows that they name. A batch describes a flow once, and later ones have rows of it. A
collector that gets these, but is new or has forgotten the flow, needs it all the same: so the introduction reports
every flow of which rows may still be sent, but for those that a batch to come describes.
"""

import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from netmon.agent.batch_parts import within_a_message
from netmon.agent.batch_table import BatchTable, Description, Kept
from netmon.agent.link_totals import described, summed
from netmon.agent.spool_disk import SpoolDisk, StalledDiskError
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.records import Table

# --- The newest batches that are not acknowledged, in memory wherever else they are: a disk may not give them back.


class NewestBatches:
    """By their numbers, which ascend. The oldest go where they are too large together; the newest stays."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._batches: dict[int, Kept] = {}

    @property
    def numbers(self) -> list[int]:
        """Of those that are here."""
        return list(self._batches)

    def add(self, batch: Kept, most_bytes: int) -> None:
        """The newest; most_bytes: of all."""
        self._batches[batch.sequence] = batch
        self.nbytes += batch.nbytes
        while self.nbytes > most_bytes and len(self._batches) > 1:
            self.forget(next(iter(self._batches)))

    def get(self, sequence: int) -> Kept | None:
        """With this number, if it is here."""
        return self._batches.get(sequence)

    def forget(self, *sequences: int) -> None:
        """What has these numbers is read from where it is kept, if it still is."""
        for sequence in sequences:
            batch = self._batches.pop(sequence, None)
            self.nbytes -= batch.nbytes if batch else 0

    def forget_to(self, sequence: int) -> None:
        """All up to this one."""
        while self._batches and (oldest := next(iter(self._batches))) <= sequence:
            self.forget(oldest)


# --- spool


log = logging.getLogger(__name__)

MOST_IN_MEMORY = 32 << 20
_RECENT_BYTES = 4 << 20
"""Of the newest batches that are not acknowledged: these need not be read from the disk, which may not answer."""
_UNREADABLE_S = 30.0  # then what is on the disk is given up
_LOOK_AGAIN_S = 1.0  # whether a disk answers again
_AT_ONCE = 64  # batches that go from memory to the disk

R = TypeVar("R")
Lose = Callable[[Table], None]
"""Counts what is given up (dtype LINK_TOTALS) as lost in the agent."""


class Spool:
    """One session's batches. Thread-safe: one thread appends, another reads and acknowledges."""

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
        self._lose = lose
        self._changed = threading.Condition(threading.RLock())
        self._memory = BatchTable(None)
        self._flows = BatchTable(None)  # those in memory and on the disk: nobody waits for it to introduce them
        self._behind = False  # whether anything is in memory that belongs on the disk
        self._at_once = _AT_ONCE
        self._newest = self.spooled = left.last() if left else 0
        """`spooled`: up to this number batches are on the disk, acknowledged, or counted as lost."""
        self._recent = NewestBatches()
        self._full = self._closed = False
        self._unreadable_since = 0.0
        self._disk = SpoolDisk(folder, session, left, self._memory, lose, self.wake)
        self._disk.opened()
        if left:
            self._flows.take((), left.flows())

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._memory.size + self._disk.size

    @property
    def memory_bytes(self) -> int:
        """Of these, what waits in memory: the end of the agent would take it."""
        return self._memory.size

    @property
    def silent_s(self) -> float:
        """For how long the disk has not answered, all in all."""
        return self._disk.silent_s

    @property
    def waits(self) -> bool:
        """Whether anything has not been acknowledged."""
        with self._changed:
            return self._newest > self.acknowledged and bool(self._numbers_after(self.acknowledged))

    @property
    def newest(self) -> int:
        """The number of the batch that was appended last."""
        return self._newest

    def link_totals(self) -> Table:
        """What the batches on the disk carry, dtype LINK_TOTALS."""
        return summed(list(self._disk.link_totals.values()))

    @property
    def hello(self) -> bytes:
        """As written last; empty before."""
        return self._disk.hello

    @hello.setter
    def hello(self, message: bytes) -> None:
        with self._changed:
            self._try(lambda: self._disk.write_hello(message))

    def append(
        self, sequence: int, body: bytes, buckets: bytes, carried: bytes, flows: Collection[Description] = ()
    ) -> None:
        """Keeps a batch until it is acknowledged: in memory until `spooled` says so. body + buckets: the message.

        carried: of its buckets.

        flows: that it describes, each as an introduction with this flow alone.
        """
        batch = Kept(sequence, body, buckets, carried)
        with self._changed:
            self._flows.describe(sequence, flows)
            if self._behind or not self._keep(batch, flows):
                waited, self._behind = self._behind, True
                self._memory.insert(batch, flows)
                if waited:
                    self._catch_up()
            self._newest = sequence
            self._recent.add(batch, _RECENT_BYTES)
            self._bound()
            self._count_spooled()
            self._changed.notify_all()

    def end_flows(self, flow_ids: Collection[int]) -> None:
        """No batch that follows has rows of these flows."""
        if not flow_ids:
            return
        with self._changed:
            self._flows.end_flows(flow_ids, self._newest)
            self._memory.end_flows(flow_ids, self._newest)
            if not self._try(lambda: self._disk.attempt(lambda table: table.end_flows(flow_ids, self._newest))):
                self._memory.take((), [(number, self._newest, -1, self._newest, b"") for number in flow_ids])
                self._behind = True

    def introduction(self) -> tuple[bytes, bytes]:
        """What a connection begins with: the agent's own part, and the flows that no batch to come describes.

        Does not wait for the disk.
        """
        with self._changed:
            coming = {n for n in self._memory.sequences() | set(self._disk.link_totals) if n > self.acknowledged}
            flows = [
                (described, message) for _, first, described, _, message in self._flows.flows() if first not in coming
            ]
            latest_first = sorted(flows, key=lambda flow: flow[0], reverse=True)
            return self._disk.hello, b"".join(within_a_message(message for _, message in latest_first))

    def acknowledge(self, sequence: int) -> None:
        """Forgets all batches up to this one."""
        with self._changed:
            if not self.acknowledged < sequence <= self._newest:
                return
            self.acknowledged = sequence
            self._recent.forget_to(sequence)
            for done in list(itertools.takewhile(lambda number: number <= sequence, self._disk.link_totals)):
                del self._disk.link_totals[done]
            self._memory.delete_to(sequence)
            self._flows.forget_flows(sequence)
            self._try(self._tidy)
            self._count_spooled()
            self._changed.notify_all()

    def after(
        self, sequence: int, leave: Callable[[], bool], patience: Callable[[], float | None] = lambda: None
    ) -> Kept | None:
        """The first batch above this number; blocks until there is one, then None if leave() holds.

        patience(): how many seconds to wait for one before None; None: for ever. A disk that does not answer is waited
        for, too. Raises DataError where the disk does not give it back.
        """
        with self._changed:
            while not leave():
                silent = False
                if max(sequence, self.acknowledged) < self._newest:
                    try:
                        found = self._first_after(max(sequence, self.acknowledged))
                    except StalledDiskError:
                        found, silent = None, True
                    if found:
                        self.handed_out = max(self.handed_out, found.sequence)
                        return found
                longest_s = patience()
                if longest_s is not None and longest_s <= 0:
                    return None
                self._changed.wait(min(longest_s or _LOOK_AGAIN_S, _LOOK_AGAIN_S) if silent else longest_s)
            return None

    def wake(self) -> None:
        """Whoever waits in `after` looks at its leave() again."""
        with self._changed:
            self._changed.notify_all()

    def set_aside(self, sequence: int) -> Table | None:
        """Takes a batch that cannot be sent out of the way, and counts it; what it carried, None: it is not there."""
        with self._changed:
            batch = self._first_after(sequence - 1) if sequence > self.acknowledged else None
            if batch is None or batch.sequence != sequence:
                return None
            self.folder.keep_refused(self.session, sequence, batch.body + batch.buckets)
            lost = summed([batch.link_totals])
            self._lose(lost)
            self.given_up += 1
            self._delete(sequence in self._disk.link_totals, batch)
            return lost

    def close(self) -> None:
        """Releases the session; removes its file when nothing waits in it."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            while self._behind and any(self._catch_up() for _ in range(2)):  # it would not outlive us
                pass
            left, waits = self._memory.size, self.waits
            self._memory.close()
            self._flows.close()
            self._disk.close()
            if not waits:
                self._disk.remove()
            elif left:
                log.warning("%d bytes that waited in memory are lost: %s", left, self._disk.trouble)

    # The disk and its troubles

    def _keep(self, batch: Kept, flows: Collection[Description]) -> bool:
        """Whether the disk has it."""
        now = batch.sequence, self.ledger
        if kept := self._try(lambda: self._disk.attempt(lambda table: table.insert(batch, flows, now))):
            self._disk.link_totals[batch.sequence] = batch.link_totals
        return kept

    def _catch_up(self) -> bool:
        """Whether the oldest that wait in memory have gone to the disk, with all flows."""
        moved = self._try(self._move)
        self._at_once = _AT_ONCE if moved or self._disk.silent else 1  # one may have room where many do not
        return moved

    def _move(self) -> None:
        self._disk.ready()  # and with it those that came late
        batches, flows = self._memory.oldest(self._at_once), self._memory.flows()
        account = self._memory.last(), self.ledger
        self._disk.attempt(lambda table: table.take(batches, flows, account))
        self._disk.link_totals.update((batch.sequence, batch.link_totals) for batch in batches)
        self._memory.release(batches)
        self._behind = self._memory.first_after(0) is not None

    def _count_spooled(self) -> None:
        waiting = self._memory.first_after(0) if self._behind else None
        self.spooled = self._newest if waiting is None else waiting - 1

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except StalledDiskError as error:
            self._disk.note(str(error))
        except sqlite3.Error as error:
            self._disk.note(str(error))
            if not self._disk.link_totals and self._disk.is_open:  # nothing to lose: another file may do better
                self._leave_file(remove=True)
        else:
            return True
        return False

    def _leave_file(self, remove: bool) -> None:
        self._memory.take((), self._flows.flows())
        self._behind = True
        self._disk.leave(remove)

    def _tidy(self) -> None:
        """The disk forgets what is acknowledged or given up."""
        self._disk.attempt(lambda table: table.delete_to(self.acknowledged))

    def _numbers_after(self, sequence: int) -> list[tuple[int, bool]]:
        """The lowest number above it in memory and on the disk, where there is one; whether it is on the disk."""
        found = ((self._memory.first_after(sequence), False), (self._disk.first_after(sequence), True))
        return [(number, on_disk) for number, on_disk in found if number is not None]

    def _first_after(self, sequence: int) -> Kept | None:
        """Raises DataError, StalledDiskError."""
        if recent := self._recent.get(sequence + 1):
            return recent
        numbers = self._numbers_after(sequence)
        if not numbers:
            return None
        number, on_disk = min(numbers)
        if recent := self._recent.get(number):
            return recent
        try:
            batch = self._do(on_disk, lambda table: table.read(number))
        except StalledDiskError:
            raise
        except sqlite3.Error as error:
            self._unreadable(error)
            raise DataError(f"cannot read {self.folder.directory}: {error}") from error
        self._unreadable_since = 0.0
        return batch

    def _do(self, on_disk: bool, action: Callable[[BatchTable], R]) -> R:
        return self._disk.do(action) if on_disk else action(self._memory)

    def _unreadable(self, error: sqlite3.Error) -> None:
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        if now - self._unreadable_since < _UNREADABLE_S and isinstance(error, sqlite3.OperationalError):
            return
        lost, batches = self.link_totals(), len(self._disk.link_totals)
        log.error(
            "cannot read %s: %s; given up: %d batches (%s)",
            *(self.folder.directory, error, batches, described(lost)),
        )
        self._lose(lost)
        self._recent.forget(*self._disk.link_totals)
        self.given_up += batches
        self._unreadable_since = 0.0
        if self._disk.is_open:
            self._leave_file(remove=False)

    # The bound

    def _bound(self) -> None:
        if not (self._over(False) or self._over(True)):
            self._full = False
            return
        if not self._full:
            self._full = True
            log.warning("%d bytes wait for the collector: the oldest of them lose their buckets", self.size)
        # A disk that does not forget would be requested what is acknowledged, and that would be counted as lost.
        well = self._disk.is_open and self._try(self._tidy)
        indices = (True, False) if well else (False,)
        for give_up in (self._strip, self._drop):
            for on_disk in indices:
                while self._over(on_disk) and give_up(on_disk):
                    pass

    def _over(self, on_disk: bool) -> bool:
        return self.size > self.limit_bytes or (not on_disk and self._memory.size > MOST_IN_MEMORY)

    def _strip(self, on_disk: bool) -> bool:
        """Whether the oldest batch with buckets, other than the newest, has lost them."""
        try:
            batch = self._do(on_disk, lambda table: table.strip_oldest(self._newest))
            if batch is None:
                return False
            if on_disk:
                self._disk.link_totals[batch.sequence] = b""
            self._recent.forget(batch.sequence)
            self._lose(summed([batch.link_totals]))
        except sqlite3.Error as error:
            self._recent.forget(*self._recent.numbers)  # one of them may lose its buckets late
            self._disk.note(str(error))
            return False
        self._try(self._forget_rowless)
        return True

    def _forget_rowless(self) -> None:
        """Flows of which no batch has rows any more."""
        indices = (True, False) if self._disk.is_open else (False,)
        with_rows = [self._do(on_disk, BatchTable.oldest_with_buckets) for on_disk in indices]
        first = min((found for found in with_rows if found is not None), default=self._newest)
        self._flows.forget_flows(first - 1)
        for on_disk in indices:
            self._do(on_disk, lambda table: table.forget_flows(first - 1))

    def _drop(self, on_disk: bool) -> bool:
        found = self._disk.first_after(0) if on_disk else self._memory.first_after(0)
        if found is None or found == self._newest:
            return False
        try:
            batch = self._do(on_disk, lambda table: table.read(found))
        except sqlite3.Error as error:
            self._disk.note(str(error))
            return False
        self.given_up += 1
        self._lose(summed([batch.link_totals]))
        return self._delete(on_disk, batch)

    def _delete(self, on_disk: bool, batch: Kept) -> bool:
        self._disk.link_totals.pop(batch.sequence, None)
        self._recent.forget(batch.sequence)
        try:
            self._do(on_disk, lambda table: table.delete(batch))
        except sqlite3.Error as error:
            self._disk.doubt()
            self._disk.note(str(error))
            return False
        return True
