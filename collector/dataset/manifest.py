# SPDX-License-Identifier: Apache-2.0
"""The manifest: which files belong to the dataset, and what is stored of each session.

A write is one transaction. Its files lie complete in a folder alongside the tables by then, and are renamed into the
tables after it: before the transaction a reader sees none of them, and after it, whatever happens, all of them will be
there. A manifest has one writer; where a dataset has more than one writer, each has its own, and who takes a host over
moves what is stored of it from one manifest to another in one transaction. No memory is shared, so it works on NFS.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.timemap import TimeMap
from netmon.records import CLASS_NAMES, Class, Direction, Flow, Hello, Owner
from netmon.views import RECENT

# --- What a session's restart needs to know, so that batches sent again are stored once.
#
# Rows settle by time, not by batch: the state that is stored with the rows says which of them are there.

FLOW_OVER_NS = 600_000_000_000  # an agent gives a flow that was idle for half of it a new number
RECENT_NS = 60_000_000_000  # a rank whose last stored iteration is older has to join again


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class RankState:
    """A rank whose iterations up to end_utc are stored."""

    job: str
    rank: int
    size: int
    parameters: int
    end_utc: int
    number: int  # of the last of them, as the rank counts
    trust: int  # of its own numbers
    shift: int  # from them to the job's


@dataclass(frozen=True)
class StoredFlow:
    """A flow as its row tells it."""

    flow: Flow
    last_ns: int  # mono
    shared: bool


@dataclass(frozen=True)
class SessionState:
    """What is stored of a session as of one write."""

    host: str = ""
    last_sequence: int = 0  # of these batches, all rows that start before settled_ns are stored
    complete_sequence: int = 0  # of these batches, all rows are stored
    settled_ns: int = -1
    clock: TimeMap | None = None  # as the rows used it
    ledger_until_utc: dict[int, int] = field(default_factory=dict)  # by link
    ledger_totals: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    ledger_open: dict[int, Sequence[int]] = field(default_factory=dict)  # by link, see LedgerAccounts.open_samples
    ranks: tuple[RankState, ...] = ()

    def text(self) -> str:
        document = vars(self) | {
            "clock": None,
            "ledger_totals": {link: total.tolist() for link, total in self.ledger_totals.items()},
            "ranks": [vars(rank) for rank in self.ranks],
        }
        text = _ENCODE(document)
        # The clock's map is the same in most writes, and most of the text.
        return text.replace('"clock":null', f'"clock":{self.clock.text}', 1) if self.clock else text

    @classmethod
    def from_text(cls, text: str) -> "SessionState":
        """The reverse of text. Raises ValueError, KeyError, TypeError."""
        document: dict[str, Any] = json.loads(text)
        clock = document["clock"]
        decoded = {
            "clock": clock and TimeMap.from_document(clock),
            "ledger_until_utc": {int(link): until for link, until in document["ledger_until_utc"].items()},
            "ledger_totals": {int(k): np.array(total, np.int64) for k, total in document["ledger_totals"].items()},
            "ledger_open": {int(link): sample for link, sample in document["ledger_open"].items()},
            "ranks": tuple(RankState(**rank) for rank in document["ranks"]),
        }
        return cls(**(document | decoded))


@dataclass(frozen=True)
class Resume(SessionState):
    """The state of a session that comes back; the default is one that the dataset has never seen."""

    flows: tuple[StoredFlow, ...] = ()  # in the order of their appearance


def resume_from(state: SessionState, rows: list[dict[str, Any]], hello: Hello) -> Resume:
    """What a state says to a session that comes back. rows: of its flows, as the table `flows` has them.

    Raises ValueError, KeyError, TypeError.
    """
    recent = tuple(rank for rank in state.ranks if rank.end_utc > hello.clock.utc_ns - RECENT_NS)
    indices = {interface.name: interface.index for interface in hello.interfaces}
    clock = state.clock or TimeMap.constant(hello.clock.offset_ns)
    flows = tuple(_stored_flow(row, indices[row["interface"]], clock) for row in rows)
    return Resume(**(vars(state) | {"ranks": recent}), flows=flows)


def over_before(clock: TimeMap | None, settled_ns: int, hello: Hello) -> int:
    """Flows that were last seen earlier (UTC) are over for a session that comes back.

    What comes next may have waited for long: flows that went on then were alive at the last that is stored.
    """
    stored_utc = clock.utc(settled_ns) if clock else 0
    return min(stored_utc, hello.clock.utc_ns) - FLOW_OVER_NS


def _stored_flow(row: dict[str, Any], interface: int, clock: TimeMap) -> StoredFlow:
    known = {name: row[name] for name in ("pid", "process", "container", "job", "rank")}
    user = row.get("user") or ""  # a netmon before did not store it
    owner = Owner(**known, source=row["class_source"], user=user)
    flow = Flow(
        flow_id=row["flow_id"],
        interface=interface,
        direction=Direction[row["direction"].upper()],
        src=row["src"],
        dst=row["dst"],
        src_port=row["src_port"],
        dst_port=row["dst_port"],
        protocol=row["protocol"],
        first_ns=clock.mono(row["first_ns"]),
        owner=owner,
        members=row.get("members") or 0,  # of a netmon before there were aggregates
        prefix_bits=row.get("prefix_bits") or 0,
    )
    return StoredFlow(flow, clock.mono(row["last_ns"]), row["class"] == CLASS_NAMES[Class.DL_SHARED])


# --- The manifest: which files belong to the dataset, and what is stored of each session.

_WAIT_S = 10.0  # for another worker that looks into it
_FORGET = """DELETE FROM sessions WHERE seen_s / 86400 < (
  SELECT min(day) FROM (SELECT DISTINCT seen_s / 86400 AS day FROM sessions ORDER BY day DESC LIMIT 31)
)"""
"""A session that was silent on 30 days on which others sent does not come back.

