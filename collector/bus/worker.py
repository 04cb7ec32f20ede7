# SPDX-License-Identifier: Apache-2.0
"""One of multiple workers: its connection to the bus, its hosts there, and its part in who has which."""

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from collector.bus.intake import BusIntake
from collector.bus.membership import (
    TTL_S,
    WORKERS,
    Bucket,
    Cluster,
    HostTies,
    LastingTies,
    Membership,
    components,
    ties_of,
)
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from netmon.errors import DataError, NetmonError
from netmon.wire.bus import Bus, BusSettings, depth

_log = logging.getLogger(__name__)

# --- How hosts come to this worker and leave it. There is no leader: every worker looks, and does its own part of it.
#
# release store and acknowledge what can be, forget the host, then give up its key take get the key, raise the fence
# of the dataset, go on with what is stored, then consume
#
# A host whose worker is gone is taken as one that was released, only that nobody has forgotten it: should that worker
# still be there, its fence is down. What was not acknowledged comes again, and what is stored already is left out.

# --- Which worker should have which hosts. Every worker computes it for itself, and all come to the same answer.
#
# A component of hosts is with one worker as a whole, and stays where it is as long as that is fair: it moves when its
# worker is gone, when it has grown together with another worker's, or when one worker has much more to do than
# another.

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
            loads.assign(component, worker)
        else:
            free.append(component)
    for component in sorted(free, key=lambda component: (-len(component), min(component))):
        loads.assign(component, loads.least_with(component))
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

    def assign(self, component: frozenset[str], worker: str) -> None:
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
            difference = self._load(most) - self._load(least)
            if difference <= slack:
                return
            then = [
                (abs(self._load(most, -len(component)) - self._load(least, len(component))), min(component), component)
                for component, worker in self.placed.items()
                if worker == most
            ]
            best = min(then, default=None)
            if best is None or best[0] >= difference:
                return
            self.assign(best[2], least)

    def _load(self, worker: str, more: int = 0) -> float:
        return (self._hosts[worker] + more) / self._workers[worker]


def _lot(component: Collection[str], worker: str) -> bytes:
    """Rendezvous hashing: a worker that comes or goes changes nothing between the others."""
    return hashlib.blake2b(f"{min(component)}\0{worker}".encode(), digest_size=8).digest()


_LOOK_EVERY_S = 0.5
_PUBLISH_EVERY_S = 1.0
_LINGER_S = 600.0  # a host that has said its last word is shown for so long


