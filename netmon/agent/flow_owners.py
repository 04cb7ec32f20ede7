# SPDX-License-Identifier: Apache-2.0
"""Whose each flow is: as the kernel reports its connection being made, else queried until the answer is final.

What the kernel tells is read here, so that a short flow has its owner before its rows are sent, however long the
part that looks at processes takes; it is queried once for each process, and for what the kernel has not reported.
"""

import logging
import os
import pwd
import queue
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import Aggregate, Aggregates
from netmon.kernel.meter.meter import Drained
from netmon.kernel.owners.socket_events import SocketEvent, SocketEventTable
from netmon.kernel.sock_diag import Endpoint, packed, packed_address
from netmon.marks import printable
from netmon.rate_limiter import RateLimiter
from netmon.records import Direction, Flow, Mark, Moment, Owner, Table, address, distinct

_log = logging.getLogger(__name__)

# --- What tells a rank's new flow from others at first sight: who connects, to whom the ranks talk, and on which
# ports.

_REMEMBERED = 4096  # peers, ports
_SERVICE_FROM = 8  # connections of one process alone, after which a local port is its service
_INDEX = {6: 0, 17: 1}  # of protocols with ports


class RankSigns:
    """Learns from the owners of flows that are described. What it says decides what is described, never whose it is."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        """Of ranks."""
        self._ports = np.zeros((2, 1 << 16), bool)  # local ones of ranks
        self._peers: dict[bytes, None] = {}  # remote addresses of ranks' flows

    def learn(self, flow: Flow) -> None:
        """A flow of a rank."""
        local, remote = ends_of(flow)
        if flow.protocol in _INDEX:
            self._ports[_INDEX[flow.protocol], local[1]] = True
        self._peers[packed_address(remote[0])] = None
        if len(self._peers) > _REMEMBERED:
            del self._peers[next(iter(self._peers))]

    def seen(self, keys: Table) -> npt.NDArray[np.bool_]:
        """keys: (n,) FLOW_KEY → which are on a rank's port, or of an address to which ranks talk: (n,)."""
        sends = (keys["link_protocol"] >> 8 & 1).astype(bool)
        protocol = keys["link_protocol"] & 0xFF
        ports = np.where(sends, keys["src_port"], keys["dst_port"]).astype(np.intp)
        udp = (protocol == 17).astype(np.intp)
        seen: npt.NDArray[np.bool_] = self._ports[udp, ports] & np.isin(protocol, list(_INDEX))
        if self._peers:
            remote = np.where(sends, keys["dst"], keys["src"]).tolist()
            seen |= np.array([address in self._peers for address in remote], bool)
        return seen


class LocalServices:
    """Local ports that one process alone serves, as far as the described flows show."""

    def __init__(self, aggregates: Aggregates) -> None:
        """aggregates: that account for what comes to such a port under its process."""
        self._aggregates = aggregates
        self._pids: dict[tuple[int, int], tuple[int, int]] = {}  # protocol and port → the only pid and how often, or 0

    def learn(self, flow: Flow) -> None:
        """A flow with a process, counted once."""
        if flow.protocol not in _INDEX:
            return
        port = flow.protocol, ends_of(flow)[0][1]
        pid, count = self._pids.pop(port, (flow.owner.pid, 0))
        alone = pid == flow.owner.pid and not flow.owner.job
        self._pids[port] = (pid, count + 1) if alone else (0, 0)
        self._aggregates.services[_INDEX[flow.protocol], port[1]] = alone and count + 1 >= _SERVICE_FROM
        if len(self._pids) > _REMEMBERED:
            oldest = next(iter(self._pids))
            del self._pids[oldest]
            self._aggregates.services[_INDEX[oldest[0]], oldest[1]] = False


def ends_of(flow: Flow) -> tuple[tuple[str, int], tuple[str, int]]:
    """Address and port of the local end, and of the remote one."""
    source, destination = (flow.src, flow.src_port), (flow.dst, flow.dst_port)
    return (source, destination) if flow.direction is Direction.TX else (destination, source)


