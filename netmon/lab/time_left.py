# SPDX-License-Identifier: Apache-2.0
"""How long the rest of a sweep will take: as theory has it, corrected by how long the runs so far took."""

import time
from collections.abc import Mapping

from netmon.dl.theory import ring_bytes
from netmon.lab.spec import RunSpec

_RUN_SECONDS = 2.5  # to start and end its processes
_PAYLOAD = 1448 / 1514  # of a frame, and so of a link's rate


class TimeLeft:
    """Counts from when it is made."""

    def __init__(self, specs: Mapping[str, RunSpec]) -> None:
        """specs: of the runs that are to be done, by their ids."""
        self._iterations = {run: spec.iterations for run, spec in specs.items()}
        self._expected = {run: expected_seconds(spec) for run, spec in specs.items()}
        self._waiting = set(specs)
        self._begun = time.monotonic()
        self._done = 0.0  # seconds, expected ones

    def finished(self, run: str) -> None:
        """A run is over."""
        self._waiting.remove(run)
        self._done += self._expected[run]

    def seconds(self, run: str, iterations: int) -> float:
        """Left for all runs, when `iterations` of this one are done."""
        done = self._done + self._expected[run] * iterations / self._iterations[run]
        rest = self._done + sum(self._expected[each] for each in self._waiting) - done
        pace = (time.monotonic() - self._begun) / done if self._done else 1.0
        return rest * pace


def expected_seconds(spec: RunSpec) -> float:
    """Computing, and what communicating (3.1) in the bandwidth that is left takes longer than the backward pass."""
    communication = ring_bytes(len(spec.ring), spec.parameters) * 8
    communication /= max(0.05, _PAYLOAD - spec.cross_load) * spec.rate_bps
    compute = spec.compute_ns / 1e9
    overlap = spec.backward_share * compute
    return _RUN_SECONDS + spec.iterations * (compute - overlap + max(overlap, communication))
