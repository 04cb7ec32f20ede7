# SPDX-License-Identifier: Apache-2.0
"""Whose each connection is: flow → socket → process, in this network namespace and in those of containers."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from netmon.kernel.owners.namespaces import Namespaces
from netmon.kernel.owners.socket_events import SocketEvent, SocketEvents
from netmon.kernel.processes import PROC, ControlGroups, Process, ProcessTable, pids
from netmon.kernel.sock_diag import LISTEN, DiagnosisSocket, Endpoint, address_text
from netmon.rate_limiter import TimeLimiter

if TYPE_CHECKING:  # 20 MB, needed only where addresses are translated
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket

# --- The sockets of the caller's network namespace, one by one, as the kernel itself would find them.

_ANSWER = struct.Struct("=BBBB2s2s16s16sIIIIIIII")  # struct inet_diag_msg


class Found(NamedTuple):
    """A socket. inode 0: no process has it (any more, or not yet)."""

    inode: int
    listening: bool = False
    connected: bool = True


def find_sockets(kernel: DiagnosisSocket, endpoints: Sequence[Endpoint]) -> list[Found | None]:
    """The socket of each endpoint, None where there is none."""
    found: list[Found | None] = [None] * len(endpoints)
    for number, body in kernel.query(endpoints):
        found[number] = _found(endpoints[number], body)
    return found


def _found(endpoint: Endpoint, body: bytes) -> Found | None:
    _, state, _, _, port, remote_port, *_, inode = _ANSWER.unpack_from(body)
    if int.from_bytes(port, "big") != endpoint.local_port:
        return None
    listening = endpoint.protocol == socket.IPPROTO_TCP and state == LISTEN
    return Found(inode, listening, connected=any(remote_port) and not listening)


# --- What an address translation (NAT) on this host hides: the container's own end of a connection.

_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")


class Translations:
    """Asks the connection tracking of the caller's network namespace, where it is in use. Needs CAP_NET_ADMIN."""

    def __init__(self) -> None:
        self._socket: NFCTSocket | None = None
        self._limiter = TimeLimiter(share=0.01, burst_ns=500_000_000)  # a question takes about a millisecond

    def inside(self, endpoint: Endpoint) -> Endpoint | None:
        """The connection as its local socket behind the translation knows it; None where nothing is translated."""
        if not self._limiter.allows():
            return None
        with self._limiter, contextlib.suppress(OSError):  # no conntrack
            if int(_COUNT.read_text()):
                return _inside(endpoint, self._query(endpoint))
        return None

    def _query(self, endpoint: Endpoint) -> list[Any]:
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

        if self._socket is None:
            self._socket = NFCTSocket()
        family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
        # A packet that comes in; the kernel finds it in either direction of a connection.
        arriving = NFCTAttrTuple(
            family=family,
            saddr=endpoint.remote,
            daddr=endpoint.local,
            proto=endpoint.protocol,
            sport=endpoint.remote_port,
            dport=endpoint.local_port,
        )
        try:
            return list(self._socket.entry("get", tuple_orig=arriving))
        except NetlinkError:  # it has nothing of this connection
            return []


def _inside(endpoint: Endpoint, messages: list[Any]) -> Endpoint | None:
    if not messages:
        return None
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple

    family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
    for message in messages:
        original, reply = (message.get_attr(f"CTA_TUPLE_{name}") for name in ("ORIG", "REPLY"))
        if original is None or reply is None:
            continue
        begun, answered = (_endpoint(NFCTAttrTuple.from_netlink(family, part)) for part in (original, reply))
        # Begun here: the one that began it is inside. Begun elsewhere: the one that answers is.
        inside = begun if answered == endpoint.reversed() else answered
        return inside if inside != endpoint else None
    return None


def _endpoint(part: Any) -> Endpoint:
    """A tuple as its sender's end."""
    return Endpoint(int(part.proto), part.saddr, int(part.sport), part.daddr, int(part.dport))


# --- Sockets as /proc shows them: those of another network namespace, and which process holds which.

_TABLES = {socket.IPPROTO_TCP: ("tcp", "tcp6"), socket.IPPROTO_UDP: ("udp", "udp6")}
_SOCKET = "socket:["
_ANY = {False: "0.0.0.0", True: "::"}


