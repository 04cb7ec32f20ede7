# SPDX-License-Identifier: Apache-2.0
"""Who works, who has which host, and what ties hosts together: three buckets of the bus that all workers share.

netmon-workers   WORKER   its weight; gone a few seconds after the worker's last word
netmon-owners    HOST     the worker that has it; changed only by who knows the newest revision
netmon-ties      HOST     HostTies, as the worker sees them that has the host: by the flows and ranks of its sessions
"""

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import NamedTuple

from nats.js.api import KeyValueConfig, StorageType, StreamInfo
from nats.js.errors import BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from collector.host.session import Session
from collector.messages import BY_TRAFFIC
from netmon.errors import WireError
from netmon.records import Direction, Flow
from netmon.wire.bus import Bus, name_of, token

# --- Which hosts belong together: they train one job, or one is at the other end of another's flows.


@dataclass(frozen=True)
class HostTies:
    """What ties a host to others, as the worker that has it sees it."""

    addresses: frozenset[str] = frozenset()  # its own, as its flows show them
    ends: frozenset[str] = frozenset()  # addresses at the other ends of its flows
    jobs: frozenset[str] = frozenset()  # by the names that its processes give them

    def text(self) -> str:
        """As one line of JSON; the same ties are the same line."""
        return json.dumps({name: sorted(value) for name, value in vars(self).items()}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: bytes) -> "HostTies":
        """The reverse of text. Raises WireError."""
        try:
            document = json.loads(text)
            return cls(*(frozenset(map(str, document[name])) for name in ("addresses", "ends", "jobs")))
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(f"what ties a host to others cannot be read: {error!r}") from None


def components(hosts: Iterable[str], ties: Mapping[str, HostTies]) -> list[frozenset[str]]:
    """The connected components of hosts, by their first names. ties: of hosts of which anything is known.

    An address that more than one host has (a container bridge's) ties nobody.
    """
    known = sorted(set(hosts))
    parent = {host: host for host in known}

    def root(host: str) -> str:
        while parent[host] != host:
            parent[host] = host = parent[parent[host]]
        return host

    for group in _tied(known, ties):
        for host in group[1:]:
            one, other = sorted((root(group[0]), root(host)))
            parent[other] = one
    members: dict[str, list[str]] = defaultdict(list)
    for host in known:
        members[root(host)].append(host)
    return [frozenset(members[first]) for first in sorted(members)]


def _tied(hosts: Iterable[str], ties: Mapping[str, HostTies]) -> Iterable[list[str]]:
    owners: dict[str, list[str]] = defaultdict(list)
    jobs: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        own = ties.get(host, HostTies())
        for address in own.addresses:
            owners[address].append(host)
        for job in own.jobs:
            jobs[job].append(host)
    yield from jobs.values()
    for host in hosts:
        own = ties.get(host, HostTies())
        for address in own.ends - own.addresses:
            if len(owners.get(address, ())) == 1:
                yield [host, owners[address][0]]


LEAST_PAYLOAD = 1 << 20
"""Bytes: a flow whose owner nobody knows ties two hosts once it has transferred so much: it may be a job's."""

_LATELY_NS = 60_000_000_000
_MOST = 4_096  # ends or jobs of a host


class LastingTies:
    """Ties of hosts, for a while after they were last seen: a flow that rests does not part a job."""

    def __init__(self, last_s: float = 60.0) -> None:
        """last_s: for so long."""
        self._last_s = last_s
        self._seen: dict[str, dict[tuple[str, str], float]] = {}  # by host; kind and name

    def lasting(self, now: Mapping[str, HostTies], before: Mapping[str, HostTies]) -> dict[str, HostTies]:
        """What is seen now of our hosts, with what is not long ago. before: what the last owner of a host reported."""
        at = time.monotonic()
        self._seen = {host: self._seen.get(host) or dict.fromkeys(_items(before.get(host)), at) for host in now}
        for host, own in now.items():
            self._seen[host] |= dict.fromkeys(_items(own), at)
            self._seen[host] = {item: seen for item, seen in self._seen[host].items() if at - seen <= self._last_s}
        return {host: _ties(seen) for host, seen in self._seen.items()}


