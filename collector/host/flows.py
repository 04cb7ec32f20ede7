# SPDX-License-Identifier: Apache-2.0
"""The flows of all sessions, by one index, and each session's own."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from collector.dataset.manifest import StoredFlow
from collector.messages import BY_PEER, BY_TRAFFIC, flow_numbers
from netmon.dl.account import TrafficOwner, traffic_owner
from netmon.dl.classify import NS_PER_S, Traffic, flow_class, flow_traffic
from netmon.dl.clocks import REST_NS
from netmon.dl.grouped import order_by, starts
from netmon.errors import WireError
from netmon.records import COUNTS, Class, Columns, Direction, Flow, Hello, Interface, Owner, Table

_Numbers = npt.NDArray[np.int64]

# --- Flows of which the job stage looks up who is at the other end.


class PeerLookups:
    """Those of all sessions, by index: of jobs while they are known, others until it is given up."""

    def __init__(self) -> None:
        self._ranks: dict[int, int] = {}  # by flow: the rank at the other end; −1: unknown
        self._new: set[int] = set()  # that are new, or described anew
        self._over: list[int] = []  # numbers of flows (messages.flow_numbers) whose lookup ends

    def described(self, index: int, flow: Flow) -> None:
        """A flow has been, as it is now."""
        if flow.owner.job or index in self._ranks:
            self.add(index)

    def add(self, index: int) -> None:
        """From now on, until it is given up."""
        self._ranks.setdefault(index, -1)
        self._new.add(index)

    def give_up(self, index: int, session: int, flow_id: int) -> None:
        """End the lookup; session: the flow's."""
        if self._ranks.pop(index, None) is not None:
            self._new.discard(index)
            self._over.append(flow_numbers(session, flow_id))

    def set_rank(self, index: int, rank: int) -> None:
        """The rank at the other end; −1: unknown."""
        if index in self._ranks:
            self._ranks[index] = rank

    def ranks(self, indices: Sequence[int], flows: Sequence[Flow]) -> list[int]:
        """The rank at the other end of each flow of a job; −1: unknown, or no job's."""
        both = zip(indices, flows, strict=True)
        return [self._ranks.get(index, -1) if flow.owner.job else -1 for index, flow in both]

    def take(self, flows: Sequence[Flow | None], state: Table) -> tuple[_Numbers, list[tuple[int, Flow]]]:
        """Numbers of flows whose lookup ends, and the flows to look up anew; flows, state: of all."""
        over, self._over = np.array(self._over, np.int64), []
        wanted, self._new = sorted(self._new), set()
        sessions, ids = (state[name][wanted].tolist() for name in ("session", "flow_id"))
        described = []
        for index, session, flow_id in zip(wanted, sessions, ids, strict=True):
            flow = flows[index]
            if flow is not None:
                described.append((flow_numbers(session, flow_id), flow))
        return over, described


# --- The index of each flow of all sessions, by its session and its id; more than one flow may have one.

_ID_BITS = 32  # of a key: the session above the flow's own id


