# SPDX-License-Identifier: Apache-2.0
"""The network namespaces of this host: which there are, and which addresses each of them has.

Nothing enters a namespace: /proc/PID/net shows that of any process in it, and needs no privilege.
"""

import ctypes
import ipaddress
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np

from netmon.kernel.processes import PROC, machine_wide, namespace_of, pids
from netmon.kernel.sock_diag import TCP_INFO, Endpoint, TcpInfo, address_text
from netmon.records import Table, empty

_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 (?:host LOCAL|link BROADCAST)")
_LOOK_NS = 2_000_000_000  # for namespaces that have come and gone
_ADDRESSES_NS = 5_000_000_000  # for addresses that a namespace has been given meanwhile


@dataclass
class Namespace:
    """A network namespace by its inode, and a process in it."""

    inode: int
    pid: int
    addresses: frozenset[str] = frozenset()
    addresses_ns: int = field(default=-_ADDRESSES_NS, repr=False)


class Namespaces:
    """Those whose traffic passes the interfaces that the caller watches: see `processes.machine_wide`."""

    def __init__(self) -> None:
        self.own = namespace_of("self")
        self.machine_wide = machine_wide()
        self._self = Namespace(self.own, os.getpid())
        self._others: dict[int, Namespace] = {}
        self._looked_ns = -_LOOK_NS

    def is_own(self, address: str) -> bool:
        """Whether what is sent to the address is for the caller's namespace."""
        return address in _addresses(self._self, time.monotonic_ns()) or _is_shared(address)

    def others_with(self, address: str) -> list[Namespace]:
        """Namespaces other than the caller's that have the address."""
        if not self.machine_wide:
            return []
        now = time.monotonic_ns()
        if now - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now
            self._look()
        return [namespace for namespace in self._others.values() if address in _addresses(namespace, now)]

    def _look(self) -> None:
        """One process of each is enough."""
        found: dict[int, Namespace] = {}
        for pid in pids():
            inode = namespace_of(str(pid))
            if inode and inode != self.own and inode not in found:
                known = self._others.get(inode)
                found[inode] = known if known and namespace_of(str(known.pid)) == inode else Namespace(inode, pid)
        self._others = found


@lru_cache(maxsize=4096)
def _is_shared(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return ip.is_multicast or ip.is_loopback or address == "255.255.255.255"


def _addresses(namespace: Namespace, now_ns: int) -> frozenset[str]:
    if now_ns - namespace.addresses_ns >= _ADDRESSES_NS:
        namespace.addresses_ns = now_ns
        namespace.addresses = frozenset(_read_addresses(namespace.pid))
    return namespace.addresses


def _read_addresses(pid: int) -> Iterator[str]:
    directory = PROC / str(pid) / "net"
    try:
        yield from (found for found in _LOCAL.findall((directory / "fib_trie").read_text()) if found[:4] != "127.")
        for line in (directory / "if_inet6").read_text().splitlines():
            text = address_text(bytes.fromhex(line.split()[0]))
            if text != "::1":
                yield text
    except OSError:
        return  # it has ended, or the kernel has no IPv6


# --- What TCP says of connections of other network namespaces, of containers whose traffic passes the interfaces here.
#
# Entering one takes CAP_SYS_ADMIN. A thread does it, asks, and ends: nothing keeps the namespace alive.

_CLONE_NEWNET = 0x40000000
_MOST_NAMESPACES = 64  # that are entered for one question


class TcpElsewhere:
    """Asks in the namespaces that have an endpoint's address, but not in the caller's own."""

    def __init__(self, namespaces: Namespaces) -> None:
        """namespaces: of this host."""
        self._namespaces = namespaces
        self.able = namespaces.machine_wide
        """Whether there is any sense in asking."""

    def query(self, endpoints: Sequence[Endpoint]) -> Table:
        """As TcpInfo.look. Blocks for as long as it takes, some 0.2 ms a namespace."""
        wanted: dict[int, tuple[Namespace, list[int]]] = {}
        for number, endpoint in enumerate(endpoints):
            for namespace in self._namespaces.others_with(endpoint.local):
                wanted.setdefault(namespace.inode, (namespace, []))[1].append(number)
        found = [empty(TCP_INFO)]
        for namespace, numbers in list(wanted.values())[:_MOST_NAMESPACES]:
            if not self.able:
                break
            rows = self._look_in(namespace, [endpoints[number] for number in numbers])
            rows["number"] = np.array(numbers, np.int32)[rows["number"]]
            found.append(rows)
        return np.concatenate(found).astype(TCP_INFO)  # which it packs otherwise

    def _look_in(self, namespace: Namespace, endpoints: Sequence[Endpoint]) -> Table:
        def look() -> Table:
            tcp = TcpInfo()
            try:
                return tcp.query(endpoints).copy()
            finally:
                tcp.close()

        found: Table | None = None
        try:
            found = inside(namespace, look)
        except PermissionError:
            self.able = False
        except OSError:  # it is gone, or does not answer
            pass
        return empty(TCP_INFO) if found is None else found


_T = TypeVar("_T")


def inside(namespace: Namespace, work: Callable[[], _T]) -> _T | None:
    """What it returns, called by a thread in that namespace; None where the process in it has gone elsewhere.

    Raises OSError.
    """
    found: list[_T] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            if _enter(namespace):
                found.append(work())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0] if found else None


def _enter(namespace: Namespace) -> bool:
    """The calling thread enters it; false where the process in it has gone elsewhere. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(PROC / str(namespace.pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_ino != namespace.inode:
            return False
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return True
    finally:
        os.close(descriptor)