def _items(ties: HostTies | None) -> list[tuple[str, str]]:
    return [(kind, name) for kind, names in vars(ties).items() for name in names] if ties else []


def _ties(items: Iterable[tuple[str, str]]) -> HostTies:
    found: dict[str, set[str]] = {field.name: set() for field in fields(HostTies)}
    for kind, name in items:
        found[kind].add(name)
    return HostTies(**{kind: frozenset(names) for kind, names in found.items()})


def ties_of(sessions: Iterable[Session], hosts: Iterable[str]) -> dict[str, HostTies]:
    """What ties each of these hosts now."""
    own: dict[str, list[Session]] = {host: [] for host in hosts}
    for session in sessions:
        if session.hello.host in own:
            own[session.hello.host].append(session)
    return {host: _seen(its) for host, its in own.items()}


def _seen(sessions: Iterable[Session]) -> HostTies:
    addresses, ends, jobs, inferred = set[str](), set[str](), set[str](), set[str]()
    for session in sessions:
        jobs.update(job for job, _ in session.window.ranks.names())
        for flow in _weighty(session):
            local, remote = (flow.src, flow.dst) if flow.direction == Direction.TX else (flow.dst, flow.src)
            addresses.add(local)
            ends.add(remote)
            if flow.owner.job:
                (inferred if flow.owner.source == BY_TRAFFIC else jobs).add(flow.owner.job)
    # What the traffic alone shows has ends, and need not be called the same before all of it is with one worker.
    named = frozenset(islice(sorted(jobs - inferred), _MOST))
    return HostTies(frozenset(addresses), frozenset(islice(sorted(ends - addresses), _MOST)), named)


def _weighty(session: Session) -> list[Flow]:
    """Flows of late that tie: those of jobs, and those that carry much and may be a job's.

    Those of processes that are known not to train do not: a file server would tie all its clients.
    """
    flows = session.window.flows
    own = flows.indices_of_all
    state = flows.state
    late = state["last_ns"][own] > session.window.horizon_ns - _LATELY_NS
    chosen = own[late & ((state["job"][own] > 0) | (state["payload_bytes"][own] >= LEAST_PAYLOAD))]
    found = (flows[index] for index in chosen.tolist())
    return [flow for flow in found if not flow.members and (flow.owner.job or not flow.owner.pid)]


# --- A key-value bucket of the bus, read as a whole: what is there now, and who may change it.

_NS_PER_S = 1_000_000_000
_AT_A_TIME = 100
_KEPT_S = 20.0  # what has been read is read again, whether anything seems to have changed or not


class Value(NamedTuple):
    """What a key says."""

    data: bytes
    revision: int


@dataclass(frozen=True)
class Content:
    """Everything that is in a bucket."""

    values: dict[str, Value]
    born_s: int  # when the bucket was made: one that is made anew counts its revisions from 1 again


