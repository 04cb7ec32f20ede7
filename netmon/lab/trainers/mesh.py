# SPDX-License-Identifier: Apache-2.0
"""TCP connections between a rank and its peers, and exchanges over them."""

import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.errors import LabError

PORT = 29500
PATIENCE_SECONDS = 30.0

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float32] | npt.NDArray[np.uint8]


class Mesh:
    """One rank's connection to each of its peers; every pair of ranks shares one."""

    def __init__(self, rank: int, addresses: Sequence[str], peers: Iterable[int], port: int = PORT) -> None:
        """Connect to lower peers, accept higher ones; blocks until all are there. Raises LabError after 30 s.

        All ranks listen on `port` of their own address, or on port+rank where the addresses are alike.
        """
        self.rank = rank
        ports = listening_ports(addresses, port)
        self._of: dict[int, socket.socket] = {}
        lower = sorted(peer for peer in peers if peer < rank)
        higher = sum(peer > rank for peer in peers)
        with socket.create_server((addresses[rank], ports[rank])) as server:
            server.settimeout(PATIENCE_SECONDS)
            for peer in lower:
                self._of[peer] = connect(addresses[peer], ports[peer])
                self._of[peer].sendall(rank.to_bytes(4, "big"))
            for _ in range(higher):
                connection, _ = server.accept()
                self._of[int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")] = connection
        for connection in self._of.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def exchange(self, sends: Mapping[int, Numbers], receives: Mapping[int, Numbers]) -> None:
        """Send to some peers and receive from some, all at once; blocks until everything is done. Raises LabError."""
        outgoing = {self._of[peer]: array.view(np.uint8).data for peer, array in sends.items()}
        incoming = {self._of[peer]: array.view(np.uint8).data for peer, array in receives.items()}
        transfer(f"rank {self.rank}", outgoing, incoming)

    def close(self) -> None:
        """End all connections."""
        for connection in self._of.values():
            connection.close()


def transfer(who: str, outgoing: dict[socket.socket, memoryview], incoming: dict[socket.socket, memoryview]) -> None:
    """Send and receive over non-blocking sockets until all buffers are through; empties both. Raises LabError."""
    outgoing, incoming = ({s: left for s, left in each.items() if left} for each in (outgoing, incoming))
    while outgoing or incoming:
        readable, writable, _ = select.select(list(incoming), list(outgoing), [], PATIENCE_SECONDS)
        for connection in readable:
            count = connection.recv_into(incoming[connection])
            if not count:
                raise LabError(f"{who} cannot go on: a rank has closed its connection")
            _advance(incoming, connection, count)
        for connection in writable:
            _advance(outgoing, connection, connection.send(outgoing[connection]))
        if not readable and not writable:
            raise LabError(f"{who} cannot go on: its neighbours are silent for {PATIENCE_SECONDS:g} s")


def listening_ports(addresses: Sequence[str], port: int) -> list[int]:
    """Each rank's port: one for all, or one each where the addresses are alike."""
    alike = len(set(addresses)) < len(addresses)
    return [port + rank if alike else port for rank in range(len(addresses))]


def connect(address: str, port: int) -> socket.socket:
    """A connection to a rank that may not listen yet; blocks. Raises LabError after 30 s."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=PATIENCE_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise LabError(f"cannot reach the rank at {address}:{port}: {error}") from None
            time.sleep(0.02)


def _advance(left: dict[socket.socket, memoryview], connection: socket.socket, count: int) -> None:
    left[connection] = left[connection][count:]
    if not left[connection]:
        del left[connection]