A clock that is wrong at the start must not make a living one forgotten: its rows would be stored again.
"""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
  path TEXT PRIMARY KEY,     -- below the dataset's directory
  name TEXT NOT NULL,        -- of the table
  partition TEXT NOT NULL,   -- date=…/hour=…
  bytes INTEGER NOT NULL,
  roll TEXT NOT NULL,        -- the file that it is to become a part of; empty: it is in the table
  staged TEXT                -- its name in the staging folder until it has been renamed
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_staged ON files (path) WHERE staged IS NOT NULL;
CREATE INDEX IF NOT EXISTS files_recent ON files (path) WHERE roll != '';
CREATE TABLE IF NOT EXISTS removals (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
  session TEXT PRIMARY KEY, host TEXT NOT NULL, seen_s INTEGER NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (session TEXT, path TEXT, PRIMARY KEY (session, path)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS members_of_path ON members (path);
"""


@dataclass(frozen=True)
class StoredFile:
    """A file of the dataset."""

    name: str  # of the table
    partition: str
    stem: str
    bytes: int
    roll: str = ""  # stem of the file that it is to become a part of; empty: it is in the table
    staged: str = ""  # its name in the staging folder; empty: it is in its place

    @property
    def path(self) -> str:
        """Below the dataset's directory (see netmon.views.RECENT)."""
        hour = f"{self.name}/{self.partition}"
        return f"{RECENT}/{hour}/{self.roll}/{self.stem}.parquet" if self.roll else f"{hour}/{self.stem}.parquet"


