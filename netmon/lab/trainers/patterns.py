# SPDX-License-Identifier: Apache-2.0
"""The same all-reduce in other communication patterns: parameter server, tree, clique, hierarchical.

Each is as simple as its pattern allows: what matters here is who sends how much to whom, and when.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from netmon.lab.trainers.allreduce import Ring
from netmon.lab.trainers.mesh import PORT, Floats, Mesh

GROUP = 2  # ranks per group of the hierarchical pattern, as if they shared a server


class Collective(Protocol):
    """One rank's part in an all-reduce."""

    rank: int
    size: int

    def all_reduce(self, block: Floats) -> None:
        """Sum `block`, shape (n,), n a multiple of size, over all ranks, in place; blocks. Raises LabError."""

    def close(self) -> None:
        """End all connections."""


class Star:
    """Rank 0 is the parameter server: it receives every gradient, sums, and sends the sum to each."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        """Connect; blocks. Raises LabError."""
        self.rank, self.size = rank, len(addresses)
        self._workers = list(range(1, self.size)) if rank == 0 else []
        self._mesh = Mesh(rank, addresses, self._workers or [0], port)

    def all_reduce(self, block: Floats) -> None:
        """As in Collective. A worker sends n·4 payload bytes, the server (N−1)·n·4."""
        _reduce(self._mesh, block, self._workers, None if self.rank == 0 else 0)

    def close(self) -> None:
        """End all connections."""
        self._mesh.close()


class Tree:
    """Sums rise in a binary tree to rank 0, the result falls: children of rank k are 2k+1 and 2k+2."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        """Connect; blocks. Raises LabError."""
        self.rank, self.size = rank, len(addresses)
        self._children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < self.size]
        self._parent = (rank - 1) // 2 if rank else None
        peers = [*self._children, *([] if self._parent is None else [self._parent])]
        self._mesh = Mesh(rank, addresses, peers, port)

    def all_reduce(self, block: Floats) -> None:
        """As in Collective. A rank sends n·4 payload bytes per edge that it has."""
        _reduce(self._mesh, block, self._children, self._parent)

    def close(self) -> None:
        """End all connections."""
        self._mesh.close()


class Clique:
    """Everyone with everyone: each rank sums one shard, then sends it to all."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        """Connect; blocks. Raises LabError."""
        self.rank, self.size = rank, len(addresses)
        self._peers = [peer for peer in range(self.size) if peer != rank]
        self._mesh = Mesh(rank, addresses, self._peers, port)

    def all_reduce(self, block: Floats) -> None:
        """As in Collective. A rank sends 2·(N−1)/N·n·4 payload bytes, as in a ring, but to all at once."""
        shards = block.reshape(self.size, -1)
        received = {peer: np.empty_like(shards[0]) for peer in self._peers}
        self._mesh.exchange({peer: shards[peer] for peer in self._peers}, received)
        for shard in received.values():
            shards[self.rank] += shard
        ours = dict.fromkeys(self._peers, shards[self.rank])
        self._mesh.exchange(ours, {peer: shards[peer] for peer in self._peers})

    def close(self) -> None:
        """End all connections."""
        self._mesh.close()


class Hierarchical:
    """Groups of two: the second rank of each sends to the first, the first ones form a ring."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int = PORT) -> None:
        """Connect; blocks. Raises LabError."""
        self.rank, self.size = rank, len(addresses)
        leader = rank - rank % GROUP
        self._leader = None if rank == leader else leader
        self._members = [member for member in range(leader + 1, min(leader + GROUP, self.size)) if rank == leader]
        self._mesh = Mesh(rank, addresses, self._members or ([leader] if rank != leader else []), port)
        leaders = list(addresses[::GROUP])
        ports = port + self.size  # of their ring
        self._ring = Ring(rank // GROUP, leaders, ports) if rank == leader and len(leaders) > 1 else None

    def all_reduce(self, block: Floats) -> None:
        """As in Collective. A member sends n·4 payload bytes, a leader that much and its part in the leaders' ring."""
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
        """End all connections."""
        self._mesh.close()
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


PATTERNS: dict[str, Callable[[int, Sequence[str], int], Collective]] = {
    "ring": Ring,
    "star": Star,
    "tree": Tree,
    "clique": Clique,
    "hierarchical": Hierarchical,
}
