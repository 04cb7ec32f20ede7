# SPDX-License-Identifier: Apache-2.0
"""Which worker should have which hosts. Every worker computes it for itself, and all come to the same answer.

A component of hosts is with one worker as a whole, and stays where it is as long as that is fair: it moves when its
worker is gone, when it has grown together with another worker's, or when one worker has much more to do than another.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

SLACK = 0.125
"""A component moves for balance only if one worker has so much more than another, as a share of the mean."""


def assign(
    components: Iterable[Collection[str]], workers: Mapping[str, float], owners: Mapping[str, str]
) -> dict[str, str]:
    """The worker that should have each host; empty without workers.

    components: of hosts, disjoint. workers: those that live, with what each can carry in relation to the others (> 0).
    owners: who has a host now; a worker that does not live has none. What is assigned, once it holds, stays.
    """
    if not workers:
        return {}
    loads = _Loads(workers)
    free: list[frozenset[str]] = []
    for component in filter(None, map(frozenset, components)):
        worker = _majority(component, workers, owners)
        if worker:
            loads.place(component, worker)
        else:
            free.append(component)
    for component in sorted(free, key=lambda component: (-len(component), min(component))):
        loads.place(component, loads.least_with(component))
    loads.balance()
    return {host: worker for component, worker in loads.placed.items() for host in component}


def _majority(component: Iterable[str], workers: Mapping[str, float], owners: Mapping[str, str]) -> str:
    """The living worker that has most of it; empty: none has any."""
    counts = Counter(owners[host] for host in component if owners.get(host) in workers)
    return min(counts, key=lambda worker: (-counts[worker], worker), default="")


class _Loads:
    """Which component is where, and how many hosts each worker has in relation to what it can carry."""

    def __init__(self, workers: Mapping[str, float]) -> None:
        self.placed: dict[frozenset[str], str] = {}
        self._workers = workers
        self._hosts = dict.fromkeys(workers, 0)

    def place(self, component: frozenset[str], worker: str) -> None:
        """Put it there, from wherever it is."""
        if component in self.placed:
            self._hosts[self.placed[component]] -= len(component)
        self.placed[component] = worker
        self._hosts[worker] += len(component)

    def least_with(self, component: frozenset[str]) -> str:
        """The worker that has least once it has this, too; of equals, one that only the names decide."""
        return min(self._workers, key=lambda name: (self._load(name, len(component)), _lot(component, name)))

    def balance(self) -> None:
        """Move whole components from who has most to who has least, while that makes it fairer by more than the slack.

        Each move makes the sum of hosts × load smaller, so it ends.
        """
        slack = SLACK * sum(self._hosts.values()) / sum(self._workers.values())
        while True:
            most = max(self._workers, key=lambda name: (self._load(name), name))
            least = min(self._workers, key=lambda name: (self._load(name), name))
            apart = self._load(most) - self._load(least)
            if apart <= slack:
                return
            then = [
                (abs(self._load(most, -len(component)) - self._load(least, len(component))), min(component), component)
                for component, worker in self.placed.items()
                if worker == most
            ]
            best = min(then, default=None)
            if best is None or best[0] >= apart:
                return
            self.place(best[2], least)

    def _load(self, worker: str, more: int = 0) -> float:
        return (self._hosts[worker] + more) / self._workers[worker]


def _lot(component: Collection[str], worker: str) -> bytes:
    """Rendezvous hashing: a worker that comes or goes changes nothing between the others."""
    return hashlib.blake2b(f"{min(component)}\0{worker}".encode(), digest_size=8).digest()
