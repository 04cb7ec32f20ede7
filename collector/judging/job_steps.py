# SPDX-License-Identifier: Apache-2.0
"""The last iterations of one job as verdicts need them, and which of them stand out."""

from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import IterationRows, Ring, goes_on
from netmon.dl.grouped import starts
from netmon.dl.verdict import NOTABLE, Steps, matrix
from netmon.dl.verdict.baseline import CHANGED, FEWEST, LASTS, Durations, baseline_by, baseline_rows

STEP = np.dtype(
    [
        *((name, "<i8") for name in ("number", "rank", "start_ns", "end_ns")),
        *((name, "<i8") for name in ("comm_start_ns", "comm_end_ns", "exposed_ns", "error_ns")),
        ("shared", "?"),
        ("session", "<i4"),
    ]
)
"""An iteration of a rank; times in its host's mono; session: its index."""

_COLUMNS = [name for name in STEP.names or () if name != "shared"]
_MOST = 32_768  # rows: of a job with many ranks fewer iterations are kept
_ITERATIONS = 250
_RANKS = 1 << 32
_BEFORE = -(1 << 62)  # before any iteration's number
_OPEN = 64  # iterations of which some rank may still be missing
_NEARLY = 1.1  # times the baseline of a few iterations ago: it may stand out
_AGAIN = 16  # iterations after which the baseline is computed again
_MOMENTS = ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns")


