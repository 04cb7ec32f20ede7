# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows change: one row per flow (or interface of a session), in files by order of appearance.

A file is written again when a row in it has changed. New rows, and columns that a restart needs, go to the disk with
the write that brings them. Columns that only move on with the time (when a flow was last seen) follow a few files at a
time, the one that has waited longest first: so the cost does not grow with the flows that live.
"""

import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.dataset.resume import FLOW_OVER_NS, SessionState

ROWS_PER_PART = 4096
_LATER_AT_A_TIME = 1  # files that are written again for columns that can wait, per write
_Ints = npt.NDArray[np.int64]


@dataclass
class Part:
    """The rows of one file, as they are now."""

    rows: pa.Table  # texts plain
    path: str = ""  # below the dataset's directory; empty: not written yet
    whole: bool = False  # takes no more rows
    waiting_since: float = 0.0  # a change that can wait; 0: none
    touched: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Changes:
    """What one write does to a table; nothing of it holds before it is on the disk."""

    parts: dict[int, pa.Table]  # all parts with another content
    write: list[int]  # those that have to be written now
    keys: _Ints  # of the new rows
    of_part: _Ints
    index: _Ints


class RowParts:
    """One table's rows that may still change."""

    def __init__(self, schema: pa.Schema, key: str, later: Iterable[str]) -> None:
        """key: the column that tells a session's rows apart. later: columns whose changes can wait."""
        self._plain = pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])
        self._key, self._later = key, frozenset(later)
        self.parts: dict[int, Part] = {}
        self._numbers = itertools.count()
        self._words: dict[str, int] = {}
        self._word_numbers = itertools.count()
        self._keys, self._of_part, self._index = (np.empty(0, np.int64) for _ in range(3))
        self._order: _Ints | None = None  # of _keys; None: out of date

    def changes(self, rows: pa.Table) -> Changes:
        """What these rows, new or known, change; of a row that comes twice the later one holds."""
        parts, write, new_keys, new_part, new_place = {}, set[int](), [], [], []
        if len(rows):
            rows = rows.cast(self._plain)
            keys, last = np.unique(self._numbered(rows)[::-1], return_index=True)
            order = np.sort(len(rows) - 1 - last)
            rows, keys = rows.take(pa.array(order)), self._numbered(rows)[order]
            known, at = self._find(keys)
            for number in np.unique(self._of_part[at[known]]).tolist():
                mine = np.flatnonzero(known)[self._of_part[at[known]] == number]
                old = self.parts[number].rows
                fresh = rows.take(pa.array(mine))
                index = self._index[at[mine]]
                if self._matters(old.take(pa.array(index)), fresh):
                    write.add(number)
                both = np.arange(len(old))
                both[index] = len(old) + np.arange(len(fresh))
                parts[number] = pa.concat_tables([old, fresh]).take(pa.array(both)).combine_chunks()
            for number, begin, own in self._room(np.flatnonzero(~known)):
                before = parts.get(number, self.parts[number].rows if number in self.parts else None)
                fresh = rows.take(pa.array(own))
                parts[number] = pa.concat_tables([before, fresh]).combine_chunks() if before is not None else fresh
                write.add(number)
                new_keys.append(keys[own])
                new_part.append(np.full(len(own), number))
                new_place.append(begin + np.arange(len(own)))
        waiting = sorted((p.waiting_since, n) for n, p in self.parts.items() if p.waiting_since and n not in write)
        write.update(number for _, number in waiting[:_LATER_AT_A_TIME])
        joined = [np.concatenate([np.empty(0, np.int64), *part]) for part in (new_keys, new_part, new_place)]
        return Changes(parts, sorted(write), *joined)

    def content(self, changes: Changes, number: int) -> pa.Table:
        return changes.parts.get(number, self.parts[number].rows if number in self.parts else None)

    def apply(self, changes: Changes, paths: dict[int, str]) -> None:
        """The changes are on the disk. paths: of the parts that were written."""
        now = time.monotonic()
        for number, rows in changes.parts.items():
            part = self.parts.setdefault(number, Part(rows))
            part.rows, part.touched = rows, now
            part.whole = part.whole or len(rows) >= ROWS_PER_PART
            part.waiting_since = part.waiting_since or now
        for number, path in paths.items():
            self.parts[number].path, self.parts[number].waiting_since = path, 0.0
        self._keys = np.concatenate([self._keys, changes.keys])
        self._of_part = np.concatenate([self._of_part, changes.of_part])
        self._index = np.concatenate([self._index, changes.index])
        if len(changes.keys):
            self._order = None

    def waiting(self) -> Changes:
        numbers = [number for number, part in self.parts.items() if part.waiting_since]
        nothing = np.empty(0, np.int64)
        return Changes({}, numbers, nothing, nothing, nothing)

    def lacks(self, path: str) -> bool:
        """Whether a file's rows are not known."""
        return all(part.path != path for part in self.parts.values())

    def adopt(self, path: str, rows: pa.Table) -> None:
        """Take in a file of an earlier collector, if it is not known."""
        if not self.lacks(path):
            return
        number = next(self._numbers)
        missing = [field for field in self._plain if field.name not in rows.column_names]
        for lacking in missing:
            empty = "" if pa.types.is_string(lacking.type) else 0
            rows = rows.append_column(lacking.name, pa.array([empty] * len(rows), lacking.type))
        rows = rows.select(self._plain.names).cast(self._plain)
        self.parts[number] = Part(rows, path, whole=len(rows) >= ROWS_PER_PART)
        self._keys = np.concatenate([self._keys, self._numbered(rows)])
        self._of_part = np.concatenate([self._of_part, np.full(len(rows), number)])
        self._index = np.concatenate([self._index, np.arange(len(rows))])
        self._order = None

    def forget(self) -> None:
        """Let go of whole parts in which nothing has changed for as long as a flow may be silent."""
        before = time.monotonic() - FLOW_OVER_NS / 1e9
        over = [n for n, p in self.parts.items() if p.whole and not p.waiting_since and p.touched < before]
        if not over:
            return
        for number in over:
            del self.parts[number]
        kept = ~np.isin(self._of_part, over)
        self._keys, self._of_part, self._index = self._keys[kept], self._of_part[kept], self._index[kept]
        self._order = None
        used = set(np.unique(np.concatenate([self._keys >> 32, self._keys & 0xFFFFFFFF])).tolist())
        self._words = {word: number for word, number in self._words.items() if number in used}

    def drop(self, hosts: Collection[str]) -> None:
        """Let go of all rows of these hosts; the files do not hold them any more."""
        theirs = pa.array(sorted(hosts))
        for number, part in list(self.parts.items()):
            kept = pc.invert(pc.is_in(part.rows["host"], theirs)).to_numpy(zero_copy_only=False)
            if kept.all():
                continue
            mine = self._of_part == number
            index = np.cumsum(kept) - 1
            gone = mine & ~kept[np.where(mine, self._index, 0)]
            self._index = np.where(mine, index[np.where(mine, self._index, 0)], self._index)
            self._keys, self._of_part, self._index = self._keys[~gone], self._of_part[~gone], self._index[~gone]
            self._order = None
            part.rows = part.rows.filter(pa.array(kept)).combine_chunks()
            if not len(part.rows):
                del self.parts[number]

    def rows_of(self, session: str, time: str, since_ns: int) -> pa.Table:
        """A session's rows, in the order of their appearance, of the parts that have a time since then."""
        recent = [part.rows for part in self.parts.values() if pc.max(part.rows[time]).as_py() >= since_ns]
        parts = [rows.filter(pc.equal(rows["session"], session)) for rows in recent]
        return pa.concat_tables(parts) if parts else self._plain.empty_table()

    def _room(self, rows: _Ints) -> list[tuple[int, int, _Ints]]:
        """Where new rows go: part, place of the first one in it, rows."""
        found = []
        number = next((n for n, part in self.parts.items() if not part.whole), None)
        begin = len(self.parts[number].rows) if number is not None else 0
        while len(rows):
            number = next(self._numbers) if number is None else number
            found.append((number, begin, rows[: ROWS_PER_PART - begin]))
            rows = rows[ROWS_PER_PART - begin :]
            number, begin = None, 0
        return found

    def _numbered(self, rows: pa.Table) -> _Ints:
        """One number per row of a session and key."""
        sessions = rows["session"].combine_chunks().dictionary_encode()
        codes = [self._word(word) for word in sessions.dictionary.to_pylist()]
        key = rows[self._key].combine_chunks()
        if pa.types.is_string(key.type):
            encoded = key.dictionary_encode()
            words = [self._word(word) for word in encoded.dictionary.to_pylist()]
            second = np.array(words, np.int64)[encoded.indices.to_numpy()]
        else:
            second = key.to_numpy().astype(np.int64)
        numbers: _Ints = np.array(codes, np.int64)[sessions.indices.to_numpy()] << 32 | second
        return numbers

    def _word(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = next(self._word_numbers)
        return self._words[word]

    def _find(self, keys: _Ints) -> tuple[npt.NDArray[np.bool_], _Ints]:
        """Whether each key is known, and where."""
        if not len(self._keys):
            return np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.int64)
        if self._order is None:
            self._order = np.argsort(self._keys, kind="stable")
        index = np.minimum(np.searchsorted(self._keys, keys, sorter=self._order), len(self._keys) - 1)
        at = self._order[index]
        return self._keys[at] == keys, at

    def _matters(self, old: pa.Table, new: pa.Table) -> bool:
        """Whether a column that cannot wait differs."""
        return any(
            not old[name].combine_chunks().equals(new[name].combine_chunks())
            for name in self._plain.names
            if name not in self._later
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def hosts_in(tables: Iterable[pa.Table], states: Iterable[SessionState]) -> Iterator[str]:
    """The hosts of which there are rows or states, as they are requested; some several times."""
    yield from (state.host for state in states)
    for rows in tables:
        yield from filter(None, rows["host"].unique().to_pylist())  # a verdict may be about no host


def without_hosts(rows: pa.Table, hosts: Collection[str]) -> pa.Table:
    theirs = pc.is_in(rows["host"].cast(pa.string()), pa.array(sorted(hosts)))
    return rows.filter(pc.invert(theirs))