class SessionKeys:
    """Lives on one thread; what is added or removed counts from the next `find` on."""

    def __init__(self) -> None:
        self._keys, self._index, self._found_ns = (np.empty(0, np.int64) for _ in range(3))  # ascending by key
        self._new: list[tuple[int, int, int]] = []  # not in there yet
        self._gone: list[int] = []  # keys that are still in there

    def add(self, session: int, flow_id: int, index: int, at_ns: int) -> None:
        """A flow that is not known. at_ns: mono."""
        self._new.append((session << _ID_BITS | flow_id, index, at_ns))

    def remove(self, session: int, flow_ids: Iterable[int]) -> None:
        self._gone += (session << _ID_BITS | flow_id for flow_id in flow_ids)

    def find(self, session: _Numbers, flow_id: npt.NDArray[np.integer], at_ns: _Numbers | None = None) -> _Numbers:
        """Index of each flow, arrays of one length; −1 where it is not known. at_ns: when it had rows (mono)."""
        self._sort()
        key = session.astype(np.int64) << _ID_BITS | flow_id.astype(np.int64)
        index = np.searchsorted(self._keys, key)
        known = index < len(self._keys)
        known[known] = self._keys[index[known]] == key[known]
        found = np.full(len(key), -1, np.int64)
        found[known] = self._index[index[known]]
        if at_ns is not None:
            self._found_ns[index[known]] = np.maximum(self._found_ns[index[known]], at_ns[known])
        return found

    def silent(self, session: int, before_ns: int) -> tuple[_Numbers, _Numbers]:
        """The flows of a session that were added, and had rows, only before (mono): their ids, their indices."""
        self._sort()
        first, end = np.searchsorted(self._keys, [session << _ID_BITS, (session + 1) << _ID_BITS])
        own = first + np.flatnonzero(self._found_ns[first:end] < before_ns)
        return self._keys[own] & ((1 << _ID_BITS) - 1), self._index[own]

    def _sort(self) -> None:
        if self._gone:
            stay = ~np.isin(self._keys, np.array(self._gone, np.int64))
            self._keys, self._index, self._found_ns = self._keys[stay], self._index[stay], self._found_ns[stay]
            self._gone = []
        if self._new:
            key, index, order = np.array(sorted(self._new), np.int64).T
            position = np.searchsorted(self._keys, key)
            self._keys, self._index = np.insert(self._keys, position, key), np.insert(self._index, position, index)
            self._found_ns = np.insert(self._found_ns, position, order)
            self._new = []


# --- Numbers for what comes and goes, so that there are never many more of them than are in use.

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """A number is another value's only after it has been nobody's for a while (see release_unused)."""

    def __init__(self, *first: T) -> None:
        """first: have the lowest numbers, and keep them."""
        self.values: list[T] = list(first)
        """By number; of one that nobody has, what had it last."""
        self._number = {value: number for number, value in enumerate(first)}
        self._always = frozenset(range(len(first)))
        self._free: list[int] = []
        self._used: set[int] = set()  # since release_unused was called last
        self._before: set[int] = set()  # between that and the call before

    def number(self, value: T) -> int:
        """The value's number; it is in use."""
        number = self._number.get(value)
        if number is None:
            number = self._free.pop() if self._free else len(self.values)
            if number == len(self.values):
                self.values.append(value)
            self.values[number] = value
            self._number[value] = number
        self._used.add(number)
        return number

    def release_unused(self, in_use: Iterable[int]) -> None:
        """Who was not in use since the call before the last one, and is not now, loses the number."""
        self._used.update(in_use)
        keep = self._used | self._before | self._always
        for value, number in list(self._number.items()):
            if number not in keep:
                del self._number[value]
                self._free.append(number)
        self._used, self._before = set(), self._used


MOST_FLOWS = 100_000
"""Of a host. An honest agent describes 100 a second in the long run, and each is known for ten minutes here."""

MOST_BEYOND = 1 << 18
"""Of a session, beyond those: the rows of each link's are rows of one flow, which has no owner."""

_MOST_ADDRESSES = 1 << 16
_FORGOTTEN = 1024  # flows at a time, at least
_OVERFLOW_ID = (1 << 32) - 1  # and lower: no agent uses them

TOTALS = tuple(name for name, count in COUNTS.items() if count.total)
STATE = np.dtype(
    [
        ("flow_id", "<u4"),
        ("session", "<i4"),  # its place; −1: an index that no flow has
        ("link", "<i8"),  # as in Links
        ("shared", "?"),  # a DL flow that had rows in shared windows
        ("changed", "?"),  # its row in the dataset is out of date
        ("grown", "?"),  # it had rows since its own was stored
        ("reported", "u1"),  # to the job stage: PENDING, REPORTED or AGGREGATE
        ("class", "u1"),  # the flow's own: never DL_SHARED
        ("job", "<i4"),  # index into AllFlows.jobs; 0: none
        ("rank", "<i4"),
        ("rank_id", "<i4"),  # of a DL flow: AllFlows.rank_id of its session, job and rank
        ("traffic_owner", "<i4"),  # index into AllFlows.traffic owners
        ("traffic", "u1"),  # of a DL flow; else Traffic.UNKNOWN
        ("first_ns", "<i8"),  # mono
        ("last_ns", "<i8"),  # start of the last bucket, mono
        *((name, "<i8") for name in TOTALS),
        ("payload_packets", "<i8"),  # in buckets with payload
    ]
)


