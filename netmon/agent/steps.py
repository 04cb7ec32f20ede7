# SPDX-License-Identifier: Apache-2.0
"""The ranks on this host and the steps that uprobes see them take, as marks.

What a process tells by its environment and its calls may be a lie, or a flood: numbers that no job has are refused, and
what is kept and reported of each user and process has a limit.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from netmon.agent.waits import Active
from netmon.dl.grouped import joined
from netmon.dl.operations import by_process
from netmon.dl.rank_activity import RankActivity
from netmon.dl.rank_steps import RankSteps
from netmon.marks import RankIdentity, is_rank
from netmon.rate_limiter import RateLimiters
from netmon.records import STEP_DROPPED, STEP_GROUP, STEP_RANK, Mark, Moment, Source, Table, distinct

# --- How many calls of training libraries each process and user may have looked at: to look at one costs a
# microsecond.
#
# Calls that make up a step cost nothing, so that training pays for what it calls between its steps only. Steps have a
# budget of their own. What is beyond its process's budget costs its user nothing, and who trains does not depend on
# what its user's other processes do.

_CALLS_PER_SECOND, _CALLS_AT_ONCE = 2_500, 40_000  # of a process, that make up no step
_USER_CALLS_PER_SECOND, _USER_CALLS_AT_ONCE = 5_000, 60_000
_STEPS_PER_SECOND, _STEPS_AT_ONCE = 200, 2_000  # of a process
_USER_STEPS_PER_SECOND, _USER_STEPS_AT_ONCE = 1_000, 8_000
_TRAINS_NS = 60_000_000_000  # who has stepped so lately, trains


@dataclass
class _Pair:
    """The same for a process and for its user."""

    process: RateLimiters
    user: RateLimiters

    def spend(self, pid: int, uid: int, count: int, now_ns: int) -> None:
        self.process.spend(pid, count, now_ns)
        self.user.spend(uid, count, now_ns)


@dataclass
class _Unpaid:
    """Of a process: calls since its last step, and when that was; 0: it has made none."""

    calls: int = 0
    stepped_ns: int = 0


@dataclass
class CallBudgets:
    """Full at first."""

    _calls: _Pair = field(
        default_factory=lambda: _Pair(
            RateLimiters(_CALLS_PER_SECOND, _CALLS_AT_ONCE), RateLimiters(_USER_CALLS_PER_SECOND, _USER_CALLS_AT_ONCE)
        )
    )
    _steps: _Pair = field(
        default_factory=lambda: _Pair(
            RateLimiters(_STEPS_PER_SECOND, _STEPS_AT_ONCE), RateLimiters(_USER_STEPS_PER_SECOND, _USER_STEPS_AT_ONCE)
        )
    )
    _of_process: dict[int, _Unpaid] = field(default_factory=dict)

    def retain(self, pids: Collection[int]) -> None:
        """The others are gone."""
        self._of_process = {pid: unpaid for pid, unpaid in self._of_process.items() if pid in pids}

    def affords(self, pid: int, uid: int, now_ns: int) -> bool:
        """Whether what this process has called is to be looked at now."""
        if not all(pair.process.left(pid, now_ns) > 0 for pair in (self._calls, self._steps)):
            return False
        stepped_ns = self._of_process.get(pid, _Unpaid()).stepped_ns
        if stepped_ns and now_ns - stepped_ns < _TRAINS_NS:
            return True
        return all(pair.user.left(uid, now_ns) > 0 for pair in (self._calls, self._steps))

    def spend(self, pid: int, uid: int, calls: int, steps: int, now_ns: int) -> None:
        """So many calls were, and made so many steps."""
        unpaid = self._of_process.setdefault(pid, _Unpaid())
        self._calls.spend(pid, uid, calls, now_ns)
        unpaid.calls += calls
        if steps:
            self._calls.spend(pid, uid, -unpaid.calls, now_ns)
            self._steps.spend(pid, uid, steps, now_ns)
            unpaid.calls, unpaid.stepped_ns = 0, now_ns


# --- steps


log = logging.getLogger(__name__)

ERROR_NS = 10_000
"""A probe's trap and the clock read in it follow the call by a few microseconds."""