class Bucket:
    """Keys are names of hosts or workers. Methods raise BusError where the bus does not answer."""

    def __init__(self, bus: Bus, name: str, ttl_s: float = 0.0) -> None:
        """ttl_s: so long a value stays; 0: until it is deleted."""
        self._bus, self._name, self._ttl_s = bus, name, ttl_s
        self._kv: KeyValue | None = None
        self._content: Content | None = None
        self._state = (0, 0, 0)  # of the stream when it was read
        self._read_s = 0.0

    async def read(self) -> Content:
        """All of it; asks for one line where nothing has changed since."""
        with self._bus.errors(f"read {self._name} on"):
            kv, info = await self._opened()
            state = (_born_s(info), info.state.last_seq, info.state.messages)
            now = time.monotonic()
            if self._content is not None and state == self._state and now - self._read_s < _KEPT_S:
                return self._content
            subjects = info.state.subjects or {}
            content = Content(await self._values(kv, subjects), _born_s(info))
            # A server that has just begun to lead may not list all that it counts: that is not kept.
            self._content, self._state = content if len(subjects) == info.state.messages else None, state
            self._read_s = now
            return content

    async def get(self, key: str) -> Value | None:
        """What one key says now; None: nothing."""
        with self._bus.errors(f"read {self._name} on"):
            kv, _ = await self._opened()
            return await _get(kv, token(key))

    async def put(self, key: str, data: bytes) -> None:
        """Whatever it said before."""
        with self._bus.errors(f"write {self._name} on"):
            kv, _ = await self._opened()
            await kv.put(token(key), data)

    async def claim(self, key: str, data: bytes, known: Value | None) -> int:
        """Say so if it still says what is known (None: nothing); the new revision, 0: it says something else."""
        with self._bus.errors(f"write {self._name} on"):
            kv, _ = await self._opened()
            try:
                if known is None:
                    return await kv.create(token(key), data)
                return await kv.update(token(key), data, last=known.revision)
            except KeyWrongLastSequenceError:
                self._content = None  # it says something else than what was read
                return 0

    async def delete(self, key: str, known: Value | None = None) -> None:
        """If it still says what is known; whatever it says, where nothing is."""
        with self._bus.errors(f"write {self._name} on"):
            kv, _ = await self._opened()
            with contextlib.suppress(BadRequestError):
                await kv.delete(token(key), last=known.revision if known else None)

    async def _opened(self) -> tuple[KeyValue, StreamInfo]:
        jetstream = self._bus.jetstream
        if self._kv is not None:
            with contextlib.suppress(NotFoundError):
                return self._kv, await self._info()
        config = KeyValueConfig(
            bucket=self._name, ttl=self._ttl_s or None, storage=StorageType.FILE, replicas=self._bus.settings.replicas
        )
        with contextlib.suppress(BadRequestError):  # another worker has made it, with other settings
            await jetstream.create_key_value(config)
        self._kv = await jetstream.key_value(self._name)
        return self._kv, await self._info()

    async def _info(self) -> StreamInfo:
        prefix = f"$KV.{self._name}."
        return await self._bus.jetstream.stream_info(f"KV_{self._name}", subjects_filter=f"{prefix}>")

    async def _values(self, kv: KeyValue, subjects: Iterable[str]) -> dict[str, Value]:
        """Read one by one, many at a time: a watcher would be a consumer, of which the servers allow only so many."""
        found: dict[str, Value] = {}
        prefix = f"$KV.{self._name}."
        keys = [subject.removeprefix(prefix) for subject in subjects]
        for begin in range(0, len(keys), _AT_A_TIME):
            some = keys[begin : begin + _AT_A_TIME]
            for key, entry in zip(some, await asyncio.gather(*(_get(kv, key) for key in some)), strict=True):
                if entry:
                    found[name_of(key)] = entry
        return found


def epoch(born_s: int, revision: int) -> int:
    """A number that rises with every change of a key, also over a bucket that was lost and made anew."""
    return born_s * _NS_PER_S + revision


def _born_s(info: StreamInfo) -> int:
    return int(info.created.timestamp()) if info.created else 0


async def _get(kv: KeyValue, key: str) -> Value | None:
    try:
        entry = await kv.get(key)
    except KeyNotFoundError:  # deleted, or its time is over
        return None
    return Value(entry.value or b"", entry.revision or 0)


WORKERS = "netmon-workers"

TTL_S = 6.0
"""A worker that has been silent for so long is gone."""


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
        for host, own in ties.items():
            text = own.text()
            if self._published.get(host) != text:
                await self._ties.put(host, text.encode())
                self._published[host] = text
        self._published = {host: text for host, text in self._published.items() if host in ties}

    async def forget(self, host: str) -> None:
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
