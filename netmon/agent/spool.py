# SPDX-License-Identifier: Apache-2.0
"""Batches that the collector has not acknowledged: they outlive a collector's absence and the agent itself.

What is promised: a batch for which `append` has returned reaches a collector, now or sent by a later agent, unless it
is counted as lost. A batch that is on the disk survives SIGKILL; one that the disk would not take waits in memory, and
is tried there again with the next. What exceeds the bound loses its buckets first, the oldest before the others, and
only when no batch but the newest has any are whole batches given up: no row is kept whose flow is given up.

With the batches are kept the flows that they name. A batch describes a flow once, and later ones have rows of it. A
collector that gets these, but is new or has forgotten the flow, needs it all the same: so the introduction tells of
every flow of which rows may still be sent, but for those that a batch to come describes.
"""

import itertools
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection

from netmon.agent.batch_parts import within_a_message
from netmon.agent.batch_table import BatchTable, Description, Kept
from netmon.agent.carried import described, summed
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.records import Table

log = logging.getLogger(__name__)

MOST_IN_MEMORY = 32 << 20
_OPEN_AGAIN_S = 5.0
_UNREADABLE_S = 30.0  # then what is on the disk is given up

Lose = Callable[[Table], None]
"""Counts what is given up (dtype CARRIED) as lost in the agent."""


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
        self.given_up = 0  # whole batches; a collector needs a fresh introduction for what follows
        self.flows_lost = 0  # so often what was kept of the flows was lost with its file
        self.acknowledged = 0
        self.handed_out = 0  # the highest number that `after` has given
        self._lose = lose
        self._changed = threading.Condition(threading.RLock())
        self._memory = BatchTable(None)
        self._disk = left
        self._hello = left.hello() if left else b""
        self._newest = left.last() if left else 0
        self._latest: Kept | None = None  # the newest, as it was appended: it need not be read from the disk
        # Of the batches on the disk, in their order: to count them should it not give them back.
        self._carried = left.carried() if left else {}
        self._files = 0
        self._gone: set[int] = set()  # given up, but the disk does not forget them
        self._trouble = ""
        self._full = False
        self._open_again = math.inf if left else 0.0
        self._unreadable_since = 0.0
        self._opened()

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._memory.size + (self._disk.size if self._disk else 0)

    @property
    def waits(self) -> bool:
        """Whether anything has not been acknowledged."""
        with self._changed:
            if self._newest <= self.acknowledged:
                return False
            try:
                return bool(self._numbers_after(self.acknowledged))
            except sqlite3.Error:
                return True

    @property
    def newest(self) -> int:
        """The number of the batch that was appended last."""
        return self._newest

    def carried(self) -> Table:
        """What the batches on the disk carry, dtype CARRIED."""
        return summed(list(self._carried.values()))

    @property
    def hello(self) -> bytes:
        """As written last; empty before."""
        return self._hello

    @hello.setter
    def hello(self, message: bytes) -> None:
        with self._changed:
            self._hello = message
            self._try(lambda disk: disk.write_hello(message))

    def append(
        self, sequence: int, body: bytes, buckets: bytes, carried: bytes, flows: Collection[Description] = ()
    ) -> None:
        """Keeps a batch until it is acknowledged. body + buckets: the message; carried: of its buckets.

        flows: that it describes, each as an introduction with this flow alone.
        """
        batch = Kept(sequence, body, buckets, carried)
        with self._changed:
            if self._try(lambda disk: disk.insert(batch, flows)):
                self._carried[sequence] = carried
            else:
                self._memory.insert(batch, flows)
            self._newest, self._latest = sequence, batch
            self._bound()
            self._changed.notify_all()

    def end_flows(self, flow_ids: Collection[int]) -> None:
        """No batch that follows has rows of these flows."""
        if not flow_ids:
            return
        with self._changed:
            self._memory.end_flows(flow_ids, self._newest)
            self._try(lambda disk: disk.end_flows(flow_ids, self._newest))

    def introduction(self) -> tuple[bytes, bytes]:
        """What a connection begins with: the agent's own part, and the flows that no batch to come describes.

        Raises DataError where the disk does not give them back.
        """
        with self._changed:
            try:
                return self._hello, self._undescribed()
            except sqlite3.Error as error:
                self._unreadable(error)
                raise DataError(f"cannot read {self.folder.directory}: {error}") from error

    def _undescribed(self) -> bytes:
        newest: dict[int, tuple[int, bytes]] = {}  # of each flow: when it was last described, and how
        for table in self._tables():
            coming = {number for number in table.sequences() if number > self.acknowledged}
            if table is self._disk:
                coming -= self._gone
            for number, first, told, _, message in table.flows():
                if first not in coming and newest.get(number, (-1, b""))[0] < told:
                    newest[number] = told, message
        latest_first = sorted(newest.values(), key=lambda told: told[0], reverse=True)
        return b"".join(within_a_message(message for _, message in latest_first))

    def acknowledge(self, sequence: int) -> None:
        """Forgets all batches up to this one."""
        with self._changed:
            if not self.acknowledged < sequence <= self._newest:
                return
            self.acknowledged = sequence
            if sequence == self._newest:
                self._latest = None
            for done in list(itertools.takewhile(lambda number: number <= sequence, self._carried)):
                del self._carried[done]
            self._memory.delete_to(sequence)
            self._try(self._tidy)
            self._changed.notify_all()

    def after(
        self, sequence: int, leave: Callable[[], bool], patience: Callable[[], float | None] = lambda: None
    ) -> Kept | None:
        """The first batch above this number; blocks until there is one, then None if leave() holds.

        patience(): how many seconds to wait for one before None; None: for ever. Raises DataError where the disk
        does not give it back.
        """
        with self._changed:
            while not leave():
                if max(sequence, self.acknowledged) < self._newest:
                    found = self._first_after(max(sequence, self.acknowledged))
                    if found:
                        self.handed_out = max(self.handed_out, found.sequence)
                        return found
                longest_s = patience()
                if longest_s is not None and longest_s <= 0:
                    return None
                self._changed.wait(longest_s)
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
            lost = summed([batch.carried])
            self._lose(lost)
            self.given_up += 1
            self._latest = None
            self._delete(self._memory if self._memory.first_after(sequence - 1) == sequence else self._disk, batch)
            return lost

    def close(self) -> None:
        """Releases the session; removes its file when nothing waits in it."""
        with self._changed:
            if self._memory.size and self._disk:
                self._keep_memory(self._disk)
            left = self._memory.size
            self._memory.close()
            if self._disk:
                self._disk.close()
            if not self.waits:
                self.folder.remove(self._file)
            elif left:
                log.warning("%d bytes that waited in memory are lost: %s", left, self._trouble)

    def _keep_memory(self, disk: BatchTable) -> None:
        """A last try: what waits in memory would not outlive us."""
        if not self._try(lambda disk: disk.take_flows(self._memory)):
            return
        while (found := self._memory.first_after(self.acknowledged)) is not None:
            batch = self._memory.read(found)
            if not self._try(lambda disk, batch=batch: disk.insert(batch)):  # type: ignore[misc]
                return
            self._memory.delete(batch)

    @property
    def _file(self) -> str:
        return f"{self.session}.{self._files}" if self._files else self.session

    # The disk and its troubles

    def _opened(self) -> BatchTable | None:
        if self._disk is None and time.monotonic() >= self._open_again:
            self._open_again = time.monotonic() + _OPEN_AGAIN_S
            try:
                self._disk = self.folder.open_session(self._file)
                self._disk.write_hello(self._hello)
            except (sqlite3.Error, OSError) as error:
                self._note(str(error))
        return self._disk

    def _try(self, action: Callable[[BatchTable], None]) -> bool:
        disk = self._opened()
        if disk is None:
            return False
        try:
            action(disk)
        except sqlite3.Error as error:
            self._note(str(error))
            if not self._carried:  # nothing to lose: another file may do better than this one
                self._leave_file(disk, self.folder.remove)
            return False
        self._note("")
        return True

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("cannot write to %s: %s; batches wait in memory", self.folder.directory, trouble)
        if self._trouble and not trouble:
            log.warning("%s takes batches again", self.folder.directory)
        self._trouble = trouble

    def _leave_file(self, disk: BatchTable, what_then: Callable[[str], object]) -> None:
        try:
            self._memory.take_flows(disk)
        except sqlite3.Error:
            self.flows_lost += 1
        disk.close()
        what_then(self._file)
        self._disk = None
        self._files += 1
        self._gone.clear()

    def _tidy(self, disk: BatchTable) -> None:
        """The disk forgets what is acknowledged or given up."""
        disk.delete_to(self.acknowledged)
        for sequence in list(self._gone):
            if sequence > self.acknowledged:
                disk.delete(disk.read(sequence))
            self._gone.discard(sequence)

    def _numbers_after(self, sequence: int) -> list[tuple[int, BatchTable]]:
        """The lowest number above it in each of the tables that has one."""
        numbers = []
        for table in self._tables():
            found = table.first_after(sequence)
            while found is not None and table is self._disk and found in self._gone:
                found = table.first_after(found)
            if found is not None:
                numbers.append((found, table))
        return numbers

    def _first_after(self, sequence: int) -> Kept | None:
        if self._latest and sequence == self._latest.sequence - 1:
            return self._latest
        try:
            number, table = min(self._numbers_after(sequence), key=lambda pair: pair[0], default=(0, self._memory))
            batch = table.read(number) if number else None
        except sqlite3.Error as error:
            self._unreadable(error)
            raise DataError(f"cannot read {self.folder.directory}: {error}") from error
        self._unreadable_since = 0.0
        return batch

    def _unreadable(self, error: sqlite3.Error) -> None:
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        if now - self._unreadable_since < _UNREADABLE_S and isinstance(error, sqlite3.OperationalError):
            return
        lost = self.carried()
        log.error(
            "cannot read %s: %s; given up: %d batches (%s)",
            *(self.folder.directory, error, len(self._carried), described(lost)),
        )
        self._lose(lost)
        self._latest = None
        self.given_up += len(self._carried)
        self._carried.clear()
        self._unreadable_since = 0.0
        if self._disk:
            self._leave_file(self._disk, self.folder.set_aside)

    # The bound

    def _bound(self) -> None:
        if not any(map(self._over, self._tables())):
            self._full = False
            return
        if not self._full:
            self._full = True
            log.warning("%d bytes wait for the collector: the oldest of them lose their buckets", self.size)
        # A disk that does not forget would be asked for what is acknowledged, and that would be counted as lost.
        well = self._disk is None or self._try(self._tidy)
        tables = [table for table in self._tables() if well or table is self._memory]
        for give_up in (self._strip, self._drop):
            for table in tables:
                while self._over(table) and give_up(table):
                    pass

    def _tables(self) -> list[BatchTable]:
        return [self._disk, self._memory] if self._disk else [self._memory]

    def _over(self, table: BatchTable) -> bool:
        return self.size > self.limit_bytes or (table is self._memory and table.size > MOST_IN_MEMORY)

    def _strip(self, table: BatchTable) -> bool:
        """Whether the oldest batch with buckets, other than the newest, has lost them."""
        try:
            found = table.oldest_with_buckets()
            if found is None or found == self._newest:
                return False
            batch = table.read(found)
            table.strip(batch)
            self._forget_rowless()
        except sqlite3.Error as error:
            self._note(str(error))
            return False
        if batch.sequence in self._carried:
            self._carried[batch.sequence] = b""
        self._lose(summed([batch.carried]))
        return True

    def _forget_rowless(self) -> None:
        """Flows of which no batch has rows any more."""
        with_rows = [found for table in self._tables() if (found := table.oldest_with_buckets()) is not None]
        for table in self._tables():
            table.forget_flows(min(with_rows, default=self._newest) - 1)

    def _drop(self, table: BatchTable) -> bool:
        try:
            found = table.first_after(0)
            if found is None or found == self._newest:
                return False
            batch = table.read(found)
        except sqlite3.Error as error:
            self._note(str(error))
            return False
        self.given_up += 1
        self._lose(summed([batch.carried]))
        return self._delete(table, batch)

    def _delete(self, table: BatchTable | None, batch: Kept) -> bool:
        self._carried.pop(batch.sequence, None)
        try:
            if table:
                table.delete(batch)
        except sqlite3.Error as error:
            self._gone.add(batch.sequence)
            self._note(str(error))
            return False
        return True