class SocketTable:
    """The sockets of one process's network namespace at one moment."""

    def __init__(self, pid: str = "self", protocols: Iterable[int] = _TABLES) -> None:
        """Reads the kernel's tables of TCP and UDP, both families: some 3 µs for each socket."""
        self._connected: dict[Endpoint, int] = {}
        self._bound: dict[tuple[int, str, int], Found] = {}
        for protocol in protocols:
            for name in _TABLES[protocol]:
                self._read(protocol, f"{PROC}/{pid}/net/{name}")

    def _read(self, protocol: int, path: str) -> None:
        try:
            with open(path) as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            return  # a kernel without IPv6, or the process has ended
        for line in lines:
            _, local, remote, state, *rest = line.split(maxsplit=10)
            (local_address, local_port), (remote_address, remote_port) = _end(local), _end(remote)
            inode, listening = int(rest[5]), protocol == socket.IPPROTO_TCP and int(state, 16) == LISTEN
            if not inode:
                continue  # a connection that is being taken down has no socket any more
            if remote_port == 0 or listening:
                self._bound.setdefault((protocol, local_address, local_port), Found(inode, listening, connected=False))
            else:
                self._connected[Endpoint(protocol, local_address, local_port, remote_address, remote_port)] = inode

    def find(self, endpoint: Endpoint) -> Found | None:
        """The connected socket, else the one that is bound to the address, else to the port alone."""
        if inode := self._connected.get(endpoint):
            return Found(inode)
        six = ":" in endpoint.local
        for address in (endpoint.local, _ANY[six], _ANY[True]):  # a socket on :: takes IPv4 too, unless set not to
            if bound := self._bound.get((endpoint.protocol, address, endpoint.local_port)):
                return bound
        return None


def _end(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    # /proc writes addresses as 32-bit words in the machine's order.
    raw = b"".join(int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(address), 8))
    return address_text(raw), int(port, 16)


