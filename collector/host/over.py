# SPDX-License-Identifier: Apache-2.0
"""The last iterations of a host, as they were stored: what rows that are asked for later can be part of."""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from netmon.dl.iterations import Iteration

MOST = 1_000
"""Iterations of a host that are kept, at least: there may be thousands of hosts, and four a second on each."""


class Over(NamedTuple):
    """An iteration that is over; times in its host's mono, job: its number."""

    start_ns: int
    end_ns: int
    job: int
    rank: int
    number: int


class OverIterations:
    """Of one host, in the order in which they settled; 40 bytes each."""

    def __init__(self) -> None:
        """None."""
        self._told = array("q")

    def add(self, iterations: Iterable[tuple[int, Iteration]]) -> None:
        """Each with the number of its job."""
        for job, one in iterations:
            self._told.extend((one.start_ns, one.end_ns, job, one.rank, one.number))
        fields = len(Over._fields)
        if len(self._told) > 2 * MOST * fields:
            del self._told[: -MOST * fields]

    def within(self, first_ns: int, last_ns: int) -> Iterator[Over]:
        """Those that share a moment with [first, last]."""
        told = iter(self._told)
        for one in map(Over._make, zip(*[told] * len(Over._fields), strict=True)):
            if one.start_ns <= last_ns and one.end_ns > first_ns:
                yield one