def raw_ends(keys: Table) -> list[bytes]:
    """(n,) FLOW_KEY → addresses and ports, the local end's first, as SocketEvent.ends has them."""
    sends = (keys["link_protocol"] >> 8 & 1).astype(bool)
    ends = np.empty(len(keys), [("local", "V16"), ("remote", "V16"), ("ports", ">u2", 2)])
    ends["local"], ends["remote"] = (
        np.where(sends, keys["src"], keys["dst"]),
        np.where(sends, keys["dst"], keys["src"]),
    )
    ends["ports"][:, 0] = np.where(sends, keys["src_port"], keys["dst_port"])
    ends["ports"][:, 1] = np.where(sends, keys["dst_port"], keys["src_port"])
    raw: list[bytes] = ends.view("V36").tolist()
    return raw


# --- What users are called: by /etc/passwd at once, by a directory service (LDAP, sssd) as soon as it has answered.

PASSWORDS = Path("/etc/passwd")
_MOST_BYTES = 4 << 20  # of the file that are read
_MOST_USERS = 4_096  # that are remembered
_MOST_WAITING = 256


class UserNames:
    """Used by one thread, which never waits: a directory service is queried on another one, once for each number."""

    def __init__(self, passwords: Path = PASSWORDS) -> None:
        """passwords: a file as passwd(5) describes it."""
        self._passwords = passwords
        self._read_of = (-1, -1)  # the file's time and size
        self._local: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._questions: queue.Queue[int] = queue.Queue(_MOST_WAITING)
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def name(self, uid: int) -> str:
        """Login name, of bounded length and printable; the number where none is known, or not yet."""
        number = str(uid)
        if number not in self._known:
            self._read()
            if len(self._known) >= _MOST_USERS:
                del self._known[next(iter(self._known))]
            self._known[number] = self._local.get(number, number)
            if number not in self._local:
                self._query(uid)
        return self._known[number]

    def learnt(self) -> dict[str, str]:
        """Names that have come since the last call, by the number that `name` gave for them."""
        found = {}
        while not self._answers.empty():
            number, name = self._answers.get_nowait()
            if number in self._known:
                self._known[number] = found[number] = name
        return found

    def _read(self) -> None:
        try:
            status = os.stat(self._passwords)
            if (status.st_mtime_ns, status.st_size) == self._read_of:
                return
            self._read_of = status.st_mtime_ns, status.st_size
            with self._passwords.open("rb") as file:
                text = file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:  # a root without one
            return
        fields = (line.split(":", 3) for line in text.splitlines())
        named = [(own[2], printable(own[0])) for own in fields if len(own) == 4 and own[0] and own[2].isdecimal()]
        self._local = dict(reversed(named))  # of two names of one number the first, as getpwuid has it

    def _query(self, uid: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer_for_ever, name="names of users", daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait(uid)
        except queue.Full:
            _log.debug("user %d keeps its number: %d others are being looked up", uid, _MOST_WAITING)

    def _answer_for_ever(self) -> None:
        while True:
            uid = self._questions.get()
            try:
                name = printable(pwd.getpwuid(uid).pw_name)
            except (KeyError, OSError, ValueError, OverflowError):  # nobody of that number, or no directory service
                continue
            if name:
                self._answers.put((str(uid), name))


# --- flow owners


_PROTOCOLS = (6, 17)  # TCP and UDP have sockets to look up
_RETRIES_NS = tuple(ms * 1_000_000 for ms in (0, 20, 60, 150, 400, 1000, 3000))
_FINAL = ("socket", "connect", "close")  # sources after which nothing better comes
_PROTOCOL_OWNER = Owner(source="protocol")  # ARP, ICMP, …: the kernel's own
_REQUEST = 500  # endpoints requested at a time
_QUESTIONS_PER_SECOND, _QUESTIONS_AT_ONCE = 1_000, 5_000
_MANY = 2_000  # endpoints that wait: then fewer tries for each
_GRACE_NS = 40_000_000  # a connection is reported when it is answered, or closed, which most are by then
_LISTENED = 5  # the next try after a listener was found, where the kernel tells who closes
_TRUSTED_NS = 2_000_000_000  # a process may become another program; it is requested again while it connects
_PROCESSES = 4096  # remembered
_SERVICES = 8192
_TCP = 6

Service = tuple[int, str, int]
"""(protocol, remote address, remote port)"""


@dataclass
class _Pending:
    endpoint: Endpoint
    since_ns: int
    due_ns: int
    tries: int = 0
    flows: list[int] = field(default_factory=list)


@dataclass
class _Process:
    """What is known of a process that connects. found: as the answers are."""

    found: dict[str, Any]
    cgroup: int
    queried_ns: int


class FlowOwners:
    """All flows that are alive, with their owners as far as they are known."""

    def __init__(self, socket_watch: SocketEventTable | None = None, aggregates: Aggregates | None = None) -> None:
        """No flow yet. socket_watch: None where the kernel does not report sockets.

        aggregates: of the flows that are not described.
        """
        self.flows: dict[int, Flow] = {}
        self._socket_events = socket_watch
        self._users = UserNames()
        self._early_events: list[SocketEvent] = []
        self._signs = RankSigns()
        self._local_services = LocalServices(aggregates) if aggregates else None
        self._port_owners: dict[tuple[int, int], Owner] = {}  # whose a local port is
        self._limiter = RateLimiter(_QUESTIONS_PER_SECOND, _QUESTIONS_AT_ONCE)
        self._processes: dict[int, _Process] = {}
        self._pending: dict[Endpoint, _Pending] = {}
        self._waiting: dict[bytes, Endpoint] = {}  # those of _pending that the kernel may report, by SocketEvent.ends
        self._of_ends: dict[bytes, list[int]] = {}  # flows that the kernel may report, by SocketEvent.ends
        self._queried: list[Endpoint] = []
        self._services: dict[Service, Owner | None] = {}  # None: more than one process talks to it
        self._aggregates = aggregates
        self._visited: dict[Service, None] = {}  # those to which one process has connected more than once
        self._ranks: dict[int, tuple[str, int]] = {}  # pid → job and rank, by its hook
        self._changed: dict[int, None] = {}

    def add(self, flows: Iterable[Flow], now_ns: int) -> None:
        for flow in flows:
            if flow.protocol not in _PROTOCOLS:
                self._set(flow, _PROTOCOL_OWNER)
                continue
            if flow.members:
                self._set(flow, self._owner_of_all(flow))
                continue
            self._set(flow, flow.owner)
            endpoint = local_end(flow)
            pending = self._pending.get(endpoint) or self._expect(endpoint, now_ns)
            pending.flows.append(flow.flow_id)
            if self._socket_events and flow.protocol == _TCP:
                self._of_ends.setdefault(packed(endpoint), []).append(flow.flow_id)
            socket_event = self._socket_events.find(endpoint) if self._socket_events else None
            if socket_event:
                self._apply_event(pending, socket_event, now_ns)

    def _owner_of_all(self, aggregate: Flow) -> Owner:
        """Whose the members of an aggregate are, where that is one process."""
        end = local_end(aggregate)
        if end.remote_port:
            return self._services.get((end.protocol, end.remote, end.remote_port)) or Owner()
        return self._port_owners.get((end.protocol, end.local_port), Owner())

    def _expect(self, endpoint: Endpoint, now_ns: int) -> _Pending:
        pending = self._pending[endpoint] = _Pending(endpoint, now_ns, now_ns)
        if self._socket_events and endpoint.protocol == _TCP:
            pending.due_ns += _GRACE_NS
            self._waiting[packed(endpoint)] = endpoint
        return pending

    def read_socket_events(self, now_ns: int) -> None:
        """Takes in what the kernel has reported connections since the last call. Before `add`, for the newest flows."""
        self._name_users()
        socket_watch, self._early_events = [*self._early_events, *self._take_socket_events()], []
        for socket_event in socket_watch:
            endpoint = self._waiting.get(socket_event.ends)
            pending = self._pending[endpoint] if endpoint else self._expect_again(socket_event, now_ns)
            if pending:
                self._apply_event(pending, socket_event, now_ns)

    def _name_users(self) -> None:
        """Users of whom only the number was known."""
        names = self._users.learnt()
        if not names:
            return
        for flow in [flow for flow in self.flows.values() if flow.owner.user in names]:
            self._set(flow, replace(flow.owner, user=names[flow.owner.user]))
        for remote, owner in self._services.items():
            if owner and owner.user in names:
                self._services[remote] = replace(owner, user=names[owner.user])
        for port, owner in self._port_owners.items():
            if owner.user in names:
                self._port_owners[port] = replace(owner, user=names[owner.user])

    def _take_socket_events(self) -> list[SocketEvent]:
        return self._socket_events.take(self._signs.pids | self._ranks.keys()) if self._socket_events else []

    def ranks(self, pids: Iterable[int]) -> None:
        """The processes that are ranks now, as their environment says."""
        self._signs.pids = set(pids)

    def training(self, keys: Table) -> npt.NDArray[np.bool_]:
        """keys: (n,) FLOW_KEY that are new → which look like a rank's: (n,).

        Connections that a rank, or a process not seen before, has just made; and as RankSigns says.
        """
        training = self._signs.seen(keys)
        if self._socket_events:
            self._early_events += self._take_socket_events()
            open_ = np.flatnonzero(~training & (keys["link_protocol"] & 0xFF == socket.IPPROTO_TCP))
            pids = [self._socket_events.maker(ends) for ends in raw_ends(keys[open_])]
            ranks = self._signs.pids | self._ranks.keys()
            training[open_] = [pid > 0 and (pid in ranks or pid not in self._processes) for pid in pids]
        return training

    def _expect_again(self, socket_event: SocketEvent, now_ns: int) -> _Pending | None:
        """Flows that had an owner, where another process has made a connection between the same ends."""
        flows = [
            flow_id
            for flow_id in self._of_ends.get(socket_event.ends, ())
            if self.flows[flow_id].owner.pid != socket_event.pid
        ]
        if socket_event.source != "connect":  # who closes a connection need not have made it
            flows = [flow_id for flow_id in flows if self.flows[flow_id].owner.source not in ("connect", "socket")]
        if not flows:
            return None
        pending = self._expect(local_end(self.flows[flows[0]]), now_ns)
        pending.flows = flows
        return pending

    def _apply_event(self, pending: _Pending, socket_event: SocketEvent, now_ns: int) -> None:
        process = self._processes.get(socket_event.pid)
        if process is None or process.cgroup != socket_event.cgroup:
            pending.due_ns = now_ns
            return
        self._give(pending, self._owner(pending.endpoint, {**process.found, "source": socket_event.source}))
        if now_ns - process.queried_ns < _TRUSTED_NS:
            self._done(pending)
        else:
            process.queried_ns = pending.due_ns = now_ns

    @property
    def level(self) -> float:
        """How full the ring is in which the kernel reports connections, from 0 to 1."""
        return self._socket_events.level if self._socket_events else 0.0

    @property
    def has_changes(self) -> bool:
        """Whether `changed` has something to give."""
        return bool(self._changed)

    @property
    def pending(self) -> bool:
        """Whether owners are still looked for."""
        return bool(self._pending)

    def has_pending(self, now_ns: int) -> bool:
        """Whether there are endpoints to request now."""
        return any(pending.due_ns <= now_ns for pending in self._pending.values())

    def due(self, now_ns: int) -> list[Endpoint]:
        """The endpoints to request now. `answer` follows with as many owners."""
        due = sorted((p for p in self._pending.values() if p.due_ns <= now_ns), key=lambda p: p.tries)
        room = self._limiter.take(min(len(due), _REQUEST), now_ns)  # what is new comes first
        self._queried = [pending.endpoint for pending in due[:room]]
        return self._queried

    def answer(self, owners: list[dict[str, Any] | None], now_ns: int) -> None:
        """The owners of the endpoints that `due` gave; None where no socket or process was found."""
        learnt = False
        for endpoint, found in zip(self._queried, owners, strict=True):
            learnt |= self._learn(endpoint, found, now_ns)
            if endpoint in self._pending:  # nothing has been reported it meanwhile
                self._settle(self._pending[endpoint], self._owner(endpoint, found))
        self._queried = []
        if learnt and self._socket_events:
            for pending in list(self._pending.values()):
                if socket_event := self._socket_events.find(pending.endpoint):
                    self._apply_event(pending, socket_event, now_ns)

    def _learn(self, endpoint: Endpoint, found: dict[str, Any] | None, now_ns: int) -> bool:
        """Remembers the process that the kernel reported; whether it is a new one."""
        socket_event = self._socket_events.find(endpoint) if self._socket_events else None
        if not socket_event or not found or found["pid"] != socket_event.pid:
            return False
        new = self._processes.pop(socket_event.pid, None) is None
        self._processes[socket_event.pid] = _Process(found, socket_event.cgroup, now_ns)
        if len(self._processes) > _PROCESSES:
            del self._processes[next(iter(self._processes))]
        return new

    def _owner(self, endpoint: Endpoint, found: dict[str, Any] | None) -> Owner:
        service = (endpoint.protocol, endpoint.remote, endpoint.remote_port)
        if found is None:
            return self._services.get(service) or Owner()
        job, rank = self._ranks.get(found["pid"], (found["job"], found["rank"]))
        user = self._users.name(found["uid"])
        owner = Owner(found["pid"], found["process"], found["container"], job, rank, found["source"], user)
        if owner.source in _FINAL[:2]:
            self._learn_remote(service, replace(owner, source="service"))
        return owner

    def _learn_remote(self, service: Service, owner: Owner) -> None:
        """Who alone talks to this service: a later connection that is not caught is taken to be theirs."""
        new = service not in self._services
        known = self._services.pop(service, owner)
        alone = known is not None and known.pid == owner.pid
        self._services[service] = owner if alone else None
        if len(self._services) > _SERVICES:
            del self._services[next(iter(self._services))]
        # Once may be a client's own port.
        if self._aggregates and not new and alone != (service in self._visited):
            if alone:
                self._visited[service] = None
            else:
                del self._visited[service]
            self._aggregates.know_remote((p, packed_address(address), port) for p, address, port in self._visited)

    def _settle(self, pending: _Pending, owner: Owner) -> None:
        self._give(pending, owner)
        pending.tries += 1
        if owner.source == "listener" and self._socket_events:
            pending.tries = max(pending.tries, _LISTENED)
        if len(self._pending) > _MANY:
            pending.tries = min(pending.tries + 2, len(_RETRIES_NS))
        if owner.source in _FINAL or pending.tries == len(_RETRIES_NS):
            self._done(pending)
        else:
            pending.due_ns = pending.since_ns + _RETRIES_NS[pending.tries]

    def _give(self, pending: _Pending, owner: Owner) -> None:
        for flow_id in pending.flows:
            flow = self.flows.get(flow_id)
            if flow and owner.source and flow.owner != owner:
                self._set(flow, owner)
                self._learn_service(self.flows[flow_id])

    def _learn_service(self, flow: Flow) -> None:
        """What a flow with its owner reports others that may come."""
        if flow.owner.job:
            self._signs.learn(flow)
        if self._local_services and flow.owner.pid and flow.owner.source != "service":
            self._local_services.learn(flow)
            port = flow.protocol, local_end(flow).local_port
            self._port_owners.pop(port, None)
            self._port_owners[port] = replace(flow.owner, source="aggregate")
            if len(self._port_owners) > _PROCESSES:
                del self._port_owners[next(iter(self._port_owners))]

    def _done(self, pending: _Pending) -> None:
        del self._pending[pending.endpoint]
        if self._socket_events and pending.endpoint.protocol == _TCP:
            self._waiting.pop(packed(pending.endpoint), None)

    def marks(self, marks: Iterable[Mark]) -> None:
        """Who says that it is which rank: its flows are that rank's from now on, whatever the environment says.

        Those that it has already stay with the job as whose they were made: an elastic job makes new ones.
        """
        for mark in marks:
            if mark.moment is Moment.JOIN and self._ranks.get(mark.pid) != (mark.job, mark.rank):
                self._ranks[mark.pid] = (mark.job, mark.rank)
                for flow in [f for f in self.flows.values() if f.owner.pid == mark.pid and f.owner.job != mark.job]:
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
        for flow_id in flow_ids:
            flow = self.flows.pop(flow_id, None)
            if flow and flow.protocol == _TCP:
                self._of_ends.pop(packed(local_end(flow)), None)


def local_end(flow: Flow) -> Endpoint:
    """A flow of either direction as this host's socket has it."""
    if flow.direction is Direction.TX:
        return Endpoint(flow.protocol, flow.src, flow.src_port, flow.dst, flow.dst_port)
    return Endpoint(flow.protocol, flow.dst, flow.dst_port, flow.src, flow.src_port)


# --- New flow keys from the kernel, and aggregates of what is not described one by one → flows.

_AGAIN_NS = 60_000_000_000
"""An aggregate with traffic is described at least so often: a collector forgets what was silent for long."""
_GROWN_NS = 1_000_000_000  # and at most so often, as it gets members


def describe_flows(drained: Drained, now_ns: int) -> list[Flow]:
    """The flows that are new in this drain. One that has no closed bucket yet began just now."""
    ids = drained.new.ids  # ascending
    if not len(ids):
        return []
    first = np.full(len(ids), now_ns, np.uint64)
    rows = drained.buckets[drained.buckets["flow_id"] >= ids[0]]
    index = np.searchsorted(ids, rows["flow_id"]).clip(0, len(ids) - 1)
    own = ids[index] == rows["flow_id"]
    np.minimum.at(first, index[own], rows["bucket_start_ns"][own])
    return [
        _flow(flow_id, key, first_ns)
        for flow_id, key, first_ns in zip(ids.tolist(), drained.new.keys.tolist(), first.tolist(), strict=True)
    ]


def _flow(flow_id: int, key: tuple[Any, ...], first_ns: int) -> Flow:
    src, dst, src_port, dst_port, link_protocol = key
    return Flow(
        flow_id=flow_id,
        interface=link_protocol >> 9,
        direction=Direction(link_protocol >> 8 & 1),
        src=address(src),
        dst=address(dst),
        src_port=src_port,
        dst_port=dst_port,
        protocol=link_protocol & 0xFF,
        first_ns=first_ns,
    )


class AggregateFlows:
    """The aggregates as flows, described when they have traffic and there is something new to say."""

    def __init__(self, aggregates: dict[int, Aggregate]) -> None:
        """aggregates: by id, as they come to be."""
        self._aggregates = aggregates
        self._said: dict[int, tuple[int, Flow]] = {}  # when, and what

    def described(self, seen: npt.NDArray[np.uint32], now_ns: int, last: bool = False) -> list[Flow]:
        """seen: the distinct flow ids of a batch's rows → the aggregates among them that are to be described.

        last: no batch will follow, so that all that have grown since they were described are.
        """
        if not self._aggregates:
            return []
        known = np.fromiter(self._aggregates, np.uint32, len(self._aggregates))
        due = set(known[np.isin(known, seen)].tolist())
        if last:
            due |= self._said.keys() & self._aggregates.keys()
        return [flow for i in sorted(due) if (flow := self._describe(i, now_ns, last))]

    def _describe(self, flow_id: int, now_ns: int, last: bool) -> Flow | None:
        aggregate = self._aggregates[flow_id]
        said_ns, flow = self._said.get(flow_id, (0, None))
        grown = flow is None or flow.members != max(1, aggregate.members)
        if flow and now_ns - said_ns < (_GROWN_NS if grown else _AGAIN_NS) and not (grown and last):
            return None
        flow = _aggregate_flow(aggregate, flow.first_ns if flow else now_ns)
        self._said[flow_id] = now_ns, flow
        return flow


def _aggregate_flow(aggregate: Aggregate, first_ns: int) -> Flow:
    direction = Direction(aggregate.link_protocol >> 8 & 1)
    remote = address(aggregate.address)
    local = "::" if ":" in remote else "0.0.0.0"
    sends = direction is Direction.TX
    return Flow(
        flow_id=aggregate.flow_id,
        interface=aggregate.link_protocol >> 9,
        direction=direction,
        src=local if sends else remote,
        dst=remote if sends else local,
        src_port=aggregate.local_port if sends else aggregate.remote_port,
        dst_port=aggregate.remote_port if sends else aggregate.local_port,
        protocol=aggregate.link_protocol & 0xFF,
        first_ns=first_ns,
        owner=Owner(),
        members=max(1, aggregate.members),
        prefix_bits=aggregate.prefix_bits,
    )


# --- The flows and steps that are under way.

_IDLE_NS = 300_000_000_000
"""A flow so long without a packet is over for the agent."""
_SWEEP_NS = 10_000_000_000

_MANY_FLOWS = 5_000
"""With more flows than that, the others than training's are over sooner."""
_CROWDED_IDLE_NS = 10_000_000_000
_CROWDED_SWEEP_NS = 2_000_000_000


class RecentFlows:
    """When each flow was last seen."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}
        self._sweep_ns = 0

    def over(self, seen: npt.NDArray[np.uint32], now_ns: int, known: Mapping[int, Flow]) -> list[int]:
        """seen: (n,) distinct, of the rows just sent → those of the known flows that have been idle for too long.

        An aggregate is never over: its members keep their slots, and the next packet of one is a row of it.
        """
        self._seen_ns.update(dict.fromkeys(seen.tolist(), now_ns))
        crowded = len(known) > _MANY_FLOWS
        if now_ns < self._sweep_ns - (_SWEEP_NS - _CROWDED_SWEEP_NS) * crowded:
            return []
        self._sweep_ns = now_ns + _SWEEP_NS
        idle = {i: now_ns - self._seen_ns.setdefault(i, now_ns) for i, flow in known.items() if not flow.members}
        over = [i for i, ns in idle.items() if ns > _IDLE_NS]
        if crowded:
            over = [i for i, ns in idle.items() if ns > (_IDLE_NS if known[i].owner.job else _CROWDED_IDLE_NS)]
        for flow_id in over:
            del self._seen_ns[flow_id]
        return over


def distinct_ids(flow_ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Of (n,) rows, ascending. Ids are dense: marking them in an array of their range is cheaper than sorting them."""
    if not len(flow_ids):
        return np.zeros(0, np.uint32)
    least = int(flow_ids.min())
    if int(flow_ids.max()) - least > 100 * len(flow_ids) + _MANY_FLOWS:  # old flows alongside new ones
        return distinct(flow_ids)
    seen = np.zeros(int(flow_ids.max()) - least + 1, bool)
    seen[flow_ids - np.uint32(least)] = True
    return (np.flatnonzero(seen) + least).astype(np.uint32)
