# SPDX-License-Identifier: Apache-2.0
"""What the traffic alone tells about training: fed with all hosts' rows, turned into marks, classes and patterns."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collector.host.flows import BY_TRAFFIC
from collector.host.session import Session
from netmon.dl.inference import (
    GRADIENT,
    TRAFFIC,
    Findings,
    FlowVerdict,
    Inference,
    InferredIteration,
    InferredJob,
    LinkFlow,
)
from netmon.dl.sums import sums_by_two
from netmon.records import Mark, Moment, Owner, Source, Table, empty

_log = logging.getLogger(__name__)
_GRAIN_NS = 1_000_000
_OVER_EVERY = 100  # gatherings
_MISTAKEN = 0.1  # of the flows: so many may have been given to a wrong job
_SESSION_BITS = 32  # of the inference's number of a flow: the session above the flow's own id


@dataclass(frozen=True)
class Gathered:
    """News for the inference."""

    flows: Mapping[int, LinkFlow]  # new ones
    over: Sequence[int]  # flows that are no more
    rows: Table  # dtype TRAFFIC
    until_ns: int  # up to here (UTC) all hosts that are heard have told everything; 0: not known


@dataclass
class _Job:
    """A job as the traffic shows it, and who it is as its sockets' owners tell."""

    found: InferredJob
    owners: Counter[tuple[str, bool]] = field(default_factory=Counter)  # (job, known) of its gradient flows
    ranks: dict[int, int] = field(default_factory=dict)  # member → rank, by the owners
    told: int = -1  # number of the last iteration whose beginning was told

    @property
    def name(self) -> str:
        """What its processes call it; where nobody knows them, what the inference does."""
        named = [job for (job, _), _ in self.owners.most_common() if job]
        return named[0] if named else self.found.name

    @property
    def foreign(self) -> bool:
        """Whether its flows belong to known processes that make no such job: none that train, or several jobs'."""
        named = [count for (job, _), count in self.owners.most_common() if job]
        if not named:
            return 2 * self.owners["", True] > self.owners.total()
        return len(named) > 1 and named[1] > _MISTAKEN * sum(named)

    def rank(self, member: int) -> int:
        """The member's rank."""
        return self.ranks.get(member, member)


