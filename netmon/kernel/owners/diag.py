# SPDX-License-Identifier: Apache-2.0
"""The sockets of the caller's network namespace, one by one, as the kernel itself would find them."""

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from netmon.kernel.owners.endpoint import Endpoint
from netmon.kernel.sock_diag import LISTEN, DiagnosisSocket

_ANSWER = struct.Struct("=BBBB2s2s16s16sIIIIIIII")  # struct inet_diag_msg


class Found(NamedTuple):
    """A socket. inode 0: no process has it (any more, or not yet)."""

    inode: int
    listening: bool = False
    connected: bool = True


class SocketDiagnosis:
    """Asks the kernel: see DiagnosisSocket."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no sock_diag."""
        self._kernel = DiagnosisSocket()

    def find(self, endpoints: Sequence[Endpoint]) -> list[Found | None]:
        """The socket of each endpoint, None where there is none."""
        found: list[Found | None] = [None] * len(endpoints)
        for number, body in self._kernel.query(endpoints):
            found[number] = _found(endpoints[number], body)
        return found

    def close(self) -> None:
        """Not to be used any more."""
        self._kernel.close()


def _found(endpoint: Endpoint, body: bytes) -> Found | None:
    _, state, _, _, port, remote_port, *_, inode = _ANSWER.unpack_from(body)
    if int.from_bytes(port, "big") != endpoint.local_port:
        return None
    listening = endpoint.protocol == socket.IPPROTO_TCP and state == LISTEN
    return Found(inode, listening, connected=any(remote_port) and not listening)
