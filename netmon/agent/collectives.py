# SPDX-License-Identifier: Apache-2.0
"""What each rank has called in its steps, by group and operation: rows of netmon.evidence.COLLECTIVE."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from netmon.dl.grouped import joined
from netmon.dl.operations import by_process
from netmon.dl.step_calls import StepCalls
from netmon.evidence import COLLECTIVE
from netmon.marks import RankIdentity
from netmon.records import STEP_DROPPED, Mark, Moment, Source, Table, distinct, empty

log = logging.getLogger(__name__)

_BEGINS = (Moment.FIRST_ENQUEUE, Moment.STEP_START)
_ENDS = {Source.UPROBE: Moment.LAST_WAIT, Source.HOOK: Moment.STEP_END}
_MOST_ROWS, _MOST_WAITING = 1_000, 16_000  # of a batch, and in all
_MOST_PROCESSES = 256
_GONE_NS = 120_000_000_000  # a process that is no rank and has called nothing for so long


@dataclass
class _Process:
    calls: StepCalls = field(default_factory=StepCalls)
    identity: RankIdentity | None = None  # None: it is not known as a rank
    source: Source = Source.UPROBE  # of its steps
    begun_ns: int = 0
    left: bool = False


class Collectives:
    """One per agent."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._rows: list[tuple[str, Table]] = []  # of a job; that wait for a batch
        self._left_out = 0

    def add(self, table: Table) -> None:
        """Calls of all processes, dtype STEP, as in_order has them."""
        if (dropped := table["kind"] == STEP_DROPPED).any():
            for pid in distinct(table["pid"][dropped]).tolist():
                self._of(pid).calls.forget()
            table = table.compress(~dropped)
        for own in by_process(table):
            self._of(int(own["pid"][0])).calls.add(own)

    def _of(self, pid: int) -> _Process:
        found = self._processes.get(pid)
        if found is None:
            found = self._processes[pid] = _Process()
            strangers = [one for one, process in self._processes.items() if process.identity is None]
            for stranger in strangers[: max(0, len(strangers) - _MOST_PROCESSES)]:
                del self._processes[stranger]
        return found

    def add_marks(self, marks: Iterable[Mark]) -> None:
        """Steps that libraries or training scripts have reported; a script's report takes precedence."""
        for mark in marks:
            if mark.source not in _ENDS:
                continue
            process = self._of(mark.pid)
            identity = RankIdentity(mark.job, mark.rank, mark.size)
            process.left = mark.moment is Moment.LEAVE
            if process.left or process.identity != identity:
                self._take(process, mark.pid, last=True)
                process.identity = identity
            if mark.moment in _BEGINS:
                if mark.source is Source.HOOK and mark.moment is Moment.STEP_START:
                    process.source = Source.HOOK
                if mark.source is process.source:
                    process.begun_ns = process.begun_ns or mark.time_ns
            elif mark.source is process.source and process.begun_ns and mark.moment is _ENDS[mark.source]:
                process.calls.step(process.begun_ns, mark.time_ns)
                process.begun_ns = 0

    def _take(self, process: _Process, pid: int, last: bool = False) -> None:
        if process.identity is None:
            return
        rows = process.calls.take(process.identity.rank, process.identity.size, last)
        if len(rows):
            rows["rank"], rows["pid"], rows["size"] = process.identity.rank, pid, process.identity.size
            self._rows.append((process.identity.job, rows))

    def due(self, now_ns: int, jobs: dict[str, int]) -> Table:
        """dtype COLLECTIVE of what is to be reported now. jobs: index of each name, which grows."""
        for pid, process in list(self._processes.items()):
            self._take(process, pid)
            if (process.left or process.identity is None) and now_ns - process.calls.last_ns > _GONE_NS:
                del self._processes[pid]
        rows_due, count = list[Table](), 0
        while self._rows and count < _MOST_ROWS:
            job, rows = self._rows.pop(0)
            rows = rows.compress(rows["end_ns"] <= now_ns)  # a script may say what it likes
            now, later = rows[: _MOST_ROWS - count], rows[_MOST_ROWS - count :]
            now["job"] = jobs.setdefault(job, len(jobs))
            rows_due.append(now)
            count += len(now)
            if len(later):
                self._rows.insert(0, (job, later))
        self._bound()
        return joined(rows_due) if rows_due else empty(COLLECTIVE)

    def _bound(self) -> None:
        waiting = sum(len(rows) for _, rows in self._rows)
        while waiting > _MOST_WAITING:
            waiting -= len(self._rows.pop(0)[1])
            if not self._left_out:
                log.warning("ranks take more steps than are reported: rows of the table collectives are left out")
            self._left_out += 1