class JobSteps:
    """The recent iterations of one job."""

    def __init__(self) -> None:
        self._steps = Ring(STEP, _ITERATIONS, _MOST)
        self.size = 0  # of the job, as it says; 0: unknown
        self.relative = False
        self.host_of: dict[int, str] = {}  # by index of its session
        self.last_step_s = 0.0
        self._last: dict[int, int] = {}  # iteration of each rank
        self._open: dict[int, tuple[int, int, int]] = {}  # ranks that have ended it, longest, least computed
        self._durations: deque[tuple[int, int]] = deque(maxlen=_ITERATIONS)  # number and duration of whole iterations
        self._shared: deque[int] = deque(maxlen=1_000)  # numbers of those with foreign traffic
        self._accounted: dict[int, int] = {}  # the last iteration of each rank whose foreign traffic is known
        self._received: dict[int, int] = {}  # bytes of the rank that received most, of the last iterations
        self._baseline_ns = self._baseline_until = 0
        self._computed: deque[int] = deque(maxlen=2 * LASTS)  # of the rank with the least, in the last iterations
        self._other: list[tuple[int, int]] = []  # number and the same of those after them that differ, all one way
        self._published: deque[int] = deque(maxlen=_OPEN)  # numbers

    def add(self, hosts: Mapping[int, str], rows: IterationRows) -> list[int]:
        """Add ended iterations. hosts: by index.

        Returns the numbers of those that are now whole and stand out, and of an earlier one with which the job changed
        its pace, if that is known now.
        """
        rank = rows.each_of("rank")
        if goes_on(rows, rank, dict.fromkeys(rank.tolist(), _BEFORE) | self._last):
            return self._add(hosts, rows, rank)
        found: list[int] = []
        for row in range(len(rows)):  # a rank counts anew
            if rows.number[row] <= self._last.get(int(rank[row]), -1):
                self._begin_anew(int(rank[row]))
            found += self._add(hosts, rows.take(np.array([row])), rank[row : row + 1])
        return found

    def _add(self, hosts: Mapping[int, str], rows: IterationRows, rank: npt.NDArray[np.int64]) -> list[int]:
        about = rows.about[int(rows.whose[-1])]
        self._last |= dict(zip(rank.tolist(), rows.number.tolist(), strict=True))
        self.size, self.relative = about.size or self.size, about.relative
        self.host_of |= hosts
        self._steps.add(rows.table(STEP, _COLUMNS), len(self._last))
        order = np.argsort(rows.number, kind="stable")
        first = starts(rows.number[order])
        count = np.diff(np.append(first, len(order)))
        longest = np.maximum.reduceat(rows.duration_ns[order], first)
        computed = np.where(rows.exposed_ns >= 0, rows.duration_ns - rows.exposed_ns, 0)
        least = np.minimum.reduceat(computed[order], first)
        columns = rows.number[order][first], count, longest, least
        each_number = zip(*(column.tolist() for column in columns), strict=True)
        return [found for one in each_number for found in self._whole(*one)]

    def were_shared(self, rows: IterationRows) -> None:
        """Mark these ended iterations: their ranks' nodes had foreign traffic."""
        if not len(rows):
            return
        known, number = self._steps.rows, self._steps.rows["number"]
        near = np.flatnonzero((number >= rows.number.min()) & (number <= rows.number.max()))
        own = np.isin(_whose(number[near], known["rank"][near]), _whose(rows.number, rows.each_of("rank")))
        known["shared"][near[own]] = True
        self._shared.extend(rows.number.tolist())

    def were_accounted(self, rows: IterationRows, received: npt.NDArray[np.int64]) -> None:
        """Mark these iterations: their foreign traffic is known. Those with some were passed to were_shared before.

        received: bytes of each rank's own transfers.
        """
        columns = rows.each_of("rank"), rows.number, received
        for rank, number, bytes_ in zip(*(column.tolist() for column in columns), strict=True):
            self._accounted[rank] = max(number, self._accounted.get(rank, -1))
            self._received[number] = max(bytes_, self._received.pop(number, 0))
        while len(self._received) > _ITERATIONS:
            del self._received[next(iter(self._received))]

    @property
    def received(self) -> dict[int, int]:
        """Bytes of the rank that received most, by iteration, as far as known; a copy."""
        return dict(self._received)

    @property
    def _known_until(self) -> int:
        """The last iteration whose foreign traffic is known of all ranks; −1: none."""
        return min((self._accounted.get(rank, -1) for rank in self._last), default=-1)

    def _begin_anew(self, rank: int) -> None:
        """A new process counts from 0: earlier iterations are no baseline for its iterations."""
        self._steps.drop(rank)
        self._open.clear()
        self._durations.clear()
        self._shared.clear()
        self._accounted.clear()
        self._received.clear()
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
        self._durations.append((number, longest))
        stands_out = self._stands_out(longest)
        found = self._change(number, least) if least > 0 else []
        return [*found, number] if stands_out and number not in found else found

    def of(self, number: int) -> npt.NDArray[np.void]:
        """The rows of an iteration, dtype STEP, by rank."""
        rows = self._steps.rows
        own: npt.NDArray[np.void] = rows[(rows["number"] == number) & (rows["rank"] >= 0)]
        return np.sort(own, order="rank")

    def mark_published(self, number: int) -> bool:
        """Note that a verdict on an iteration is about to be published. False: there was one before."""
        if number in self._published:
            return False
        self._published.append(number)
        return True

    def may_change(self, number: int) -> bool:
        """Whether the job may have changed its pace with this iteration: the next ones will show it."""
        return any(number == other for other, _ in self._other)

    def _change(self, number: int, computed_ns: int) -> list[int]:
        """The first iteration of a new pace, by the rows, if this iteration makes it known."""
        before = float(np.median(self._computed)) if len(self._computed) >= FEWEST else computed_ns
        longer = computed_ns >= CHANGED * before
        if not longer and computed_ns * CHANGED > before:
            self._computed.append(computed_ns)
            self._other.clear()
            return []
        if self._other and longer != (self._other[-1][1] > before):
            self._other.clear()
        self._other.append((number, computed_ns))
        if len(self._other) < LASTS:
            return []
        rows = self.rows()
        moments, hosts = np.stack([rows[name] for name in _MOMENTS]), rows["session"].astype(str).tolist()
        table = matrix(steps_in_utc(rows, moments, hosts, self.size, self._received))
        first = int(table.number[table.changes[-1]]) if table.changes else -1
        found = first >= self._other[0][0] - LASTS
        if found:
            self._durations = deque((one for one in self._durations if one[0] >= first), maxlen=self._durations.maxlen)
            self._computed.clear()
            self._baseline_until = 0
        if found or len(self._other) == 2 * LASTS:  # it is no change: these iterations count as before
            self._computed.extend(computed for _, computed in self._other)
            self._other.clear()
        return [first] if found else []

    def _stands_out(self, longest_ns: int) -> bool:
        """Whether the last whole iteration stands out. The baseline is computed again only where a slightly older one
        does not decide it."""
        baseline_ns = self._baseline()
        if not 0 < _NEARLY * baseline_ns <= longest_ns:
            return False
        return NOTABLE * self._baseline(again=True) <= longest_ns

    def _baseline(self, again: bool = False) -> int:
        """Baseline of the last whole iteration, or, unless `again`, of one shortly before it, ns; 0: not known.

        An iteration counts only once it is known to have met no foreign traffic.
        """
        if self._baseline_until > 0 and not again:
            self._baseline_until -= 1
            return self._baseline_ns
        number, took = np.array(self._durations, np.int64).T
        shared = (number > self._known_until) | np.isin(number, list(self._shared))
        whole, pace = np.ones(len(number), np.bool_), np.zeros(len(number), np.int64)
        of = Durations(took.astype(np.float64), whole, shared, pace)
        rows = baseline_rows(of, len(of) - 1)
        self._baseline_ns, self._baseline_until = baseline_by(of, rows), _AGAIN if len(rows) >= _AGAIN else 0
        return self._baseline_ns

    def rows(self) -> npt.NDArray[np.void]:
        """A copy, dtype STEP, in no order. Those whose foreign traffic is not known count as shared."""
        rows = self._steps.rows
        rows = rows[rows["rank"] >= 0]
        rows["shared"] |= rows["number"] > self._known_until
        return rows


def _whose(number: npt.NDArray[np.int64], rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return number * _RANKS + rank


def steps_in_utc(
    rows: npt.NDArray[np.void],
    utc: npt.NDArray[np.int64],
    hosts: list[str],
    size: int,
    received: Mapping[int, int],
) -> Steps:
    """Rows of STEP as the verdict takes them; utc: (4, rows), of the four moments; hosts: of each row; received: bytes
    of the rank that received most, by number, as far as known."""
    names = sorted(set(hosts))
    number_of = {name: number for number, name in enumerate(names)}
    start, end, comm_start, comm_end = utc
    return Steps(
        *(rows["number"], rows["rank"], start, end),
        comm_start_ns=np.where(rows["comm_start_ns"] > 0, comm_start, 0),
        comm_end_ns=np.where(rows["comm_end_ns"] > 0, comm_end, 0),
        exposed_ns=rows["exposed_ns"],
        error_ns=rows["error_ns"],
        shared=rows["shared"],
        host=np.array([number_of[host] for host in hosts], np.int64),
        hosts=names,
        size=size,
        received_bytes=np.array([received.get(number, -1) for number in rows["number"].tolist()], np.int64),
    )