class Handover:
    """One worker's part of it. Lives on one event loop."""

    def __init__(
        self,
        members: Membership,
        heart: "Heartbeat",
        intake: BusIntake,
        sink: ParquetSink,
        ties: Callable[[Collection[str]], dict[str, HostTies]],
    ) -> None:
        """ties: of the worker's own hosts, as they are now."""
        self._members, self._heart, self._intake, self._sink, self._ties = members, heart, intake, sink, ties
        self._lasting = LastingTies()
        self._over, self._running = asyncio.Event(), asyncio.Lock()
        self._begun_s = time.monotonic()
        self._alive: tuple[float, frozenset[str]] = (time.monotonic(), frozenset())  # these live since then
        self._gone: dict[str, float] = {}  # own hosts of which nothing comes any more: since when
        self._published_s = 0.0
        self._said = ""
        self._turning: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until it is closed; what goes wrong is said once, and tried again."""
        self._heart.begin()
        self._turning = asyncio.create_task(self._turn())
        async with self._running:
            while not self._over.is_set():
                try:
                    await self.step()
                    self._said = ""
                except NetmonError as error:
                    if str(error) != self._said:
                        _log.warning("%s", error)
                    self._said = str(error)
                    await self._intake.mend()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._over.wait(), _LOOK_EVERY_S)

    async def _turn(self) -> None:
        """Runs concurrently: storing what a released host has sent, or waiting for the bus, takes its time."""
        while True:
            self._heart.here()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def step(self) -> None:
        """Look, and do what is due. Raises NetmonError."""
        own = self._members.worker
        seen = await self._members.poll()
        owned = self._intake.taken_hosts()
        for host in [host for host in owned if seen.owners.get(host, own) != own]:
            _log.warning("%s has been taken over by %s", host, seen.owners[host])
            await self._intake.lose(host)
        # A bus that has come back empty knows no owners: what was taken in is still ours to store.
        await self._raise_fence([host for host in owned if host not in seen.owners])
        owned = self._intake.taken_hosts()
        await self._publish(owned, seen)
        hosts = await self._intake.hosts()
        await self._let_go_of_gone(owned, hosts)
        owned = self._intake.taken_hosts()
        together = components(hosts | seen.owners.keys(), seen.ties)  # not what only this worker knows
        wanted = assign(together, seen.workers, seen.owners)
        if self._settled(seen):
            await self._release([host for host in owned if wanted.get(host, own) != own])
            # Of a worker of this name that was killed: who is to have them waits until they are free.
            for host in seen.owners.keys() - owned:
                if seen.owners[host] == own != wanted.get(host, own):
                    await self._members.give_up(host)
        await self._take([part for part in together if wanted and wanted[min(part)] == own], seen)

    async def close(self) -> None:
        """Finish what is being done, and give everything back, for others to take at once. Raises NetmonError."""
        self._over.set()
        async with self._running:
            try:
                await self._release(self._intake.taken_hosts())
            finally:
                if self._turning:
                    self._turning.cancel()
                await self._heart.end()
            await self._members.leave()

    def _settled(self, seen: Cluster) -> bool:
        """Whether the same workers have lived for a while: hosts do not move for one that comes and goes."""
        since, known = self._alive
        if known != seen.workers.keys():
            self._alive = since, known = time.monotonic(), frozenset(seen.workers)
        return time.monotonic() - since > self._members.ttl_s / 2

    async def _publish(self, owned: Collection[str], seen: Cluster) -> None:
        if time.monotonic() - self._published_s > _PUBLISH_EVERY_S:
            await self._members.publish_ties(self._lasting.lasting(self._ties(owned), seen.ties))
            self._published_s = time.monotonic()

    async def _let_go_of_gone(self, owned: Iterable[str], hosts: Collection[str]) -> None:
        now = time.monotonic()
        self._gone = {host: self._gone.get(host, now) for host in owned if host not in hosts}
        for host in [host for host, since in self._gone.items() if now - since > _LINGER_S]:
            await self._intake.release(host)
            await self._members.forget(host)

    async def _release(self, hosts: Collection[str]) -> None:
        if not hosts:
            return
        await self._intake.release(*hosts)
        await asyncio.to_thread(self._sink.settle_changes)
        for host in hosts:  # all are free by now: who takes them takes them together
            await self._members.give_up(host)
        _log.info("released %s", _names(hosts))

    async def _take(self, parts: Iterable[Collection[str]], seen: Cluster) -> None:
        """Whole components, as soon as none of their hosts is another living worker's."""
        own, owned = self._members.worker, self._intake.taken_hosts()
        if time.monotonic() - self._begun_s < self._members.ttl_s / 4:  # who begins with us is to have a share
            return
        wanted: list[str] = []
        for part in parts:
            missing = [host for host in part if host not in owned]
            if all(seen.owners.get(host, own) == own or seen.owners[host] not in seen.workers for host in missing):
                wanted += missing
        taken = await self._raise_fence(wanted)
        for host in taken:
            await self._intake.take(host)
        if taken:
            _log.info("took %s", _names(taken))

    async def _raise_fence(self, hosts: Iterable[str]) -> list[str]:
        """Become the owner of these hosts, on the bus and in the dataset; returns those of which that is true now."""
        epochs = {host: await self._members.claim(host) for host in hosts}
        epochs = {host: epoch for host, epoch in epochs.items() if epoch}
        later = await asyncio.to_thread(self._sink.take, epochs) if epochs else ()
        if later:
            raise DataError(f"cannot take {_names(later)}: the dataset knows of a later owner than the bus")
        return list(epochs)


def _names(hosts: Collection[str]) -> str:
    first = sorted(hosts)[:5]
    return ", ".join(first) + (f" and {len(hosts) - 5} more" if len(hosts) > 5 else "")


