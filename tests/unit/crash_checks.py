# SPDX-License-Identifier: Apache-2.0
"""What the spool and the dataset have promised, and whether a directory that a power cut has left keeps it."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import crash_spool_run
import crash_store_run
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crash_model import Tree
from crash_place import Contents
from crash_states import Check

from collector.dataset.sink import ParquetSink
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.history.files import table_files

_SPOOL = "above/spool"

Files = tuple[bytes, ...]


def check_of(kind: str) -> Check:
    return StoreCheck() if kind == "store" else SpoolCheck(kind)


def _files(tree: Tree, path: str) -> Files:
    """The session, and what is in the files that are its own."""
    found = (tree.get(f"{path}.spool{end}") for end in ("", "-wal", "-journal", "-shm"))
    return (path.encode(), *(file[0] if file else b"" for file in found))


class SpoolCheck:
    """Every batch that was appended, and of which nobody has said that it is stored, is there, whole.

    Nobody opens a session's files but for the session: what a start-up finds in them is known from the second time on.
    Of one directory in 64 all are opened nevertheless, and found to hold the same.
    """

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.appended: dict[str, int] = {}
        self.over: dict[str, int] = {}
        self._read: dict[Files, range | str] = {}

    def said(self, words: list[str]) -> None:
        what, session, number = words
        said = {"appended": self.appended, "over": self.over}[what]
        said[session] = max(said.get(session, 0), int(number))  # a late word about fewer batches takes nothing back

    def known(self, tree: Tree, path: str, digest: bytes) -> bool:
        return bool(digest[0] % 64) and _files(tree, path.partition(".spool")[0]) in self._read

    def look(self, directory: Path, tree: Tree, seen: Contents, digest: bytes) -> dict[str, range | str]:
        """The numbers of each session's batches, or what is wrong."""
        found: dict[str, range | str] = {}
        try:
            folder = SpoolFolder(directory / "above" / "spool", self.durability)
            for session in folder.left_behind():
                path = f"{_SPOOL}/{session}"
                files = _files(tree, path)
                if self.known(tree, path, digest):
                    found[session] = self._read[files]
                    continue
                found[session] = self._opened(folder, session)
                assert self._read.setdefault(files, found[session]) == found[session], (session, found)
        except DataError as error:
            found[""] = f"it does not open: {error}"
        return found

    def _opened(self, folder: SpoolFolder, session: str) -> range | str:
        table = folder.take_over(session)
        if table is None:
            return f"it is locked: {session}"
        spool = Spool(folder, session, 1 << 30, print, table)
        numbers: list[int] = []
        number = 0
        while number < spool.newest:
            batch = spool.after(number, lambda: False)
            assert batch is not None
            number = batch.sequence
            if batch.body != crash_spool_run.body_of(session, number) or spool.hello != crash_spool_run.HELLO:
                return f"another content: {session} {number}"
            numbers.append(number)
        if numbers != list(range(numbers[0], numbers[-1] + 1) if numbers else ()):
            return f"a gap: {session} {numbers}"
        wrong = self._flows(spool, numbers)
        spool.close()
        return wrong or range(spool.newest - len(numbers) + 1, spool.newest + 1)

    def judge(self, found: dict[str, range | str], killed: bool) -> str:
        for numbers in found.values():
            if isinstance(numbers, str):
                return numbers
        for session, last in self.appended.items() if killed or self.durability == "power" else ():
            there = found.get(session, range(0))
            lost = [number for number in range(self.over.get(session, 0) + 1, last + 1) if number not in there]
            if lost:
                return f"lost: {session} {lost} of {last}"
        return ""

    def _flows(self, spool: Spool, numbers: list[int]) -> str:
        """Whoever sends these batches tells of the flows that earlier ones have described and that are not over."""
        _, told = spool.introduction()
        if not numbers:
            return ""
        wanted = [f"flow {n} of {spool.session}" for n in range(3, numbers[0], 6)]  # those of even number may be over
        lost = [flow for flow in wanted if flow not in told.decode()]
        return f"a flow is lost: {lost}" if lost else ""


