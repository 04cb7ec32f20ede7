# SPDX-License-Identifier: Apache-2.0
"""Batches by their sequence number, and the flows that they name, in one SQLite database: a file, or memory.

A batch is there completely or not at all, however the agent ends: that is what the write-ahead log is for. The file is
locked as long as it is open, so that nobody takes a living session for one that was left behind. Everything here
blocks for the disk and raises sqlite3.Error.
"""

import logging
import math
import os
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
"""SQLite's `synchronous`, by what is to be outlived. NORMAL waits for the disk once in about 4 MB: a power cut then
takes the newest batches, and leaves a whole file with those before. FULL waits for it at each batch."""

_FORMAT = 1  # PRAGMA user_version
_FREE_PAGES = 256  # given back to the file system from here on
_ALONE = "PRAGMA locking_mode = EXCLUSIVE"
"""Before anything is read: no memory is shared between processes, which a network file system could not."""
_SETTINGS = (
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA journal_size_limit = 4194304",
    "PRAGMA cache_size = -256",  # KiB
)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS batch"
    " (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, buckets BLOB NOT NULL, carried BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS session (id INTEGER PRIMARY KEY CHECK (id = 1), hello BLOB NOT NULL)",
    # batch: the first that has described the flow; told: the last; over: no later batch than this one has rows of it.
    "CREATE TABLE IF NOT EXISTS flow (id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, told INTEGER NOT NULL,"
    " over INTEGER, message BLOB NOT NULL)",
    # ledger: as the session's latest samples have it (netmon.agent.downtime); sequence: of its newest batch.
    "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER, ledger BLOB)",
    "CREATE INDEX IF NOT EXISTS flow_over ON flow (over) WHERE over IS NOT NULL",
    f"PRAGMA user_version = {_FORMAT}",
)
_DESCRIBE = (
    "INSERT INTO flow VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET batch = min(batch, excluded.batch),"
    " message = CASE WHEN excluded.told < told THEN message ELSE excluded.message END, told = max(told, excluded.told),"
    " over = coalesce(excluded.over, over)"
)
_AT_ONCE_BYTES = 1 << 20  # go from one table to another
_OBJECTS_BYTES = 400  # of a batch's Python objects
_OVER_BYTES = "SELECT coalesce(sum(length(message)), 0) FROM flow WHERE over IS NOT NULL"

Description = tuple[int, bytes]
"""(flow id, what the introduction says of it)"""

Account = tuple[int, bytes]
"""(number of the newest batch, the ledger as it was reported last)"""
NO_ACCOUNT: Account = (0, b"")

FlowRow = tuple[int, int, int, int | None, bytes]
"""(flow id, the first and the last batch that has described it, the last that may have rows of it, message)

The last is -1 where this only says that the flow is over.
"""


@dataclass(frozen=True)
class Kept:
    """A batch. body + buckets is the message; link_totals: dtype LINK_TOTALS, of its buckets, as bytes."""

    sequence: int
    body: bytes
    buckets: bytes
    link_totals: bytes

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return len(self.body) + len(self.buckets)

    @property
    def nbytes(self) -> int:
        """That it takes in memory, about."""
        return self.size + len(self.link_totals) + _OBJECTS_BYTES


