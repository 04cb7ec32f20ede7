# SPDX-License-Identifier: Apache-2.0
"""The job stage in a process of its own: reads pickled HostNews from a connection, answers JobNews, ends with it.

Signals that end the collector do not end it: the collector may have a last report to send. Where there are fewer cores
than work, the collector goes first: what is compared later is only reported later.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue

from collector.allocator import give_back
from collector.jobs.clocks import Clocks
from collector.messages import BY_TRAFFIC, GRAIN_NS, ClockUpdate, FlowUpdate, HostNews, JobNews, MarkUpdate, session_of
from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import GRADIENT, Findings, FlowVerdict, InferredIteration, InferredJob, LinkFlow
from netmon.records import Mark, Moment, Owner, Source

# --- What the traffic alone shows of training: from all hosts' payload to marks, owners and patterns.

_log = logging.getLogger(__name__)
_MISTAKEN = 0.1  # of the flows: so many may have been given to a wrong job


@dataclass
class _Job:
    """A job as the traffic shows it, and who it is as its sockets' owners show."""

    found: InferredJob
    owners: Counter[tuple[str, bool]] = field(default_factory=Counter)  # (job, known) of its gradient flows
    ranks: dict[int, int] = field(default_factory=dict)  # member → rank, by the owners
    reported: int = -1  # number of the last iteration whose beginning was reported
    flows: set[int] = field(default_factory=set)  # that carry its gradients
    mute: bool = False  # its calls are known, and no steps explain them

    @property
    def name(self) -> str:
        """What its processes call it; where nobody knows them, what the inference does."""
        named = [job for (job, _), _ in self.owners.most_common() if job]
        return named[0] if named else self.found.name

    @property
    def foreign(self) -> bool:
        """Whether its flows belong to known processes that make no such job: none that train, or those of many jobs."""
        named = [count for (job, _), count in self.owners.most_common() if job]
        if not named:
            return 2 * self.owners["", True] > self.owners.total()
        return len(named) > 1 and named[1] > _MISTAKEN * sum(named)

    def add_owner(self, flow: FlowUpdate, member: int) -> None:
        """Of one that carries its gradients."""
        self.owners[flow.job, flow.known] += 1
        self.owners = +self.owners
        if flow.job and flow.rank >= 0:
            self.ranks[member] = flow.rank

    def rank(self, member: int) -> int:
        return self.ranks.get(member, member)