_ParquetFile = pq.ParquetFile


class _ReadOnce:
    """A Parquet file: what is in it is known from the second time on."""

    def __init__(self, seen: Contents, path: Path) -> None:
        self._seen, self._path, self._inode = seen, path, os.stat(path).st_ino

    def _once(self, what: Hashable, read: Callable[[pq.ParquetFile], Any]) -> Any:
        return self._seen.once(self._inode, what, lambda: read(_ParquetFile(self._path)))

    def read(self, columns: list[str] | None = None) -> pa.Table:
        return self._once(("read", *(columns or ())), lambda file: file.read(columns))

    @property
    def metadata(self) -> Any:
        return self._once("metadata", lambda file: file.metadata)


def _schema(seen: Contents, path: Path) -> pa.Schema:
    return seen.once(os.stat(path).st_ino, "schema", lambda: _ParquetFile(path).schema_arrow)


class StoreCheck:
    """What is acknowledged is there, once; and what is there is what a session's restart is told."""

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        pa.set_cpu_count(1)

    def said(self, words: list[str]) -> None:
        _, host, number = words
        self.stored[host] = max(self.stored[host], int(number))

    def known(self, tree: Tree, path: str, digest: bytes) -> bool:
        return False

    def look(self, directory: Path, tree: Tree, seen: Contents, digest: bytes) -> dict[str, int] | str:
        """The last flush of each host that is known of, or what is wrong."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pq, "ParquetFile", functools.partial(_ReadOnce, seen))
            patched.setattr(pq, "read_schema", functools.partial(_schema, seen))
            patched.setattr(ParquetSink, "merge_some", lambda *_, **__: False)  # what is there is what is checked
            return self._look(directory, seen, digest)

    def _look(self, directory: Path, seen: Contents, digest: bytes) -> dict[str, int] | str:
        data = directory / "above" / "data"
        alone = digest[0] % 6
        try:
            sink = ParquetSink(data) if alone else ParquetSink(data, "w9")
            if not alone:
                sink.take(dict.fromkeys(crash_store_run.HOSTS, 10**9))
                sink.take_absent()
            last = {host: sink.resume(own).last_sequence for host, own in crash_store_run.HELLOS.items()}
            sink.close()
        except DataError as error:
            return f"it does not open: {error}"
        flushes, flows = self._read(data, seen)
        for host in crash_store_run.HOSTS:
            for number in range(1, last[host] + 1):
                if flushes[host, number] != crash_store_run.ROWS:
                    return f"rows lost or doubled: {flushes[host, number]} of flush {number} of {host}"
                if flows[host, 10 + number] != 1:
                    return f"a flow lost or doubled: {flows[host, 10 + number]} times {10 + number} of {host}"
            if last[host] and flows[host, 1] != 1:
                return f"a flow lost or doubled: {flows[host, 1]} times 1 of {host}"
            if {number for name, number in flushes if name == host} - set(range(1, last[host] + 1)):
                return f"rows that nobody knows of: of {host} beyond {last[host]}"
        return last

    def judge(self, found: dict[str, int] | str, killed: bool) -> str:
        if isinstance(found, str):
            return found
        for host, number in self.stored.items():
            if found[host] < number:
                return f"acknowledged and forgotten: {number} of {host}, {found[host]} is known"
        return ""

    @staticmethod
    def _read(data: Path, seen: Contents) -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
        counts = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for name, column, total in zip(("buckets", "flows"), ("bucket_start_ns", "flow_id"), counts, strict=True):
            for path in table_files(data, name):
                total.update(seen.once(path.stat().st_ino, "rows", functools.partial(_rows, path, column)))
        return counts


def _rows(path: Path, column: str) -> Counter[tuple[str, int]]:
    """How many there are of each host and flush, or flow."""
    rows = _ParquetFile(path).read(["host", column])
    keys = rows[column].to_pylist()
    if column == "bucket_start_ns":
        keys = [crash_store_run.number_of(time) for time in keys]
    return Counter(zip(rows["host"].to_pylist(), keys, strict=True))