class BatchTable:
    """Not thread-safe. `size`: bytes of all messages in it, and of the flows that are over."""

    def __init__(self, path: Path | None, durability: str = "process") -> None:
        """path: of the file, new or left behind; None: in memory. durability: what a batch outlives."""
        self._path, self._inode = path, 0
        self._settings = (*_SETTINGS, f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}") if path else ()
        self._open()
        self._full_from = 0  # below it no batch has buckets

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute(_ALONE).fetchall()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise sqlite3.DatabaseError(f"spool of format {version}, not {_FORMAT}")
            for statement in (*self._settings, "BEGIN IMMEDIATE", *_TABLES, "COMMIT"):
                self._db.execute(statement).fetchall()
            query = "SELECT coalesce(sum(length(body) + length(buckets)), 0) FROM batch"
            self.size: int = sum(self._db.execute(text).fetchone()[0] for text in (query, _OVER_BYTES))
        except sqlite3.Error:
            self._db.close()
            raise
        with suppress(OSError):
            self._inode = os.stat(self._path).st_ino if self._path else 0

    def _look_for_file(self) -> None:
        """Somebody may have removed it, or its folder: what is in it goes into a new one, while it can be read."""
        try:
            if not self._inode or (self._path and os.stat(self._path).st_ino == self._inode):
                return
        except FileNotFoundError:
            pass
        except OSError:  # it may come back
            return
        assert self._path
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db.execute("VACUUM INTO ?", (str(self._path),))
        self._db.close()
        self._open()
        log.warning("%s was removed by somebody: what waited in it is in a new file of this name", self._path)

    def hello(self) -> bytes:
        """As written last; empty before."""
        row = self._db.execute("SELECT hello FROM session").fetchone()
        return bytes(row[0]) if row else b""

    def write_hello(self, message: bytes) -> None:
        """In place of the one before."""
        self._db.execute("INSERT OR REPLACE INTO session VALUES (1, ?)", (message,))

    def account(self) -> Account:
        """As kept last; (0, b"") before."""
        row = self._db.execute("SELECT sequence, ledger FROM account").fetchone()
        return (int(row[0]), bytes(row[1])) if row else NO_ACCOUNT

    def insert(self, batch: Kept, flows: Iterable[Description] = (), account: Account = NO_ACCOUNT) -> None:
        """Keep it, the flows that it describes and the account: all or nothing."""
        self.take([batch], _rows(batch.sequence, flows), account)

    def describe(self, sequence: int, flows: Iterable[Description]) -> None:
        """Keep the flows that this batch describes."""
        self.take((), _rows(sequence, flows))

    def take(self, batches: Sequence[Kept], flows: Sequence[FlowRow], account: Account = NO_ACCOUNT) -> None:
        """Keep what another table has, too: all of it or nothing."""
        self._look_for_file()
        rows = [(batch.sequence, batch.body, batch.buckets, batch.link_totals) for batch in batches]
        over = any(row[3] is not None for row in flows)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            before = self._over_bytes() if over else 0
            self._db.executemany("INSERT INTO batch VALUES (?, ?, ?, ?)", rows)
            self._db.executemany(_DESCRIBE, flows)
            if account[1]:
                self._db.execute("INSERT OR REPLACE INTO account VALUES (1, ?, ?)", account)
            more = self._over_bytes() - before if over else 0
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.size += sum(batch.size for batch in batches) + more

    def _over_bytes(self) -> int:
        return int(self._db.execute(_OVER_BYTES).fetchone()[0])

    def oldest(self, most: int) -> list[Kept]:
        """The first ones, at most so many, and about a megabyte where that is more than two."""
        found, size = list[Kept](), 0
        query = "SELECT sequence, body, buckets, carried FROM batch ORDER BY sequence LIMIT ?"
        for row in self._db.execute(query, (most,)):
            found.append(Kept(*row))
            size += found[-1].size
            if size > _AT_ONCE_BYTES and len(found) > 1:
                break
        return found

    def release(self, batches: Iterable[Kept]) -> None:
        """Another table has taken these, and all flows."""
        for batch in batches:
            self.delete(batch)
        self.size -= self._over_bytes()
        self._db.execute("DELETE FROM flow")

    def flows(self) -> list[FlowRow]:
        """Its flows."""
        return self._db.execute("SELECT id, batch, told, over, message FROM flow").fetchall()

    def end_flows(self, flow_ids: Iterable[int], sequence: int) -> None:
        """No batch after this one has rows of these; they are forgotten when it is."""
        before = self._over_bytes()
        self._db.executemany("UPDATE flow SET over = ? WHERE id = ?", [(sequence, number) for number in flow_ids])
        self.size += self._over_bytes() - before

    def forget_flows(self, sequence: int) -> None:
        """Those of which only batches up to this one have rows."""
        (size,) = self._db.execute(f"{_OVER_BYTES} AND over <= ?", (sequence,)).fetchone()
        if size:
            self._db.execute("DELETE FROM flow WHERE over <= ?", (sequence,))
            self.size -= size

    def sequences(self) -> set[int]:
        """The numbers of all batches."""
        return {number for (number,) in self._db.execute("SELECT sequence FROM batch")}

    def first_after(self, sequence: int) -> int | None:
        """The lowest number above it."""
        found: int | None = self._db.execute(
            "SELECT min(sequence) FROM batch WHERE sequence > ?", (sequence,)
        ).fetchone()[0]
        return found

    def last(self) -> int:
        """The highest number; 0: it is empty."""
        return int(self._db.execute("SELECT coalesce(max(sequence), 0) FROM batch").fetchone()[0])

    def read(self, sequence: int) -> Kept:
        """One that is there."""
        query = "SELECT body, buckets, carried FROM batch WHERE sequence = ?"
        return Kept(sequence, *self._db.execute(query, (sequence,)).fetchone())

    def delete_to(self, sequence: int) -> None:
        """Forget all batches up to this one, and the flows that only they have rows of."""
        self.forget_flows(sequence)
        query = "SELECT coalesce(sum(length(body) + length(buckets)), 0) FROM batch WHERE sequence <= ?"
        (size,) = self._db.execute(query, (sequence,)).fetchone()
        self._db.execute("DELETE FROM batch WHERE sequence <= ?", (sequence,))
        self.size -= size
        self._shrink()

    def delete(self, batch: Kept) -> None:
        """Forget this one."""
        self._db.execute("DELETE FROM batch WHERE sequence = ?", (batch.sequence,))
        self.size -= batch.size

    def keep_only(self, sequences: Collection[int]) -> None:
        """Forget all other batches, from both ends: whoever is killed meanwhile leaves no gap."""
        first = min(sequences, default=math.inf)
        for number in sorted(self.sequences().difference(sequences), key=lambda n: n if n < first else -n):
            self.delete(self.read(number))

    def oldest_with_buckets(self) -> int | None:
        """The batch that loses them next."""
        query = "SELECT min(sequence) FROM batch WHERE sequence >= ? AND length(buckets) > 0"
        found: int | None = self._db.execute(query, (self._full_from,)).fetchone()[0]
        return found

    def strip_oldest(self, newest: int) -> Kept | None:
        """Take the buckets out of the oldest that has any and is not the newest; as it was. None: there is none."""
        found = self.oldest_with_buckets()
        if found is None or found == newest:
            return None
        batch = self.read(found)
        self._db.execute("UPDATE batch SET buckets = x'', carried = x'' WHERE sequence = ?", (batch.sequence,))
        self.size -= len(batch.buckets)
        self._full_from = batch.sequence + 1
        return batch

    def link_totals(self) -> dict[int, bytes]:
        """What each batch carries, in their order."""
        return dict(self._db.execute("SELECT sequence, carried FROM batch ORDER BY sequence"))

    def _shrink(self) -> None:
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        if free > _FREE_PAGES:
            self._db.execute(f"PRAGMA incremental_vacuum({free - _FREE_PAGES // 2})").fetchall()

    def close(self) -> None:
        """Unlock it; what is in it stays."""
        self._db.close()


def _rows(sequence: int, flows: Iterable[Description]) -> list[FlowRow]:
    return [(number, sequence, sequence, None, message) for number, message in flows]
