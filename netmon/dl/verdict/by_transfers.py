# SPDX-License-Identifier: Apache-2.0
"""Where the time of an iteration went by the reports of NCCL's proxies, where the interfaces do not show its bytes.

All of it is compared with baseline iterations; what is not clear stays unknown:

* A rank was late if it was ready to send in a collective later than all others: so long they waited for it alone. It
  is ready when its first bytes leave it, less its wait for their receiver (over RDMA a sender waits for that).
* All paused if no rank was ready for longer than in the baseline after the collective before.
* A link was slow if single transfers from one rank, or to one, took longer for their bytes, and the others did not.
  In a job between two hosts: if most of them did alike, or many one after the other.
* Others delayed it if their bytes on that link, in that time, take as long.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.account import JOB
from netmon.dl.verdict.baseline import Matrix, median, spread
from netmon.dl.verdict.evidence import CELL_NS, LinkTotals
from netmon.dl.verdict.window import UNCLASSIFIED
from netmon.records import TRANSFER_ONE, TRANSFER_OPERATIONS, Direction, Table

SENT = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("rank", "peer", "sends", "level", "number", "collective", "group_rank"),
            *("queued_ns", "start_ns", "end_ns", "bytes"),
        )
    ]
)
"""Rows of `transfers` of one job (UTC); peer: rank of the job, −1: not known, as queued_ns may be."""

Numbers = npt.NDArray[np.int64]

OTHERS = np.dtype([(name, "<i8") for name in ("of", "start_ns", "end_ns", "bytes")])
"""What others had on links in a time; of: index into Transfers.others."""

_FEWEST = 3  # baseline iterations of which the transfers are known
_CLEAR = 4.0  # standard deviations
_AFTER = 0.1  # of the baseline: all ranks waited at an iteration's end for what begins so soon after it
_ALIKE, _ELSEWHERE = 0.5, 0.25  # of what the slowest pair lost
_MOSTLY = 0.5  # of what is to be explained
_EVENLY = 0.7  # of its part of what the slowest pair lost
_STRETCH, _NEARLY = 6, 0.9  # transfers at least over which a link was slow for a while, and what they lost of all
_NOBODY = 0.1  # of it: others on the link that would take so long are no more than present
_LEAST = 0.3  # of the excess


class Other(NamedTuple):
    """Who had bytes on a link that are not the job's."""

    host: str
    interface: str
    direction: Direction
    capacity_bps: int  # of the link; 0: not known
    job: str  # empty: no training
    name: str


@dataclass(frozen=True)
class Transfers:
    """What is known of a job's transfers while an iteration and those alongside it lasted."""

    rows: Table  # dtype SENT
    posted: Table = field(default_factory=lambda: np.empty(0, OTHERS))
    others: Sequence[Other] = ()
    device_of: Mapping[int, str] = field(default_factory=dict)  # by rank: by which device it sends, where it is one
    clock_error_ns: int = 0


Sent = Callable[[], Transfers | None]
"""NCCL's reports, collected when it is called; None: nothing is known."""


def no_transfers() -> None:
    """For jobs without reports of transfers."""


def called(job: str, process: str) -> str:
    """As verdicts call who had bytes there."""
    return JOB + job if job else process or UNCLASSIFIED


class PostedRow(NamedTuple):
    """What a process handed to an RDMA device in a time (UTC)."""

    host: str
    device: str
    verb: str
    job: str
    rank: int
    name: str  # of the process, with its container
    start_ns: int
    end_ns: int
    bytes: int


def with_posted(transfers: Transfers, rows: Iterable[PostedRow], job: str) -> Transfers:
    """With what processes have posted: the devices that the job's ranks use, and what others had there."""
    numbers: dict[Other, int] = {other: number for number, other in enumerate(transfers.others)}
    devices: dict[int, set[str]] = {}
    posted = []
    for row in rows:
        way = Direction.RX if row.verb == "read" else Direction.TX
        if row.job != job:
            other = Other(row.host, row.device, way, 0, row.job, called(row.job, row.name))
            posted.append((numbers.setdefault(other, len(numbers)), row.start_ns, row.end_ns, max(0, row.bytes)))
        elif way == Direction.TX:
            devices.setdefault(row.rank, set()).add(row.device)
    both = np.concatenate([transfers.posted, np.array(posted, OTHERS)]) if posted else transfers.posted
    device_of = {rank: next(iter(own)) for rank, own in devices.items() if len(own) == 1}
    return replace(transfers, posted=both, others=tuple(numbers), device_of=device_of)


