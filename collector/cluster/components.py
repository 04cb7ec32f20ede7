# SPDX-License-Identifier: Apache-2.0
"""Which hosts belong together: they train one job, or one is at the other end of another's flows."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from netmon.errors import WireError


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
