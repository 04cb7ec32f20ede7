# SPDX-License-Identifier: Apache-2.0
"""The last iterations of one job as verdicts need them, and which of them stand out."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import IterationRows, goes_on
from netmon.dl.grouped import starts
from netmon.dl.iterations import Iteration
from netmon.dl.verdict import NOTABLE, Steps, matrix
from netmon.dl.verdict.baseline import FEWEST
from netmon.dl.verdict.change import CHANGED, LASTS

STEP = np.dtype(
    [
        *((name, "<i8") for name in ("number", "rank", "start_ns", "end_ns")),
        *((name, "<i8") for name in ("comm_start_ns", "comm_end_ns", "exposed_ns", "error_ns")),
        ("shared", "?"),
        ("session", "<i4"),
    ]
)
"""An iteration of a rank; times in its host's mono, index of its session."""

_MOST = 32_768  # rows: of a job with many ranks fewer iterations are kept
_ITERATIONS = 250
_RANKS = 1 << 32
_OPEN = 64  # iterations of which some rank may still be missing
_AGAIN = 16  # iterations after which the usual is looked at again
_MOMENTS = ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns")


class JobSteps:
    """Of one job."""

    def __init__(self) -> None:
        self._rows = np.zeros(64, STEP)
        self._next = self._count = 0
        self._row: dict[int, int] = {}  # of each number and rank (as _whose names them), in the rows
        self.size = 0  # of the job, as it says; 0: unknown
        self.relative = False
        self.host_of: dict[int, str] = {}  # by index of its session
        self.last_step_s = 0.0
        self._last: dict[int, int] = {}  # iteration of each rank
        self._open: dict[int, tuple[int, int, int]] = {}  # ranks that have ended it, longest, least computed
        self._durations: deque[tuple[int, int]] = deque(maxlen=200)  # number and duration of whole iterations
        self._shared: deque[int] = deque(maxlen=1_000)  # numbers of those with foreign traffic
        self._accounted: dict[int, int] = {}  # the last iteration of each rank of which it is known what else there was
        self._baseline_ns, self._baseline_until = float("nan"), 0
        self._computed: deque[int] = deque(maxlen=2 * LASTS)  # of the rank with the least, in the last iterations
        self._other: list[tuple[int, int]] = []  # number and the same of those after them that differ, all one way
        self._published: deque[int] = deque(maxlen=_OPEN)  # numbers

    def add(self, session_index: int, host: str, iteration: Iteration) -> list[int]:
        """An iteration that has ended; its number, if it is whole by that and stands out; and that of an earlier one
        if it is known by that that the job has changed its pace with it."""
        if iteration.number <= self._last.get(iteration.rank, -1):
            self._begin_anew(iteration.rank)
        self._last[iteration.rank] = iteration.number
        self.size, self.relative = iteration.size or self.size, iteration.relative
        self.host_of[session_index] = host
        i = iteration
        times = i.start_ns, i.end_ns, i.comm_start_ns, i.comm_end_ns, i.exposed_ns, i.error_ns
        self._put(i.number, i.rank, (i.number, i.rank, *times, False, session_index))
        took_ns = i.end_ns - i.start_ns
        return self._whole(i.number, 1, took_ns, took_ns - i.exposed_ns if i.exposed_ns >= 0 else 0)

    def add_all(self, hosts: Mapping[int, str], rows: IterationRows) -> list[int]:
        """As `add` of each; the numbers of those that are whole and stand out. hosts: by index."""
        rank = rows.each_of("rank")
        if not goes_on(rows, rank, self._last):
            each = zip(rows.session.tolist(), rows.each(), strict=True)
            return [
                number
                for session_index, iteration in each
                for number in self.add(session_index, hosts[session_index], iteration)
            ]
        about = rows.about[int(rows.whose[-1])]
        self._last |= dict(zip(rank.tolist(), rows.number.tolist(), strict=True))
        self.size, self.relative = about.size or self.size, about.relative
        self.host_of |= hosts
        steps = np.zeros(len(rows), STEP)
        steps["rank"] = rank
        for name in (
            "number",
            "start_ns",
            "end_ns",
            "comm_start_ns",
            "comm_end_ns",
            "exposed_ns",
            "error_ns",
            "session",
        ):
            steps[name] = getattr(rows, name)
        self._put_all(steps)
        order = np.argsort(rows.number, kind="stable")
        first = starts(rows.number[order])
        count = np.diff(np.append(first, len(order)))
        longest = np.maximum.reduceat(rows.duration_ns[order], first)
        computed = np.where(rows.exposed_ns >= 0, rows.duration_ns - rows.exposed_ns, 0)
        least = np.minimum.reduceat(computed[order], first)
        columns = rows.number[order][first], count, longest, least
        each_number = zip(*(column.tolist() for column in columns), strict=True)
        return [found for one in each_number for found in self._whole(*one)]

    def _put_all(self, steps: npt.NDArray[np.void]) -> None:
        limit = min(_MOST, _ITERATIONS * max(1, len(self._last)))
        while len(steps):
            if self._next == len(self._rows) and self._count < limit:
                self._rows = np.concatenate([self._rows, np.zeros(len(self._rows), STEP)])
            elif self._next >= min(limit, len(self._rows)):
                self._next = 0
            count = min(len(steps), min(limit, len(self._rows)) - self._next)
            at = slice(self._next, self._next + count)
            gone = self._rows[at][: max(0, self._count - self._next)]
            for whose in _whose(gone["number"], gone["rank"]).tolist():
                self._row.pop(whose, None)
            self._rows[at] = steps[:count]
            session_indices = range(self._next, self._next + count)
            self._row |= zip(
                _whose(steps["number"][:count], steps["rank"][:count]).tolist(), session_indices, strict=True
            )
            self._next += count
            self._count, steps = max(self._count, self._next), steps[count:]

    def were_shared(self, rows: IterationRows) -> None:
        """As `was_shared` of each."""
        session_indices = map(self._row.get, _whose(rows.number, rows.each_of("rank")).tolist())
        self._rows["shared"][[session_index for session_index in session_indices if session_index is not None]] = True
        self._shared.extend(rows.number.tolist())

    def were_accounted(self, rows: IterationRows) -> None:
        """It is known whether there was foreign traffic in these iterations; those with it were reported before."""
        for rank, number in zip(rows.each_of("rank").tolist(), rows.number.tolist(), strict=True):
            self._accounted[rank] = max(number, self._accounted.get(rank, -1))

    @property
    def _known_until(self) -> int:
        """The last iteration of which it is known of all ranks; −1: none."""
        return min((self._accounted.get(rank, -1) for rank in self._last), default=-1)

    def was_shared(self, number: int, rank: int) -> None:
        """The node of a rank carried foreign traffic in an iteration that has ended."""
        session_index = self._row.get(_whose(number, rank))
        if session_index is not None:
            self._rows["shared"][session_index] = True
        self._shared.append(number)

    def _put(self, number: int, rank: int, row: tuple[object, ...]) -> None:
        limit = min(_MOST, _ITERATIONS * max(1, len(self._last)))
        if self._next == len(self._rows) and self._count < limit:
            self._rows = np.concatenate([self._rows, np.zeros(len(self._rows), STEP)])
        elif self._next >= min(limit, len(self._rows)):
            self._next = 0
        if self._next < self._count:
            gone = self._rows[self._next]
            self._row.pop(_whose(int(gone["number"]), int(gone["rank"])), None)
        self._rows[self._next] = row
        self._row[_whose(number, rank)] = self._next
        self._next += 1
        self._count = max(self._count, self._next)

    def _begin_anew(self, rank: int) -> None:
        """A new process, which counts from the start: what it was is no measure of what it is."""
        rows = self._rows[: self._count]
        rows["rank"][rows["rank"] == rank] = -1
        self._row = {whose: session_index for whose, session_index in self._row.items() if whose % _RANKS != rank}
        self._open.clear()
        self._durations.clear()
        self._shared.clear()
        self._accounted.clear()
        self._computed.clear()
        self._other.clear()
        self._published.clear()
        self._baseline_until = 0

    def _whole(self, number: int, more: int, duration_ns: int, computed_ns: int) -> list[int]:
        """computed_ns: 0 where that is not known."""
        ranks, longest, least = self._open.get(number, (0, 0, computed_ns))
        ranks, longest, least = ranks + more, max(longest, duration_ns), min(least, computed_ns)
        if ranks < max(self.size or len(self._last), 1):
            self._open[number] = ranks, longest, least
            while len(self._open) > _OPEN:
                del self._open[next(iter(self._open))]
            return []
        self._open.pop(number, None)
        stands_out = longest >= NOTABLE * self._baseline()
        self._durations.append((number, longest))
        found = self._change(number, least) if least > 0 else []
        return [*found, number] if stands_out and number not in found else found

    def mark_published(self, number: int) -> bool:
        """A verdict on an iteration is about to be published; False: there was one."""
        if number in self._published:
            return False
        self._published.append(number)
        return True

    def may_change(self, number: int) -> bool:
        """Whether the job may have changed its pace by this iteration: some more will tell."""
        return any(number == other for other, _ in self._other)

    def _change(self, number: int, computed_ns: int) -> list[int]:
        """The first iteration of a new pace, if it is known with this one. Which it is the rows tell."""
        baseline = float(np.median(self._computed)) if len(self._computed) >= FEWEST else computed_ns
        longer = computed_ns >= CHANGED * baseline
        if not longer and computed_ns * CHANGED > baseline:
            self._computed.append(computed_ns)
            self._other.clear()
            return []
        if self._other and longer != (self._other[-1][1] > baseline):
            self._other.clear()
        self._other.append((number, computed_ns))
        if len(self._other) < LASTS:
            return []
        rows = self.rows()
        moments, hosts = np.stack([rows[name] for name in _MOMENTS]), rows["session"].astype(str).tolist()
        table = matrix(steps_in_utc(rows, moments, hosts, self.size))
        first = int(table.number[table.changes[-1]]) if table.changes else -1
        found = first >= self._other[0][0] - LASTS
        if found:
            self._durations = deque((one for one in self._durations if one[0] >= first), maxlen=self._durations.maxlen)
            self._computed.clear()
            self._baseline_until = 0
        if found or len(self._other) == 2 * LASTS:  # it is no change, and the baseline goes on with it
            self._computed.extend(computed for _, computed in self._other)
            self._other.clear()
        return [first] if found else []

    def _baseline(self) -> float:
        """Median duration of whole iterations: those that are known to have had no foreign traffic where there are
        enough; nan: too few."""
        if self._baseline_until > 0:
            self._baseline_until -= 1
            return self._baseline_ns
        shared, known_until = set(self._shared), self._known_until
        quiet = [ns for number, ns in self._durations if number <= known_until and number not in shared]
        chosen = quiet if len(quiet) >= FEWEST else [ns for _, ns in self._durations]
        if len(chosen) < FEWEST:
            return float("nan")
        self._baseline_ns = float(np.median(chosen))
        self._baseline_until = _AGAIN if len(chosen) >= _AGAIN else 0
        return self._baseline_ns

    def rows(self) -> npt.NDArray[np.void]:
        """A copy, dtype STEP, in no order. Those of which it is not known yet count as shared: they are no measure."""
        rows = self._rows[: self._count]
        rows = rows[rows["rank"] >= 0]
        rows["shared"] |= rows["number"] > self._known_until
        return rows


def _whose(number: Any, rank: Any) -> Any:
    """One number for both, also of arrays: a pair takes twice the memory."""
    return number * _RANKS + rank


def steps_in_utc(rows: npt.NDArray[np.void], utc: npt.NDArray[np.int64], hosts: list[str], size: int) -> Steps:
    """Rows of STEP as the verdict takes them; utc: (4, rows), of the four moments; hosts: of each row."""
    names = sorted(set(hosts))
    session_index = {name: number for number, name in enumerate(names)}
    start, end, comm_start, comm_end = utc
    return Steps(
        *(rows["number"], rows["rank"], start, end),
        comm_start_ns=np.where(rows["comm_start_ns"] > 0, comm_start, 0),
        comm_end_ns=np.where(rows["comm_end_ns"] > 0, comm_end, 0),
        exposed_ns=rows["exposed_ns"],
        error_ns=rows["error_ns"],
        shared=rows["shared"],
        host=np.array([session_index[host] for host in hosts], np.int64),
        hosts=names,
        size=size,
    )