class SocketOwners:
    """Socket inode → pid, remembered. Processes are searched only when an inode is unknown, within a limit of time."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}
        self._limiter = TimeLimiter(share=0.01, burst_ns=500_000_000)

    def find(self, inodes: set[int], likely: Iterable[int] = ()) -> dict[int, int]:
        """The pids that hold these sockets, of those that can be found. likely: processes to look at first."""
        missing = inodes - self._owner.keys()
        if missing:
            self._look_at(likely, missing)
        if missing and self._limiter.allows():
            with self._limiter:
                self._search(missing)
        return {inode: self._owner[inode] for inode in inodes & self._owner.keys()}

    def _look_at(self, processes: Iterable[int], missing: set[int]) -> None:
        """Takes from `missing` what these processes hold."""
        for pid in processes:
            for inode in socket_inodes(pid):
                self._owner[inode] = pid
                missing.discard(inode)
            if not missing:
                return

    def _search(self, missing: set[int]) -> None:
        """Looks through all descriptors; previous owners of sockets come first, as they are likely to own new ones."""
        before, self._owner = self._owner, {}
        holders = set(before.values())
        self._look_at(sorted(pids(), key=lambda pid: pid not in holders), missing)
        if missing:
            return  # everything has been seen: what was remembered and is not there any more is forgotten
        self._owner = before | self._owner


def socket_inodes(pid: int) -> Iterator[int]:
    """Inodes of the sockets that a process holds; nothing where it is gone or not ours to read."""
    directory = f"{PROC}/{pid}/fd"
    try:
        descriptors = os.listdir(directory)
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{directory}/{descriptor}")
        except OSError:
            continue
        if target.startswith(_SOCKET):
            yield int(target[len(_SOCKET) : -1])


# --- owner search


_REMEMBERED = 4096  # processes, ports


class Answer(NamedTuple):
    """An owner. source: as records.Owner says."""

    process: Process
    source: str


class OwnerSearch:
    """All sources of a socket's owner, queried in the order of their cost."""

    def __init__(self, processes: ProcessTable, socket_watch: SocketEvents | None) -> None:
        """socket_watch: None where the kernel does not report new connections."""
        self._processes, self._socket_events = processes, socket_watch
        self._diagnosis: DiagnosisSocket | None = None
        with contextlib.suppress(OSError):
            self._diagnosis = DiagnosisSocket()
        self._namespaces = Namespaces()
        self._translations = Translations()
        self._groups = ControlGroups()
        self._holders = SocketOwners()
        self._seen: dict[int, Process] = {}  # processes that created sockets, as they were then
        self._of_port: dict[tuple[int, int], int] = {}  # (protocol, local port) → pid that had a socket there
        self._tables: dict[str, SocketTable] = {}
        self._table_limiter = TimeLimiter(share=0.01, burst_ns=500_000_000)

    def take_socket_events(self) -> None:
        """Looks at the processes that have just connected or closed, while they are there."""
        socket_watch = self._socket_events.take() if self._socket_events else []
        for pid, socket_event in {socket_event.pid: socket_event for socket_event in socket_watch}.items():
            process = self._processes.current(pid) or self._seen.get(pid)
            if process is None:  # shorter than our way here: what the kernel said of it is what is known
                container = self._groups.container(socket_event.cgroup)
                process = Process(pid, -1, socket_event.process, container, None, socket_event.uid)
            _remember(self._seen, pid, process)

    def find(self, endpoints: Sequence[Endpoint]) -> list[Answer | None]:
        """The owner of each endpoint, None where none was found. Blocks for as long as /proc takes."""
        self.take_socket_events()
        found: list[Found | SocketEvent | None] = [self._socket_event(endpoint) for endpoint in endpoints]
        self._query(endpoints, found)
        self._tables = {}
        for number, endpoint in enumerate(endpoints):
            found[number] = found[number] or self._elsewhere(endpoint)
        pids = self._pids(endpoints, found)
        return [self._answer(e, f, pids) for e, f in zip(endpoints, found, strict=True)]

    def _socket_event(self, endpoint: Endpoint) -> SocketEvent | None:
        return self._socket_events.find(endpoint) if self._socket_events else None

    def _query(self, endpoints: Sequence[Endpoint], found: list[Found | SocketEvent | None]) -> None:
        """Fills in the sockets of our own namespace; whoever listens, where the connection's own has no process."""
        for question in (lambda e: e, Endpoint.listening):
            open_ = [n for n, f in enumerate(found) if f is None]
            if not open_ or not self._diagnosis:
                return
            answers = find_sockets(self._diagnosis, [question(endpoints[n]) for n in open_])
            for number, answer in zip(open_, answers, strict=True):
                if answer and answer.inode and (answer.connected or self._ours(endpoints[number])):
                    found[number] = answer

    def _ours(self, endpoint: Endpoint) -> bool:
        """Whether a socket that is bound to a port here can be meant: traffic of containers only passes by."""
        return self._namespaces.is_own(endpoint.local)

    def _elsewhere(self, endpoint: Endpoint) -> Found | SocketEvent | None:
        """In a container that has one of the addresses (on its own link both ends are local), or behind a NAT."""
        found: Found | SocketEvent | None = self._contained(endpoint)
        if not found and self._namespaces.machine_wide:
            found = self._socket_event(endpoint.reversed()) or self._contained(endpoint.reversed())
        if found or not self._ours(endpoint):
            return found
        inside = self._translations.inside(endpoint) if self._namespaces.machine_wide else None
        if inside:
            return self._socket_event(inside) or self._contained(inside)
        return self._listed("self", endpoint)

    def _contained(self, endpoint: Endpoint) -> Found | None:
        for namespace in self._namespaces.others_with(endpoint.local):
            if found := self._listed(str(namespace.pid), endpoint):
                return found
        return None

    def _listed(self, pid: str, endpoint: Endpoint) -> Found | None:
        """In the tables of that process's namespace, read once for all endpoints of a request."""
        if pid not in self._tables:
            if not self._table_limiter.allows():
                return None
            with self._table_limiter:
                self._tables[pid] = SocketTable(pid)
        return self._tables[pid].find(endpoint)

    def _pids(self, endpoints: Sequence[Endpoint], found: Sequence[Found | SocketEvent | None]) -> dict[int, int]:
        sockets = [(e, f.inode) for e, f in zip(endpoints, found, strict=True) if isinstance(f, Found)]
        ports = {(e.protocol, e.local_port) for e, _ in sockets}
        likely = {self._of_port[port] for port in ports if port in self._of_port}
        pids = self._holders.find({inode for _, inode in sockets}, likely)
        for endpoint, inode in sockets:
            if inode in pids:
                _remember(self._of_port, (endpoint.protocol, endpoint.local_port), pids[inode])
        return pids

    def _answer(self, endpoint: Endpoint, found: Found | SocketEvent | None, pids: dict[int, int]) -> Answer | None:
        if isinstance(found, SocketEvent):
            seen = self._seen.get(found.pid)
            now = self._processes.get(found.pid)
            # The number may have been given to another process since.
            process = now if now and (not seen or seen.start_ticks == now.start_ticks) else seen
            return Answer(process, found.source) if process else None
        process = self._processes.get(pids[found.inode]) if found and found.inode in pids else None
        return Answer(process, "listener" if found and found.listening else "socket") if process else None


def _remember(memory: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    """Puts it last, and lets go of the oldest."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]