class Manifest:
    """One dataset's; used by one thread at a time. Methods raise sqlite3.Error where the disk does not take it."""

    def __init__(self, path: Path, power: bool = True) -> None:
        """Open or make it; blocks. power: a write outlives a power cut."""
        self._database = sqlite3.connect(path, _WAIT_S, isolation_level=None, check_same_thread=False)
        # EXTRA: a write is undone where the journal comes back; so its folder is synced when it has been removed.
        self._synchronous = f"PRAGMA synchronous={'EXTRA' if power else 'NORMAL'}"
        # Not NORMAL, which SQLite calls safe with a write-ahead log only: a journal that is synced with its header
        # counts where a power cut has left a part of it, as the sums in it are of some of its bytes.
        self._relaxed = "FULL" if power else "NORMAL"
        self._database.execute(self._synchronous)
        for setting in ("journal_mode=DELETE", "journal_size_limit=16777216"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.executescript(_SCHEMA)
        self._database.execute(_FORGET)
        self._database.execute("DELETE FROM members WHERE session NOT IN (SELECT session FROM sessions)")

    def keep_other_manifest(self) -> None:
        """Nobody else looks into it from now on: a write then costs one sync instead of many."""
        for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL"):
            self._database.execute(f"PRAGMA {setting}")
        self._relaxed = "NORMAL"

    def close(self) -> None:
        self._database.close()

    def commit(
        self,
        files: Iterable[StoredFile],
        states: Mapping[str, SessionState],
        members: Mapping[str, Iterable[str]],
        rolled: Iterable[str] = (),
    ) -> None:
        """One write: these files, named in the staging folder, come; members: sessions by path.

        rolled: paths of files that are a part of one of them now.
        """
        now = int(time.time())
        with self._transaction() as run:
            _enter(run, "main", files)
            run.executemany(
                "INSERT OR REPLACE INTO sessions VALUES (?,?,?,?)",
                [(session, state.host, now, state.text()) for session, state in states.items()],
            )
            run.executemany("INSERT OR IGNORE INTO members VALUES (?,?)", _pairs(members))
            run.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in rolled])

    def placed(self, paths: Iterable[str], removed: Iterable[str] = ()) -> None:
        """These files have been renamed, those are gone: if a power cut takes this back, it is found out again."""
        self._database.execute(f"PRAGMA synchronous={self._relaxed}")
        try:
            with self._transaction() as run:
                run.executemany("UPDATE files SET staged = NULL WHERE path = ?", [(path,) for path in paths])
                run.executemany("DELETE FROM removals WHERE path = ?", [(path,) for path in removed])
        finally:
            self._database.execute(self._synchronous)

    def staged(self) -> list[StoredFile]:
        """What has been written but maybe not renamed."""
        return self._files("staged IS NOT NULL")

    def removals(self) -> list[str]:
        """What has been replaced but maybe not removed."""
        return [path for (path,) in self._database.execute("SELECT path FROM removals ORDER BY path")]

    def recent(self) -> list[StoredFile]:
        """The published files that are to become a part of others, by path."""
        return self._files("staged IS NULL AND roll != ''")

    def files(self, name: str, partition: str) -> list[StoredFile]:
        """All published files of an hour of a table, by path."""
        return self._files("staged IS NULL AND name = ? AND partition = ?", name, partition)

    def forget(self, paths: Iterable[str]) -> None:
        gone = [(path,) for path in paths]
        with self._transaction() as run:
            run.executemany("DELETE FROM files WHERE path = ?", gone)
            run.executemany("DELETE FROM members WHERE path = ?", gone)

    def session(self, session: str) -> SessionState | None:
        """What is stored of a session; None: nothing. Raises ValueError, KeyError, TypeError, too."""
        row = self._database.execute("SELECT state FROM sessions WHERE session = ?", (session,)).fetchone()
        return SessionState.from_text(row[0]) if row else None

    def version(self) -> int:
        """Another one whenever another writer has changed something here."""
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    def paths_of(self, session: str) -> list[str]:
        """The files that hold the session's flows, by path."""
        rows = self._database.execute("SELECT path FROM members WHERE session = ? ORDER BY path", (session,))
        return [path for (path,) in rows]

    def sessions_of(self, path: str) -> list[str]:
        """The sessions of which a file holds rows that may still change."""
        return [session for (session,) in self._database.execute("SELECT session FROM members WHERE path = ?", (path,))]

    def _files(self, condition: str, *values: str) -> list[StoredFile]:
        return _read(self._database, "main.files", condition, *values)

    @contextmanager
    def other_manifest(self, path: Path) -> Iterator["OtherManifest"]:
        """Another writer's manifest, and what can be moved from there."""
        with closing(sqlite3.connect(path, _WAIT_S)) as before:
            before.executescript(_SCHEMA)  # its writer may have been killed before it had any table
        self._database.execute("ATTACH DATABASE ? AS other", (str(path),))
        try:
            self._database.execute(self._synchronous.replace(" ", " other."))
            self._database.execute("PRAGMA other.journal_mode=DELETE")  # else two files are not one transaction
            yield OtherManifest(self._database, self._transaction)
        finally:
            self._database.execute("DETACH DATABASE other")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


