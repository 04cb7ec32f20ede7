# SPDX-License-Identifier: Apache-2.0
"""Ring all-reduce over TCP: the algorithm that Horovod, NCCL and gloo use between hosts, with nothing around it."""

import socket
from collections.abc import Sequence

import numpy as np

from netmon.lab.trainers.mesh import PATIENCE_SECONDS, PORT, Floats, connect, listening_ports, transfer


class Ring:
    """One rank's two connections: it sends to rank+1 and receives from rank−1, at the same time."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        """Connect to both neighbours; blocks until they are there. Raises LabError after 30 s.

        All ranks listen on `port` of their own address, or on port+rank where the addresses are alike.
        """
        self.rank = rank
        self.size = len(addresses)
        ports = listening_ports(addresses, port)
        following = (rank + 1) % self.size
        with socket.create_server((addresses[rank], ports[rank])) as server:
            self._to = connect(addresses[following], ports[following])
            server.settimeout(PATIENCE_SECONDS)
            self._from, _ = server.accept()
        self._to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._to.setblocking(False)
        self._from.setblocking(False)

    def all_reduce(self, block: Floats) -> None:
        """Sum `block`, shape (n,), n a multiple of the ring's size, over all ranks, in place; blocks.

        Reduce-scatter, then all-gather: each rank sends 2·(N−1)/N·n·4 payload bytes (the thesis, equation 3.1;
        Patarasuk and Yuan, 2009).
        """
        chunks = block.reshape(self.size, -1)
        received = np.empty_like(chunks[0])
        for step in range(self.size - 1):
            self._exchange(chunks[(self.rank - step) % self.size], received)
            chunks[(self.rank - step - 1) % self.size] += received
        for step in range(self.size - 1):
            ours, theirs = (self.rank + 1 - step) % self.size, (self.rank - step) % self.size
            self._exchange(chunks[ours], chunks[theirs])

    def close(self) -> None:
        """End both connections."""
        self._to.close()
        self._from.close()

    def _exchange(self, outgoing: Floats, incoming: Floats) -> None:
        sends, receives = {self._to: outgoing.view(np.uint8).data}, {self._from: incoming.view(np.uint8).data}
        transfer(f"rank {self.rank}", sends, receives)


def fused_ends(layers: Sequence[int], fusion_bytes: int, size: int) -> list[int]:
    """Where the fused blocks of a gradient buffer end, as multiples of the ring's size; the last is the buffer's.

    Layers are reduced last to first, as the backward pass makes them, and gathered into a block until it holds
    `fusion_bytes`, like Horovod's fusion buffer. A boundary is moved up to the next multiple of `size`.
    """
    boundaries: list[int] = []
    position = start = 0
    for layer in reversed(layers):
        position += layer
        if 4 * (position - start) >= fusion_bytes:
            boundaries.append(position)
            start = position
    return sorted({-(-boundary // size) * size for boundary in (*boundaries, position)})
