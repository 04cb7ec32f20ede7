# SPDX-License-Identifier: Apache-2.0
"""Who sends whom how much by NCCL: rows of the table `transfers` of all ranks of jobs.

NCCL numbers ranks within a communicator, and no host knows which communicator of another one is the same. So the rank
at the other end is looked for: the process that does the same operations at the same times from the other side. Where
more than one does, or none, it is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import order_by, starts
from netmon.evidence import UNKNOWN
from netmon.records import TRANSFER_OPERATIONS
from netmon.views import RankPair

Numbers = npt.NDArray[np.int64]
Rows = Mapping[str, Numbers]
"""Columns of `transfers`, UTC; `job` and `process` (of all hosts) are numbers."""

COLUMNS = (
    *("rank", "communicator", "group_rank", "peer", "sends", "level", "collective", "number", "channel"),
    *("start_ns", "end_ns", "bytes", "missed", "operations"),
)
"""What is read here of a row in addition to `job` and `process`."""

_END = ("job", "process", "communicator", "group_rank", "peer", "sends")
_OPERATION = ("job", "from", "to", "channel", "number", "collective", "level")
_NEAR_NS = 100_000_000  # both ends of an operation go on at one time, or nearly
_AGREES = 0.9  # of an end's operations: so many are those of the process at the other end
_MOST_ALIKE = 64  # that can be distinguished by their times only
_MOST_ENDS = 1 << 12
_SEEN, _LITTLE = 0.95, 0.05  # of what NCCL has sent


def process_numbers(session: npt.NDArray[np.integer], pid: npt.NDArray[np.integer]) -> Numbers:
    """Of all hosts, by number of the session and pid there."""
    return (session.astype(np.int64) << 32) | pid.astype(np.int64)


class Partners(NamedTuple):
    """By row."""

    rank: Numbers  # at the other end; −1: not known
    row: Numbers  # of the same operation, or transfer, there; −1: not known


def partners(rows: Rows, sizes: Mapping[int, int]) -> Partners:
    """Who is at the other end. sizes: ranks by job, where that is known."""
    count = len(rows["rank"])
    rank, row = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
    end, first = _numbered([rows[name] for name in _END])
    if not count or len(first) > _MOST_ENDS:
        return Partners(rank, row)
    process_of = rows["process"][first]
    one, other = _alike(rows, end)
    compared = np.zeros(len(first), np.bool_)
    compared[end[_is_single(rows)]] = True
    process = _voted(end, one, rows["process"][other], len(first))
    process = np.where(compared, process, _only_one(rows, first, sizes))
    processes, one_of = np.unique(process_of, return_index=True)
    other_rank = rows["rank"][first[one_of]][np.searchsorted(processes, np.maximum(process, processes[0]))]
    rank = np.where(process >= 0, other_rank, UNKNOWN)[end]
    good = process[end[one]] == rows["process"][other]
    one, other = one[good], other[good]
    alone = (np.bincount(one, minlength=count)[one] == 1) & (np.bincount(other, minlength=count)[other] == 1)
    row[one[alone]] = other[alone]
    return Partners(rank, row)


def _numbered(keys: list[Numbers]) -> tuple[Numbers, npt.NDArray[np.intp]]:
    """Which of the distinct keys each row has, and a row of each."""
    order = order_by(*keys)
    first = starts(*(key[order] for key in keys))
    number = np.zeros(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    return number, order[first]


def _is_single(rows: Rows) -> npt.NDArray[np.bool_]:
    """Rows that say which operation they are of."""
    singly: npt.NDArray[np.bool_] = rows["level"] != TRANSFER_OPERATIONS
    for name in ("number", "group_rank", "peer", "channel"):
        singly &= rows[name] >= 0
    return singly


def _alike(rows: Rows, end: Numbers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of rows that may be both ends of one operation, each pair both ways round."""
    own = np.flatnonzero(_is_single(rows))
    sends = rows["sends"][own] == 1
    ways = np.where(sends, (rows["group_rank"][own], rows["peer"][own]), (rows["peer"][own], rows["group_rank"][own]))
    key = {name: rows[name][own] for name in _OPERATION if name not in ("from", "to")} | dict(
        zip(("from", "to"), ways, strict=True)
    )
    operation, _ = _numbered([key[name] for name in _OPERATION])
    nth, of = _positions(operation, end[own], rows["start_ns"][own])
    both, _ = _numbered([operation, nth, of])
    order = order_by(both, (~sends).astype(np.int64))
    first = starts(both[order])
    last = np.append(first[1:], len(order))
    sending = np.add.reduceat(sends[order].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
    receiving = last - first - sending
    few = (sending > 0) & (receiving > 0) & (sending * receiving <= _MOST_ALIKE)
    times = (sending * receiving)[few]
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    begin, wide, middle = (np.repeat(each[few], times) for each in (first, receiving, first + sending))
    sender, receiver = own[order[begin + within // wide]], own[order[middle + within % wide]]
    near = (rows["start_ns"][sender] <= rows["end_ns"][receiver] + _NEAR_NS) & (
        rows["start_ns"][receiver] <= rows["end_ns"][sender] + _NEAR_NS
    )
    near &= rows["process"][sender] != rows["process"][receiver]
    sender, receiver = sender[near], receiver[near]
    return np.append(sender, receiver), np.append(receiver, sender)


def _positions(operation: Numbers, end: Numbers, start_ns: Numbers) -> tuple[Numbers, Numbers]:
    """Of each row: the how many-th of its end's rows of one operation it is, and of how many."""
    order = order_by(operation, end, start_ns)
    first = starts(operation[order], end[order])
    length = np.diff(np.append(first, len(order)))
    nth, of = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, length)
    of[order] = np.repeat(length, length)
    return nth, of


def _voted(end: Numbers, one: Numbers, process: Numbers, ends: int) -> Numbers:
    """By end: the only process that most of its operations may have at the other end; −1: there is none."""
    found = np.full(ends, UNKNOWN, np.int64)
    if not len(one):
        return found
    _, first = _numbered([one, process])
    voter, chosen = one[first], process[first]  # a row counts once for each process
    choice, first = _numbered([end[voter], chosen])
    count = np.bincount(choice)
    of_end = end[voter[first]]
    all_rows = np.bincount(end[np.unique(one)], minlength=ends)
    good = np.flatnonzero(count >= _AGREES * all_rows[of_end])
    single = good[np.bincount(of_end[good], minlength=ends)[of_end[good]] == 1]
    found[of_end[single]] = chosen[first[single]]
    return found


def _only_one(rows: Rows, first: npt.NDArray[np.intp], sizes: Mapping[int, int]) -> Numbers:
    """By end, whose operations cannot be distinguished: the only process that has the end opposite; −1: more than one.

    Of jobs all of whose ranks are known: who is not seen cannot be left out.
    """
    key = {name: rows[name][first] for name in (*_END, "rank")}
    found = np.full(len(first), UNKNOWN, np.int64)
    at: dict[tuple[int, ...], set[int]] = {}
    whole = {
        job
        for job in np.unique(key["job"]).tolist()
        if sizes.get(job, 0) == len(np.unique(key["rank"][key["job"] == job])) > 1
    }
    ends = list(zip(*(key[name].tolist() for name in ("job", "group_rank", "peer", "sends", "process")), strict=True))
    for job, rank, peer, sends, process in ends:
        at.setdefault((job, rank, peer, sends), set()).add(process)
    for number, (job, rank, peer, sends, process) in enumerate(ends):
        opposite = at.get((job, peer, rank, 1 - sends), set()) - {process}
        if job in whole and min(rank, peer) >= 0 and len(opposite) == 1:
            found[number] = next(iter(opposite))
    return found


# --- What each pair of ranks carries.


class Pair(NamedTuple):
    """What one rank has sent another one; −1: a rank that is not known."""

    job: int
    rank: int
    peer: int
    bytes: int
    missed: int  # transfers whose size is not known
    operations: int
    busy_ns: int  # in which an operation went on
    processes: tuple[int, ...]  # that reported it, as a sender
    first_ns: int
    last_ns: int


def rank_pairs(rows: Rows, partner: Numbers) -> list[Pair]:
    """By job and ranks. partner: as Partners.rank.

    What a sender has sent counts; of one that is not known, what has been received.
    """
    sends = rows["sends"] == 1
    rank, peer = np.where(sends, (rows["rank"], partner), (partner, rows["rank"]))
    own = np.flatnonzero(sends | (partner < 0))
    order = own[order_by(rows["job"][own], rank[own], peer[own], rows["start_ns"][own])]
    first = starts(rows["job"][order], rank[order], peer[order])
    found = list[Pair]()
    if not len(order):
        return found
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(order)], strict=True):
        at = order[begin:end]
        start_ns, end_ns = rows["start_ns"][at], np.maximum.accumulate(rows["end_ns"][at])
        busy = np.maximum(end_ns - np.maximum(start_ns, np.append(start_ns[0], end_ns[:-1])), 0)
        found.append(
            Pair(
                *(int(rows["job"][at[0]]), int(rank[at[0]]), int(peer[at[0]])),
                bytes=int(np.maximum(rows["bytes"][at], 0).sum()),
                missed=int(rows["missed"][at].sum()),
                operations=int(rows["operations"][at].sum()),
                busy_ns=int(busy.sum()),
                processes=tuple(np.unique(rows["process"][at[sends[at]]]).tolist()),
                first_ns=int(start_ns[0]),
                last_ns=int(end_ns[-1]),
            )
        )
    return found


