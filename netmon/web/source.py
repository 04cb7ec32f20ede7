# SPDX-License-Identifier: Apache-2.0
"""Where a page's contents come from: a dataset, or a collector. All that is asked blocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from netmon.past import Rows
from netmon.records import COUNTS
from netmon.views import Hang, RankPair, RankTimes, Verdict
from netmon.web.grid import SERIES, Floats
from netmon.web.steps import Lanes

JOB, RANK, HOST = "job", "rank", "host"

SHOWN = {name: count.heading for name, count in COUNTS.items() if count.heading}
"""Counts of a host's largest flows, and what stands over them."""

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
    usual_ns: Mapping[str, int] = field(default_factory=dict)  # of each job's last iteration, where a collector says it
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


@dataclass(frozen=True)
class Rates:
    """Bytes of some hosts in some bins."""

    wire_bytes: Floats  # (hosts, SERIES, bins)
    resolution_ns: int  # what they are really known to
    pending: bool = False  # there is more, which is being read

    @classmethod
    def nothing(cls, hosts: int, bins: int) -> "Rates":
        """No bytes at all."""
        return cls(np.zeros((hosts, SERIES, bins)), 0)


@dataclass(frozen=True)
class State:
    """How it stands, looked at once a second."""

    generation: int  # of the catalogue
    end_ns: int  # of what is known, UTC
    live: bool  # it goes on
    verdicts: int  # how many there are
    trouble: str = ""  # empty: there is none
    reading: float = 1.0  # how much of what there is has been read
    warnings: tuple[str, ...] = field(default=())
    hangs: tuple[Hang, ...] = ()  # that go on, of jobs called what people call them
    pairs: Mapping[str, tuple[RankPair, ...]] = field(default_factory=dict)  # by what people call the job


def nearest(verdicts: Iterable[Verdict], job: str, iteration: int, end_ns: int) -> Verdict | None:
    """The one on a step that ended about then; job: what the verdicts call it."""
    same = (one for one in verdicts if one.iteration == iteration and one.job == job)
    return min(same, key=lambda one: abs(one.end_ns - end_ns), default=None)


class Source(Protocol):
    """What a server shows. May be asked on several threads at once."""

    title: str
    synthetic: bool  # nobody measured it

    def state(self) -> State:
        """How it stands; does not block for long."""

    def catalogue(self) -> Catalogue:
        """Its lanes."""

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """What hosts carried. full: agents may be requested full resolution."""

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        """(SERIES, bins): bytes of all these hosts together, as well as is known without reading on."""

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        """Iterations that may overlap a time, each once, and whether there are more that are being read."""

    def verdicts(self) -> list[Verdict]:
        """By time; jobs called what people call them."""

    def explain(self, job: str, iteration: int, end_ns: int) -> tuple[Verdict, Sequence[RankTimes]]:
        """A verdict, jobs called what people call them, and where each rank's time went, if that is known.

        end_ns: about when it ended, for a job may have begun anew. Raises NetmonError.
        """

    def advice(self) -> dict[str, Any]:
        """As netmon.dl.sharing.advice_text.document has it. Raises NetmonError where there is nothing to go by."""

    def rows(self) -> Rows:
        """Those that were stored."""

    def close(self) -> None:
        """Let go of what it holds."""
