# SPDX-License-Identifier: Apache-2.0
"""The network namespaces of this host: which there are, and which addresses each of them has.

Nothing enters a namespace: /proc/PID/net shows that of any process in it, and needs no privilege.
"""

import ipaddress
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from netmon.kernel.owners.endpoint import address_text
from netmon.kernel.processes import PROC, machine_wide, namespace_of, pids

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
    """Those that others can reach it by."""
    directory = PROC / str(pid) / "net"
    try:
        yield from (found for found in _LOCAL.findall((directory / "fib_trie").read_text()) if found[:4] != "127.")
        for line in (directory / "if_inet6").read_text().splitlines():
            text = address_text(bytes.fromhex(line.split()[0]))
            if text != "::1":
                yield text
    except OSError:
        return  # it has ended, or the kernel has no IPv6