class Slow(NamedTuple):
    """A link that transfers took longer over."""

    rank: int  # whose link
    direction: Direction
    ns: float  # that it cost
    other: int  # who else had bytes there that explain it: index into Transfers.others; −1: nobody had
    bytes: int  # his
    other_ns: float  # that these take
    error_ns: float = 0.0  # of what it cost, where nobody had: a standard deviation of its transfers


class Found(NamedTuple):
    """Parts of an iteration's excess (ns)."""

    late: Mapping[int, float]  # by rank
    paused: float  # all ranks did something else
    slow: Slow | None
    error_ns: float


def with_cells(transfers: Transfers, link_totals: LinkTotals, job: str) -> Transfers:
    """With what the interfaces have counted of others."""
    foreign = np.array([one.job != job for one in link_totals.whose], np.bool_)
    cells = link_totals.rows
    cells = cells[foreign[cells["of"]]] if len(foreign) else cells[:0]
    if not len(cells):
        return transfers
    pairs, of = np.unique(np.stack([cells["link"], cells["of"]]), axis=1, return_inverse=True)
    posted = np.empty(len(cells), OTHERS)
    posted["of"], posted["bytes"] = of.reshape(-1) + len(transfers.others), cells["wire_bytes"]
    posted["start_ns"], posted["end_ns"] = cells["cell"] * CELL_NS, (cells["cell"] + 1) * CELL_NS
    added = [
        Other(link.host, link.interface, link.direction, link.capacity_bps, whose.job, called(whose.job, whose.name))
        for link, whose in ((link_totals.links[a], link_totals.whose[b]) for a, b in pairs.T.tolist())
    ]
    both = np.concatenate([transfers.posted, posted])
    return Transfers(transfers.rows, both, (*transfers.others, *added), transfers.device_of, transfers.clock_error_ns)


def weigh(transfers: Transfers, table: Matrix, row: int, baseline: Sequence[int], hosts: Sequence[str]) -> Found | None:
    """Of one iteration alongside its baseline; None: too little is known. hosts: by the table's numbers."""
    rows, ranks = transfers.rows, table.rank
    if not len(rows):
        return None
    first, last = int(rows["start_ns"].min()), int(rows["end_ns"].max())
    spans = [_span(table, one) for one in (row, *baseline)]
    compared = [one for one in spans[1:] if first <= one[0] and one[1] <= last]
    if len(compared) < _FEWEST:
        return None
    excess = (spans[0][1] - spans[0][0]) - median([end - begin for begin, end in compared])
    if excess <= 0:
        return None
    late, error_ns, paused = dict[int, float](), 0.0, 0.0
    if operations := _operations(rows, ranks):
        late, error_ns = _late(operations, ranks, [spans[0], *compared])
        paused = min(excess, _paused(operations, [spans[0], *compared], _span(table, row - 1) if row else spans[0]))
    error_ns += 2.0 * transfers.clock_error_ns
    late = {rank: min(ns, excess) for rank, ns in late.items() if ns > max(error_ns, _LEAST / 2 * excess)}
    paused = paused if paused > max(error_ns, _LEAST * excess) else 0.0
    left = excess - sum(late.values()) - paused
    slow = _slow(transfers, table, row, [spans[0], *compared], hosts, left) if left > _LEAST * excess else None
    return Found(late, paused, slow, error_ns)


def _span(table: Matrix, row: int) -> tuple[int, int]:
    """Of the slowest rank (UTC)."""
    slow = int(np.nanargmax(table.duration[row]))
    return int(table.start[row, slow]) + table.base_ns, int(table.end[row, slow]) + table.base_ns


class _Operations(NamedTuple):
    """Collectives of all ranks, in their order."""

    ready: Numbers  # (operations, ranks): when each was ready to send
    over: Numbers  # (operations,): all have sent and received all


