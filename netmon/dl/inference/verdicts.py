# SPDX-License-Identifier: Apache-2.0
"""What each flow is to the jobs that were found."""

from collections.abc import Mapping, Sequence

import numpy as np

from netmon.dl.inference.job import Job
from netmon.dl.inference.types import CONTROL, GRADIENT, FlowVerdict, LinkFlow
from netmon.records import Direction, Table

_CONTROL_SHARE = 0.05  # of the bytes per iteration that one of the job's flows carries, at most
_CONTROL_PERIODS = 3  # iterations over which a flow between members has to last

Ends = tuple[str, str, int, int, int]


def ends_of(flow: LinkFlow) -> Ends:
    """The 5-tuple."""
    return flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol


class Verdicts:
    """Gradient flows are those that repeat themselves with the job.

    Control flows are the other directions of their connections, and flows between two members that last for some
    iterations and carry little beside the gradients: negotiation, rendezvous, parameters sent once at the start.
    """

    def __init__(self, flows: Mapping[int, LinkFlow]) -> None:
        """flows: the caller's, which changes."""
        self._flows = flows
        self._between: dict[tuple[str, str], set[int]] = {}
        self._first_ns: dict[int, int] = {}
        self._recent: dict[int, float] = {}  # bytes, fading
        self._told: dict[int, FlowVerdict] = {}

    def described(self, flow: int) -> None:
        """A flow is there."""
        what = self._flows[flow]
        self._between.setdefault((what.src, what.dst), set()).add(flow)

    def forget(self, flow: int) -> None:
        """A flow is gone; to be said while it is still described."""
        what = self._flows.get(flow)
        if what:
            between = self._between.get((what.src, what.dst), set())
            between.discard(flow)
            if not between:
                self._between.pop((what.src, what.dst), None)
        self._first_ns.pop(flow, None)
        self._recent.pop(flow, None)
        self._told.pop(flow, None)

    def count(self, rows: Table, until_ns: int) -> None:
        """Take note of who sends how much."""
        for flow, volume in zip(*_sums(rows), strict=True):
            self._first_ns.setdefault(flow, until_ns)
            self._recent[flow] = self._recent.get(flow, 0.0) + volume

    def new(self, jobs: Sequence[Job], until_ns: int) -> dict[int, FlowVerdict]:
        """Verdicts that were not given before."""
        given: dict[int, FlowVerdict] = {}
        for job in [job for job in jobs if job.flows]:
            given |= self._of(job, until_ns)
        changed = {flow: verdict for flow, verdict in given.items() if self._told.get(flow) != verdict}
        self._told |= changed
        return changed

    def _of(self, job: Job, until_ns: int) -> dict[int, FlowVerdict]:
        gradient = {ends_of(self._flows[flow]) for flow in job.flows if flow in self._flows}
        reverse = {(dst, src, dst_port, src_port, protocol) for src, dst, src_port, dst_port, protocol in gradient}
        members = job.found.members
        verdicts = {}
        for a in members:
            for b in members:
                for flow in self._between.get((a, b), ()):
                    ends = ends_of(self._flows[flow])
                    if ends in gradient:
                        verdicts[flow] = self._verdict(job, flow, GRADIENT)
                    elif ends in reverse or self._is_control(job, flow, until_ns):
                        verdicts[flow] = self._verdict(job, flow, CONTROL)
        return verdicts

    def _verdict(self, job: Job, flow: int, traffic: str) -> FlowVerdict:
        what = self._flows[flow]
        local = what.src if what.direction == Direction.TX else what.dst
        return FlowVerdict(job.name, job.found.members.index(local), traffic)

    def _is_control(self, job: Job, flow: int, until_ns: int) -> bool:
        if flow in self._told:
            return self._told[flow].job == job.name
        age_ns = until_ns - self._first_ns.get(flow, until_ns)
        if age_ns < _CONTROL_PERIODS * job.period_ns:
            return False
        per_iteration = self._recent.get(flow, 0.0) / age_ns * job.period_ns
        return per_iteration <= _CONTROL_SHARE * job.volume / len(job.flows)


def _sums(rows: Table) -> tuple[list[int], list[float]]:
    flows, place = np.unique(rows["flow"], return_inverse=True)
    return flows.tolist(), np.bincount(place, weights=rows["payload_bytes"], minlength=len(flows)).tolist()