_PENDING_DRAINS = 100
_PENDING_STEPS = 100_000  # of processes that are not known as ranks
_PENDING_EVENTS = 100_000  # of which no step has come yet, of all ranks
_JOINS_PER_SECOND, _JOINS_AT_ONCE = 4, 256  # of a user's ranks; a job's are set up anew now and then, not all the time
_NAMED = 16  # processes that call too often


@dataclass
class _Rank:
    """A rank and the process that trains as it."""

    identity: RankIdentity
    pid: int
    uid: int
    joined_ns: int
    probed: bool = False  # it is known whether the next is so
    relative: bool = False  # the process may have trained before it was watched
    job_name: str = ""
    last_ns: int = 0  # of its steps; 0: none has been seen
    steps: RankSteps = field(default_factory=RankSteps)
    activity: RankActivity = field(default_factory=RankActivity)

    def watched_from_start(self, whole: bool) -> None:
        """Whether the steps to come are the first ones that the process makes. Only before them."""
        self.relative, self.steps = not whole, RankSteps(late=not whole)


class StepMarks:
    """One per agent."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}  # by pid
        self._by_script: dict[int, RankIdentity] = {}  # what training scripts said of themselves, by pid
        # (rank, size) that the training library was set up with last, by pid: the environment reports the first time.
        self._numbers: dict[int, tuple[int, int]] = {}
        # Steps of processes that are not known as ranks yet. A library is probed for every process that
        # maps it, so some never will be.
        self._unknown: deque[Table] = deque()
        self._joins = RateLimiters(_JOINS_PER_SECOND, _JOINS_AT_ONCE)  # by user
        self._calls = CallBudgets()
        self._over_budget: set[int] = set()  # processes that have been named
        self.refused = 0
        """Calls and jobs' set-ups that no training makes, or not so often."""

    def ranks(self, found: Iterable[dict[str, Any]], now_ns: int) -> list[Mark]:
        """All processes that carry a rank's environment now, oldest first → JOIN and LEAVE marks, and delayed ones.

        Each has `pid`, `uid`, `job`, `rank`, `size`, `job_name`, `trains` (it maps a training library), `probed` (its
        calls are seen) and `late` (it may have trained before they were).
        """
        processes = list(found)
        pids = {process["pid"] for process in processes}
        self._by_script = {pid: identity for pid, identity in self._by_script.items() if pid in pids}
        unresolved = {pid for table in self._unknown for pid in distinct(table["pid"]).tolist()}
        self._numbers = {pid: number for pid, number in self._numbers.items() if pid in pids or pid in unresolved}
        alive = self._trainers(processes)
        self._calls.retain(alive.keys())
        marks: list[Mark] = []
        for pid in [pid for pid, rank in self._ranks.items() if alive.get(pid, {}).get("identity") != rank.identity]:
            marks += self._leave(pid)
        for pid, process in alive.items():
            if pid not in self._ranks:
                if self._joins.take_one(process["uid"], now_ns):  # else it does a little later
                    marks += self._join(pid, process, now_ns)
                continue
            rank = self._ranks[pid]
            rank.uid = process["uid"]  # it may have been root's when it was new
            if not rank.last_ns:
                rank.watched_from_start(not process["late"])
                if process["probed"] and not rank.probed:
                    rank.probed = True
                    marks += self._feed_pending(pid)
                if rank.job_name != (called := _job_name(process, rank.identity)):  # it was its launcher's until exec
                    rank.job_name = called
                    marks.append(self._joined(pid, now_ns))
        return marks

    def identities(self) -> dict[int, RankIdentity]:
        """Who trains as which rank, by pid."""
        return {pid: rank.identity for pid, rank in self._ranks.items()}

    def active(self) -> list[Active]:
        """What each rank calls."""
        return [Active(pid, rank.identity, rank.activity) for pid, rank in self._ranks.items()]

    def rename(self, marks: Iterable[Mark]) -> list[Mark]:
        """Takes training scripts' marks. Who joins as another rank, as after an elastic reset, is it from then on."""
        renamed: list[Mark] = []
        for mark in marks:
            if mark.moment is Moment.JOIN:
                identity = RankIdentity(mark.job, mark.rank, mark.size)
                self._by_script[mark.pid] = identity
                rank = self._ranks.get(mark.pid)
                if rank and rank.identity != identity:
                    renamed += self._leave(mark.pid)
                    self._ranks[mark.pid] = replace(rank, identity=identity, joined_ns=mark.time_ns)
                    renamed.append(self._joined(mark.pid, mark.time_ns))
        return renamed

    def steps(self, table: Table) -> list[Mark]:
        """table: dtype STEP, what the kernel has handed over, as in_order has it → marks."""
        marks: list[Mark] = []
        strangers = list[Table]()
        for of_process in by_process(self._without_drops(table)):
            pid = int(of_process["pid"][0])
            set_up = of_process.compress(of_process["kind"] == STEP_RANK)
            if len(set_up):
                self._number(pid, int(set_up["name_hash"][-1]))
            # Until it is known whether a process may have trained before, nobody knows where its steps begin.
            if pid in self._ranks and self._ranks[pid].probed:
                marks += self._feed_within_budget(pid, of_process)
            else:
                strangers.append(of_process)
        if strangers:
            self._hold(joined(strangers))
        self._bound()
        return marks

    def _without_drops(self, table: Table) -> Table:
        """Says which processes call so often that not every call is reported."""
        dropped = table["kind"] == STEP_DROPPED
        if not dropped.any():
            return table
        for pid in distinct(table["pid"][dropped]).tolist():
            self._name(pid)
            if pid in self._ranks:
                self._ranks[pid].activity.forget()
        return table.compress(~dropped)

    def _name(self, pid: int) -> None:
        if pid not in self._over_budget and len(self._over_budget) < _NAMED:
            self._over_budget.add(pid)
            log.warning("process %d calls a training library more often than training does: steps may be missing", pid)

    def _feed_within_budget(self, pid: int, steps: Table) -> list[Mark]:
        rank, now_ns = self._ranks[pid], int(steps["time_ns"][-1])
        if not self._calls.affords(pid, rank.uid, now_ns):
            self.refused += len(steps)
            rank.steps.forget()
            rank.activity.forget()
            self._name(pid)
            return []
        before = rank.steps.iteration
        marks = self._feed(pid, steps)
        begun = max(0, self._ranks[pid].steps.iteration - before)  # also those that are not reported
        self._calls.spend(pid, rank.uid, len(steps), begun, now_ns)
        return marks

    def _hold(self, table: Table) -> None:
        """Until their process is known as a rank; the oldest are given up."""
        self._unknown.append(table)
        while len(self._unknown) > _PENDING_DRAINS or sum(map(len, self._unknown)) > max(_PENDING_STEPS, len(table)):
            self._unknown.popleft()

    def _bound(self) -> None:
        """Whose calls are many and make no steps is begun with anew."""
        pending = {pid: rank.steps.pending for pid, rank in self._ranks.items()}
        while pending and sum(pending.values()) > _PENDING_EVENTS:
            largest = max(pending, key=pending.__getitem__)
            self.refused += pending.pop(largest)
            self._ranks[largest].steps.forget()

    def _number(self, pid: int, rank_and_size: int) -> None:
        number, size = rank_and_size >> 32, rank_and_size & 0xFFFFFFFF
        if not is_rank(number, size):
            self.refused += 1
            return
        self._numbers[pid] = number, size
        if pid in self._by_script:
            self._by_script[pid] = self._by_script[pid]._replace(rank=number, size=size)

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
            identity = self._by_script.get(process["pid"]) or RankIdentity(process["job"], *number)
            known = chosen.get(identity[:2])
            if known and process["pid"] in stepped:
                staying.append({**process, "identity": identity})
                continue
            if known is None or (process["trains"] and not known["trains"]):
                chosen[identity[:2]] = {**process, "identity": identity}
        return {process["pid"]: process for process in (*chosen.values(), *staying)}

    def _join(self, pid: int, process: dict[str, Any], now_ns: int) -> list[Mark]:
        rank = self._ranks[pid] = _Rank(process["identity"], pid, process["uid"], now_ns)
        rank.job_name = _job_name(process, rank.identity)
        rank.watched_from_start(not process["late"])
        rank.probed = process["probed"]
        return [self._joined(pid, now_ns), *(self._feed_pending(pid) if rank.probed else ())]

    def _feed_pending(self, pid: int) -> list[Mark]:
        marks: list[Mark] = []
        for number, table in enumerate(self._unknown):
            own = table["pid"] == pid
            if own.any():
                marks += self._feed(pid, table[own])
                self._unknown[number] = table[~own]
        return marks

    def _feed(self, pid: int, steps: Table) -> list[Mark]:
        marks: list[Mark] = []
        steps = _last_set_up(steps)
        for part in np.split(steps, np.flatnonzero(steps["kind"] == STEP_RANK)):
            if len(part) and part["kind"][0] == STEP_RANK:
                marks += self._set_up(pid, part[0])
                part = part[1:]
            if len(part):
                marks += self._step(pid, part)
        return marks

    def _step(self, pid: int, calls: Table) -> list[Mark]:
        """Marks of the steps that are understood."""
        rank = self._ranks[pid]
        if rank.relative and not rank.last_ns and _begins_job(calls[0], rank.identity.size):
            rank.watched_from_start(True)
        rank.last_ns = int(calls["time_ns"][-1])
        rank.activity.add(calls)
        before = rank.steps.understanding
        boundaries = rank.steps.feed(calls, rank.identity.size)
        joined = [self._joined(pid, rank.joined_ns)] if rank.steps.understanding is not before else []
        return [*joined, *(self._mark(pid, *boundary) for boundary in boundaries)]

    def _set_up(self, pid: int, event: np.void) -> list[Mark]:
        """The training library is set up: for the first time, or, after an elastic reset, with new ranks."""
        rank, rank_and_size, time_ns = self._ranks[pid], int(event["name_hash"]), int(event["time_ns"])
        identity = rank.identity._replace(rank=rank_and_size >> 32, size=rank_and_size & 0xFFFFFFFF)
        if identity == rank.identity and not rank.last_ns:
            return []
        if not is_rank(identity.rank, identity.size) or not self._joins.take_one(rank.uid, time_ns):
            self.refused += 1
            return []
        marks = [*(self._mark(pid, *boundary) for boundary in rank.steps.restart()), *self._leave(pid)]
        self._ranks[pid] = replace(rank, identity=identity, joined_ns=time_ns)
        return [*marks, self._joined(pid, time_ns)]

    def _leave(self, pid: int) -> list[Mark]:
        rank = self._ranks[pid]
        last = rank.steps.finish()
        left = max(rank.steps.iteration, 0), Moment.LEAVE, max(rank.last_ns, rank.joined_ns)
        marks = [self._mark(pid, *boundary) for boundary in (*last, left)]
        del self._ranks[pid]
        return marks

    def _joined(self, pid: int, time_ns: int) -> Mark:
        """That the rank is there, as which job, and whether its steps are understood; said again when that changes."""
        return self._mark(pid, self._ranks[pid].steps.understanding, Moment.JOIN, time_ns)

    def _mark(self, pid: int, iteration: int, moment: Moment, time_ns: int) -> Mark:
        rank = self._ranks[pid]
        where = (*rank.identity, pid, iteration, moment, time_ns, Source.UPROBE, ERROR_NS)
        values, gradient_bytes = rank.steps.size
        name = rank.job_name if moment is Moment.JOIN else ""
        return Mark(*where, values, rank.relative, gradient_bytes, name)


def _job_name(process: dict[str, Any], identity: RankIdentity) -> str:
    """What people call the job; its own name where the script has given it one."""
    return str(process["job_name"]) if identity.job == process["job"] else ""


def _begins_job(call: np.void, ranks: int) -> bool:
    """Whether this call of a process makes the group of all ranks: if it is the first one seen, it is the first."""
    return bool(call["kind"] == STEP_GROUP and call["group_size"] == ranks)


def _last_set_up(steps: Table) -> Table:
    """Of set-ups with nothing between them, the last one."""
    set_up = steps["kind"] == STEP_RANK
    overtaken = np.append(set_up[:-1] & set_up[1:], False)
    return steps.compress(~overtaken) if overtaken.any() else steps
