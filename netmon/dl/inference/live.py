# SPDX-License-Identifier: Apache-2.0
"""The inference as it runs: rows in, findings out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, count, pairwise

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined as joined_rows
from netmon.dl.inference.bursts import Bursts, add_buckets, are_gradients, summed
from netmon.dl.inference.grouping import Candidate, Group, addresses, are_split, groups, joined
from netmon.dl.inference.job import Job, Words
from netmon.dl.inference.pattern import Edge
from netmon.dl.inference.scan_schedule import ScanSchedule
from netmon.dl.inference.types import TRAFFIC, Findings, InferredIteration, InferredJob, LinkFlow
from netmon.dl.inference.verdicts import Verdicts, ends_of
from netmon.records import Direction, Table, empty

_FINEST_NS = 100_000
"""With finer buckets every super-packet would be a burst of its own."""
_FORGOTTEN_NS = 60_000_000_000
_MANY, _SEARCH_NS = 64, 5_000_000
"""Where so many flows repeat themselves and make no job, they are searched again only after so long for each."""


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
        self._at: Counter[str] = Counter()  # flows by the address of the end at which they are seen
        self._bursts: dict[int, Bursts] = {}
        self._words = Words(self._resolution_ns)
        self._looking = ScanSchedule(self._flows, self._bursts, self._resolution_ns)
        self._taken: list[tuple[dict[int, Edge], int]] = []  # the jobs' flows, and how many there were
        self._searched: dict[str, int] = {}  # by address, when to search again where many flows made no job
        self._reported_until: dict[int, int] = {}  # of flows whose job was a mistake
        self._pending: list[Table] = []
        self._until_ns = 0
        self._jobs: list[Job] = []
        self._reported: dict[str, InferredJob] = {}
        self._last: list[InferredIteration] = []  # of jobs that ended since the last advance()
        self._verdicts = Verdicts(self._flows)

    def describe(self, flow: int, what: LinkFlow) -> None:
        """Say what a flow is, before its rows are added."""
        self._flows[flow] = what
        self._hosts.setdefault(_local(what), what.host)
        self._at[_local(what)] += 1
        self._verdicts.described(flow)

    def spare(self, flows: Iterable[int]) -> None:
        """These flows, and no others, are of jobs whose iterations are reported better: little is spent on finding
        them."""
        self._looking.spare(frozenset(flows))

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
            if flow in self._flows:
                self._looking.forget(flow)
                address = _local(self._flows[flow])
                self._at[address] -= 1
                if not self._at[address]:
                    del self._at[address], self._hosts[address]
            for known in (self._flows, self._bursts, self._reported_until):
                known.pop(flow, None)
        self._words.forget(self._until_ns - _FORGOTTEN_NS)

    def add(self, rows: Table) -> None:
        """Take rows, dtype TRAFFIC; they are copied and looked at by the next advance() beyond their time."""
        if len(rows):
            self._pending.append(rows.astype(TRAFFIC))

    def advance(self, until_ns: int) -> Findings:
        """What is new, given that all rows before until_ns have been added.

        What is late counts as at the until_ns of the time before, unless its flow is of no job and has not gone on
        since: hosts that come to a worker one after the other report the same past.
        """
        until_ns = until_ns // self._resolution_ns * self._resolution_ns
        if until_ns <= self._until_ns:
            return Findings()
        rows = self._take(until_ns)
        self._keep(rows, until_ns)
        self._verdicts.count(rows, until_ns)
        iterations, self._last = self._last + self._follow(until_ns), []
        iterations += self._review(until_ns)
        self._report_taken(until_ns)
        for free in self._repeating(until_ns):
            iterations += self._find_jobs(free, until_ns)
        jobs = tuple(job for each in self._jobs if self._reported.get(each.name) != (job := each.describe()))
        self._reported |= {job.name: job for job in jobs}
        self._jobs = [job for job in self._jobs if not self._is_over(job)]
        names = {job.name for job in self._jobs}
        self._reported = {name: job for name, job in self._reported.items() if name in names}
        self._searched = {address: time_ns for address, time_ns in self._searched.items() if time_ns > until_ns}
        self._until_ns = until_ns
        return Findings(jobs, tuple(iterations), self._verdicts.new(self._jobs))

    def _take(self, until_ns: int) -> Table:
        rows = joined_rows([empty(TRAFFIC), *self._pending])
        due = rows["time_ns"] < until_ns
        self._pending = [rows.compress(~due)]
        rows = rows.compress(due)
        late = np.flatnonzero(rows["time_ns"] < self._until_ns)
        if len(late):
            since = self._since(rows["flow"][late])
            rows["time_ns"][late] = np.where(rows["time_ns"][late] < since, self._until_ns, rows["time_ns"][late])
        return rows

    def _since(self, flow: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """From when on rows of each of these flows are taken as they are."""
        of_jobs = {number for job in self._jobs for number in job.flows}
        distinct, index = np.unique(flow, return_inverse=True)
        since = [self._until_ns if number in of_jobs else self._last_ns(number) for number in distinct.tolist()]
        return np.array(since, np.int64)[index]

    def _last_ns(self, flow: int) -> int:
        """When the last traffic of a flow was over; 0: there was none."""
        bursts = self._bursts.get(flow)
        return bursts.last_ns if bursts else 0

    def _keep(self, rows: Table, until_ns: int) -> None:
        flow, time_ns, volume = summed(rows, self._resolution_ns)
        distinct, index = np.unique(flow, return_inverse=True)
        known = np.fromiter(map(self._flows.__contains__, distinct.tolist()), np.bool_, len(distinct))
        if not known.all():
            flow, time_ns, volume = (column[known[index]] for column in (flow, time_ns, volume))
        full = are_gradients(volume, self._resolution_ns)
        self._keep_words(flow[~full], time_ns[~full])
        flow, time_ns, volume = flow[full], time_ns[full], volume[full]
        numbers, first = np.unique(flow, return_index=True)
        if not len(numbers):
            return
        grown = [self._bursts.get(number) or self._begun(number) for number in numbers.tolist()]
        add_buckets(grown, first, time_ns, volume, self._resolution_ns)
        self._looking.went_on(numbers.tolist(), until_ns)

    def _begun(self, flow: int) -> Bursts:
        bursts = self._bursts[flow] = Bursts(self._resolution_ns)
        return bursts

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
            if are_split(flows, until_ns, self._resolution_ns):
                job.give_up()
                self._reported_until |= dict.fromkeys(job.flows, job.last_ns)
        return iterations

    def _repeating(self, until_ns: int) -> list[list[Candidate]]:
        """Flows of no job between hosts that both send and receive, where one of them shows a new repetition."""
        found = self._looking.scan(until_ns)
        if not found:
            return []
        groups = [[self._candidate(flow) for flow in group] for group in self._looking.around(found, until_ns)]
        return [group for group in groups if self._searched.get(min(addresses(group)), 0) <= until_ns]

    def _report_taken(self, until_ns: int) -> None:
        """Which flows are of jobs, where that has changed."""
        taken = [(job.flows, len(job.flows)) for job in self._jobs]
        same = len(taken) == len(self._taken) and all(
            flows is before and count == number
            for (flows, count), (before, number) in zip(taken, self._taken, strict=True)
        )
        if not same:
            self._taken = taken
            ends = (ends_of(self._flows[flow]) for flows, _ in taken for flow in flows if flow in self._flows)
            self._looking.take(ends, until_ns)

    def _candidate(self, flow: int) -> Candidate:
        what = self._flows[flow]
        return Candidate(flow, (what.src, what.dst), self._bursts[flow], self._looking.looks[flow].found)

    def _find_jobs(self, candidates: Sequence[Candidate], until_ns: int) -> list[InferredIteration]:
        iterations: list[InferredIteration] = []
        found = groups(candidates, until_ns, self._resolution_ns)
        repeating = sum(c.repetition is not None for c in candidates)
        if not found and repeating > _MANY:
            self._searched[min(addresses(candidates))] = until_ns + repeating * _SEARCH_NS
        for group in found:
            grown = self._grown(group, candidates, until_ns)
            if grown is not None:
                iterations += grown
                continue
            after_ns = max(self._reported_until.get(flow, -1) for flow in group.flows)
            job = Job(self._name(group), group.flows, self._hosts, self._words, self._resolution_ns, after_ns)
            self._jobs.append(job)
            iterations += job.begin(group.repetition, self._bursts)
            iterations += job.follow(self._bursts, until_ns)
        return iterations

    def _name(self, group: Group) -> str:
        """By its members and its first connection, so that whoever finds the job calls it the same."""
        flows = [self._flows[flow] for flow in group.flows]
        members = sorted({address for edge in group.flows.values() for address in edge})
        first = min((flow.src, flow.dst, flow.src_port, flow.dst_port) for flow in flows)
        stem = f"traffic-{blake2b(repr((members, first)).encode(), digest_size=3).hexdigest()}"
        taken = {job.name for job in self._jobs}
        return next(name for name in chain([stem], (f"{stem}.{n}" for n in count(2))) if name not in taken)

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


def _local(flow: LinkFlow) -> str:
    return flow.src if flow.direction == Direction.TX else flow.dst


def _of_each(flow: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Each flow and where its rows are; flow: ascending."""
    cuts = [*np.flatnonzero(np.diff(flow, prepend=-1)).tolist(), len(flow)]
    for start, end in pairwise(cuts):
        yield int(flow[start]), slice(start, end)
