# SPDX-License-Identifier: Apache-2.0
"""What a trace file is made of, whichever format it has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Detail = str | int | float | bool | None


@dataclass(frozen=True)
class Slice:
    """Something that took time on a lane. Slices of one lane lie one after the other, or one within the other."""

    start_ns: int  # UTC epoch
    end_ns: int
    name: str
    details: Mapping[str, Detail] = field(default_factory=dict)
    inner: tuple["Slice", ...] = ()  # in order of time, within its own
    arrows_out: tuple[int, ...] = ()  # numbers of arrows that begin here
    arrows_in: tuple[int, ...] = ()  # and that end here


@dataclass(frozen=True)
class Instant:
    """A moment on a lane."""

    time_ns: int  # UTC epoch
    name: str
    details: Mapping[str, Detail] = field(default_factory=dict)


class TraceWriter(Protocol):
    """A file that is being written. Times may come in any order from lane to lane, and in order within one."""

    def process(self, name: str) -> int:
        """A new group of lanes → its number."""
        ...

    def lane(self, process: int, name: str) -> int:
        """A new line of slices and moments → its number."""
        ...

    def counter(self, process: int, name: str, unit: str) -> int:
        """A new curve → its number."""
        ...

    def begin(self, lane: int, each: Slice) -> None:
        """A slice begins, within those of the lane that have not ended; its `inner` ones are for the caller."""
        ...

    def end(self, lane: int, each: Slice) -> None:
        """And ends: that of the lane which began last."""
        ...

    def instants(self, lane: int, instants: Iterable[Instant]) -> None:
        """Write these."""
        ...

    def values(self, counter: int, times_ns: Iterable[int], values: Iterable[float]) -> None:
        """Points of a curve; each holds until the next."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


def draw(out: TraceWriter, lane: int, slices: Iterable[Slice]) -> None:
    """Write these with all that is inside; they and the inner ones lie one after the other."""
    for each in slices:
        out.begin(lane, each)
        draw(out, lane, each.inner)
        out.end(lane, each)
