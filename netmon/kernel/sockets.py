# SPDX-License-Identifier: Apache-2.0
"""Whose socket a flow belongs to: (local, remote) addresses → socket inode → process."""

import os
import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from netmon.kernel.processes import PROC, pids

_TABLES = {socket.IPPROTO_TCP: ("tcp", "tcp6"), socket.IPPROTO_UDP: ("udp", "udp6")}
_LISTEN = 0x0A
_SOCKET = "socket:["


class Endpoint(NamedTuple):
    """A flow as its local end sees it."""

    protocol: int
    local: str
    local_port: int
    remote: str
    remote_port: int


class Sockets:
    """The sockets of the caller's network namespace at one moment, by what they are connected to."""

    def __init__(self, protocols: Iterable[int] = _TABLES) -> None:
        """Reads the kernel's tables of TCP and UDP, both families."""
        self._connected: dict[Endpoint, int] = {}
        self._bound: dict[tuple[int, int], int] = {}
        for protocol in protocols:
            for name in _TABLES[protocol]:
                self._read(protocol, name)

    def _read(self, protocol: int, name: str) -> None:
        try:
            lines = (PROC / "self/net" / name).read_text().splitlines()[1:]
        except OSError:
            return  # a kernel without IPv6
        for line in lines:
            _, local, remote, state, *rest = line.split()
            inode = int(rest[5])
            if not inode:
                continue  # a connection that is being taken down has no socket any more
            (local_address, local_port), (remote_address, remote_port) = _end(local), _end(remote)
            if remote_port == 0 or int(state, 16) == _LISTEN:
                self._bound.setdefault((protocol, local_port), inode)
            else:
                self._connected[Endpoint(protocol, local_address, local_port, remote_address, remote_port)] = inode

    def find(self, endpoint: Endpoint) -> tuple[int, str]:
        """(inode, how it is known): the connected socket, else who listens on the local port; (0, "") for neither."""
        inode = self._connected.get(endpoint)
        if inode:
            return inode, "socket"
        inode = self._bound.get((endpoint.protocol, endpoint.local_port))
        return (inode, "listener") if inode else (0, "")


def _end(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    # /proc writes addresses as 32-bit words in the machine's order.
    packed = b"".join(int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(address), 8))
    if len(packed) == 16 and packed.startswith(bytes(10) + b"\xff\xff"):
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


class SocketOwners:
    """Socket inode → pid, remembered; processes are searched for only when an inode is unknown."""

    def __init__(self) -> None:
        """Nothing is remembered."""
        self._owner: dict[int, int] = {}

    def find(self, inodes: set[int]) -> dict[int, int]:
        """The pids that hold these sockets, of those that can be found."""
        if inodes - self._owner.keys():
            self._search(inodes)
        return {inode: self._owner[inode] for inode in inodes & self._owner.keys()}

    def _search(self, wanted: set[int]) -> None:
        """Looks through all descriptors; those who held sockets before come first, as they will again."""
        missing = set(wanted)
        seen: dict[int, int] = {}
        before = set(self._owner.values())
        for pid in sorted(pids(), key=lambda pid: pid not in before):
            for inode in socket_inodes(pid):
                seen.setdefault(inode, pid)
                missing.discard(inode)
            if not missing:
                break
        else:
            self._owner.clear()  # a full search: what it did not see is gone
        self._owner.update(seen)


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
