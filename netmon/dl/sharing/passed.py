# SPDX-License-Identifier: Apache-2.0
"""What jobs and links did in a window, added up from rows as they come, whoever keeps them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns, joined
from netmon.dl.grouped import order_by, starts
from netmon.dl.sharing.advice import Advice, JobSeen, advise
from netmon.dl.sharing.demand import LinkBytes

Numbers = npt.NDArray[np.int64]

ROW = ("link", "job", "flow", "pair", "iteration", "start_ns", "width_ns", "wire_bytes")
"""Columns of the rows, all numbers: of the link; of the job, −1: none's; of the flow among all; of the pair of ranks
that it leads from one to the other (of a flow that comes in: −2 less it), −1: not known; start in UTC."""

_CELL = ["link", "job", "pair", "iteration", "bin"]
_FLOW = ["link", "job", "flow"]
_FINEST_NS = 1_000_000
_CONTROL = 0.01  # of a job's largest flow on the link: who moves less carries no gradients
_MOST_CELLS = 500_000  # that are kept before they are added up


@dataclass(frozen=True)
class Iterations:
    """Of a job: their numbers, (iterations,); when each began and the last ended, (iterations + 1,), ascending."""

    numbers: Numbers
    starts_ns: Numbers
    error_ns: int = 0  # of the starts


def iterations(number: Numbers, start_ns: Numbers, end_ns: Numbers, error_ns: int = 0) -> Iterations:
    """Of the rows of all ranks of a job, at least one: an iteration begins with its first rank."""
    numbers, of = np.unique(number, return_inverse=True)
    begins = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(begins, of, start_ns)
    rising = np.append(True, begins[1:] > np.maximum.accumulate(begins)[:-1])  # a job that began anew is not
    numbers, begins = numbers[rising], begins[rising]
    return Iterations(numbers, np.append(begins, max(int(end_ns.max()), int(begins[-1]) + 1)), error_ns)


@dataclass(frozen=True)
class Names:
    """What the numbers in the rows mean."""

    links: Sequence[str]
    jobs: Sequence[str]
    pairs: Sequence[tuple[int, str, str]]  # number of the job, sender and receiver as people read them
    capacity_bps: Mapping[int, float]  # by link, where it is known


class Passed:
    """The rows of [begin_ns, end_ns) (UTC), by link, job, pair, iteration and millisecond."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.span_ns = begin_ns, end_ns
        self._cells: list[Columns] = []
        self._flows: list[Columns] = []
        self._kept = 0
        self._bin_ns = _FINEST_NS

    @property
    def empty(self) -> bool:
        """Whether there was no row."""
        return not self._cells

    def add(self, rows: Columns) -> None:
        """Add up rows with the columns of ROW, all of 64 bits."""
        begin, end = self.span_ns
        rows = rows[(rows["start_ns"] >= begin) & (rows["start_ns"] < end)]
        if not len(rows):
            return
        self._bin_ns = max(self._bin_ns, int(rows["width_ns"].max()))
        self._cells.append(_summed(rows.replaced(bin=(rows["start_ns"] - begin) // _FINEST_NS), _CELL))
        self._flows.append(_summed(rows[rows["job"] >= 0], _FLOW))
        self._kept += len(self._cells[-1])
        if self._kept > _MOST_CELLS and len(self._cells) > 1:
            self._cells, self._flows = [self._together(self._cells, _CELL)], [self._together(self._flows, _FLOW)]
            self._kept = 0  # what is left is as small as it gets

    @staticmethod
    def _together(parts: list[Columns], by: list[str]) -> Columns:
        return _summed(joined(parts), by)

    def advice(
        self,
        iterations: Mapping[str, Iterations],
        names: Names,
        only: frozenset[str] = frozenset(),
        most: int | None = None,
    ) -> Advice:
        """What there is to say of jobs whose iterations are reported; there has to be a row.

        only: these jobs and those that share their links; none: all. most: as netmon.dl.sharing.advice.advise.
        """
        cells = self._together(self._cells, _CELL)
        if self._bin_ns > _FINEST_NS:
            cells = cells.replaced(bin=cells["bin"] * _FINEST_NS // self._bin_ns)
        carriers = _carriers(self._together(self._flows, _FLOW))
        number = {job: index for index, job in enumerate(names.jobs)}
        near = cells
        if only:
            own = np.isin(cells["job"], [number[job] for job in only if job in number])
            near = cells[np.isin(cells["link"], cells["link"][own])]
        traffic = self._traffic(near, names)
        if only:
            iterations = {
                job: its for job, its in iterations.items() if any(job in one.of_job for one in traffic.values())
            }
        seen = [
            _job(job, its, cells, number.get(job, -2), names, carriers, self._bin_ns) for job, its in iterations.items()
        ]
        return advise(seen, traffic, names.links, names.capacity_bps, self.span_ns, most)

    def _traffic(self, cells: Columns, names: Names) -> dict[int, LinkBytes]:
        """Of the links on which jobs send; cells: ordered by link."""
        begin, end = self.span_ns
        bins = -(-(end - begin) // self._bin_ns)
        found = {}
        first = starts(cells["link"])
        for a, b in pairwise([*first.tolist(), len(cells)]):
            indices, sent, jobs = cells["bin"][a:b], cells["wire_bytes"][a:b].astype(np.float64), cells["job"][a:b]
            if not (jobs >= 0).any():
                continue
            of_job = {
                names.jobs[job]: _sums(indices[jobs == job], sent[jobs == job], bins)
                for job in np.unique(jobs[jobs >= 0]).tolist()
            }
            found[int(cells["link"][a])] = LinkBytes(begin, self._bin_ns, of_job, _sums(indices, sent, bins))
        return found


def _sums(indices: Numbers, values: npt.NDArray[np.float64], bins: int) -> npt.NDArray[np.float64]:
    return np.bincount(indices, values, bins)[:bins].astype(np.float64)


def _summed(rows: Columns, by: list[str]) -> Columns:
    """Wire bytes by the combinations that occur, in their order."""
    order = order_by(*(rows[name] for name in by))
    keys = [rows[name][order] for name in by]
    first, sent = starts(*keys), rows["wire_bytes"][order]
    sums = np.add.reduceat(sent, first) if len(first) else sent
    return Columns({name: key[first] for name, key in zip(by, keys, strict=True)} | {"wire_bytes": sums})


def _carriers(flows: Columns) -> dict[int, dict[int, int]]:
    """How many flows of each job carry its gradients over each link; flows: ordered by link and job."""
    job, link, sent = (flows[name] for name in ("job", "link", "wire_bytes"))
    first = starts(link, job)
    found: dict[int, dict[int, int]] = {}
    if not len(first):
        return found
    most = np.repeat(np.maximum.reduceat(sent, first), np.diff(np.append(first, len(sent))))
    counted = np.add.reduceat(sent >= _CONTROL * most, first, dtype=np.int64)
    for of, over, count in zip(job[first].tolist(), link[first].tolist(), counted.tolist(), strict=True):
        found.setdefault(of, {})[over] = count
    return found


def _job(
    job: str,
    iterations: Iterations,
    cells: Columns,
    number: int,
    names: Names,
    carriers: Mapping[int, Mapping[int, int]],
    bin_ns: int,
) -> JobSeen:
    mine = np.array([index for index, (of, _, _) in enumerate(names.pairs) if of == number], np.int64)
    own = cells[cells["job"] == number]
    pair = own["pair"]
    over = _links_of_pairs(np.where(pair < -1, -2 - pair, pair), own["link"], mine)
    own = own[np.isin(pair, mine) & np.isin(own["iteration"], iterations.numbers)]
    own = _summed(own, ["pair", "iteration", "bin"])
    row = np.searchsorted(mine, own["pair"])
    column = np.searchsorted(iterations.numbers, own["iteration"])
    sent, busy = (np.zeros((len(mine), len(iterations.numbers))) for _ in range(2))
    np.add.at(sent, (row, column), own["wire_bytes"].astype(np.float64))
    np.add.at(busy, (row, column), float(bin_ns))
    first, last = np.full(len(iterations.numbers), 1 << 62), np.full(len(iterations.numbers), -1)
    bins = own["bin"]
    np.minimum.at(first, column, bins)
    np.maximum.at(last, column, bins)
    communication = np.where(last >= 0, (last - first + 1.0) * bin_ns, 0.0)
    ends = [names.pairs[index][1:] for index in mine.tolist()]
    flows = carriers.get(number, {})
    return JobSeen(job, iterations.starts_ns, ends, sent, busy, communication, flows, over, iterations.error_ns)


def _links_of_pairs(pair: Numbers, link: Numbers, mine: Numbers) -> list[list[int]]:
    known = np.unique(np.stack([pair, link])[:, pair >= 0], axis=1)
    return [known[1, known[0] == index].tolist() for index in mine.tolist()]
