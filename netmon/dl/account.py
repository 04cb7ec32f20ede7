# SPDX-License-Identifier: Apache-2.0
"""Whose bytes went over a host's links during each iteration of a rank."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S, Traffic, Windows, crosses
from netmon.dl.grouped import distinct, order_by, starts, sums_by_two
from netmon.dl.history import HostBlocks, PayloadHistory
from netmon.records import Class, Direction, Owner

_Numbers = npt.NDArray[np.int64]

_NUMBER_BITS = 44  # of a window's number, where link and number are one key
_CLASSES, _TRAFFIC, _DIRECTIONS = len(Class), len(Traffic), len(Direction)


JOB = "job "
"""What the names of other jobs begin with among the traffic owners."""


class TrafficOwner(NamedTuple):
    """Whose traffic it is, as people name it: not which of a program's processes."""

    job: str  # empty: not a rank's
    rank: int
    name: str  # the program, with its container; what is known instead where no process owns the socket


def traffic_owner(owner: Owner) -> TrafficOwner:
    if owner.job:
        return TrafficOwner(owner.job, owner.rank, JOB + owner.job)
    name = owner.process or owner.source
    return TrafficOwner("", -1, f"{name} ({owner.container})" if owner.container else name)


def row_keys(
    owner_index: npt.NDArray[np.int64],
    classes: npt.NDArray[np.uint8],
    traffic: npt.NDArray[np.uint8],
    direction: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """One key per row for a PayloadHistory; arrays (rows,), owner_index: index of the row's TrafficOwner."""
    return ((owner_index.astype(np.int64) * _TRAFFIC + traffic) * _CLASSES + classes) * _DIRECTIONS + direction


class Tally(NamedTuple):
    """Payload bytes of one iteration by class and direction, and what its windows saw."""

    dl_tx_bytes: int  # the rank's own flows, shared or not
    dl_rx_bytes: int
    dl_shared_tx_bytes: int  # the part of them in shared windows
    dl_shared_rx_bytes: int
    dl_control_tx_bytes: int  # the part of them that is control traffic
    dl_control_rx_bytes: int
    cross_tx_bytes: int  # on all links of the host, other jobs' training traffic included
    cross_rx_bytes: int
    other_job_tx_bytes: int  # the part of it that is other jobs' training traffic
    other_job_rx_bytes: int
    unclassified_tx_bytes: int
    unclassified_rx_bytes: int
    cross_top: str  # who moved the most of the cross traffic; empty: there was none
    cross_top_tx_bytes: int
    cross_top_rx_bytes: int
    peak_bps: int  # largest wire rate of all classes on any link in any share window
    node_shared: bool  # some link had a shared window


_AMOUNTS = tuple(
    f"{what}_{way}_bytes"
    for what in ("dl", "dl_shared", "dl_control", "cross", "other_job", "unclassified")
    for way in ("tx", "rx")
)
_TOP = ("cross_top", "cross_top_tx_bytes", "cross_top_rx_bytes")


class TrafficQuery(NamedTuple):
    """Iterations of which the account is requested; arrays of one length."""

    host: _Numbers
    window_ns: _Numbers  # width of the host's share windows
    job: _Numbers  # its number in the windows
    rank: _Numbers
    start_ns: _Numbers
    end_ns: _Numbers
    alone: npt.NDArray[np.bool_]  # nobody to send gradients to


class HostAccounts:
    """Payload of every host by traffic owner, class and direction, and the share windows of its links."""

    def __init__(self) -> None:
        self.payload = PayloadHistory()
        self.windows = WindowHistory()
        self._traffic_owners = _Parties()

    def drop(self, host: int) -> None:
        self.payload.drop(host)
        self.windows.drop(host)

    def tally(
        self, query: TrafficQuery, traffic_owners: Sequence[TrafficOwner], jobs: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """The account of each iteration's [start, end), as columns by the fields of Tally.

        traffic owners: by the index that row_keys was given; jobs: by their numbers.
        """
        self._traffic_owners.learn(traffic_owners)
        host, window_ns, job, rank, start_ns, end_ns, alone = query
        first, last = start_ns // window_ns, (end_ns - 1) // window_ns
        most, shared = self.windows.between(host, job, first, last, first * window_ns)
        peak = most * 8 * NS_PER_S // window_ns
        whose = self._traffic_owners.jobs(job, jobs), rank
        sums = self._sums(whose, *self.payload.between(host, start_ns, end_ns))
        columns: dict[str, npt.NDArray[Any]] = dict(zip(_AMOUNTS, sums.amounts, strict=True))
        columns |= zip(_TOP, sums.top, strict=True)
        columns |= {"peak_bps": peak, "node_shared": shared & ~alone}
        return {name: columns[name] for name in Tally._fields}

    def _sums(self, ranks: tuple[_Numbers, _Numbers], question: _Numbers, key: _Numbers, payload: _Numbers) -> "_Sums":
        rest, way = np.divmod(key, _DIRECTIONS)
        rest, class_ = np.divmod(rest, _CLASSES)
        whose, traffic = np.divmod(rest, _TRAFFIC)
        job, rank = ranks
        dl = (class_ == Class.DL_ONLY) | (class_ == Class.DL_SHARED)
        of_job = dl & (self._traffic_owners.job[whose] == job[question])
        own = of_job & (self._traffic_owners.rank[whose] == rank[question])
        other = dl & ~of_job
        cross = other | crosses(class_)
        amounts = []
        for some in (
            *(own, own & (class_ == Class.DL_SHARED), own & (traffic == Traffic.CONTROL)),
            *(cross, other, class_ == Class.UNCLASSIFIED),
        ):
            rows = np.flatnonzero(some)
            cell = question[rows] * _DIRECTIONS + way[rows]
            sums = np.bincount(cell, weights=payload[rows], minlength=len(rank) * _DIRECTIONS)
            rx, tx = sums.astype(np.int64).reshape(-1, _DIRECTIONS).T
            amounts += [tx, rx]
        rows = np.flatnonzero(cross)
        top = self._traffic_owners.top(len(rank), question[rows], whose[rows], way[rows], payload[rows])
        return _Sums(amounts, top)


class _Sums(NamedTuple):
    amounts: list[_Numbers]  # _AMOUNTS
    top: tuple[npt.NDArray[np.object_], _Numbers, _Numbers]  # who moved the most of the cross traffic; sent, received


class _Parties:
    """Parties by index, as columns."""

    def __init__(self) -> None:
        self.job, self.rank, self.name = (np.empty(0, np.int64) for _ in range(3))
        self._jobs: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._words: list[str] = []
        self._known: list[TrafficOwner] = []

    def learn(self, traffic_owners: Sequence[TrafficOwner]) -> None:
        """There may be more traffic owners than before, or others in the place of some that are no more."""
        for number, (one, known) in enumerate(zip(traffic_owners, self._known, strict=False)):
            if one is not known:
                self.job[number], self.rank[number] = self.key(one)
                self.name[number] = self._names.setdefault(one.name, len(self._names))
        new, self._words, self._known = traffic_owners[len(self.job) :], list(self._names), list(traffic_owners)
        if new:
            keys = [(*self.key(one), self._names.setdefault(one.name, len(self._names))) for one in new]
            self._words = list(self._names)
            columns = np.array(keys, np.int64).T
            self.job, self.rank, self.name = (
                np.concatenate(pair) for pair in zip((self.job, self.rank, self.name), columns, strict=True)
            )

    def jobs(self, job: _Numbers, names: Sequence[str]) -> _Numbers:
        """Jobs as `key` calls them; job: their numbers, by which `names` tells theirs."""
        found = np.zeros(int(job.max(initial=0)) + 1, np.int64)
        for one in distinct(job).tolist():
            found[one] = self._jobs.setdefault(names[one], len(self._jobs))
        return found[job]

    def key(self, one: TrafficOwner) -> tuple[int, int]:
        """Job and rank."""
        return self._jobs.setdefault(one.job, len(self._jobs)), one.rank

    def top(
        self, questions: int, question: _Numbers, whose: _Numbers, way: _Numbers, payload: _Numbers
    ) -> tuple[npt.NDArray[np.object_], _Numbers, _Numbers]:
        """Of each question the name with the most payload, of equal ones the last by the alphabet; tx, rx."""
        found = np.full(questions, "", object), np.zeros(questions, np.int64), np.zeros(questions, np.int64)
        row, name, _ = sums_by_two(question, self.name[whose], payload)
        if not len(row):
            return found
        names = len(self._words)
        pair = row * names + name
        cell = np.searchsorted(pair, question * names + self.name[whose]) * _DIRECTIONS + way
        sums = np.bincount(cell, weights=payload, minlength=len(pair) * _DIRECTIONS).astype(np.int64)
        rx, tx = sums.reshape(-1, _DIRECTIONS).T
        first = starts(row)
        most = np.repeat(np.maximum.reduceat(rx + tx, first), np.diff(np.append(first, len(row))))
        best = np.flatnonzero(rx + tx == most)
        turn = np.empty(names, np.int64)  # of each name by the alphabet
        turn[sorted(range(names), key=self._words.__getitem__)] = np.arange(names)
        best = best[order_by(row[best], turn[name[best]])]
        last = best[np.append(starts(row[best])[1:], len(best)) - 1]
        for top_names, column in zip(
            found, (np.array(self._words, object)[name[last]], tx[last], rx[last]), strict=True
        ):
            top_names[row[last]] = column
        return found


class WindowHistory:
    """The share windows of all hosts' links while an iteration may still need them."""

    def __init__(self) -> None:
        self._blocks = HostBlocks("number")

    def add(self, windows: Windows, host_of_link: _Numbers, wanted: npt.NDArray[np.bool_], until_ns: _Numbers) -> None:
        """Add the windows of settled rows, of hosts that are wanted. until_ns: by host, as HostBlocks.add."""
        entry = np.flatnonzero(wanted[host_of_link[windows.link]])
        if not len(entry):
            return
        pair = np.flatnonzero(wanted[host_of_link[windows.link[windows.pair_entry]]])
        # An entry as a job sees it that has no rows in it, job −1; and as each sees it that has.
        whole = np.concatenate([entry, windows.pair_entry[pair]])
        host = host_of_link[windows.link[whole]]
        order = order_by(host, windows.number[whole])
        columns = {
            "host": host,
            "number": windows.number[whole],
            "entry": windows.link[whole] << _NUMBER_BITS | windows.number[whole],
            "job": np.concatenate([np.full(len(entry), -1), windows.pair_job[pair]]),
            "wire_bytes": windows.wire_bytes[whole],
            "shared": np.concatenate([windows.shared_for_others[entry], windows.pair_shared[pair]]),
        }
        self._blocks.add({name: column.take(order) for name, column in columns.items()}, until_ns)

    def between(
        self, host: _Numbers, job: _Numbers, first: _Numbers, last: _Numbers, first_ns: _Numbers
    ) -> tuple[_Numbers, npt.NDArray[np.bool_]]:
        """Of hosts' windows first…last: the most wire bytes of one, and whether the job sees one as shared.

        Arrays (questions,).
        """
        most, shared = np.zeros(len(host), np.int64), np.zeros(len(host), np.bool_)
        for block, question, row in self._blocks.within(host, first_ns, first, last + 1):
            begin = starts(question)
            query = question[begin]
            most[query] = np.maximum(most[query], np.maximum.reduceat(block.values("wire_bytes", row), begin))
            seen = (block.values(name, row) for name in ("job", "entry", "shared"))
            shared[_seeing_shared(job, question, *seen)] = True
        return most, shared

    def forget(self, before_ns: _Numbers, window_ns: _Numbers) -> None:
        """Drop of each host the windows that end before before_ns; window_ns: their width, by host too."""
        if self._blocks.forget(before_ns):
            taken = self._blocks.take_pending()
            if taken:
                columns, until_ns = taken
                host, number = columns["host"], columns["number"]
                stay = np.flatnonzero((number + 1) * window_ns[host] > before_ns[host])
                order = stay[order_by(host[stay], number[stay])]
                self._blocks.put_pending({name: c[order] for name, c in columns.items()}, until_ns)

    def drop(self, host: int) -> None:
        self._blocks.drop(host)


def _seeing_shared(
    job: _Numbers, question: _Numbers, jobs: _Numbers, entry: _Numbers, shared: npt.NDArray[np.bool_]
) -> _Numbers:
    """The questions, by their jobs, that see a shared window; the other arrays (rows,)."""
    own = jobs == job[question]
    others = np.flatnonzero(shared & (jobs == -1))
    if len(others):  # a window in which the job has rows is as the job sees it
        mine = np.flatnonzero(own)
        if len(mine):
            key = _cells(question, entry)
            seen = np.sort(key[mine])
            index = np.minimum(np.searchsorted(seen, key[others]), len(seen) - 1)
            others = others[seen[index] != key[others]]
    return question[np.append(np.flatnonzero(own & shared), others)]


def _cells(question: _Numbers, entry: _Numbers) -> _Numbers:
    """One number for each link and window of each question; rows of a question follow each other."""
    first = starts(question)
    rows = np.diff(np.append(first, len(question)))
    columns = (entry >> _NUMBER_BITS, entry & ((1 << _NUMBER_BITS) - 1))
    link, number = (column - np.repeat(np.minimum.reduceat(column, first), rows) for column in columns)
    cells: _Numbers = (question * (int(link.max()) + 1) + link) * (int(number.max()) + 1) + number
    return cells