PENDING, REPORTED, AGGREGATE = range(3)
"""An aggregate is nobody's gradient: large flows are described to the job stage one by one."""


class Links:
    """The links of one session: link 2·i is rx and 2·i+1 tx of the i-th interface."""

    def __init__(self, hello: Hello) -> None:
        self.interfaces: tuple[Interface, ...] = hello.interfaces
        self._index = {interface.index: number for number, interface in enumerate(hello.interfaces)}
        capacities = [interface.capacity_bps for interface in hello.interfaces]
        self.capacity_bps: _Numbers = np.repeat(np.array(capacities, np.int64), 2)
        self.names = [interface.name for interface in hello.interfaces for _ in Direction]
        """These three by number."""
        self.byte_bases = [interface.byte_basis for interface in hello.interfaces for _ in Direction]
        self.hooks = [hook for interface in hello.interfaces for hook in (interface.hook_rx, interface.hook_tx)]
        """Where each link's bytes were counted."""

    def __len__(self) -> int:
        """Two per interface."""
        return 2 * len(self.interfaces)

    def number(self, ifindex: int, direction: Direction) -> int:
        """The link's number. Raises WireError where the agent has not introduced the interface."""
        if ifindex not in self._index:
            raise WireError(f"interface {ifindex} is not in the session's hello; send it there")
        return 2 * self._index[ifindex] + direction

    def interface(self, link: int) -> Interface:
        return self.interfaces[link // 2]

    @staticmethod
    def direction(link: int) -> Direction:
        return Direction(link % 2)


def count_arrived(state: Table, rows: Columns) -> npt.NDArray[np.intp]:
    """Add up rows of ARRIVED, at least one, in the state of their flows (dtype STATE); which of them follow a rest."""
    onsets = _count(state, rows)
    if onsets is None:
        order = order_by(rows["flow"], rows["start_ns"])
        onsets = _count(state, rows.take(order))
        assert onsets is not None
        return np.sort(order[onsets])
    return onsets


def _count(state: Table, rows: Columns) -> npt.NDArray[np.intp] | None:
    """The same where the rows of each flow are in order of time; None, and nothing changed, where they are not."""
    flow, start, payload = rows["flow"], rows["start_ns"], rows["payload_bytes"]
    first = starts(flow)
    turn = np.argsort(flow[first], kind="stable")  # the runs of a flow, one after the other
    run, end_ns = first[turn], start[np.append(first[1:], len(flow)) - 1][turn]
    new = starts(flow[run])
    flows = flow[run[new]]
    before = np.empty(len(run), np.int64)
    before[1:] = end_ns[:-1]
    before[new] = np.where(state["wire_bytes"][flows] > 0, state["last_ns"][flows], -REST_NS)
    gap = np.empty(len(flow), np.int64)
    np.subtract(start[1:], start[:-1], out=gap[1:])
    gap[run] = start[run] - before
    back = np.flatnonzero(gap < 0)
    if len(back) and not np.isin(back, run[new]).all():
        return None
    amounts = {name: rows[name] for name in TOTALS} | {"payload_packets": rows["packets"] * (payload > 0)}
    for name, amount in amounts.items():
        of_run = np.add.reduceat(amount, first, dtype=np.int64)
        state[name][flows] += np.add.reduceat(of_run[turn], new)
    last = np.append(new[1:], len(run)) - 1
    state["last_ns"][flows] = np.maximum(state["last_ns"][flows], end_ns[last])
    state["grown"][flows] = True
    return np.flatnonzero(gap >= REST_NS)


class AllFlows:
    """The flows of all sessions: what they are, what has been seen of them. An index is a flow's while it is known."""

    def __init__(self) -> None:
        self.flows: list[Flow | None] = []  # by index
        self._jobs = Numbered("")
        self._traffic_owners = Numbered[TrafficOwner]()
        self._rank_ids = Numbered[tuple[int, int, int]]()
        self._state = np.zeros(1024, STATE)
        self._free: list[int] = []  # indices to use again
        self.keys = SessionKeys()
        self.of_host = Counter[str]()
        """How many flows there are."""
        self.ends = PeerLookups()
        self.host_at: dict[str, str] = {}
        """Address → host that has a process there; empty: more than one says so."""

    @property
    def state(self) -> Table:
        """A view, dtype STATE, one row per index."""
        return self._state[: len(self.flows)]

    @property
    def jobs(self) -> list[str]:
        """By number."""
        return self._jobs.values

    @property
    def traffic_owners(self) -> list[TrafficOwner]:
        """By number."""
        return self._traffic_owners.values

    def job(self, name: str) -> int:
        """The job's number; it is in use."""
        return self._jobs.number(name)

    def rank_id(self, session: int, job: int, rank: int) -> int:
        """A number for a rank of a job on the host of a session; it is in use."""
        return self._rank_ids.number((session, job, rank))

    @property
    def rank_ids(self) -> int:
        """More than the highest number of a rank."""
        return len(self._rank_ids.values)

    def release_numbers(self, jobs: Iterable[int], rank_ids: Iterable[int] = ()) -> None:
        """Release jobs, traffic owners and ranks that no flow has and that nobody used since the call before the last.

        jobs, rank ids: that somebody keeps without asking again, such as rows on their way to the disk.
        """
        own = {name: np.unique(self.state[name]).tolist() for name in ("job", "traffic_owner", "rank_id")}
        self._jobs.release_unused([*own["job"], *jobs])
        self._traffic_owners.release_unused(own["traffic_owner"])
        self._rank_ids.release_unused([*own["rank_id"], *rank_ids])

    def append(self, session: int, flow: Flow) -> int:
        index = self._free.pop() if self._free else len(self.flows)
        if index == len(self.flows):
            self.flows.append(flow)
        if index == len(self._state):
            self._state = np.concatenate([self._state, np.zeros(index, STATE)])
        self._state[index] = 0
        row = self._state[index]
        row["session"], row["flow_id"] = session, flow.flow_id
        row["first_ns"] = row["last_ns"] = flow.first_ns
        return index

    def set(self, index: int, link: int, flow: Flow) -> None:
        """Say what the flow is; link: of its session."""
        self.flows[index] = flow
        row, whose = self._state[index], self._traffic_owners.number(traffic_owner(flow.owner))
        row["class"], row["traffic_owner"], row["link"] = flow_class(flow.owner), whose, link
        row["job"], row["rank"], row["changed"] = self.job(flow.owner.job), flow.owner.rank, True
        row["rank_id"] = self.rank_id(int(row["session"]), int(row["job"]), flow.owner.rank)
        self.ends.described(index, flow)

    def is_at(self, address: str, host: str) -> None:
        """A process of the host has a socket there."""
        if address in self.host_at:
            if self.host_at[address] != host:
                self.host_at[address] = ""
        elif len(self.host_at) < _MOST_ADDRESSES:
            self.host_at[address] = host

    def remove(self, indices: Sequence[int]) -> None:
        """Their flows are known no more."""
        for index in indices:
            row = self._state[index]
            self.ends.give_up(index, int(row["session"]), int(row["flow_id"]))
            self.keys.remove(int(row["session"]), [int(row["flow_id"])])
            self.flows[index] = None
            self._state[index] = 0
            row["session"] = -1
        self._free += indices

    def unstored(self, grown: bool) -> dict[int, list[int]]:
        """By session, the indices of flows whose row in the dataset is out of date, ascending; grown: also where only
        the time has gone on."""
        state = self.state
        indices = np.flatnonzero(state["changed"] | state["grown"] if grown else state["changed"])
        indices = indices[np.argsort(state["session"][indices], kind="stable")]
        edges = [*starts(state["session"][indices]).tolist(), len(indices)]
        return {int(state["session"][indices[begin]]): indices[begin:end].tolist() for begin, end in pairwise(edges)}

    def reclassify_traffic(self, unexplained: Sequence[int], recovered: Sequence[int]) -> None:
        """Decide anew what each DL flow carries. Jobs by number: whose steps are not understood, and are again."""
        dl = np.flatnonzero(self.state["class"] == Class.DL_ONLY)
        if not len(dl):
            return
        state = self.state[dl]
        lifetime = (state["last_ns"] - state["first_ns"]) / NS_PER_S
        jobs = state["session"].astype(np.int64) * len(self.jobs) + state["job"]  # of one host
        traffic = flow_traffic(state["payload_bytes"], state["payload_packets"], lifetime, jobs)
        stays = (state["traffic"] == Traffic.UNEXPLAINED) & ~np.isin(state["job"], recovered)
        traffic[(traffic == Traffic.GRADIENT) & (stays | np.isin(state["job"], unexplained))] = Traffic.UNEXPLAINED
        self.state["changed"][dl[traffic != state["traffic"]]] = True
        self.state["traffic"][dl] = traffic

    def of_flows(self, name: str, flow: _Numbers) -> npt.NDArray[Any]:
        """A column of the state, of flows by their indices."""
        column = self.state[name]
        return column.take(flow) if len(flow) >= len(column) // 16 else column[flow]

    def seen(self, rows: Columns) -> npt.NDArray[np.intp]:
        """Account for rows that have arrived, of ARRIVED; returns those that follow a rest, ascending."""
        return count_arrived(self.state, rows) if len(rows) else np.empty(0, np.intp)


class FlowTable:
    """The flows of one session that are not long over, among all sessions' flows: indices are into those.

    A flow has an index while it is known.
    """

    def __init__(self, links: Links, everything: AllFlows, session: int, host: str = "") -> None:
        """Begin without flows; session: its place; host: whose."""
        self.jobs_here = {""}  # of its flows and its ranks
        self.described: set[int] = set()  # indices of flows that are new or have another owner, for who reports them
        self.over: list[int] = []  # ids of flows that are forgotten, for who reports them
        self.now_ns = 0
        """The latest time received (mono): what is described was alive then."""
        self.beyond: set[int] = set()  # ids of flows for which there was no room
        self._overflow: dict[int, int] = {}  # by link: index of the flow that stands for them
        self._all, self._session, self._host = everything, session, host
        self._links = links
        self._index: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Flow:
        """The flow with an index, while it is known."""
        flow = self._all.flows[index]
        if flow is None:
            raise IndexError(index)
        return flow

    def __iter__(self) -> Iterator[Flow]:
        """In the order of their appearance."""
        return (self[index] for index in self._index.values())

    @property
    def state(self) -> Table:
        """A view, dtype STATE, one row per index: of all sessions."""
        return self._all.state

    @property
    def indices_of_all(self) -> _Numbers:
        return np.fromiter(self._index.values(), np.int64, len(self._index))

    def unstored(self, grown: bool) -> list[int]:
        """Indices whose row in the dataset is out of date, ascending; grown: also where only the time has gone on."""
        return self._all.unstored(grown).get(self._session, [])

    def mark_stored(self, indices: Iterable[int], stored: bool) -> None:
        """Say of which flows the row in the dataset is as they are, or is not."""
        known = [index for index in indices if self._all.flows[index] is not None]
        self.state["changed"][known] = self.state["grown"][known] = not stored

    def job(self, name: str) -> int:
        self.jobs_here.add(name)
        return self._all.job(name)

    def rank_id(self, job: int, rank: int) -> int:
        """As AllFlows.rank_id, of a rank on this host."""
        return self._all.rank_id(self._session, job, rank)

    def describe(self, flow: Flow) -> None:
        """Take in a flow, or what is newly known of it; an owner once known is not forgotten.

        Raises WireError where its link is unknown, or there are far too many.
        """
        index = self._index.get(flow.flow_id)
        link = self._links.number(flow.interface, flow.direction)
        if index is None:
            if flow.flow_id in self.beyond or self._all.of_host[self._host] >= MOST_FLOWS:
                self._put_beyond(link, flow)
                return
            index = self._append(flow)
        else:
            known = self[index]
            if flow == known or (not flow.owner.source and known.owner.source):
                return
            if known.owner.source == BY_PEER and not flow.owner.job:
                flow = replace(flow, owner=replace(flow.owner, job=known.owner.job, source=BY_PEER))
        self.jobs_here.add(flow.owner.job)
        self.described.add(index)
        self._all.set(index, link, flow)
        if flow.owner.pid and not flow.members:
            self._all.is_at(flow.src if flow.direction == Direction.TX else flow.dst, self._host)

    def unknown(self, flows: Iterable[Flow]) -> list[Flow]:
        """Those of the flows that nobody has described."""
        return [flow for flow in flows if flow.flow_id not in self._index]

    def index_of(self, flow_id: int) -> int | None:
        return self._index.get(flow_id)

    def flow(self, flow_id: int) -> Flow | None:
        index = self._index.get(flow_id)
        return None if index is None else self[index]

    def infer(self, flow_id: int, owner: Owner) -> bool:
        """Take over what the traffic says of a flow whose owner is not known; False where a socket has shown more."""
        index = self._index.get(flow_id)
        if index is None or self[index].owner.source not in ("", BY_TRAFFIC):
            return False
        if owner != self[index].owner:
            flow = self[index]
            self.jobs_here.add(owner.job)
            self._all.set(index, self._links.number(flow.interface, flow.direction), replace(flow, owner=owner))
        return True

    def restore(self, stored: StoredFlow) -> None:
        """Take in a flow as the dataset has it, in the order of their appearance."""
        flow = stored.flow
        self.describe(flow)
        if flow.flow_id in self.beyond:
            return
        row = self.state[self._index[flow.flow_id]]
        row["last_ns"], row["shared"], row["changed"] = stored.last_ns, stored.shared, False

    def _append(self, flow: Flow) -> int:
        index = self._index[flow.flow_id] = self._all.append(self._session, flow)
        self._all.keys.add(self._session, flow.flow_id, index, max(flow.first_ns, self.now_ns))
        self._all.of_host[self._host] += 1
        return index

    def _put_beyond(self, link: int, flow: Flow) -> None:
        if flow.flow_id in self.beyond:
            return
        if len(self.beyond) >= MOST_BEYOND:
            raise WireError(f"the session has {MOST_FLOWS + MOST_BEYOND} flows at a time; no agent has so many")
        index = self._overflow.get(link)
        if index is None:
            ends = "0.0.0.0", "0.0.0.0", 0, 0, 0
            whole = Flow(_OVERFLOW_ID - link, flow.interface, flow.direction, *ends, flow.first_ns)
            index = self._overflow[link] = self._append(whole)
            self.described.add(index)
        whole = self[index]
        self._all.set(index, link, replace(whole, members=whole.members + 1))
        self._all.keys.add(self._session, flow.flow_id, index, max(flow.first_ns, self.now_ns))
        self.beyond.add(flow.flow_id)

    def forget(self, before_ns: int) -> None:
        """Drop the flows that had no rows since before_ns (mono) and are stored, many at a time."""
        if len(self._index) + len(self.beyond) < _FORGOTTEN:
            return
        ids, indices = self._all.keys.silent(self._session, before_ns)
        together = np.isin(indices, list(self._overflow.values()))
        if together.any():
            self._forget_beyond(ids[together].tolist())
        over = indices[~together & ~self.state["changed"][indices] & ~self.state["grown"][indices]]
        if len(over) >= _FORGOTTEN:
            self._remove(over.tolist())

    def forget_all(self) -> None:
        self._forget_beyond(list(self.beyond))
        self._overflow.clear()
        self._remove(list(self._index.values()))

    def _forget_beyond(self, flow_ids: list[int]) -> None:
        flow_ids = [flow_id for flow_id in flow_ids if flow_id in self.beyond]
        self.beyond.difference_update(flow_ids)
        self._all.keys.remove(self._session, flow_ids)

    def _remove(self, indices: list[int]) -> None:
        flow_ids = [self[index].flow_id for index in indices]
        for flow_id in flow_ids:
            del self._index[flow_id]
        self._all.of_host[self._host] -= len(indices)
        self.over += flow_ids
        self.described.difference_update(indices)
        self._all.remove(indices)

    def known(self, flow_id: npt.NDArray[np.uint32]) -> _Numbers:
        """Index of each flow id; −1 where it is not known."""
        return self._all.keys.find(np.full(len(flow_id), self._session, np.int64), flow_id.astype(np.int64))


def unknown_flow(flow_id: int) -> WireError:
    return WireError(f"a bucket names flow {flow_id}, which no message has described")
