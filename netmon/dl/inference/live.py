# SPDX-License-Identifier: Apache-2.0
"""The inference as it runs: rows in, findings out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.bursts import Bursts, are_gradients, summed
from netmon.dl.inference.candidates import Candidate
from netmon.dl.inference.grouping import Group, groups, joined
from netmon.dl.inference.job import Job
from netmon.dl.inference.parting import are_several
from netmon.dl.inference.pattern import Edge, strongly_connected
from netmon.dl.inference.repetition import INTERVALS, Repetition, repetition
from netmon.dl.inference.types import TRAFFIC, Findings, InferredIteration, InferredJob, LinkFlow
from netmon.dl.inference.verdicts import Verdicts, ends_of
from netmon.dl.inference.words import Words
from netmon.records import Direction, Table, empty

_RETRY_SHARE, _RETRY_NS = 8, 1_000_000_000
"""A flow that does not repeat itself is looked at again after an eighth of its age, at most a second."""
_STALE_NS, _STALE_AGES = 10_000_000_000, 3
"""A flow that has been silent for so long, or for thrice the time that it was not, is not looked at till it goes on."""
_FINEST_NS = 100_000
"""With finer buckets every super-packet would be a burst of its own."""
_FORGOTTEN_NS = 60_000_000_000


@dataclass(frozen=True)
class _Look:
    """The last time that a flow was looked at, and what was seen."""

    time_ns: int
    total: int  # its bytes then
    silent_ns: int
    found: Repetition | None


class Inference:
    """Finds jobs and their iterations in the traffic of all hosts.

    Not for use by several threads at once. Memory: the bursts of every flow that carries data, at most 2,048 each, and
    the last 8,192 moments in which one host sent another less than that.
    """

    def __init__(self, resolution_ns: int = 1_000_000) -> None:
        """resolution_ns: rows are summed to it, or to the least multiple of it from 100 µs on; boundaries are not
        known better.
        """
        self._resolution_ns = resolution_ns * -(-_FINEST_NS // resolution_ns)
        self._flows: dict[int, LinkFlow] = {}
        self._hosts: dict[str, str] = {}  # by address
        self._bursts: dict[int, Bursts] = {}
        self._words = Words(self._resolution_ns)
        self._lively: set[int] = set()  # flows that have paused and gone on, lately
        self._looks: dict[int, _Look] = {}
        self._told_until: dict[int, int] = {}  # of flows whose job was a mistake
        self._pending: list[Table] = []
        self._until_ns = 0
        self._jobs: list[Job] = []
        self._told: dict[str, InferredJob] = {}
        self._named = 0
        self._last: list[InferredIteration] = []  # of jobs that ended since the last advance()
        self._verdicts = Verdicts(self._flows)

    def describe(self, flow: int, what: LinkFlow) -> None:
        """Say what a flow is, before its rows are added."""
        self._flows[flow] = what
        self._hosts.setdefault(what.src if what.direction == Direction.TX else what.dst, what.host)
        self._verdicts.described(flow)

    def forget(self, flows: Iterable[int]) -> None:
        """These flows are over, and their numbers may be given to others. Say so after the advance() over their end.

        A job most of whose flows are over has ended.
        """
        over = set(flows)
        for job in self._jobs:
            if not job.found.ended and 2 * len(over.intersection(job.flows)) >= len(job.flows):
                self._last += job.end(self._bursts)
            job.forget(over)
        for flow in over:
            self._verdicts.forget(flow)
            for known in (self._flows, self._bursts, self._looks, self._told_until):
                known.pop(flow, None)
            self._lively.discard(flow)
        self._words.forget(self._until_ns - _FORGOTTEN_NS)

    def add(self, rows: Table) -> None:
        """Take rows, dtype TRAFFIC; they are copied and looked at by the next advance() beyond their time."""
        if len(rows):
            self._pending.append(rows.astype(TRAFFIC))

    def advance(self, until_ns: int) -> Findings:
        """What is new, given that all rows before until_ns have been added. What is late counts as at until_ns."""
        until_ns = until_ns // self._resolution_ns * self._resolution_ns
        if until_ns <= self._until_ns:
            return Findings()
        rows = self._take(until_ns)
        self._keep(rows)
        self._verdicts.count(rows, until_ns)
        iterations, self._last = self._last + self._follow(until_ns), []
        iterations += self._review(until_ns)
        free = self._repeating(until_ns)
        if free:
            iterations += self._find_jobs(free, until_ns)
        jobs = tuple(job for each in self._jobs if self._told.get(each.name) != (job := each.describe()))
        self._told |= {job.name: job for job in jobs}
        self._jobs = [job for job in self._jobs if not self._is_over(job)]
        self._until_ns = until_ns
        return Findings(jobs, tuple(iterations), self._verdicts.new(self._jobs))

    def _take(self, until_ns: int) -> Table:
        rows = np.concatenate([*self._pending, empty(TRAFFIC)])
        due = rows["time_ns"] < until_ns
        self._pending = [rows[~due]]
        rows = rows[due]
        rows["time_ns"] = np.maximum(rows["time_ns"], self._until_ns)
        return rows

    def _keep(self, rows: Table) -> None:
        flow, time_ns, volume = summed(rows, self._resolution_ns)
        full = are_gradients(volume, self._resolution_ns)
        self._keep_words(flow[~full], time_ns[~full])
        flow, time_ns, volume = flow[full], time_ns[full], volume[full]
        for number, rows_of in _of_each(flow):
            if number in self._flows:
                bursts = self._bursts.get(number) or self._bursts.setdefault(number, Bursts(self._resolution_ns))
                bursts.add(time_ns[rows_of], volume[rows_of], self._resolution_ns)
                if len(bursts.rows) >= INTERVALS:
                    self._lively.add(number)

    def _keep_words(self, flow: npt.NDArray[np.int64], time_ns: npt.NDArray[np.int64]) -> None:
        """A word counts when it is said: what only its receiver shows may have been on its way for long."""
        said: dict[Edge, list[npt.NDArray[np.int64]]] = {}
        for number, rows_of in _of_each(flow):
            what = self._flows.get(number)
            if what and what.direction == Direction.TX:
                said.setdefault((what.src, what.dst), []).append(time_ns[rows_of])
        self._words.add((pair, np.concatenate(times)) for pair, times in said.items())

    def _follow(self, until_ns: int) -> list[InferredIteration]:
        iterations: list[InferredIteration] = []
        for job in self._jobs:
            iterations += job.follow(self._bursts, until_ns)
        return iterations

    def _review(self, until_ns: int) -> list[InferredIteration]:
        """A job that turns out to be several has been a mistake: it ends, and its flows are looked at anew."""
        iterations: list[InferredIteration] = []
        for job in self._jobs:
            ended = None if job.found.ended else job.review(self._bursts, until_ns)
            if ended is None:
                continue
            iterations += ended
            flows = [self._candidate(flow) for flow in job.flows if flow in self._bursts]
            if are_several(flows, until_ns, self._resolution_ns):
                job.give_up()
                self._told_until |= dict.fromkeys(job.flows, job.last_ns)
        return iterations

    def _repeating(self, until_ns: int) -> list[Candidate]:
        """Flows of no job between hosts that both send and receive; empty where none of them shows a new repetition."""
        free = self._free(until_ns)
        groups = strongly_connected({(self._flows[flow].src, self._flows[flow].dst) for flow in free})
        group_of = {address: number for number, group in enumerate(groups) for address in group}
        mutual = [
            flow
            for flow in free
            if (number := group_of.get(self._flows[flow].src)) is not None
            and number == group_of.get(self._flows[flow].dst)
        ]
        if not sum(self._look_at(flow, until_ns) for flow in mutual):
            return []
        return [self._candidate(flow) for flow in mutual]

    def _candidate(self, flow: int) -> Candidate:
        what = self._flows[flow]
        return Candidate(flow, (what.src, what.dst), self._bursts[flow], self._looks[flow].found)

    def _free(self, until_ns: int) -> list[int]:
        """Flows of no job that have paused and gone on, each 5-tuple once: what arrives, where that is watched."""
        taken = {ends_of(self._flows[f]) for job in self._jobs for f in job.flows if f in self._flows}
        chosen: dict[tuple[object, ...], int] = {}
        for flow in list(self._lively):
            bursts, what = self._bursts[flow], self._flows[flow]
            if until_ns - bursts.last_ns > min(_STALE_NS, _STALE_AGES * (bursts.last_ns - bursts.first_ns)):
                self._lively.discard(flow)
                continue
            ends = ends_of(what)
            if ends not in taken and (ends not in chosen or what.direction == Direction.RX):
                chosen[ends] = flow
        return list(chosen.values())

    def _look_at(self, flow: int, until_ns: int) -> bool:
        """Whether a flow repeats itself, where something has changed since the last look."""
        bursts, last = self._bursts[flow], self._looks.get(flow)
        silent_ns, age_ns = until_ns - bursts.last_ns, until_ns - bursts.first_ns
        if last:
            wait_ns = min(_RETRY_NS, age_ns // _RETRY_SHARE)
            went_on = bursts.total != last.total and until_ns - last.time_ns >= wait_ns
            if not went_on and silent_ns < 2 * max(last.silent_ns, self._resolution_ns):
                return False
        found = repetition(bursts.rows, until_ns)
        self._looks[flow] = _Look(until_ns, bursts.total, silent_ns, found)
        return found is not None

    def _find_jobs(self, candidates: Sequence[Candidate], until_ns: int) -> list[InferredIteration]:
        iterations: list[InferredIteration] = []
        for group in groups(candidates, until_ns, self._resolution_ns):
            grown = self._grown(group, candidates, until_ns)
            if grown is not None:
                iterations += grown
                continue
            self._named += 1
            after_ns = max(self._told_until.get(flow, -1) for flow in group.flows)
            job = Job(f"traffic-{self._named}", group.flows, self._hosts, self._words, self._resolution_ns, after_ns)
            self._jobs.append(job)
            iterations += job.begin(group.repetition, self._bursts)
            iterations += job.follow(self._bursts, until_ns)
        return iterations

    def _grown(self, group: Group, free: Sequence[Candidate], until_ns: int) -> list[InferredIteration] | None:
        """Where the group is more of a job that is there: that job's iterations."""
        new = [c for c in free if c.flow in group.flows]
        members = {address for c in new for address in c.edge}
        for job in self._jobs:
            if job.found.ended or not members.intersection(job.found.members):
                continue
            old = [self._candidate(flow) for flow in job.flows if flow in self._bursts]
            whole = joined(new, old, until_ns, self._resolution_ns)
            if whole:
                job.take(whole.flows, self._hosts)
                return job.begin(whole.repetition, self._bursts) + job.follow(self._bursts, until_ns)
        return None

    def _is_over(self, job: Job) -> bool:
        return job.found.ended and (job.given_up or not any(flow in self._bursts for flow in job.flows))


def _of_each(flow: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Each flow and where its rows are; flow: ascending."""
    cuts = [*np.flatnonzero(np.diff(flow, prepend=-1)).tolist(), len(flow)]
    for start, end in pairwise(cuts):
        yield int(flow[start]), slice(start, end)
