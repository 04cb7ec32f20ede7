# SPDX-License-Identifier: Apache-2.0
"""Flows of one host's processes that are no ranks, until it is known whether a rank is at the other end.

Such a process beside ranks of the same job works for it: above all the launcher, with its rendezvous.
"""

from collections.abc import Container
from dataclasses import replace

from collector.tick_messages import BY_PEER
from netmon.records import Flow

_UNDECIDED_NS = 2_000_000_000  # the two ends are described about as far apart as their hosts' batches


class Served:
    """Those of one session."""

    def __init__(self) -> None:
        """Begin without flows."""
        self._undecided: dict[int, tuple[int, Flow]] = {}  # by flow: since when
        self._found: dict[int, str] = {}  # by flow: the job of the rank at the other end

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._undecided)

    def add(self, flow: Flow, now_ns: int) -> bool:
        """Take in a flow as it is described, if its owner is known and no rank; False where it is not of that kind."""
        if flow.owner.pid and not flow.owner.job:
            self._undecided[flow.flow_id] = now_ns, flow
            return True
        if flow.owner.job:
            self._drop(flow.flow_id)
        return False

    def tell(self, flow_id: int, job: str) -> None:
        """At the other end of a flow is a rank of this job; empty: none."""
        if job and flow_id in self._undecided:
            self._found[flow_id] = job
        else:
            self._found.pop(flow_id, None)

    def take(self, jobs: Container[str]) -> list[Flow]:
        """The flows whose other end turned out to be a rank's of one of these jobs, as the job's."""
        found = []
        for flow_id, job in list(self._found.items()):
            if job in jobs:
                _, flow = self._undecided[flow_id]
                self._drop(flow_id)
                found.append(replace(flow, owner=replace(flow.owner, job=job, source=BY_PEER)))
        return found

    def give_up(self, now_ns: int) -> list[int]:
        """Flows whose other end has not turned out to be a rank's in time."""
        late = []
        for flow_id, (since_ns, _) in self._undecided.items():
            if since_ns >= now_ns - _UNDECIDED_NS:
                break
            late.append(flow_id)
        for flow_id in late:
            self._drop(flow_id)
        return late

    def _drop(self, flow_id: int) -> None:
        self._undecided.pop(flow_id, None)
        self._found.pop(flow_id, None)