# --- By which way that went.


class Way(NamedTuple):
    """By what a process sends."""

    transport: str  # "RDMA", "sockets", "RDMA and sockets"; empty: neither has transferred all of it
    rdma: float  # share of its bytes that RDMA has transferred, at most; nan: it has sent nothing
    device: str  # by name, if there is one only


_NO_WAY = Way("", float("nan"), "")


class ProcessBytes(NamedTuple):
    """Bytes that processes have handed to devices, or sent on interfaces; a row each."""

    process: npt.NDArray[np.integer]
    name: npt.NDArray[np.object_]
    bytes: npt.NDArray[np.integer]

    def sums(self) -> dict[int, dict[str, int]]:
        """By process and name."""
        found: dict[int, dict[str, int]] = {}
        for process, name, bytes_ in zip(*(column.tolist() for column in self), strict=True):
            own = found.setdefault(process, {})
            own[name] = own.get(name, 0) + max(0, int(bytes_))
        return found


NOTHING = ProcessBytes(np.empty(0, np.int64), np.empty(0, object), np.empty(0, np.int64))


def ways(process: Numbers, sent: Numbers, posted: ProcessBytes, by_tcp: ProcessBytes) -> dict[int, Way]:
    """By process. process, sent: rows of what NCCL has sent; the others are of the same time."""
    processes, of = np.unique(process, return_inverse=True)
    sums = np.zeros(len(processes), np.int64)
    np.add.at(sums, of, np.maximum(sent, 0))
    rdma, tcp = posted.sums(), by_tcp.sums()
    whole = zip(processes.tolist(), sums.tolist(), strict=True)
    return {one: way(bytes_, rdma.get(one, {}), tcp.get(one, {})) for one, bytes_ in whole}


