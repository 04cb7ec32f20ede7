# SPDX-License-Identifier: Apache-2.0
"""The flows of one session, by dense index."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collector.jobs.remote_ends import BY_PEER
from netmon.dl.account import Party, party
from netmon.dl.classify import NS_PER_S, flow_class
from netmon.dl.traffic import flow_traffic
from netmon.errors import WireError
from netmon.records import Class, Direction, Flow, Hello, Interface, Owner, Table

FLOWS_PER_PART = 4096
"""Flows that are forgotten together, in the order of their appearance."""

BY_TRAFFIC = "traffic"
"""Owner.source of a flow that only the traffic tells about."""

STATE = np.dtype(
    [
        ("flow_id", "<u4"),
        ("link", "<i8"),  # as in Links
        ("shared", "?"),  # a DL flow that had rows in shared windows
        ("seen_shared", "?"),  # as viewers see it now
        ("class", "u1"),  # the flow's own: never DL_SHARED
        ("job", "<i4"),  # index into FlowTable.jobs; 0: none
        ("rank", "<i4"),
        ("party", "<i4"),  # index into FlowTable.parties
        ("traffic", "u1"),  # of a DL flow; else Traffic.UNKNOWN
        ("first_ns", "<i8"),  # mono
        ("last_ns", "<i8"),  # start of the last bucket, mono
        ("wire_bytes", "<i8"),
        ("payload_bytes", "<i8"),
        ("payload_packets", "<i8"),  # in buckets with payload
    ]
)


class Links:
    """The links of one session: link 2·i is rx and 2·i+1 tx of the i-th interface."""

    def __init__(self, hello: Hello) -> None:
        """Take the interfaces from the agent's introduction."""
        self.interfaces: tuple[Interface, ...] = hello.interfaces
        self._place = {interface.index: place for place, interface in enumerate(hello.interfaces)}
        capacities = [interface.capacity_bps for interface in hello.interfaces]
        self.capacity_bps: npt.NDArray[np.int64] = np.repeat(np.array(capacities, np.int64), 2)

    def __len__(self) -> int:
        """Two per interface."""
        return 2 * len(self.interfaces)

    def number(self, ifindex: int, direction: Direction) -> int:
        """The link's number. Raises WireError where the agent has not introduced the interface."""
        if ifindex not in self._place:
            raise WireError(f"interface {ifindex} is not in the session's hello; send it there")
        return 2 * self._place[ifindex] + direction

    def interface(self, link: int) -> Interface:
        """The link's interface."""
        return self.interfaces[link // 2]

    @staticmethod
    def direction(link: int) -> Direction:
        """The link's direction."""
        return Direction(link % 2)

    def hook(self, link: int) -> str:
        """Where the link's bytes were counted."""
        interface = self.interface(link)
        return interface.hook_tx if self.direction(link) == Direction.TX else interface.hook_rx


class FlowTable:
    """The flows of a session that are not long over: what they are, and what has been seen of them.

    A flow has an index here while it is known.
    """

    def __init__(self, links: Links) -> None:
        """Begin without flows."""
        self.flows: list[Flow] = []  # by index
        self.jobs = [""]
        self.parties: list[Party] = []
        self.changed: set[int] = set()  # indices whose row in the dataset is out of date
        self.parts: dict[int, list[int]] = {}  # indices of the flows that are forgotten together
        self._count = 0  # flows that the session has had
        self._links = links
        self._state = np.zeros(1024, STATE)
        self._party: dict[Party, int] = {}
        self._index: dict[int, int] = {}
        self._free: list[int] = []  # indices to use again
        self._ids: npt.NDArray[np.int64] | None = None  # ascending; None: out of date
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def state(self) -> Table:
        """A view, dtype STATE, one row per flow."""
        return self._state[: len(self.flows)]

    def job(self, name: str) -> int:
        """The job's number in this session."""
        if name not in self.jobs:
            self.jobs.append(name)
        return self.jobs.index(name)

    def describe(self, flow: Flow) -> None:
        """Take in a flow, or what is newly known of it; an owner once known is not forgotten."""
        index = self._index.get(flow.flow_id)
        link = self._links.number(flow.interface, flow.direction)
        if index is None:
            index = self._append(flow)
        elif flow == self.flows[index] or (not flow.owner.source and self.flows[index].owner.source):
            return
        elif self.flows[index].owner.source == BY_PEER and not flow.owner.job:
            job = self.flows[index].owner.job
            flow = replace(flow, owner=replace(flow.owner, job=job, source=BY_PEER))
        self._state[index]["link"] = link
        self._set(index, flow)

    def unknown(self, flows: Iterable[Flow]) -> list[Flow]:
        """Those of the flows that nobody has described."""
        return [flow for flow in flows if flow.flow_id not in self._index]

    def flow(self, flow_id: int) -> Flow | None:
        """The flow with this id, while it is known."""
        index = self._index.get(flow_id)
        return None if index is None else self.flows[index]

    def infer(self, flow_id: int, owner: Owner) -> bool:
        """Take over what the traffic says of a flow whose owner is not known; False where a socket has told more."""
        index = self._index.get(flow_id)
        if index is None or self.flows[index].owner.source not in ("", BY_TRAFFIC):
            return False
        if owner != self.flows[index].owner:
            self._set(index, replace(self.flows[index], owner=owner))
        return True

    def _set(self, index: int, flow: Flow) -> None:
        self.flows[index] = flow
        self.changed.add(index)
        row, whose = self._state[index], party(flow.owner)
        if whose not in self._party:
            self._party[whose] = len(self.parties)
            self.parties.append(whose)
        row["class"], row["party"] = flow_class(flow.owner), self._party[whose]
        row["job"], row["rank"] = self.job(flow.owner.job), flow.owner.rank

    def tell_traffic(self) -> None:
        """Decide anew what each DL flow carries, by what it has carried until now."""
        dl = np.flatnonzero(self.state["class"] == Class.DL_ONLY)
        state = self.state[dl]
        lifetime = (state["last_ns"] - state["first_ns"]) / NS_PER_S
        told = flow_traffic(state["payload_bytes"], state["payload_packets"], lifetime, state["job"])
        self.changed.update(dl[told != state["traffic"]].tolist())
        self.state["traffic"][dl] = told

    def restore(self, flow: Flow, last_ns: int, shared: bool) -> None:
        """Take in a flow as the dataset has it, in the order of their appearance."""
        self.describe(flow)
        index = self._index[flow.flow_id]
        self._state[index]["last_ns"], self._state[index]["shared"] = last_ns, shared
        self.changed.discard(index)

    def _append(self, flow: Flow) -> int:
        index = self._free.pop() if self._free else len(self.flows)
        if index == len(self.flows):
            self.flows.append(flow)
        if index == len(self._state):
            self._state = np.concatenate([self._state, np.zeros(index, STATE)])
        self._state[index] = 0
        for name, value in (("flow_id", flow.flow_id), ("first_ns", flow.first_ns), ("last_ns", flow.first_ns)):
            self._state[index][name] = value
        self._index[flow.flow_id] = index
        self._ids = None
        self.parts.setdefault(self._count // FLOWS_PER_PART, []).append(index)
        self._count += 1
        return index

    def forget(self, before_ns: int) -> list[Flow]:
        """Drop the full parts all of whose flows were last seen before before_ns and are stored; returns the flows."""
        gone = []
        for part, indices in list(self.parts.items()):
            full = len(indices) == FLOWS_PER_PART and self.changed.isdisjoint(indices)
            if full and self._state["last_ns"][indices].max() < before_ns:
                gone += [self.flows[index] for index in indices]
                self._free += indices
                del self.parts[part]
        for flow in gone:
            del self._index[flow.flow_id]
            self._ids = None
        return gone

    def indices(self, flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Dense index of each flow id. Raises WireError where no message has described the flow."""
        indices = self.known(flow_id)
        if (indices < 0).any():
            raise WireError(f"a bucket names flow {flow_id[indices < 0][0]}, which no message has described")
        return indices

    def known(self, flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Dense index of each flow id; −1 where it is not known."""
        if self._ids is None:
            ids = np.fromiter(self._index.keys(), np.int64, len(self._index))
            order = np.argsort(ids, kind="stable")
            self._ids = ids[order]
            self._order = np.fromiter(self._index.values(), np.int64, len(self._index))[order]
        place = np.searchsorted(self._ids, flow_id)
        known = place < len(self._ids)
        known[known] = self._ids[place[known]] == flow_id[known]
        indices = np.full(len(flow_id), -1, np.int64)
        indices[known] = self._order[place[known]]
        return indices

    def seen(self, rows: Table) -> None:
        """Account for bucket rows that arrived: columns flow (index), start_ns, packets, wire_bytes, payload_bytes."""
        flows, of_row = np.unique(rows["flow"], return_inverse=True)
        state = self.state
        carrying = np.where(rows["payload_bytes"] > 0, rows["packets"], 0)
        amounts = {
            "wire_bytes": rows["wire_bytes"],
            "payload_bytes": rows["payload_bytes"],
            "payload_packets": carrying,
        }
        for name, amount in amounts.items():
            state[name][flows] += np.bincount(of_row, weights=amount, minlength=len(flows)).astype(np.int64)
        latest = np.zeros(len(flows), np.int64)
        np.maximum.at(latest, of_row, rows["start_ns"])
        state["last_ns"][flows] = np.maximum(state["last_ns"][flows], latest)
        self.changed.update(flows.tolist())