class Inferring:
    """One Inference over the flows of all hosts."""

    def __init__(self) -> None:
        self._inference: Inference | None = Inference(GRAIN_NS)
        self._flows: dict[int, FlowUpdate] = {}
        self._sessions: dict[str, int] = {}  # newest session by host
        self._watched: dict[str, int] = {}  # the same, also of hosts that have no flows
        self._jobs: dict[str, _Job] = {}
        self._gradients: dict[int, tuple[str, int]] = {}  # flow → its job's name here, and member
        self._unclear: Mapping[str, bool] = {}  # as HostNews has it
        self._marked: frozenset[str] = frozenset()  # jobs that need no inference
        self.trouble = ""  # why it has stopped

    def add_news(self, news: HostNews) -> JobNews:
        """Infer; computes for some milliseconds."""
        if self._inference is None:
            return JobNews()
        try:
            self._unclear = news.unclear
            self._watch(self._inference, news)
            marks, mistaken = self._take(self._inference, news.flows)
            self._spare(self._inference, news)
            self._inference.add(news.payload)
            findings = self._inference.advance(news.horizon_ns)
            found = self._answer(findings, marks)
            self._forget(self._inference, news)
            return replace(found, mistaken=mistaken)
        except Exception as error:  # the other sources and the account go on without it
            _log.exception("the inference from traffic has stopped")
            self._inference, self.trouble = None, f"nothing is inferred from traffic any more: {error!r}"
            return JobNews()

    def _watch(self, inference: Inference, news: HostNews) -> None:
        for clock in news.clocks if news.horizon_ns else ():
            if self._watched.get(clock.host) != clock.session:
                self._watched[clock.host] = clock.session
                inference.watch([clock.host], news.horizon_ns)

    def _take(self, inference: Inference, flows: Iterable[FlowUpdate]) -> tuple[list[MarkUpdate], list[str]]:
        """Returns the last marks of jobs that turn out to be others', or none, and their names."""
        marks, mistaken = list[MarkUpdate](), list[str]()
        for flow in flows:
            before = self._flows.get(flow.flow)
            if before is None:
                ends = flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol
                inference.describe(flow.flow, LinkFlow(flow.host, flow.link, flow.direction, *ends))
                self._sessions[flow.host] = session_of(flow.flow)
            elif flow.flow in self._gradients:
                self._follow_owner(before, flow, marks, mistaken)
            self._flows[flow.flow] = flow
        return marks, mistaken

    def _follow_owner(self, before: FlowUpdate, flow: FlowUpdate, marks: list[MarkUpdate], mistaken: list[str]) -> None:
        """It may be known late whose a job is: what it was called until then is over."""
        name, member = self._gradients[flow.flow]
        if (job := self._jobs.get(name)) is None:
            return
        was = replace(job, owners=job.owners.copy(), ranks=job.ranks.copy())
        job.owners[before.job, before.known] -= 1
        job.add_owner(flow, member)
        if job.name != was.name or job.foreign:
            self._leave(was, marks)
            job.reported = -1
            if was.name == name:  # nobody's but the traffic's
                mistaken.append(name)

    def _spare(self, inference: Inference, news: HostNews) -> None:
        """Flows of ranks that report their iterations themselves: of these the traffic shows only the pattern."""
        if news.flows or news.marked != self._marked:
            self._marked = news.marked
            known = self._flows.items()
            inference.spare(number for number, flow in known if flow.rank >= 0 and flow.job in self._marked)

    def _forget(self, inference: Inference, news: HostNews) -> None:
        over: list[int] = news.over.tolist()
        if news.ended:
            ended = set(news.ended)
            over += [number for number in self._flows if session_of(number) in ended]
            self._sessions = {
                host: session_index for host, session_index in self._sessions.items() if session_index not in ended
            }
        if over:
            inference.forget(over)
        for number in over:
            self._flows.pop(number, None)
            self._gradients.pop(number, None)

    def _answer(self, findings: Findings, marks: list[MarkUpdate]) -> JobNews:
        for found in findings.jobs:
            self._jobs.setdefault(found.name, _Job(found)).found = found
        owners = {}
        for number, verdict in findings.flows.items():
            owner = self._owner(number, verdict)
            if owner:
                owners[number] = owner
        for iteration in findings.iterations:
            self._mark(iteration, marks)
        for found in findings.jobs:
            if found.ended:
                self._leave(self._jobs.pop(found.name), marks)
        patterns = {job.name: job.found.pattern for job in self._jobs.values() if not job.foreign}
        return JobNews(marks, owners, patterns=patterns)

    def _owner(self, number: int, verdict: FlowVerdict) -> Owner | None:
        """Take a verdict about a flow: by its owner the job gets its name, or by the job the flow gets its owner."""
        job, flow = self._jobs.get(verdict.job), self._flows.get(number)
        if job is None or flow is None:
            return None
        if verdict.traffic == GRADIENT:
            job.add_owner(flow, verdict.member)
            job.flows.add(number)
            self._gradients[number] = verdict.job, verdict.member
        return None if job.foreign else Owner(job=job.name, rank=job.rank(verdict.member), source=BY_TRAFFIC)

    def _mark(self, iteration: InferredIteration, marks: list[MarkUpdate]) -> None:
        job = self._jobs.get(iteration.job)
        if job is None or job.foreign:
            return
        if self._is_mute(job):
            return
        number, before, job.reported = iteration.number, job.reported, iteration.number
        if iteration.start_ns == iteration.comm_start_ns and before >= 0:  # what came before is not part of it
            self._report(job, number - 1, Moment.STEP_END, iteration.start_ns, 0, marks)
        self._report(job, number, Moment.FIRST_ENQUEUE, iteration.comm_start_ns, iteration.error_ns, marks)
        # One that joined since has no time of its own in this iteration.
        ends = dict(zip(range(len(job.found.members)), iteration.received_ns, strict=False))
        for member in range(len(job.found.members)):
            time_ns = ends.get(member, iteration.comm_end_ns)
            self._report(job, number, Moment.LAST_WAIT, time_ns, iteration.error_ns, marks, member)

    def _is_mute(self, job: _Job) -> bool:
        """Whether calls show more of it than its traffic, and what they show is that its steps are not understood."""
        if not self._unclear or job.mute:
            return job.mute
        names = {flow.job for number in job.flows if (flow := self._flows.get(number))} & self._unclear.keys()
        job.mute = any(self._unclear[name] for name in names)
        return bool(names)

    def _leave(self, job: _Job, marks: list[MarkUpdate]) -> None:
        if not job.foreign and job.reported >= 0:
            self._report(job, job.reported, Moment.LEAVE, 0, 0, marks)

    def _report(
        self,
        job: _Job,
        number: int,
        moment: Moment,
        time_ns: int,
        error_ns: int,
        marks: list[MarkUpdate],
        only: int = -1,
    ) -> None:
        """A moment to every member's host, or to the host of one. Time 0: now."""
        size = len(job.found.members)
        members = range(size) if only < 0 else (only,)
        name = job.name
        for member in members:
            session_index = self._sessions.get(job.found.hosts[member])
            if session_index is not None:
                whose = name, job.rank(member), size, 0
                mark = Mark(*whose, number, moment, time_ns, Source.INFERRED, error_ns, relative=True)
                marks.append(MarkUpdate(session_index, mark))