# --- A worker says that it lives, from a thread of its own and over a connection of its own.
#
# A worker that catches up after an outage uses all the CPU that it has, and what the bus answers it waits behind
# megabytes of batches. Were its beats to wait there too, others would take it for gone, take its hosts, and have the
# more to catch up with.

STUCK_S = 30.0
"""A worker whose event loop has not turned for so long does nothing any more: it says no longer that it lives."""

_END_S = 2.0


class Heartbeat:
    """One worker's, between `begin` and `end`. Whether the bus answers, whoever reads or writes there says."""

    def __init__(
        self, settings: BusSettings, worker: str, weight: float = 1.0, ttl_s: float = TTL_S, stuck_s: float = STUCK_S
    ) -> None:
        """worker: its name. weight: what it can carry in relation to the others."""
        self._settings, self._worker, self._weight = settings, worker, weight
        self._ttl_s, self._stuck_s = ttl_s, stuck_s
        self._here_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beat()), name="heartbeat", daemon=True)

    def begin(self) -> None:
        """Say so from now on."""
        self.here()
        self._thread.start()

    def here(self) -> None:
        """The event loop turns; to be called from it every few seconds."""
        self._here_s = time.monotonic()

    async def end(self) -> None:
        """Nothing is said after it, unless the bus did not answer for seconds."""
        self._over.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _END_S)

    async def _beat(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(NetmonError):  # the next connection may do better
                await self._beat_over(await Bus.connect(self._settings, f"netmon worker {self._worker}, heartbeat"))
            await self._pause()

    async def _beat_over(self, bus: Bus) -> None:
        """Until it is over, or the bus does not answer: raises BusError."""
        workers = Bucket(bus, WORKERS, self._ttl_s)
        try:
            while not self._over.is_set():
                if time.monotonic() - self._here_s < self._stuck_s:
                    await workers.put(self._worker, str(self._weight).encode())
                await self._pause()
        finally:
            await bus.close()

    async def _pause(self) -> None:
        await asyncio.to_thread(self._over.wait, self._ttl_s / 4)


_CLOSE_S = 2.0


@dataclass(frozen=True)
class WorkerSettings:
    """name: one of a kind on the bus. weight: what it can carry in relation to the others. ttl_s: see Membership."""

    bus: BusSettings
    name: str
    weight: float = 1.0
    ttl_s: float = TTL_S


class ClusterWorker:
    """Between `begin` and `close`; lives on one event loop."""

    def __init__(self, settings: WorkerSettings, registry: Registry, sink: ParquetSink, bus: Bus) -> None:
        """`begin` makes one."""
        self._bus = bus
        members = Membership(bus, settings.name, settings.ttl_s)
        heart = Heartbeat(settings.bus, settings.name, settings.weight, settings.ttl_s)
        self.intake = BusIntake(bus, registry, settings.name, members.may_have)
        self._handover = Handover(members, heart, self.intake, sink, lambda hosts: ties_of(registry.sessions(), hosts))

    @classmethod
    async def begin(cls, settings: WorkerSettings, registry: Registry, sink: ParquetSink) -> "ClusterWorker":
        """Connect. Raises BusError."""
        bus = await Bus.connect(settings.bus, f"netmon worker {settings.name}", lasting=True)
        worker = cls(settings, registry, sink, bus)
        try:
            await worker.intake.start()
        except BaseException:
            await bus.close()
            raise
        _log.info("taking in from the bus at %s as %s", settings.bus.name, settings.name)
        return worker

    async def run(self) -> None:
        """Take and release hosts, until it leaves."""
        await self._handover.run()

    async def depth(self) -> tuple[int, int]:
        """Batches that wait on the bus, and their bytes. Raises BusError."""
        return await depth(self._bus)

    async def leave(self) -> None:
        """Give all hosts to the others; what cannot be said to the bus they find out."""
        try:
            await self._handover.close()
        except NetmonError as error:
            _log.warning("%s", error)

    async def close(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.intake.close(), _CLOSE_S)
        await self._bus.close()
