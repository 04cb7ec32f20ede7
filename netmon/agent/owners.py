# SPDX-License-Identifier: Apache-2.0
"""Whose each flow is: asks for the owners of new flows' local sockets, again while the answer is not final."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from netmon.kernel.endpoint import Endpoint
from netmon.records import Direction, Flow, Mark, Moment, Owner

_PROTOCOLS = (6, 17)  # TCP and UDP have sockets to look up
_RETRIES_NS = tuple(ms * 1_000_000 for ms in (0, 20, 60, 150, 400, 1000, 3000))
_FINAL = ("socket", "birth", "close")  # sources after which nothing better comes
_PROTOCOL_OWNER = Owner(source="protocol")  # ARP, ICMP, …: the kernel's own
_REQUEST = 500  # endpoints asked for at a time

Service = tuple[int, str, int]
"""(protocol, remote address, remote port)"""


@dataclass
class _Pending:
    endpoint: Endpoint
    since_ns: int
    due_ns: int
    tries: int = 0
    flows: list[int] = field(default_factory=list)


class FlowOwners:
    """All flows that are alive, with their owners as far as they are known."""

    def __init__(self) -> None:
        """No flow yet."""
        self.flows: dict[int, Flow] = {}
        self._pending: dict[Endpoint, _Pending] = {}
        self._asked: list[Endpoint] = []
        self._services: dict[Service, Owner | None] = {}  # None: several processes talk to it
        self._ranks: dict[int, tuple[str, int]] = {}  # pid → job and rank, as its hook told
        self._changed: dict[int, None] = {}

    def add(self, flows: Iterable[Flow], now_ns: int) -> None:
        """New flows."""
        for flow in flows:
            if flow.protocol not in _PROTOCOLS:
                self._set(flow, _PROTOCOL_OWNER)
                continue
            self._set(flow, flow.owner)
            endpoint = _endpoint(flow)
            pending = self._pending.setdefault(endpoint, _Pending(endpoint, now_ns, now_ns))
            pending.flows.append(flow.flow_id)

    def due(self, now_ns: int) -> list[Endpoint]:
        """The endpoints to ask for now. `answer` follows with as many owners."""
        due = (p.endpoint for p in self._pending.values() if p.due_ns <= now_ns)
        self._asked = [endpoint for endpoint, _ in zip(due, range(_REQUEST), strict=False)]
        return self._asked

    def answer(self, owners: list[dict[str, Any] | None], now_ns: int) -> None:
        """The owners of the endpoints that `due` gave; None where no socket or process was found."""
        for endpoint, found in zip(self._asked, owners, strict=True):
            self._settle(self._pending[endpoint], self._owner(endpoint, found), now_ns)
        self._asked = []

    def _owner(self, endpoint: Endpoint, found: dict[str, Any] | None) -> Owner:
        service = (endpoint.protocol, endpoint.remote, endpoint.remote_port)
        if found is None:
            return self._services.get(service) or Owner()
        job, rank = self._ranks.get(found["pid"], (found["job"], found["rank"]))
        owner = Owner(found["pid"], found["process"], found["container"], job, rank, found["source"])
        if owner.source in _FINAL[:2]:
            # Who alone talks to this service: a later connection that is not caught is taken to be theirs.
            alone = replace(owner, source="service")
            known = self._services.setdefault(service, alone)
            self._services[service] = alone if known and known.pid == owner.pid else None
        return owner

    def _settle(self, pending: _Pending, owner: Owner, now_ns: int) -> None:
        for flow_id in pending.flows:
            flow = self.flows.get(flow_id)
            if flow and owner.source and flow.owner != owner:
                self._set(flow, owner)
        pending.tries += 1
        if owner.source in _FINAL or pending.tries == len(_RETRIES_NS):
            del self._pending[pending.endpoint]
        else:
            pending.due_ns = pending.since_ns + _RETRIES_NS[pending.tries]

    def marks(self, marks: Iterable[Mark]) -> None:
        """What training scripts say of themselves: their flows are their rank's, whatever the environment says."""
        for mark in marks:
            if mark.moment is Moment.JOIN and self._ranks.get(mark.pid) != (mark.job, mark.rank):
                self._ranks[mark.pid] = (mark.job, mark.rank)
                for flow in [f for f in self.flows.values() if f.owner.pid == mark.pid]:
                    self._set(flow, replace(flow.owner, job=mark.job, rank=mark.rank))

    def _set(self, flow: Flow, owner: Owner) -> None:
        self.flows[flow.flow_id] = replace(flow, owner=owner)
        self._changed[flow.flow_id] = None

    def changed(self) -> list[Flow]:
        """The flows that are new or have a new owner since the last call."""
        changed = [self.flows[flow_id] for flow_id in self._changed if flow_id in self.flows]
        self._changed.clear()
        return changed

    def forget(self, flow_ids: Iterable[int]) -> None:
        """These flows are over."""
        for flow_id in flow_ids:
            self.flows.pop(flow_id, None)


def _endpoint(flow: Flow) -> Endpoint:
    if flow.direction is Direction.TX:
        return Endpoint(flow.protocol, flow.src, flow.src_port, flow.dst, flow.dst_port)
    return Endpoint(flow.protocol, flow.dst, flow.dst_port, flow.src, flow.src_port)