def _operations(rows: Table, ranks: Numbers) -> _Operations | None:
    """None: nothing is known of any."""
    known = rows[(rows["number"] >= 0) & (rows["level"] != TRANSFER_OPERATIONS) & np.isin(rows["rank"], ranks)]
    if not len(known) or len(ranks) < 2:
        return None
    _, operation = np.unique(np.stack([known["number"], known["collective"]]), axis=1, return_inverse=True)
    operation, column = operation.reshape(-1), np.searchsorted(ranks, known["rank"])
    shape = int(operation.max()) + 1, len(ranks)
    least, most = np.full(shape, np.iinfo(np.int64).max), np.full(shape, -1)
    np.minimum.at(least, (operation, column), known["group_rank"])
    np.maximum.at(most, (operation, column), known["group_rank"])
    queued, over = np.full(shape, np.iinfo(np.int64).max), np.zeros(shape[0], np.int64)
    np.minimum.at(queued, (operation, column), np.where(known["queued_ns"] >= 0, known["queued_ns"], known["start_ns"]))
    np.maximum.at(over, operation, known["end_ns"])
    first = np.flatnonzero(known["sends"] == 1)
    first = first[np.argsort(known["start_ns"][first], kind="stable")[::-1]]  # the earliest is written last
    begun, peer = np.full(shape, -1), np.full(shape, -1)
    begun[operation[first], column[first]] = known["start_ns"][first]
    peer[operation[first], column[first]] = known["peer"][first]
    # Of all ranks, and of no two groups whose operations have the same number.
    whole = (begun >= 0).all(axis=1) & (least == most).all(axis=1)
    whole &= (np.diff(np.sort(least, axis=1), axis=1) > 0).all(axis=1)
    if not whole.any():
        return None
    begun, queued, peer, over = begun[whole], queued[whole], peer[whole], over[whole]
    at = np.searchsorted(ranks, np.clip(peer, ranks[0], ranks[-1]))
    theirs = np.where(np.isin(peer, ranks), np.take_along_axis(queued, at, axis=1), queued)
    ready = queued + np.maximum(0, begun - np.maximum(queued, theirs))
    order = np.argsort(ready.min(axis=1), kind="stable")
    return _Operations(ready[order], np.maximum.accumulate(over[order]))


def _late(operations: _Operations, ranks: Numbers, spans: Sequence[tuple[int, int]]) -> tuple[dict[int, float], float]:
    """By rank, for how much longer than in the others of these times all waited for it in the first; and the error."""
    order = np.argsort(operations.ready, axis=1, kind="stable")
    latest, second = (np.take_along_axis(operations.ready, order[:, [at]], axis=1)[:, 0] for at in (-1, -2))
    waited = np.zeros((len(spans), len(ranks)))
    for at, inside in enumerate(_inside(latest, spans)):
        np.add.at(waited[at], order[inside, -1], (latest - second)[inside])
    found, error_ns = {}, 0.0
    for at, rank in enumerate(ranks.tolist()):
        more, scatter = _more(waited[:, at])
        error_ns = max(error_ns, scatter)
        if more > scatter:
            found[rank] = more
    return found, error_ns


def _paused(operations: _Operations, spans: Sequence[tuple[int, int]], before: tuple[int, int]) -> float:
    """For how much longer than in the others of these times no rank was ready for the next collective in the first;
    0 where it was so in the time before, too: then the job does something else from now on."""
    first = operations.ready.min(axis=1)
    idle = np.maximum(0, first[1:] - operations.over[:-1])
    times = [spans[0], *spans[1:], before]
    *sums, last = (float(idle[inside].sum()) for inside in _inside(first[1:], times))
    more, scatter = _more(np.array(sums))
    return more if more > scatter and last - median(np.array(sums[1:])) < _ALIKE * more else 0.0


def _inside(moments: Numbers, spans: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.bool_]]:
    """Which moments are of each time: also those right after its end, at which all have waited for it."""
    after_ns = _AFTER * median([end - begin for begin, end in spans[1:]])
    return [(moments > begin) & (moments <= end + after_ns) for begin, end in spans]