class Inferring:
    """One Inference over all sessions. `gather` and `apply` belong to the event loop, `run` may have a thread."""

    def __init__(self) -> None:
        """Begin without traffic."""
        self._inference: Inference | None = Inference(_GRAIN_NS)
        self._sessions: list[Session] = []  # their place is their number
        self._described: dict[int, set[int]] = {}  # by session, ids of the flows that the inference knows
        self._jobs: dict[str, _Job] = {}
        self._gathered = 0
        self.trouble = ""  # why it has stopped

    def gather(self, live: list[Session]) -> Gathered:
        """What is new of the sessions that are heard."""
        flows: dict[int, LinkFlow] = {}
        tables = [empty(TRAFFIC)]
        for session in live:
            if session not in self._sessions:
                self._sessions.append(session)
            tables.append(self._rows(session, flows))
        horizons = [session.window.alignment.utc(session.window.horizon_ns) for session in live]
        self._gathered += 1
        over = self._over() if self._gathered % _OVER_EVERY == 0 else []
        return Gathered(flows, over, np.concatenate(tables), min(horizons, default=0))

    def _rows(self, session: Session, flows: dict[int, LinkFlow]) -> Table:
        window, number = session.window, self._sessions.index(session)
        rows = window.take_carried()
        rows = rows[rows["payload_bytes"] > 0]
        indices, of_row = np.unique(rows["flow"], return_inverse=True)
        # An aggregate is nobody's gradient: large flows are described one by one.
        rows = rows[np.array([not window.flows.flows[index].members for index in indices.tolist()], bool)[of_row]]
        ids = window.flows.state["flow_id"][rows["flow"]].astype(np.int64)
        known = self._described.setdefault(number, set())
        for index in np.unique(rows["flow"]).tolist():
            flow = window.flows.flows[index]
            if flow.flow_id not in known:
                known.add(flow.flow_id)
                link = window.links.interface(int(window.flows.state["link"][index])).name
                ends = flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol
                flows[number << _SESSION_BITS | flow.flow_id] = LinkFlow(
                    session.hello.host, link, flow.direction, *ends
                )
        return _grains(rows["start_ns"], ids | number << _SESSION_BITS, rows["payload_bytes"])

    def run(self, news: Gathered) -> Findings:
        """Infer; computes for some milliseconds."""
        if self._inference is None:
            return Findings()
        try:
            for number, flow in news.flows.items():
                self._inference.describe(number, flow)
            self._inference.add(news.rows)
            findings = self._inference.advance(news.until_ns)
            self._inference.forget(news.over)
            return findings
        except Exception as error:  # the other sources and the account go on without it
            _log.exception("the inference from traffic has stopped")
            self._inference, self.trouble = None, f"nothing is inferred from traffic any more: {error!r}"
            return Findings()

    def _over(self) -> list[int]:
        """Flows that their sessions have forgotten."""
        over = []
        for number, known in self._described.items():
            gone = known - {flow.flow_id for flow in self._sessions[number].window.flows.flows}
            over += [number << _SESSION_BITS | flow for flow in gone]
            known -= gone
        return over

    def apply(self, findings: Findings) -> tuple[dict[str, list[Mark]], dict[str, str]]:
        """Classes to their flows; returns marks by host and patterns by job."""
        for found in findings.jobs:
            self._jobs.setdefault(found.name, _Job(found)).found = found
        for number, verdict in findings.flows.items():
            self._own(number, verdict)
        marks: dict[str, list[Mark]] = {}
        for iteration in findings.iterations:
            self._mark(iteration, marks)
        for found in findings.jobs:
            if found.ended:
                self._leave(self._jobs.pop(found.name), marks)
        patterns = {job.name: job.found.pattern for job in self._jobs.values() if not job.foreign}
        return marks, patterns

    def _own(self, number: int, verdict: FlowVerdict) -> None:
        """Take a verdict about a flow: by its owner the job gets its name, or by the job the flow gets its owner."""
        job = self._jobs.get(verdict.job)
        flows = self._sessions[number >> _SESSION_BITS].window.flows
        flow = flows.flow(number & (1 << _SESSION_BITS) - 1)
        if job is None or flow is None:
            return
        owner = flow.owner if flow.owner.source != BY_TRAFFIC else Owner()
        if verdict.traffic == GRADIENT:
            job.owners[owner.job, bool(owner.source)] += 1
            if owner.job and owner.rank >= 0:
                job.ranks[verdict.member] = owner.rank
        if not job.foreign:
            flows.infer(flow.flow_id, Owner(job=job.name, rank=job.rank(verdict.member), source=BY_TRAFFIC))

    def _mark(self, iteration: InferredIteration, marks: dict[str, list[Mark]]) -> None:
        job = self._jobs.get(iteration.job)
        if job is None or job.foreign:
            return
        number, job.told = iteration.number, iteration.number
        if iteration.start_ns == iteration.comm_start_ns and number:  # what came before is not part of it
            self._tell(job, number - 1, Moment.STEP_END, iteration.start_ns, 0, marks)
        self._tell(job, number, Moment.FIRST_ENQUEUE, iteration.comm_start_ns, iteration.error_ns, marks)
        # One that joined since has no time of its own in this iteration.
        ends = dict(zip(range(len(job.found.members)), iteration.received_ns, strict=False))
        for member in range(len(job.found.members)):
            time_ns = ends.get(member, iteration.comm_end_ns)
            self._tell(job, number, Moment.LAST_WAIT, time_ns, iteration.error_ns, marks, member)

    def _leave(self, job: _Job, marks: dict[str, list[Mark]]) -> None:
        if not job.foreign and job.told >= 0:
            self._tell(job, job.told, Moment.LEAVE, 0, 0, marks)

    def _tell(
        self,
        job: _Job,
        number: int,
        moment: Moment,
        time_ns: int,
        error_ns: int,
        marks: dict[str, list[Mark]],
        only: int = -1,
    ) -> None:
        """A moment to every member's host, or to the host of one, in its mono clock. Time 0: now."""
        size = len(job.found.members)
        windows = {session.hello.host: session.window for session in self._sessions}
        for member, host in enumerate(job.found.hosts):
            if host not in windows or only not in (-1, member):
                continue
            window = windows[host]
            mono = window.alignment.map.mono(time_ns) if time_ns else window.horizon_ns
            whose = job.name, job.rank(member), size, 0
            mark = Mark(*whose, number, moment, mono, Source.INFERRED, error_ns, relative=True)
            marks.setdefault(host, []).append(mark)


def _grains(time_ns: npt.NDArray[np.int64], flow: npt.NDArray[np.int64], payload_bytes: npt.NDArray[np.int64]) -> Table:
    """One row per millisecond and flow, dtype TRAFFIC, sorted by time."""
    grain, flow, payload_bytes = sums_by_two(time_ns // _GRAIN_NS, flow, payload_bytes)
    rows = np.empty(len(grain), TRAFFIC)
    rows["time_ns"], rows["flow"], rows["payload_bytes"] = grain * _GRAIN_NS, flow, payload_bytes
    return rows
