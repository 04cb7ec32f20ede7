# SPDX-License-Identifier: Apache-2.0
"""One iteration that stands out with all that is kept about it: taken at once, judged wherever there is time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.judging.job_steps import steps_in_utc
from collector.judging.recent_rows import Part, of_sessions
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.dl.verdict import (
    Carried,
    Link,
    Whose,
    in_cells,
    looked_at,
    matrix,
    most_telling,
    times_of,
    verdict_on,
    wanted_times,
    worth_telling,
)
from netmon.dl.verdict.evidence import Numbers
from netmon.records import Table
from netmon.views import Verdict

_MOST_RANKS = 32  # of a verdict that viewers are told of one by one
_MOMENTS = ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns")


class Told(NamedTuple):
    """Rows with `start_ns` and `end_ns` in the clocks of their hosts."""

    rows: Table
    place: npt.NDArray[np.int64]  # of each row: of its session


@dataclass(frozen=True)
class Case:
    """Nothing in it changes any more."""

    job: str
    number: int
    size: int
    relative: bool
    steps: Table  # dtype STEP
    hosts: Mapping[int, str]  # names by place of session
    clocks: Mapping[int, TimeMap]  # by place of session; those of sessions that are there
    clock_error_ns: int
    links: Mapping[int, Link]  # by number, of those sessions
    parts: Sequence[Part]
    whose: Sequence[Whose]  # distinct
    waited: Told  # of WAITED
    said: Told  # of SAID
    link_of_flow: npt.NDArray[np.int64]  # by flow: number of its link
    of_flow: npt.NDArray[np.int64]  # by flow: index into whose, −1: of another session

    def judged(self) -> Verdict | None:
        """The verdict; None where it is not worth telling, or nothing that it needs is left.

        Blocks for some milliseconds; may be a thread's.
        """
        there = np.array(sorted(self.clocks), np.int64)
        rows = self.steps[np.isin(self.steps["place"], there)]
        if self.number not in rows["number"]:
            return None
        maps = TimeMaps([self.clocks[place] for place in there.tolist()])
        of = np.searchsorted(there, rows["place"])
        utc = np.stack([maps.utcs(of, np.ascontiguousarray(rows[name])) for name in _MOMENTS])
        steps = steps_in_utc(rows, utc, [self.hosts[place] for place in rows["place"].tolist()], self.size)
        table = matrix(steps)
        times = wanted_times(table, [self.number])
        one = looked_at(self.job, table, self._carried(maps, there, times), self.number)
        verdict = verdict_on(one, steps)
        if not worth_telling(one, verdict):
            return None
        ranks = times_of(one, steps, verdict) if verdict.excess_ns > 0 else ()
        return replace(verdict, relative=self.relative, ranks=most_telling(ranks, _MOST_RANKS))

    def _carried(self, maps: TimeMaps, there: npt.NDArray[np.int64], times: list[tuple[int, int]]) -> Carried:
        begins, ends = apart(times)

        def inside(session: npt.NDArray[np.int32], start: Numbers, width: npt.NDArray[np.uint32]) -> Any:
            """Whether each row overlaps one of the times: most of all that is kept does not."""
            begin = maps.utcs(np.searchsorted(there, session), start)
            return begins[np.searchsorted(ends, begin, "right")] < begin + width

        rows = of_sessions(self.parts, there.tolist(), int(begins[0]) - self.clock_error_ns, inside)
        rows = rows[rows["flow"] < len(self.of_flow)]
        numbers = np.array(sorted(self.links), np.int64)
        rows = rows[np.isin(self.link_of_flow[rows["flow"]], numbers)]
        flow, width = rows["flow"], rows["bucket_ns"].astype(np.int64)
        start = maps.utcs(np.searchsorted(there, rows["session"]), rows["start_ns"])
        cells = in_cells(
            *(np.searchsorted(numbers, self.link_of_flow[flow]), self.of_flow[flow], start, width),
            *(rows[name].astype(np.int64) for name in ("wire_bytes", "payload_bytes")),
        )
        links = [self.links[number] for number in numbers.tolist()]
        waited, said = (_in_utc(told, maps, there) for told in (self.waited, self.said))
        widest = int(width.max(initial=0))
        return Carried(links, self.whose, cells[cells["of"] >= 0], self.clock_error_ns, waited, said, widest)


def apart(times: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    """Beginnings and ends of the same times, ascending, those that overlap as one; at last, one that never begins."""
    found: list[list[int]] = []
    for since, until in sorted(times):
        if found and since <= found[-1][1]:
            found[-1][1] = max(found[-1][1], until)
        else:
            found.append([since, until])
    never = np.iinfo(np.int64).max
    return np.array([*(since for since, _ in found), never]), np.array([until for _, until in found], np.int64)


def _in_utc(told: Told, maps: TimeMaps, there: npt.NDArray[np.int64]) -> Table | None:
    """The rows of the sessions that are there; None where there are none."""
    own = np.flatnonzero(np.isin(told.place, there))
    rows, of = told.rows[own], np.searchsorted(there, told.place[own])
    for name in ("start_ns", "end_ns"):
        rows[name] = maps.utcs(of, np.ascontiguousarray(rows[name]))
    return rows if len(rows) else None
