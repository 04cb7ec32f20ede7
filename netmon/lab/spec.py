# SPDX-License-Identifier: Apache-2.0
"""What a run of the lab is: the same spec and seed make the same run."""

from dataclasses import dataclass
from pathlib import Path

from netmon.errors import UsageError
from netmon.lab.traffic.profiles import PROFILES

TRAINERS = ("ring", "horovod")
MAX_HOSTS = 200


@dataclass(frozen=True)
class RunSpec:
    """Who trains, what else is on the links, and where the data go. The defaults are configuration B of the thesis:

    four hosts, three of them a ring, the fourth sending to a host of the ring.
    """

    data: Path
    trainer: str = "ring"
    hosts: int = 4
    ring: tuple[int, ...] = (0, 1, 3)  # host of rank 0, 1, …
    cross: tuple[tuple[int, int], ...] = ((2, 0),)  # (from, to)
    rate_bps: int = 1_000_000_000
    parameters: int = 4_000_000  # float32
    compute_ns: int = 100_000_000
    iterations: int = 50
    cross_load: float = 0.8  # payload, as a share of the rate; 0: no cross traffic
    cross_profile: str = "iperf"
    cross_after: float = 0.5  # of the iterations
    seed: int = 1
    bucket_ns: int = 10_000
    hook: str = "auto"
    monitor: bool = True  # False: the same run, unobserved
    overwrite: bool = False

    def check(self) -> None:
        """Raise UsageError for the first thing that cannot be run."""
        for wrong, reason in self._objections():
            if wrong:
                raise UsageError(f"cannot run the lab: {reason}")

    def _objections(self) -> list[tuple[bool, str]]:
        hosts = {*self.ring, *(host for pair in self.cross for host in pair)}
        outside = sorted(host for host in hosts if not 0 <= host < self.hosts)
        known = " or ".join(PROFILES)
        return [
            (self.trainer not in TRAINERS, f"no trainer {self.trainer!r}; choose {' or '.join(TRAINERS)}"),
            (not 2 <= self.hosts <= MAX_HOSTS, f"{self.hosts} hosts; it takes 2 to {MAX_HOSTS}"),
            (bool(outside), f"no host {outside}: there are hosts 0 to {self.hosts - 1}; give --hosts"),
            (len(self.ring) < 2, "a ring of one rank sends nothing; give --ring two hosts or more"),
            (len(set(self.ring)) < len(self.ring), "a host is in the ring twice; one rank per host"),
            (any(a == b for a, b in self.cross), "cross traffic from a host to itself crosses no link"),
            (self.cross_profile == "burst", f"the burst profile is not there yet; choose {known}"),
            (self.cross_profile not in PROFILES, f"no cross profile {self.cross_profile!r}; choose {known}"),
            (not 0 <= self.cross_load <= 1, f"a cross load of {self.cross_load:g}; it is a share of the rate, 0 to 1"),
            (not 0 <= self.cross_after <= 1, f"cross traffic after {self.cross_after:g} of the iterations; 0 to 1"),
            (self.rate_bps < 1_000_000, f"a rate of {self.rate_bps} bit/s; at least 1mbit"),
            (self.parameters < 1, "a model without parameters"),
            (self.compute_ns < 0, "a negative compute time"),
            (self.iterations < 1, "no iterations"),
        ]

    @property
    def patience_seconds(self) -> float:
        """How long an iteration may take before the run is given up: generously more than it should."""
        communication = 2 * self.parameters * 32 / self.rate_bps
        return 60 + 20 * (self.compute_ns / 1e9 + communication)
