# SPDX-License-Identifier: Apache-2.0
"""What ties the hosts of this worker to others, by the flows and ranks of their sessions."""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import islice

from collector.host.session import Session
from collector.messages import BY_TRAFFIC
from netmon.errors import WireError
from netmon.records import Direction, Flow

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

    An address that several hosts call their own (a container bridge's) ties nobody.
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
"""Bytes: a flow whose owner nobody knows ties two hosts once it has carried so much: it may be a job's."""

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