class OtherManifest:
    """Another writer's manifest, which is attached to our own as `other`."""

    def __init__(
        self, database: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[sqlite3.Connection]]
    ) -> None:
        self._database, self._transaction = database, transaction

    def unfinished(self) -> tuple[list[StoredFile], list[str]]:
        """What it has committed that may not be in its place yet: files that come, paths that go."""
        removals = [path for (path,) in self._database.execute("SELECT path FROM other.removals")]
        return _read(self._database, "other.files", "staged IS NOT NULL"), removals

    def placed(self) -> None:
        with self._transaction() as run:
            run.execute("UPDATE other.files SET staged = NULL")
            run.execute("DELETE FROM other.removals")

    def sessions(self, hosts: Iterable[str]) -> frozenset[str]:
        """The hosts' sessions of which it holds something."""
        wanted = frozenset(hosts)
        rows = self._database.execute("SELECT session, host FROM other.sessions")
        return frozenset(session for session, host in rows if host in wanted)

    def members(self, sessions: Iterable[str]) -> list[StoredFile]:
        """Its files with rows of these sessions that may still change."""
        run = self._database.execute
        paths = {path for s in sessions for (path,) in run("SELECT path FROM other.members WHERE session = ?", (s,))}
        return [file for file in _read(self._database, "other.files", "1") if file.path in paths]

    def move(
        self,
        sessions: Iterable[str],
        ours: Iterable[StoredFile],
        members: Mapping[str, Iterable[str]],
        theirs: Iterable[StoredFile],
        emptied: Iterable[str],
    ) -> None:
        """Sessions become ours in one transaction, with the files that hold their rows now.

        members: sessions by path of ours; theirs: their files without these rows; emptied: those that had no others.
        """
        moved, gone = [(session,) for session in sessions], [(path,) for path in emptied]
        with self._transaction() as run:
            run.executemany(
                "INSERT OR REPLACE INTO main.sessions SELECT * FROM other.sessions WHERE session = ?", moved
            )
            for table in ("sessions", "members"):
                run.executemany(f"DELETE FROM other.{table} WHERE session = ?", moved)
            _enter(run, "main", ours)
            run.executemany("INSERT OR IGNORE INTO main.members VALUES (?,?)", _pairs(members))
            _enter(run, "other", theirs)
            run.executemany("DELETE FROM other.files WHERE path = ?", gone)
            run.executemany("INSERT OR IGNORE INTO other.removals VALUES (?)", gone)

    def move_all(self) -> None:
        with self._transaction() as run:
            for table in ("files", "sessions", "members"):
                run.execute(f"INSERT OR REPLACE INTO main.{table} SELECT * FROM other.{table}")
                run.execute(f"DELETE FROM other.{table}")


def _enter(run: sqlite3.Connection, schema: str, files: Iterable[StoredFile]) -> None:
    rows = [(f.path, f.name, f.partition, f.bytes, f.roll, f.staged) for f in files]
    run.executemany(f"INSERT OR REPLACE INTO {schema}.files VALUES (?,?,?,?,?,?)", rows)


def _pairs(members: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    return [(session, path) for path, sessions in members.items() for session in sessions]


def _read(database: sqlite3.Connection, table: str, condition: str, *values: str) -> list[StoredFile]:
    columns = "name, partition, path, bytes, roll, staged"
    rows = database.execute(f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY path", values)
    return [StoredFile(n, p, Path(path).stem, b, roll, s or "") for n, p, path, b, roll, s in rows]