def way(sent: int, posted: Mapping[str, int], by_tcp: Mapping[str, int]) -> Way:
    """sent: by NCCL; posted: what the process has handed to RDMA devices in that time, by_tcp: sent on interfaces."""
    if sent <= 0:
        return _NO_WAY
    rdma, tcp = sum(posted.values()) / sent, sum(by_tcp.values()) / sent
    if rdma + tcp < _SEEN:
        return Way("", min(1.0, rdma), "")
    used = {**(posted if rdma > _LITTLE else {}), **(by_tcp if rdma < _SEEN else {})}
    device = max(used, key=lambda name: used[name]) if used else ""
    alone = bool(used) and used[device] >= _SEEN * sum(used.values())
    transport = "RDMA" if rdma >= _SEEN else "sockets" if rdma <= _LITTLE else "RDMA and sockets"
    return Way(transport, min(1.0, rdma), device if alone else "")


def pair_views(pairs: Iterable[Pair], ways: Mapping[int, Way]) -> dict[int, tuple[RankPair, ...]]:
    """By job, those that send most first. ways: by process."""
    found: dict[int, list[RankPair]] = {}
    for pair in sorted(pairs, key=lambda pair: (-pair.bytes, pair.rank, pair.peer)):
        sender = ways.get(pair.processes[0], _NO_WAY) if len(pair.processes) == 1 else _NO_WAY
        bps = 8e9 * pair.bytes / pair.busy_ns if pair.busy_ns and not pair.missed else float("nan")
        view = RankPair(
            pair.rank, pair.peer, pair.bytes, bps, pair.missed, sender.rdma, sender.transport, sender.device
        )
        found.setdefault(pair.job, []).append(view)
    return {job: tuple(own) for job, own in found.items()}


def in_words(pairs: Sequence[RankPair]) -> tuple[str, bool]:
    """What is seen of what a job's ranks send each other by NCCL, and whether that is all of it, to the byte."""
    exact = not any(pair.missed for pair in pairs)
    said = f"{len(pairs)} rank pairs over NCCL, " + ("bytes exact" if exact else "some transfers of unknown size")
    by: dict[str, int] = {}
    for pair in pairs:
        name = f"{pair.transport} ({pair.interface})" if pair.transport and pair.interface else pair.transport
        by[name] = by.get(name, 0) + pair.bytes
    known = sorted(name for name in by if name)
    if known:
        said += f", transferred by {', '.join(known)}"
    if "" in by:
        all_bytes = sum(by.values()) or 1
        said += f"; how {by[''] / all_bytes:.0%} of them went is not seen".replace("%", " %")
    return said, exact and "" not in by
