# SPDX-License-Identifier: Apache-2.0
"""What TCP says of connections of other network namespaces: of containers whose traffic passes the host's interfaces.

Entering one takes CAP_SYS_ADMIN. A thread does it, asks, and ends: nothing keeps the namespace alive.
"""

import ctypes
import os
import threading
from collections.abc import Sequence

import numpy as np

from netmon.kernel.owners.endpoint import Endpoint
from netmon.kernel.owners.namespaces import Namespace, Namespaces
from netmon.kernel.processes import PROC
from netmon.kernel.tcp_info import TCP_INFO, TcpInfo
from netmon.records import Table, empty

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
        found: list[Table] = []

        def work() -> None:
            try:
                if _enter(namespace):
                    tcp = TcpInfo()
                    try:
                        found.append(tcp.query(endpoints).copy())
                    finally:
                        tcp.close()
            except PermissionError:
                self.able = False
            except OSError:  # it is gone, or does not answer
                return

        thread = threading.Thread(target=work, name="namespace")
        thread.start()
        thread.join()
        return found[0] if found else empty(TCP_INFO)


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
