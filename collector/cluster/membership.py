# SPDX-License-Identifier: Apache-2.0
"""Who works, who has which host, and what ties hosts together: three buckets of the bus that all workers share.

netmon-workers   WORKER   its weight; gone a few seconds after the worker's last word
netmon-owners    HOST     the worker that has it; changed only by who knows the newest revision
netmon-ties      HOST     HostTies, as the worker sees them that has the host
"""

import time
from dataclasses import dataclass

from collector.cluster.bucket import Bucket, Value, epoch
from collector.cluster.components import HostTies
from netmon.errors import WireError
from netmon.wire.bus import Bus

WORKERS = "netmon-workers"

TTL_S = 6.0
"""A worker that has not been heard of for so long is not there any more."""


@dataclass(frozen=True)
class Cluster:
    """What one worker knows of all."""

    workers: dict[str, float]  # that live, with their weights
    owners: dict[str, str]  # by host
    ties: dict[str, HostTies]


class Membership:
    """One worker's. Methods raise BusError where the bus does not answer."""

    def __init__(self, bus: Bus, worker: str, ttl_s: float = TTL_S) -> None:
        """worker: its name, of which there is one."""
        self.worker, self.ttl_s = worker, ttl_s
        self._workers = Bucket(bus, WORKERS, ttl_s)
        self._owners = Bucket(bus, "netmon-owners")
        self._ties = Bucket(bus, "netmon-ties")
        self._known: dict[str, Value] = {}  # owners, as they were when they were last read
        self._seen: dict[str, tuple[float, float]] = {}  # workers: weight, and when they were last there
        self._published: dict[str, str] = {}  # ties

    async def poll(self) -> Cluster:
        """See how things are."""
        now = time.monotonic()
        for name, value in (await self._workers.read()).values.items():
            self._seen[name] = _weight(value.data), now
        # After an outage of the bus itself nobody is there until they have said so again.
        patience_s = self.ttl_s / 2
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen[1] <= patience_s}
        self._known = (await self._owners.read()).values
        return Cluster(
            {name: weight for name, (weight, _) in self._seen.items()},
            {host: value.data.decode(errors="replace") for host, value in self._known.items()},
            await self._read_ties(),
        )

    async def claim(self, host: str) -> int:
        """Become the owner of a host that is as it was at the last look; the epoch, 0: somebody was faster."""
        revision = await self._owners.claim(host, self.worker.encode(), self._known.get(host))
        return epoch((await self._owners.read()).born_s, revision) if revision else 0

    async def may_have(self, host: str) -> bool:
        """Whether no other worker is its owner, by the bus as it is now."""
        found = await self._owners.get(host)
        return found is None or found.data == self.worker.encode()

    async def give_up(self, host: str) -> None:
        """Be its owner no more, where we still are."""
        known = (await self._owners.read()).values.get(host)
        if known and known.data == self.worker.encode():
            await self._owners.delete(host, known)

    async def publish_ties(self, ties: dict[str, HostTies]) -> None:
        """What ties our hosts."""
        for host, own in ties.items():
            text = own.text()
            if self._published.get(host) != text:
                await self._ties.put(host, text.encode())
                self._published[host] = text
        self._published = {host: text for host, text in self._published.items() if host in ties}

    async def forget(self, host: str) -> None:
        """The host is gone for good."""
        await self._ties.delete(host)
        await self.give_up(host)

    async def leave(self) -> None:
        """Others need not wait until it is clear that we are gone."""
        await self._workers.delete(self.worker)

    async def _read_ties(self) -> dict[str, HostTies]:
        found = {}
        for host, value in (await self._ties.read()).values.items():
            try:
                found[host] = HostTies.from_text(value.data)
            except WireError:  # of another version: they tie nobody
                continue
        return found


def _weight(data: bytes) -> float:
    try:
        return max(float(data), 0.01)
    except ValueError:
        return 1.0