# --- The job stage as the host stage knows it: news in, news out.


class JobStage:
    """Inference and the comparison of clocks over all hosts of a worker. Used by one thread at a time."""

    def __init__(self) -> None:
        self._inferring = Inferring()
        self._clocks: Clocks | None = Clocks()
        self._trouble = ""  # why clocks are compared no more

    def answer(self, news: HostNews) -> JobNews:
        began_s = time.thread_time()
        inferred = self._inferring.add_news(news)
        clocks = self._compare(news)
        trouble = [line for line in (self._inferring.trouble, self._trouble) if line]
        cpu_s = time.thread_time() - began_s
        return replace(inferred, clocks=clocks, trouble=trouble, cpu_s=cpu_s)

    def _compare(self, news: HostNews) -> Sequence[ClockUpdate]:
        if self._clocks is None:
            return ()
        try:
            self._clocks.add_news(news)
            return self._clocks.compare(news.clocks) if self._clocks.due(time.monotonic_ns()) else ()
        except Exception as error:  # every clock is still known by its own exchange
            _log.exception("the comparison of clocks has stopped")
            self._clocks, self._trouble = None, f"clocks are not compared by traffic any more: {error!r}"
            return ()


_NICE = 5


def main(descriptor: int) -> None:
    """Serve the collector that holds the other end of this socket; returns never."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # whoever runs us may have forbidden it
        os.nice(_NICE)
    give_back()
    connection: Connection[bytes, bytes] = Connection(descriptor)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    stage = JobStage()
    while True:
        answer = stage.answer(pickle.loads(inbox.get()))
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=5))
        except OSError:
            os._exit(0)


def _receive(connection: "Connection[bytes, bytes]", inbox: "SimpleQueue[bytes]") -> None:
    """Until the collector closes its end, or is gone: then this process ends, whatever it computes."""
    while True:
        try:
            inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
