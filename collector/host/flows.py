# SPDX-License-Identifier: Apache-2.0
"""The flows of all sessions, by one index, and each session's own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.host.arriving import count_arrived
from collector.host.asked_ends import AskedEnds
from collector.host.numbered import Numbered
from collector.messages import BY_TRAFFIC
from collector.tick_messages import BY_PEER
from netmon.columnar import Columns
from netmon.dl.account import Party, party
from netmon.dl.classify import NS_PER_S, flow_class
from netmon.dl.traffic import flow_traffic
from netmon.errors import WireError
from netmon.records import Class, Direction, Flow, Hello, Interface, Owner, Table

FLOWS_PER_PART = 4096
"""Flows that are forgotten together, in the order of their appearance."""

STATE = np.dtype(
    [
        ("flow_id", "<u4"),
        ("session", "<i4"),  # its place; −1: an index that no flow has
        ("link", "<i8"),  # as in Links
        ("shared", "?"),  # a DL flow that had rows in shared windows
        ("changed", "?"),  # its row in the dataset is out of date
        ("class", "u1"),  # the flow's own: never DL_SHARED
        ("job", "<i4"),  # index into AllFlows.jobs; 0: none
        ("rank", "<i4"),
        ("stepper", "<i4"),  # of a DL flow: AllFlows.stepper of its session, job and rank
        ("party", "<i4"),  # index into AllFlows.parties
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


_ID_BITS = 32  # of a key that names a flow: the session above the flow's own id


class AllFlows:
    """The flows of all sessions: what they are, what has been seen of them. An index is a flow's while it is known."""

    def __init__(self) -> None:
        """Begin without flows."""
        self.flows: list[Flow | None] = []  # by index
        self._jobs = Numbered("")
        self._parties = Numbered[Party]()
        self._steppers = Numbered[tuple[int, int, int]]()
        self._state = np.zeros(1024, STATE)
        self._free: list[int] = []  # indices to use again
        self._keys: npt.NDArray[np.int64] = np.empty(0, np.int64)  # session and flow id, ascending
        self._of_key: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._new: list[tuple[int, int]] = []  # key and index, not in there yet
        self._gone: list[int] = []  # keys that are still in there
        self.ends = AskedEnds()

    @property
    def state(self) -> Table:
        """A view, dtype STATE, one row per index."""
        return self._state[: len(self.flows)]

    @property
    def jobs(self) -> list[str]:
        """By number."""
        return self._jobs.values

    @property
    def parties(self) -> list[Party]:
        """By number."""
        return self._parties.values

    def job(self, name: str) -> int:
        """The job's number; it is in use."""
        return self._jobs.number(name)

    def stepper(self, session: int, job: int, rank: int) -> int:
        """A number for a rank of a job on the host of a session; it is in use."""
        return self._steppers.number((session, job, rank))

    @property
    def steppers(self) -> int:
        """More than the highest number of a rank."""
        return len(self._steppers.values)

    def let_numbers_go(self, jobs: Iterable[int], steppers: Iterable[int] = ()) -> None:
        """Jobs, parties and ranks that no flow has, and of which nobody has asked since the call before the last one.

        jobs, steppers: that somebody keeps without asking again, such as rows on their way to the disk.
        """
        own = {name: np.unique(self.state[name]).tolist() for name in ("job", "party", "stepper")}
        self._jobs.let_go([*own["job"], *jobs])
        self._parties.let_go(own["party"])
        self._steppers.let_go([*own["stepper"], *steppers])

    def append(self, session: int, flow: Flow) -> int:
        """Give a flow an index."""
        index = self._free.pop() if self._free else len(self.flows)
        if index == len(self.flows):
            self.flows.append(flow)
        if index == len(self._state):
            self._state = np.concatenate([self._state, np.zeros(index, STATE)])
        self._state[index] = 0
        row = self._state[index]
        row["session"], row["flow_id"], row["first_ns"], row["last_ns"] = (
            session,
            flow.flow_id,
            flow.first_ns,
            flow.first_ns,
        )
        self._new.append((session << _ID_BITS | flow.flow_id, index))
        return index

    def set(self, index: int, link: int, flow: Flow) -> None:
        """Say what the flow is; link: of its session."""
        self.flows[index] = flow
        row, whose = self._state[index], self._parties.number(party(flow.owner))
        row["class"], row["party"], row["link"] = flow_class(flow.owner), whose, link
        row["job"], row["rank"], row["changed"] = self.job(flow.owner.job), flow.owner.rank, True
        row["stepper"] = self.stepper(int(row["session"]), int(row["job"]), flow.owner.rank)
        self.ends.described(index, flow)

    def remove(self, indices: Sequence[int]) -> None:
        """Their flows are known no more."""
        for index in indices:
            row = self._state[index]
            self.ends.give_up(index, int(row["session"]), int(row["flow_id"]))
            self._gone.append(int(row["session"]) << _ID_BITS | int(row["flow_id"]))
            self.flows[index] = None
            self._state[index] = 0
            row["session"] = -1
        self._free += indices

    def find(self, session: npt.NDArray[np.int64], flow_id: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Index of each flow, arrays of one length; −1 where it is not known."""
        self._sort_keys()
        key = session.astype(np.int64) << _ID_BITS | flow_id.astype(np.int64)
        place = np.searchsorted(self._keys, key)
        known = place < len(self._keys)
        known[known] = self._keys[place[known]] == key[known]
        found = np.full(len(key), -1, np.int64)
        found[known] = self._of_key[place[known]]
        return found

    def _sort_keys(self) -> None:
        if self._gone:
            stay = ~np.isin(self._keys, np.array(self._gone, np.int64))
            self._keys, self._of_key, self._gone = self._keys[stay], self._of_key[stay], []
        if self._new:
            key, index = np.array(sorted(self._new), np.int64).T
            place = np.searchsorted(self._keys, key)
            self._keys, self._of_key = np.insert(self._keys, place, key), np.insert(self._of_key, place, index)
            self._new = []

    def tell_traffic(self) -> None:
        """Decide anew what each DL flow carries, by what it has carried until now."""
        dl = np.flatnonzero(self.state["class"] == Class.DL_ONLY)
        if not len(dl):
            return
        state = self.state[dl]
        lifetime = (state["last_ns"] - state["first_ns"]) / NS_PER_S
        jobs = state["session"].astype(np.int64) * len(self.jobs) + state["job"]  # of one host
        told = flow_traffic(state["payload_bytes"], state["payload_packets"], lifetime, jobs)
        self.state["changed"][dl[told != state["traffic"]]] = True
        self.state["traffic"][dl] = told

    def of_flows(self, name: str, flow: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """A column of the state, of flows by their indices."""
        column = self.state[name]
        return np.ascontiguousarray(column).take(flow) if len(flow) >= len(column) else column[flow]

    def seen(self, rows: Columns) -> npt.NDArray[np.intp]:
        """Account for rows that have arrived, of ARRIVED; returns those that follow a rest, ascending."""
        return count_arrived(self.state, rows) if len(rows) else np.empty(0, np.intp)


class FlowTable:
    """The flows of one session that are not long over, among all sessions' flows: indices are into those.

    A flow has an index while it is known.
    """

    def __init__(self, links: Links, everything: AllFlows, session: int) -> None:
        """Begin without flows; session: its place."""
        self.parts: dict[int, list[int]] = {}  # indices of the flows that are forgotten together
        self.jobs_here = {""}  # of its flows and its ranks
        self.described: set[int] = set()  # indices of flows that are new or have another owner, for who tells of them
        self.over: list[int] = []  # ids of flows that are forgotten, for who tells of them
        self._all, self._session = everything, session
        self._count = 0  # flows that the session has had
        self._links = links
        self._index: dict[int, int] = {}

    @property
    def flows(self) -> "OwnFlows":
        """The session's flows; to be iterated over, or asked for by an index."""
        return OwnFlows(self._all, self._index)

    @property
    def state(self) -> Table:
        """A view, dtype STATE, one row per index: of all sessions."""
        return self._all.state

    @property
    def jobs(self) -> list[str]:
        """The jobs of all sessions by number."""
        return self._all.jobs

    @property
    def parties(self) -> list[Party]:
        """The parties of all sessions by number."""
        return self._all.parties

    @property
    def indices_of_all(self) -> npt.NDArray[np.int64]:
        """The indices of the session's flows."""
        return np.fromiter(self._index.values(), np.int64, len(self._index))

    @property
    def changed(self) -> set[int]:
        """Indices whose row in the dataset is out of date."""
        own = self.indices_of_all
        return set(own[self.state["changed"][own]].tolist())

    def mark_changed(self, indices: Iterable[int], changed: bool) -> None:
        """Say of which flows the row in the dataset is out of date, or is not."""
        known = [index for index in indices if self._all.flows[index] is not None]
        self.state["changed"][known] = changed

    def job(self, name: str) -> int:
        """The job's number."""
        self.jobs_here.add(name)
        return self._all.job(name)

    def describe(self, flow: Flow) -> None:
        """Take in a flow, or what is newly known of it; an owner once known is not forgotten."""
        index = self._index.get(flow.flow_id)
        link = self._links.number(flow.interface, flow.direction)
        if index is None:
            index = self._append(flow)
        else:
            known = self.flows[index]
            if flow == known or (not flow.owner.source and known.owner.source):
                return
            if known.owner.source == BY_PEER and not flow.owner.job:
                flow = replace(flow, owner=replace(flow.owner, job=known.owner.job, source=BY_PEER))
        self.jobs_here.add(flow.owner.job)
        self.described.add(index)
        self._all.set(index, link, flow)

    def ids(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The ids of flows by their indices."""
        return self._all.of_flows("flow_id", index)

    def unknown(self, flows: Iterable[Flow]) -> list[Flow]:
        """Those of the flows that nobody has described."""
        return [flow for flow in flows if flow.flow_id not in self._index]

    def index_of(self, flow_id: int) -> int | None:
        """Index of a flow, while it is known."""
        return self._index.get(flow_id)

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
            flow = self.flows[index]
            self.jobs_here.add(owner.job)
            self._all.set(index, self._links.number(flow.interface, flow.direction), replace(flow, owner=owner))
        return True

    def restore(self, flow: Flow, last_ns: int, shared: bool) -> None:
        """Take in a flow as the dataset has it, in the order of their appearance."""
        self.describe(flow)
        row = self.state[self._index[flow.flow_id]]
        row["last_ns"], row["shared"], row["changed"] = last_ns, shared, False

    def _append(self, flow: Flow) -> int:
        index = self._index[flow.flow_id] = self._all.append(self._session, flow)
        self.parts.setdefault(self._count // FLOWS_PER_PART, []).append(index)
        self._count += 1
        return index

    def forget(self, before_ns: int) -> list[Flow]:
        """Drop the full parts all of whose flows were last seen before before_ns and are stored; returns the flows."""
        gone: list[int] = []
        for part, indices in list(self.parts.items()):
            state = self.state[indices] if len(indices) == FLOWS_PER_PART else None
            if state is not None and not state["changed"].any() and state["last_ns"].max() < before_ns:
                gone += indices
                del self.parts[part]
        return self._remove(gone)

    def forget_all(self) -> list[Flow]:
        """The session is over; returns its flows."""
        self.parts.clear()
        return self._remove(list(self._index.values()))

    def _remove(self, indices: list[int]) -> list[Flow]:
        flows = [self.flows[index] for index in indices]
        for flow in flows:
            del self._index[flow.flow_id]
        self.over += [flow.flow_id for flow in flows]
        self.described.difference_update(indices)
        self._all.remove(indices)
        return flows

    def indices(self, flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Index of each flow id. Raises WireError where no message has described the flow."""
        indices = self.known(flow_id)
        if (indices < 0).any():
            raise unknown_flow(int(flow_id[indices < 0][0]))
        return indices

    def known(self, flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Index of each flow id; −1 where it is not known."""
        return self._all.find(np.full(len(flow_id), self._session, np.int64), flow_id.astype(np.int64))


class OwnFlows(Sequence[Flow]):
    """The flows of one session: by an index into all sessions' flows, or one after the other."""

    def __init__(self, everything: AllFlows, index: dict[int, int]) -> None:
        """index: by flow id."""
        self._all, self._index = everything, index

    def __len__(self) -> int:
        """How many they are."""
        return len(self._index)

    def __getitem__(self, index: int) -> Flow:  # type: ignore[override]
        """The flow with an index."""
        flow = self._all.flows[index]
        if flow is None:
            raise IndexError(index)
        return flow

    def __iter__(self) -> Iterator[Flow]:
        """All of them, in the order of their appearance."""
        return (self[index] for index in self._index.values())


def unknown_flow(flow_id: int) -> WireError:
    """A row of a flow that nobody has described."""
    return WireError(f"a bucket names flow {flow_id}, which no message has described")
