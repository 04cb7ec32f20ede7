# SPDX-License-Identifier: Apache-2.0
"""The ranks on this host and the steps that uprobes see them take, as marks."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from netmon.dl.cycles import CycleDetector
from netmon.marks import RankIdentity
from netmon.records import STEP_RANK, Mark, Moment, Source, Table

ERROR_NS = 10_000
"""A probe's trap and the clock read in it follow the call by a few microseconds."""

_HELD_DRAINS = 100
_HELD_PROCESSES = 1000


@dataclass
class _Rank:
    """A rank and the process that trains as it."""

    identity: RankIdentity
    pid: int
    joined_ns: int
    relative: bool = False  # the process may have trained before it was watched
    detector: CycleDetector = field(default_factory=CycleDetector)
    last_ns: int = 0  # of its steps; 0: none has been seen

    def watched_from_start(self, whole: bool) -> None:
        """Whether the steps to come are the first ones that the process makes. Only before them."""
        self.relative, self.detector = not whole, CycleDetector(late=not whole)


class StepMarks:
    """One per agent."""

    def __init__(self) -> None:
        """No rank is known."""
        self._ranks: dict[int, _Rank] = {}  # by pid
        self._told: dict[int, RankIdentity] = {}  # what training scripts said of themselves, by pid
        # (rank, size) that the training library was set up with last, by pid: the environment tells of the first time.
        self._numbers: dict[int, tuple[int, int]] = {}
        # Steps of processes that are not known as ranks yet, by pid. A library is probed for every process that
        # maps it, so some never will be.
        self._unknown: dict[int, deque[Table]] = {}

    def ranks(self, found: Iterable[dict[str, Any]], now_ns: int) -> list[Mark]:
        """All processes that carry a rank's environment now, oldest first → JOIN and LEAVE marks, and held steps'.

        Each has `pid`, `job`, `rank`, `size`, `trains` (it maps a training library) and `late` (it may have trained
        before its library was probed).
        """
        processes = list(found)
        pids = {process["pid"] for process in processes}
        self._told = {pid: identity for pid, identity in self._told.items() if pid in pids}
        self._numbers = {pid: number for pid, number in self._numbers.items() if pid in pids or pid in self._unknown}
        alive = self._trainers(processes)
        marks: list[Mark] = []
        for pid in [pid for pid, rank in self._ranks.items() if alive.get(pid, {}).get("identity") != rank.identity]:
            marks += self._leave(pid)
        for pid, process in alive.items():
            if pid not in self._ranks:
                marks += self._join(pid, process, now_ns)
            elif not self._ranks[pid].last_ns:
                self._ranks[pid].watched_from_start(not process["late"])
        for pid in list(self._unknown)[:-_HELD_PROCESSES]:
            del self._unknown[pid]
        return marks

    def identities(self) -> dict[int, RankIdentity]:
        """Who trains as which rank, by pid."""
        return {pid: rank.identity for pid, rank in self._ranks.items()}

    def rename(self, marks: Iterable[Mark]) -> list[Mark]:
        """Takes training scripts' marks. Who joins as another rank, as after an elastic reset, is it from then on."""
        renamed: list[Mark] = []
        for mark in marks:
            if mark.moment is Moment.JOIN:
                identity = RankIdentity(mark.job, mark.rank, mark.size)
                self._told[mark.pid] = identity
                rank = self._ranks.get(mark.pid)
                if rank and rank.identity != identity:
                    renamed += self._leave(mark.pid)
                    self._ranks[mark.pid] = replace(rank, identity=identity, joined_ns=mark.time_ns)
                    renamed.append(self._mark(mark.pid, 0, Moment.JOIN, mark.time_ns))
        return renamed

    def steps(self, table: Table) -> list[Mark]:
        """table: dtype STEP, as the kernel handed it over → marks."""
        marks: list[Mark] = []
        for pid in np.unique(table["pid"]).tolist():
            of_process = table[table["pid"] == pid]
            of_process = of_process[np.argsort(of_process["time_ns"], kind="stable")]
            if len(set_up := of_process[of_process["kind"] == STEP_RANK]):
                self._number(pid, int(set_up["name_hash"][-1]))
            if pid in self._ranks:
                marks += self._feed(pid, of_process)
            else:
                self._unknown.setdefault(pid, deque(maxlen=_HELD_DRAINS)).append(of_process)
        return marks

    def _number(self, pid: int, rank_and_size: int) -> None:
        number, size = self._numbers[pid] = rank_and_size >> 32, rank_and_size & 0xFFFFFFFF
        if pid in self._told:
            self._told[pid] = self._told[pid]._replace(rank=number, size=size)

    def finish(self) -> list[Mark]:
        """The last marks of all ranks."""
        return [mark for pid in list(self._ranks) for mark in self._leave(pid)]

    def _trainers(self, processes: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """One process per rank: launchers' shells and data loaders carry the environment, too.

        The oldest that maps a training library (a loader is forked from it), the oldest of all until one does. Who has
        stepped stays: while a job gives its ranks out anew, two may be one rank for a moment.
        """
        stepped = {pid for pid, rank in self._ranks.items() if rank.last_ns}
        chosen: dict[tuple[str, int], dict[str, Any]] = {}
        staying: list[dict[str, Any]] = []
        for process in sorted(processes, key=lambda process: process["pid"] not in stepped):
            number = self._numbers.get(process["pid"], (process["rank"], process["size"]))
            identity = self._told.get(process["pid"]) or RankIdentity(process["job"], *number)
            known = chosen.get(identity[:2])
            if known and process["pid"] in stepped:
                staying.append({**process, "identity": identity})
                continue
            if known is None or (process["trains"] and not known["trains"]):
                chosen[identity[:2]] = {**process, "identity": identity}
        return {process["pid"]: process for process in (*chosen.values(), *staying)}

    def _join(self, pid: int, process: dict[str, Any], now_ns: int) -> list[Mark]:
        rank = self._ranks[pid] = _Rank(process["identity"], pid, now_ns)
        rank.watched_from_start(not process["late"])
        marks = [self._mark(pid, 0, Moment.JOIN, now_ns)]
        for steps in self._unknown.pop(pid, ()):
            marks += self._feed(pid, steps)
        return marks

    def _feed(self, pid: int, steps: Table) -> list[Mark]:
        marks: list[Mark] = []
        for part in np.split(steps, np.flatnonzero(steps["kind"] == STEP_RANK)):
            if len(part) and part["kind"][0] == STEP_RANK:
                marks += self._set_up(pid, part[0])
                part = part[1:]
            if len(part):
                rank = self._ranks[pid]
                rank.last_ns = int(part["time_ns"][-1])
                marks += [self._mark(pid, *boundary) for boundary in rank.detector.feed(part)]
        return marks

    def _set_up(self, pid: int, event: np.void) -> list[Mark]:
        """The training library is set up: for the first time, or, after an elastic reset, with new ranks."""
        rank, rank_and_size, time_ns = self._ranks[pid], int(event["name_hash"]), int(event["time_ns"])
        identity = rank.identity._replace(rank=rank_and_size >> 32, size=rank_and_size & 0xFFFFFFFF)
        if identity == rank.identity and not rank.last_ns:
            return []
        boundaries = rank.detector.restart()
        marks = [*(self._mark(pid, *boundary) for boundary in boundaries), *self._leave(pid)]
        self._ranks[pid] = replace(rank, identity=identity, joined_ns=time_ns)
        return [*marks, self._mark(pid, 0, Moment.JOIN, time_ns)]

    def _leave(self, pid: int) -> list[Mark]:
        rank = self._ranks[pid]
        left = max(rank.detector.iteration, 0), Moment.LEAVE, max(rank.last_ns, rank.joined_ns)
        boundaries = [*rank.detector.finish(), left]
        marks = [self._mark(pid, *boundary) for boundary in boundaries]
        del self._ranks[pid]
        return marks

    def _mark(self, pid: int, iteration: int, moment: Moment, time_ns: int) -> Mark:
        rank = self._ranks[pid]
        where = (*rank.identity, pid, iteration, moment, time_ns, Source.UPROBE, ERROR_NS)
        return Mark(*where, relative=rank.relative)
