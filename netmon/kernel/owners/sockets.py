# SPDX-License-Identifier: Apache-2.0
"""Sockets as /proc shows them: those of another network namespace, and which process holds which."""

import os
import socket
from collections.abc import Iterable, Iterator

from netmon.kernel.owners.diag import Found
from netmon.kernel.owners.endpoint import Endpoint, address_text
from netmon.kernel.processes import PROC, pids
from netmon.kernel.sock_diag import LISTEN
from netmon.rate_limiter import TimeLimiter

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
        for address in (endpoint.local, _ANY[six], _ANY[True]):  # a socket on :: takes IPv4 too, unless told not to
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
        """Nothing is remembered."""
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
        """Looks through all descriptors; those who held sockets before come first, as they will again."""
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
