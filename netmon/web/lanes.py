# SPDX-License-Identifier: Apache-2.0
"""What a page shows, from top to bottom: of each job its iterations, its ranks, and what their hosts carry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

JOB, RANK, HOST = "job", "rank", "host"

BLOCK = 32
"""Lanes that are requested together."""


@dataclass(frozen=True)
class Lane:
    """A row of the timeline. JOB: its slowest rank's iterations; RANK: one rank's; HOST: bytes by class."""

    kind: str
    job: str = ""
    rank: int = -1
    host: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All lanes, and what is to be known of them. Times in ns of the UTC epoch."""

    lanes: tuple[Lane, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0
    capacity_bps: Mapping[str, float] = field(default_factory=dict)  # by host: one direction, all interfaces
    job_names: Mapping[str, str] = field(default_factory=dict)  # what people call them
    theory: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by job: bytes measured, equation 3.1
    not_understood: Sequence[str] = ()  # names of jobs of whose steps nothing is said
    unheard_ns: tuple[tuple[int, int], ...] = ()  # begin and end of times of which rates are known of moments only
    generation: int = 0  # another one: other lanes


def arranged(ranks: Iterable[tuple[str, int, str]], hosts: Iterable[str]) -> tuple[Lane, ...]:
    """Lanes of (job, rank, host) and of the hosts without ranks: by job, then by host; each host below its ranks."""
    by_job: dict[str, dict[str, list[int]]] = {}
    for job, rank, host in sorted(set(ranks)):
        by_job.setdefault(job, {}).setdefault(host, []).append(rank)
    lanes = []
    for job, indices in by_job.items():
        lanes.append(Lane(JOB, job))
        for host, own in indices.items():
            lanes += [Lane(RANK, job, rank, host) for rank in own]
            lanes.append(Lane(HOST, job, host=host))
    busy = {host for indices in by_job.values() for host in indices}
    idle = sorted(set(hosts) - busy)
    return (*lanes, *(Lane(HOST, host=host) for host in idle))
