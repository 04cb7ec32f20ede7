# SPDX-License-Identifier: Apache-2.0
"""What the spool and the dataset have promised, and whether a directory that a power cut has left keeps it."""

from collections import Counter
from pathlib import Path

import crash_spool_run
import crash_store_run
import pyarrow as pa
import pyarrow.parquet as pq
from crash_states import Contents

from collector.dataset.sink import ParquetSink
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError


class SpoolCheck:
    """Every batch that was appended, and of which nobody has said that it is stored, is there, whole."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.appended: dict[str, int] = {}
        self.over: dict[str, int] = {}

    def said(self, words: list[str]) -> None:
        what, session, number = words
        said = {"appended": self.appended, "over": self.over}[what]
        said[session] = max(said.get(session, 0), int(number))  # a late word about fewer batches takes nothing back

    def check(self, directory: Path, seen: Contents, killed: bool) -> str:
        found: dict[str, set[int]] = {}
        try:
            folder = SpoolFolder(directory / "above" / "spool", self.durability)
            for session in folder.left_behind():
                table = folder.take_over(session)
                if table is None:
                    return f"it is locked: {session}"
                spool = Spool(folder, session, 1 << 30, print, table)
                found[session] = set()
                number = 0
                while number < spool.newest:
                    batch = spool.after(number, lambda: False)
                    assert batch is not None
                    number = batch.sequence
                    if batch.body != crash_spool_run.body_of(session, number) or spool.hello != crash_spool_run.HELLO:
                        return f"another content: {session} {number}"
                    found[session].add(number)
                numbers = sorted(found[session])
                if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
                    return f"a gap: {session} {numbers}"
                if wrong := self._flows(spool, numbers):
                    return wrong
                spool._disk.close()  # as a process that ends
        except DataError as error:
            return f"it does not open: {error}"
        for session, last in self.appended.items() if killed or self.durability == "power" else ():
            lost = set(range(self.over.get(session, 0) + 1, last + 1)) - found.get(session, set())
            if lost:
                return f"lost: {session} {sorted(lost)} of {last}"
        return ""

    def _flows(self, spool: Spool, numbers: list[int]) -> str:
        """Whoever sends these batches tells of the flows that earlier ones have described and that are not over."""
        _, told = spool.introduction()
        if not numbers:
            return ""
        wanted = [f"flow {n} of {spool.session}" for n in range(3, numbers[0], 6)]  # those of even number may be over
        lost = [flow for flow in wanted if flow not in told.decode()]
        return f"a flow is lost: {lost}" if lost else ""


class StoreCheck:
    """What is acknowledged is there, once; and what is there is what a session's restart is told."""

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self._number = 0
        pa.set_cpu_count(1)

    def said(self, words: list[str]) -> None:
        _, host, number = words
        self.stored[host] = max(self.stored[host], int(number))

    def check(self, directory: Path, seen: Contents, killed: bool) -> str:
        data = directory / "above" / "data"
        self._number += 1
        alone = self._number % 6
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
            if last[host] < self.stored[host]:
                return f"acknowledged and forgotten: {self.stored[host]} of {host}, {last[host]} is known"
            for number in range(1, last[host] + 1):
                if flushes[host, number] != crash_store_run.ROWS:
                    return f"rows lost or doubled: {flushes[host, number]} of flush {number} of {host}"
                if flows[host, 10 + number] != 1:
                    return f"a flow lost or doubled: {flows[host, 10 + number]} times {10 + number} of {host}"
            if last[host] and flows[host, 1] != 1:
                return f"a flow lost or doubled: {flows[host, 1]} times 1 of {host}"
            if {number for name, number in flushes if name == host} - set(range(1, last[host] + 1)):
                return f"rows that nobody knows of: of {host} beyond {last[host]}"
        return ""

    @staticmethod
    def _read(data: Path, seen: Contents) -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
        flushes: Counter[tuple[str, int]] = Counter()
        flows: Counter[tuple[str, int]] = Counter()
        for name, column, counts in (("buckets", "bucket_start_ns", flushes), ("flows", "flow_id", flows)):
            for path in (data / name).glob("*/*/*.parquet"):
                known = seen.of_inode.get(inode := path.stat().st_ino)
                if known is None or path.stat().st_nlink == 1:
                    rows = pq.ParquetFile(path).read(["host", column])
                    keys = rows[column].to_pylist()
                    if name == "buckets":
                        keys = [crash_store_run.number_of(time) for time in keys]
                    known = Counter(zip(rows["host"].to_pylist(), keys, strict=True))
                    if path.stat().st_nlink > 1:
                        seen.of_inode[inode] = known
                counts.update(known)
        return flushes, flows
