# SPDX-License-Identifier: Apache-2.0
"""What the simulated agents are to send."""

import dataclasses
from dataclasses import dataclass

from netmon.errors import UsageError
from netmon.wire.limits import MAX_ROWS

WIDTH_MS = 1
"""Of the rows that an agent streams unless it is requested coarser ones."""

WIDTHS_MS = (1, 5, 20)
"""Of the rows that an agent can stream."""

_SECOND_MS = 1000
_COARSEST_MS = WIDTHS_MS[-1]
_MOST_HOSTS = 4096
_LEAST_FLOWS = 4  # two of the job, two others


@dataclass(frozen=True)
class Load:
    """Rates are per second and host; rows of WIDTH_MS.

    flows: live on each host. new_flows: that begin in a second, each in the place of one that ends. greedy: the first
    host sends so many times its share of rows. cut: the collector is stopped while the agents send.
    """

    hosts: int
    rows: int
    flows: int
    jobs: int
    seconds: int
    batches: int = 5
    new_flows: int = 0
    greedy: int = 1
    cut: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError where nothing of the kind can be sent."""
        for name in ("hosts", "rows", "flows", "seconds", "batches", "greedy"):
            if getattr(self, name) < 1:
                raise UsageError(f"cannot simulate {getattr(self, name)} {name}: give 1 or more")
        if self.flows < _LEAST_FLOWS:
            raise UsageError(f"cannot simulate {self.flows} flows: give --flows {_LEAST_FLOWS} or more")
        if self.hosts > _MOST_HOSTS:
            raise UsageError(f"cannot simulate {self.hosts} hosts: give at most {_MOST_HOSTS}")
        if not 0 <= self.jobs <= self.hosts:
            raise UsageError(f"cannot simulate {self.jobs} jobs on {self.hosts} hosts: each needs a host")
        if _SECOND_MS % (self.batches * _COARSEST_MS):
            raise UsageError(f"cannot send {self.batches} batches a second: give 1, 2, 5, 10, 25 or 50")
        if self.rows * self.greedy > self.batches * MAX_ROWS:
            raise UsageError(
                f"cannot send {self.rows * self.greedy} rows/s in {self.batches} batches a second, each of "
                f"{MAX_ROWS} rows at most: give more --batches"
            )
        most = self.flows * _SECOND_MS // WIDTH_MS
        if self.rows * self.greedy > most // 2:
            need = -(-2 * self.rows * self.greedy * WIDTH_MS // _SECOND_MS)
            raise UsageError(
                f"cannot make {self.rows * self.greedy} rows/s of {self.flows} flows in buckets of {WIDTH_MS} ms: "
                f"give --flows {need} or more"
            )
        if self.new_flows < 0 or self.new_flows % self.batches:
            raise UsageError(f"cannot begin {self.new_flows} flows a second: give a multiple of {self.batches}")

    @property
    def span_ms(self) -> int:
        """Of one batch."""
        return _SECOND_MS // self.batches

    def rows_of(self, host: int) -> int:
        """A second."""
        return self.rows * (self.greedy if host == 0 else 1)

    def job_of(self, host: int) -> int:
        """−1: none. Neighbouring hosts are ranks of one job."""
        return host * self.jobs // self.hosts if self.jobs else -1

    def members(self, job: int) -> range:
        """The hosts of a job, by rank."""
        first = -(-job * self.hosts // self.jobs)
        return range(first, -(-(job + 1) * self.hosts // self.jobs))

    def document(self) -> dict[str, int]:
        """For JSON."""
        return dataclasses.asdict(self)


def enough_flows(rows: int) -> int:
    """How many flows a host needs for so many rows a second."""
    return max(8, -(-2 * rows * WIDTH_MS // _SECOND_MS))
