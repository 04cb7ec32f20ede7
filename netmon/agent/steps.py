# SPDX-License-Identifier: Apache-2.0
"""The ranks on this host and the steps that uprobes see them take, as marks."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netmon.dl.cycles import CycleDetector
from netmon.records import Mark, Moment, Source, Table

ERROR_NS = 10_000
"""A probe's trap and the clock read in it follow the call by a few microseconds."""

_HELD_DRAINS = 100
_HELD_PROCESSES = 1000


@dataclass
class _Rank:
    job: str
    rank: int
    size: int
    detector: CycleDetector = field(default_factory=CycleDetector)
    last_ns: int = 0


class StepMarks:
    """One per agent."""

    def __init__(self) -> None:
        """No rank is known."""
        self._ranks: dict[int, _Rank] = {}
        # Steps of processes that are not known as ranks yet, by pid. A library is probed for every process that
        # maps it, so some never will be.
        self._unknown: dict[int, deque[Table]] = {}

    def ranks(self, found: Iterable[dict[str, Any]], now_ns: int) -> list[Mark]:
        """found: all processes that are ranks now → JOIN marks of new ones, the last marks of those that are gone."""
        marks: list[Mark] = []
        alive = {process["pid"]: process for process in found}
        for pid in self._ranks.keys() - alive.keys():
            marks += self._leave(pid)
        for pid in alive.keys() - self._ranks.keys():
            process = alive[pid]
            self._ranks[pid] = _Rank(process["job"], process["rank"], process["size"])
            marks.append(self._mark(pid, 0, Moment.JOIN, now_ns))
            for steps in self._unknown.pop(pid, ()):
                marks += self._feed(pid, steps)
        for pid in list(self._unknown)[:-_HELD_PROCESSES]:
            del self._unknown[pid]
        return marks

    def steps(self, table: Table) -> list[Mark]:
        """table: dtype STEP, as the kernel handed it over → marks."""
        marks: list[Mark] = []
        for pid in np.unique(table["pid"]).tolist():
            of_process = table[table["pid"] == pid]
            of_process = of_process[np.argsort(of_process["time_ns"], kind="stable")]
            if pid in self._ranks:
                marks += self._feed(pid, of_process)
            else:
                self._unknown.setdefault(pid, deque(maxlen=_HELD_DRAINS)).append(of_process)
        return marks

    def _feed(self, pid: int, steps: Table) -> list[Mark]:
        rank = self._ranks[pid]
        rank.last_ns = int(steps["time_ns"][-1])
        return [self._mark(pid, *boundary) for boundary in rank.detector.feed(steps)]

    def _leave(self, pid: int) -> list[Mark]:
        rank = self._ranks[pid]
        boundaries = [*rank.detector.finish(), (max(rank.detector.iteration, 0), Moment.LEAVE, rank.last_ns)]
        marks = [self._mark(pid, *boundary) for boundary in boundaries]
        del self._ranks[pid]
        return marks

    def finish(self) -> list[Mark]:
        """The last marks of all ranks."""
        return [mark for pid in list(self._ranks) for mark in self._leave(pid)]

    def _mark(self, pid: int, iteration: int, moment: Moment, time_ns: int) -> Mark:
        rank = self._ranks[pid]
        return Mark(rank.job, rank.rank, rank.size, pid, iteration, moment, time_ns, Source.UPROBE, ERROR_NS)