def _more(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """By how much the first is more than the median of the others, and what these differ by at any time."""
    return float(values[0]) - median(values[1:]), _scatter(values[1:])


def _slow(
    transfers: Transfers,
    table: Matrix,
    row: int,
    spans: Sequence[tuple[int, int]],
    hosts: Sequence[str],
    excess: float,
) -> Slow | None:
    """The link over which transfers took longer for their bytes, and who else was there."""
    rows = transfers.rows
    sent = rows[(rows["sends"] == 1) & (rows["level"] == TRANSFER_ONE) & (rows["bytes"] > 0) & (rows["peer"] >= 0)]
    host_of = {
        rank: hosts[index]
        for rank, index in zip(table.rank.tolist(), table.host[row].tolist(), strict=True)
        if index >= 0
    }
    more: dict[tuple[int, int], float] = {}
    rate: dict[tuple[int, int], float] = {}  # ns for a byte, in the baseline
    clear: dict[tuple[int, int], bool] = {}
    error: dict[tuple[int, int], float] = {}
    for pair in {*zip(sent["rank"].tolist(), sent["peer"].tolist(), strict=True)}:
        own = sent[(sent["rank"] == pair[0]) & (sent["peer"] == pair[1])]
        took, bytes_ = np.array([_took(own, span) for span in spans], np.float64).T
        known = bytes_[1:] > 0
        if known.sum() < _FEWEST or not bytes_[0]:
            continue
        each = took[1:][known] / bytes_[1:][known]
        rate[pair] = median(each)
        more[pair] = float(took[0] - bytes_[0] * rate[pair])
        clear[pair] = more[pair] > _scatter(each) * bytes_[0]
        error[pair] = spread(each) * float(bytes_[0])
    if not more:
        return _by_others_only(transfers, host_of, spans, excess)
    worst = max(more, key=lambda pair: more[pair])
    if more[worst] < _MOSTLY * excess or not clear[worst]:
        return None
    slow = {pair: ns for pair, ns in more.items() if ns >= _ALIKE * more[worst]}
    common = _in_common(slow, host_of)
    cost: dict[tuple[int, Direction], float] = {}  # by link; who is behind a slow one is acknowledged late, too
    ends = {pair: ((pair[0], Direction.TX), (pair[1], Direction.RX)) for pair in slow}
    for pair, ns in slow.items():
        for link in ends[pair]:
            if not common or host_of.get(link[0], "") in common:
                cost[link] = cost.get(link, 0.0) + ns
    lost = min(more[worst], excess)
    links = sorted(cost, key=lambda link: -cost[link])  # most first; of one pair both ends
    present = {
        link: _other(transfers, host_of.get(link[0], ""), link[1], spans) for pair in slow for link in ends[pair]
    }
    # Others may delay transfers from one host to another one, also of pairs that have a third host in common.
    most = {pair: max(present[link][1] for link in ends[pair]) for pair in slow}
    delayed = {pair: ns for pair, ns in slow.items() if most[pair] * rate[pair] >= _MOSTLY * ns}
    behind = {pair for pair, ns in slow.items() if any(one[1] == pair[0] and delayed[one] >= ns for one in delayed)}
    if slow.keys() - delayed.keys() - behind:
        near = {link: present[link] for link in links if cost[link] >= _ALIKE * cost[links[0]]}
        anywhere = max(most.values())
        elsewhere = anywhere > max(bytes_ for _, bytes_ in near.values())
        if not common or (elsewhere and anywhere * rate[worst] >= _MOSTLY * lost):
            return None  # what slowed the other pairs is not known
        present = near
    (rank, way), (other, others_bytes) = max(present.items(), key=lambda one: one[1][1])
    takes = others_bytes * rate[worst]
    if takes >= _MOSTLY * lost:
        return Slow(rank, way, min(lost, takes / _MOSTLY), other, others_bytes, takes)
    if takes > _NOBODY * lost:
        return None
    slower = [pair for pair, ns in more.items() if ns > _ELSEWHERE * more[worst]]
    own = _in_common(slower, host_of)
    links = [link for link in links if host_of.get(link[0], "") in own]
    its = sent[(sent["rank"] == worst[0]) & (sent["peer"] == worst[1])]
    if not links or _by_some_only(_begun(its, spans[0]), rate[worst], lost, len(slower) == len(more)):
        return None
    return Slow(*links[0], lost, -1, 0, 0.0, error[worst])


def _by_some_only(sent: Table, rate: float, lost: float, alone: bool) -> bool:
    """Whether one of a pair's transfers lost most of it: it stopped once.

    alone: there is no other pair to compare with, as between two hosts; then also whether most bytes lost less than
    their part: of all bytes, or of those that were sent while the link was slow.
    """
    sent = sent[np.argsort(sent["start_ns"], kind="stable")]
    more, bytes_ = sent["end_ns"] - sent["start_ns"] - sent["bytes"] * rate, sent["bytes"]
    if more.max() > _MOSTLY * lost:
        return True
    if not alone or _is_even(more, bytes_, lost):
        return False
    slowly = _slow_stretch(more, bytes_)
    loses = float(more[slowly].sum())
    return len(more[slowly]) < _STRETCH or loses < _NEARLY * lost or not _is_even(more[slowly], bytes_[slowly], loses)


def _is_even(more: Numbers, bytes_: Numbers, lost: float) -> bool:
    """Whether half of the bytes lost their part of it, or nearly."""
    order = np.argsort(more / bytes_)
    middle = order[np.searchsorted(np.cumsum(bytes_[order]), bytes_.sum() / 2)]
    return bool(more[middle] >= _EVENLY * lost * bytes_[middle] / bytes_.sum())


def _slow_stretch(more: Numbers, bytes_: Numbers) -> slice:
    """Of these transfers those one after the other that lost much for their bytes."""
    beyond = more - _ALIKE * float(np.quantile(more / bytes_, 0.9)) * bytes_
    sums = np.concatenate([[0.0], np.cumsum(beyond)])
    end = int(np.argmax(sums - np.minimum.accumulate(sums)))
    return slice(int(np.argmin(sums[: end + 1])), end)


def _in_common(pairs: Iterable[tuple[int, int]], host_of: Mapping[int, str]) -> set[str]:
    """Hosts that all these pairs of ranks have in common."""
    return set.intersection(*({host_of.get(rank, "") for rank in pair} for pair in pairs)) - {""}


def _scatter(values: npt.NDArray[np.float64]) -> float:
    """By how much these differ from their median at any time; a tenth of them may be disturbed themselves."""
    return max(_CLEAR * spread(values), float(np.quantile(values, 0.9)) - median(values))


def _took(own: Table, span: tuple[int, int]) -> tuple[int, int]:
    """How long transfers that began in a time took together, and their bytes."""
    inside = _begun(own, span)
    return int((inside["end_ns"] - inside["start_ns"]).sum()), int(inside["bytes"].sum())


def _begun(own: Table, span: tuple[int, int]) -> Table:
    inside: Table = own[(own["start_ns"] >= span[0]) & (own["start_ns"] < span[1])]
    return inside


def _other(transfers: Transfers, host: str, direction: Direction, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Who else had most bytes beyond the baseline on a host's links in the first of these times; how many."""
    best = (-1, 0)
    for of, other in enumerate(transfers.others):
        if (other.host, other.direction) != (host, direction):
            continue
        own = transfers.posted[transfers.posted["of"] == of]
        now, then = _within(own, spans[0]), [_within(own, span) for span in spans[1:]]
        longer = (spans[0][1] - spans[0][0]) / max(1.0, median([end - begin for begin, end in spans[1:]]))
        beyond = round(now - longer * median(then))
        best = max(best, (of, beyond), key=lambda one: one[1])
    return best


def _within(rows: Table, span: tuple[int, int]) -> float:
    overlap = np.minimum(rows["end_ns"], span[1]) - np.maximum(rows["start_ns"], span[0])
    part = np.clip(overlap, 0, None) / np.maximum(rows["end_ns"] - rows["start_ns"], 1)
    return float((part * rows["bytes"]).sum())


def _by_others_only(
    transfers: Transfers, host_of: Mapping[int, str], spans: Sequence[tuple[int, int]], excess: float
) -> Slow | None:
    """Where no single transfers are reported: others' bytes that take as long on a link of known speed."""
    found = []
    for rank, host in host_of.items():
        for way in Direction:
            other, bytes_ = _other(transfers, host, way, spans)
            capacity = transfers.others[other].capacity_bps if other >= 0 else 0
            takes = 8e9 * bytes_ / capacity if capacity else 0.0
            if takes >= _MOSTLY * excess:
                found.append(Slow(rank, way, min(excess, takes / _MOSTLY), other, bytes_, takes))
    return max(found, key=lambda one: one.other_ns) if found else None
