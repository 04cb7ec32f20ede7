# SPDX-License-Identifier: Apache-2.0
"""All-reduces over TCP with nothing around them: in a ring, as Horovod, NCCL and gloo do it between hosts, and in other
communication patterns: parameter server, tree, clique, hierarchical.

Each is as simple as its pattern allows: what matters here is who sends how much to whom, and when.
"""

import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

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
        self._to.close()
        self._from.close()

    def _exchange(self, outgoing: Floats, incoming: Floats) -> None:
        sends, receives = {self._to: outgoing.view(np.uint8).data}, {self._from: incoming.view(np.uint8).data}
        transfer(f"rank {self.rank}", sends, receives)


def fused_ends(layers: Sequence[int], fusion_bytes: int, size: int) -> list[int]:
    """Where the fused blocks of a gradient buffer end, as multiples of the ring's size; the last is the buffer's.

    Layers are reduced last to first, as the backward pass makes them, and collected into a block until it has
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


GROUP = 2  # ranks per group of the hierarchical pattern, as if they shared a server


class MeshCollective:
    """One rank's part in an all-reduce over connections to some of the others."""

    def __init__(self, rank: int, addresses: Sequence[str], peers: Sequence[int], port: int) -> None:
        """peers: ranks that this one sends to or receives from. Blocks until all are there. Raises LabError."""
        self.rank, self.size = rank, len(addresses)
        self._mesh = Mesh(rank, addresses, peers, port)

    def all_reduce(self, block: Floats) -> None:
        """Sum `block`, shape (n,), n a multiple of size, over all ranks, in place; blocks. Raises LabError."""
        raise NotImplementedError

    def close(self) -> None:
        self._mesh.close()


class Star(MeshCollective):
    """Rank 0 is the parameter server: it receives every gradient, sums, and sends the sum to each."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        self._workers = list(range(1, len(addresses))) if rank == 0 else []
        super().__init__(rank, addresses, self._workers or [0], port)

    def all_reduce(self, block: Floats) -> None:
        """A worker sends n·4 payload bytes, the server (N−1)·n·4."""
        _reduce(self._mesh, block, self._workers, None if self.rank == 0 else 0)


class Tree(MeshCollective):
    """Sums rise in a binary tree to rank 0, the result falls: children of rank k are 2k+1 and 2k+2."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        self._children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < len(addresses)]
        self._parent = (rank - 1) // 2 if rank else None
        super().__init__(rank, addresses, [*self._children, *([] if self._parent is None else [self._parent])], port)

    def all_reduce(self, block: Floats) -> None:
        """A rank sends n·4 payload bytes per edge that it has."""
        _reduce(self._mesh, block, self._children, self._parent)


class Clique(MeshCollective):
    """Everyone with everyone: each rank sums one shard, then sends it to all."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        self._peers = [peer for peer in range(len(addresses)) if peer != rank]
        super().__init__(rank, addresses, self._peers, port)

    def all_reduce(self, block: Floats) -> None:
        """A rank sends 2·(N−1)/N·n·4 payload bytes, as in a ring, but to all at once."""
        shards = block.reshape(self.size, -1)
        received = {peer: np.empty_like(shards[0]) for peer in self._peers}
        self._mesh.exchange({peer: shards[peer] for peer in self._peers}, received)
        for shard in received.values():
            shards[self.rank] += shard
        ours = dict.fromkeys(self._peers, shards[self.rank])
        self._mesh.exchange(ours, {peer: shards[peer] for peer in self._peers})


class Hierarchical(MeshCollective):
    """Groups of two: the second rank of each sends to the first, the first ones form a ring."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        leader = rank - rank % GROUP
        self._leader = None if rank == leader else leader
        self._members = [member for member in range(leader + 1, min(leader + GROUP, len(addresses))) if rank == leader]
        super().__init__(rank, addresses, self._members or ([leader] if rank != leader else []), port)
        leaders = list(addresses[::GROUP])
        ports = port + self.size  # of their ring
        self._ring = Ring(rank // GROUP, leaders, ports) if rank == leader and len(leaders) > 1 else None

    def all_reduce(self, block: Floats) -> None:
        """A member sends n·4 payload bytes, a leader that much and its part in the leaders' ring."""
        if self._leader is not None:
            self._mesh.exchange({self._leader: block}, {})
            self._mesh.exchange({}, {self._leader: block})
            return
        _gather(self._mesh, block, self._members)
        if self._ring:
            padded = np.zeros(-(-len(block) // self._ring.size) * self._ring.size, np.float32)
            padded[: len(block)] = block
            self._ring.all_reduce(padded)
            block[:] = padded[: len(block)]
        self._mesh.exchange(dict.fromkeys(self._members, block), {})

    def close(self) -> None:
        super().close()
        if self._ring:
            self._ring.close()


def _reduce(mesh: Mesh, block: Floats, children: Sequence[int], parent: int | None) -> None:
    """Sum the children's blocks into ours, exchange it for the parent's total, and pass that on."""
    _gather(mesh, block, children)
    if parent is not None:
        mesh.exchange({parent: block}, {})
        mesh.exchange({}, {parent: block})
    mesh.exchange(dict.fromkeys(children, block), {})


def _gather(mesh: Mesh, block: Floats, peers: Sequence[int]) -> None:
    received = {peer: np.empty_like(block) for peer in peers}
    mesh.exchange({}, received)
    for values in received.values():
        block += values


Collective = Ring | MeshCollective
PATTERNS: dict[str, Callable[[int, Sequence[str], int], Collective]] = {
    "ring": Ring,
    "star": Star,
    "tree": Tree,
    "clique": Clique,
    "hierarchical": Hierarchical,
}
