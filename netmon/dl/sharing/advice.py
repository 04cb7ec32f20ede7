# SPDX-License-Identifier: Apache-2.0
"""What there is to advise on jobs and their links, from a window of what passed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import order_by, starts
from netmon.dl.sharing.compatibility import (
    FEWEST,
    Demand,
    Drift,
    Fit,
    LinkBytes,
    demand,
    drift,
    fits,
    groups,
    shared_links,
)
from netmon.dl.verdict import incidents
from netmon.records import Columns, joined
from netmon.units import format_duration, format_moment, format_rate
from netmon.views import Cause, Incident

# --- Who slowed training, as advice: how far to limit whom and where, and the commands that do it and take it back.

_PROTOCOLS = {6: "tcp", 17: "udp"}
_UNIT = re.compile(r"[\w@:.-]+\.(service|scope)")
_INTERFACE = re.compile(r"[\w@:.-]{1,15}")
_PREFERENCE = 7000  # of the filter, by which it is found again
_LEAST = 0.01  # of a link's capacity: a limit below it is none
_QUIET = 0.05  # of the busiest bin: less than this is no transfer


@dataclass(frozen=True)
class PairEnds:
    """Where a culprit's packets can be distinguished from others: on a host's interface, by one end of its flows."""

    host: str = ""  # empty: nowhere
    interface: str = ""
    sends: bool = True  # whether they leave there, else they enter
    protocol: int = 0
    source: str = ""
    target: str = ""
    port: int = 0  # 0: none that all have in common
    of_source: bool = False  # whose port that is
    unit: str = ""  # container or systemd unit of the process there


@dataclass(frozen=True)
class Culprit:
    """One incident that is somebody's doing."""

    incident: Incident
    room_bps: float  # what training leaves of the link that it fills while it transfers; 0: not known, or nothing
    ends: PairEnds

    @property
    def saves(self) -> float:
        """Share of a step's time that would be saved at most."""
        took = self.incident.baseline_ns + self.incident.lost_per_step_ns
        return max(0.0, 1 - self.incident.without_ns / took)


def worth_advising(incident: Incident) -> bool:
    """Whether it is a process' doing, and how long steps would have taken without is known."""
    return incident.cause == Cause.CROSS and bool(incident.culprit) and incident.without_ns >= 0


def room(demands: Sequence[Demand], link: int, capacity_bps: float) -> float:
    """What jobs leave of a link while they transfer, where nobody else was there (bit/s); 0: not known, or nothing."""
    if not capacity_bps or not all(one.alone for one in demands if link in one.links):
        return 0.0
    needed = 0.0
    for one in (one for one in demands if link in one.links):
        rates = one.at(link)
        busy = np.flatnonzero(rates > _QUIET * rates.max(initial=0.0))
        needed += rates[busy[0] : busy[-1] + 1].mean() if len(busy) else 0.0
    left = capacity_bps - needed
    return float(left) if left >= _LEAST * capacity_bps else 0.0


def culprit_row(found: Culprit) -> dict[str, Any]:
    """As JSON: the incident's columns, cap_bps (null: none is advised), saves, and commands with how to undo them."""
    cap = _floor(found.room_bps)
    return {
        **incidents.columns(found.incident),
        "cap_bps": cap or None,
        "saves": round(found.saves, 4),
        "at": found.ends.host,
        "commands": _commands(found.ends, cap),
    }


def culprit_sentence(culprit: Mapping[str, Any]) -> str:
    """culprit: as culprit_row() gives it, the job as people call it."""
    whose = ", ".join(filter(None, (culprit["culprit_user"], culprit["sender"] or culprit["host"])))
    who = f"{culprit['culprit']} ({whose})"
    since, until = format_moment(culprit["since_ns"]), format_moment(culprit["until_ns"])
    when = f"(it goes on since {since})" if culprit["ongoing"] else f"from {since} to {until}"
    what = f"limit {who} to {format_rate(culprit['cap_bps'])}, or move it" if culprit["cap_bps"] else f"move {who}"
    took = culprit["baseline_ns"] + culprit["lost_ns"] // culprit["steps"]
    return (
        f"{what} {when}: saves up to {culprit['saves']:.0%} of a step of {culprit['job']}, "
        f"{format_duration(took)} → {format_duration(culprit['without_ns'])}"
    )


def _floor(bps: float) -> int:
    """Two digits of it."""
    unit: int = 10 ** max(0, len(str(int(bps))) - 2)
    return int(bps) // unit * unit


def _commands(ends: PairEnds, cap_bps: int) -> list[dict[str, str]]:
    """With what each does. Nothing that a dataset says gets into a shell but addresses, numbers and plain names."""
    found = []
    if cap_bps and (match := _flower(ends)) and _INTERFACE.fullmatch(ends.interface):
        way = "egress" if ends.sends else "ingress"
        at, one = f"dev {ends.interface} {way}", f"pref {_PREFERENCE}"
        # Without mtu it drops every packet above 2 KB: all of them on a link with jumbo frames.
        action = f"action police rate {max(1, cap_bps // 1000)}kbit burst 256k mtu 65535 conform-exceed drop"
        clsact = f"tc qdisc add dev {ends.interface} clsact 2>/dev/null"
        found.append(
            {
                "does": "limit",
                "run": f"{clsact}; tc filter add {at} {one} {match} {action}",
                "undo": f"tc filter del {at} {one}",
            }
        )
    if _UNIT.fullmatch(ends.unit) and not ends.unit.startswith("-"):
        found.append({"does": "pause", "run": f"systemctl freeze {ends.unit}", "undo": f"systemctl thaw {ends.unit}"})
    return found


def _flower(ends: PairEnds) -> str:
    """tc's description of the packets; empty: there is none that only they fit."""
    try:
        source, target = ip_address(ends.source), ip_address(ends.target)
    except ValueError:
        return ""
    protocol = _PROTOCOLS.get(ends.protocol)
    if not ends.port or not protocol or "%" in f"{source}{target}":
        return ""
    family = "ip" if target.version == 4 else "ipv6"
    port = f"{'src' if ends.of_source else 'dst'}_port {int(ends.port)}"
    return f"protocol {family} flower ip_proto {protocol} src_ip {source} dst_ip {target} {port}"


# --- What there is to advise on jobs and their links, from a window of what passed.

# --- Pairs of ranks: how fast each moves its gradients, which one is slow, and what of its bandwidth is not needed.

_Floats = npt.NDArray[np.float64]

_SLOW = 0.8  # of the median pace of the job's pairs
_GRADIENTS = 0.01  # of the bytes of the job's largest pair: a pair with less sends acknowledgements and control
_FEWEST = 3  # pairs, from which on there is a baseline
Ends = tuple[str, str, str]
"""Job, sender and receiver."""

_NEEDED = 0.9  # of the communication: a pair that is busy for so long has nothing to give


@dataclass(frozen=True)
class Pair:
    """One rank that sends to another one, over the job's recent iterations; medians."""

    job: str
    source: str  # "rank 1 (h1)"
    target: str
    bytes: float  # per iteration, wire
    pace_bps: float  # while it sends
    busy: float  # share of the job's communication in which it sends
    share: float  # share of the iteration in which it sends
    slow: bool

    @property
    def to_be_had_bps(self) -> float:
        """By how much it could be slowed without ending later, at most.

        The same bytes, spread over all of the job's communication. It is a bound: a rank that passes on what it gets
        can do so no earlier than it comes. 0 of a pair that is busy all the time: it makes the others wait.
        """
        return self.pace_bps * (1 - self.busy) if self.busy < _NEEDED else 0.0


@dataclass(frozen=True)
class Spare:
    """Of one link: what training sends there while it sends, and what would do for it to end no later."""

    link: int
    capacity_bps: float  # 0: unknown
    pace_bps: float  # of all pairs over it, if they sent at once: no more than the capacity
    to_be_had_bps: float  # of that, at most

    @property
    def enough_bps(self) -> float:
        return self.pace_bps - self.to_be_had_bps


def spares(found: Sequence[Pair], over: Mapping[Ends, Sequence[int]], capacity_bps: Mapping[int, float]) -> list[Spare]:
    """By link, the most to be had first. over: job, sender and receiver → the links that the pair goes over."""
    sums: dict[int, tuple[float, float]] = {}
    for pair in found:
        for link in over.get((pair.job, pair.source, pair.target), ()):
            pace, had = sums.get(link, (0.0, 0.0))
            sums[link] = pace + pair.pace_bps, had + pair.to_be_had_bps
    rows = []
    for link, (pace, had) in sums.items():
        capacity = capacity_bps.get(link, 0.0)
        most = capacity or pace  # jobs do not always send at once
        rows.append(Spare(link, capacity, min(pace, most), max(0.0, min(pace, most) - min(pace - had, most))))
    return sorted(rows, key=lambda row: (-row.to_be_had_bps, row.link))


def pairs(
    job: str,
    ends: Sequence[tuple[str, str]],
    bytes_: _Floats,
    busy_ns: _Floats,
    communication_ns: _Floats,
    duration_ns: _Floats,
) -> list[Pair]:
    """The pairs of a job, the slowest first.

    ends: sender and receiver of each pair. bytes_, busy_ns: of each pair in each iteration, (pairs, iterations), the
    time in which it sent; communication_ns, duration_ns: of each iteration, (iterations,).
    """
    if not len(ends) or not bytes_.shape[1]:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(busy_ns > 0, bytes_ * 8e9 / busy_ns, np.nan)
        busy = busy_ns / np.maximum(communication_ns, 1)
        share = busy_ns / np.maximum(duration_ns, 1)
    typical_bytes = np.median(bytes_, axis=1)
    sent = (bytes_ > 0).sum(axis=1) * 2 >= bytes_.shape[1]  # of the others there is no typical iteration
    sent &= typical_bytes >= _GRADIENTS * typical_bytes.max()
    paces = np.array([np.nanmedian(row) if used else 0.0 for row, used in zip(pace, sent, strict=True)])
    baseline = float(np.median(paces[sent])) if sent.sum() >= _FEWEST else 0.0
    found = [
        Pair(
            job,
            *ends[index],
            float(typical_bytes[index]),
            float(paces[index]),
            min(1.0, float(np.median(busy[index]))),
            min(1.0, float(np.median(share[index]))),
            bool(paces[index] < _SLOW * baseline),
        )
        for index in np.flatnonzero(sent).tolist()
    ]
    return sorted(found, key=lambda pair: (pair.pace_bps, pair.source, pair.target))


# --- advice

_Times = npt.NDArray[np.int64]

WORTH = 0.02
"""Share of the jobs' time that a shift has to save to be advised."""

LASTS = 50
"""Iterations for which a shift has to hold by itself to be worth it."""

_WITHIN = 0.1  # of an iteration: so far off a shift may get, and so well its beginning has to be known


@dataclass(frozen=True)
class JobSeen:
    """One job in the window. starts_ns: of its iterations, and the end of the last, (iterations + 1,), UTC."""

    job: str
    starts_ns: _Times
    ends: Sequence[tuple[str, str]]  # of its pairs: sender and receiver, as people read them
    bytes_: _Floats  # that each pair moved in each iteration, (pairs, iterations)
    busy_ns: _Floats  # for how long it sent
    communication_ns: _Floats  # first to last byte of all pairs, (iterations,)
    flows: Mapping[int, int]  # of its gradients, by link
    over: Sequence[Sequence[int]] = ()  # links of each pair
    error_ns: int = 0  # of the starts, with the hosts' clocks


@dataclass(frozen=True)
class Share:
    """A fit, and whether it stays. Times in ns."""

    fit: Fit
    drift: Drift | None  # of the job alongside the first of the others, as they are
    difference_ns: float  # by which their iterations differ in length where nobody holds them up
    error_ns: int  # of where they stand
    never_alone: tuple[str, ...] = ()  # those of the jobs of which no iteration met nobody

    @property
    def drift_ns(self) -> float | None:
        """By how much they move alongside each other in an iteration, as they are or each alone, whichever is more."""
        return max(abs(self.drift.per_iteration_ns), self.difference_ns) if self.drift else None

    @property
    def lasts(self) -> float:
        """Iterations for which a shift holds by itself; 0: that is not known."""
        if self.drift_ns is None:
            return 0.0
        return _WITHIN * self.fit.shared_ns / self.drift_ns if self.drift_ns else float("inf")

    @property
    def sure(self) -> bool:
        """Whether it is known well enough where they stand."""
        return self.error_ns <= _WITHIN * self.fit.shared_ns

    @property
    def saves(self) -> bool:
        """Whether a shift would save enough while it holds, or that they stay as they are now."""
        return self.fit.gain >= WORTH and self.sure

    @property
    def advised(self) -> bool:
        return self.saves and self.fit.shift_ns > 0 and self.lasts >= LASTS

    @property
    def needs_hold(self) -> bool:
        """Whether the shift is worth it only where both begin their iterations every fit.hold_ns."""
        return self.saves and not self.advised and self.fit.hold_ns > 0

    @property
    def offset_ns(self) -> int | None:
        """How long after the first of the others the shifted job is to begin; None: not known."""
        return self.fit.offset_ns if self.drift and self.fit.hold_ns else None


@dataclass(frozen=True)
class Advice:
    """Of one window: what jobs demand, who shares links and how well, the pairs of ranks, and what links spare."""

    begin_ns: int
    end_ns: int
    links: tuple[str, ...]  # their names, by the numbers that demands, fits and spares use
    capacity_bps: Mapping[int, float]  # by the same, where it is known
    jobs: tuple[Demand, ...]
    unjudged: tuple[str, ...]  # jobs with too few iterations in the window
    shares: tuple[Share, ...]
    uncompared: tuple[str, ...]  # jobs that share links, but were too many
    pairs: tuple[Pair, ...]
    spares: tuple[Spare, ...]
    culprits: tuple[Culprit, ...] = ()  # the worst first

    @property
    def unknown_links(self) -> dict[int, tuple[str, ...]]:
        """The jobs on each link that jobs share and whose capacity nobody knows."""
        shared = shared_links(self.jobs)
        return {n: tuple(self.jobs[p].job for p in of) for n, of in shared.items() if not self.capacity_bps.get(n)}


def renamed(advice: Advice, names: Mapping[str, str]) -> Advice:
    """The same, with jobs called what people call them."""

    def called(job: str) -> str:
        return names.get(job, job)

    def fitted(fit: Fit) -> Fit:
        return replace(fit, job=called(fit.job), others=tuple(map(called, fit.others)))

    return replace(
        advice,
        jobs=tuple(replace(one, job=called(one.job)) for one in advice.jobs),
        unjudged=tuple(map(called, advice.unjudged)),
        uncompared=tuple(map(called, advice.uncompared)),
        shares=tuple(
            replace(share, fit=fitted(share.fit), never_alone=tuple(map(called, share.never_alone)))
            for share in advice.shares
        ),
        pairs=tuple(replace(pair, job=called(pair.job)) for pair in advice.pairs),
        culprits=tuple(replace(one, incident=incidents.renamed(one.incident, names)) for one in advice.culprits),
    )


def advise(
    seen: Sequence[JobSeen],
    traffic: Mapping[int, LinkBytes],
    names: Sequence[str],
    capacity_bps: Mapping[int, float],
    span_ns: tuple[int, int],
    most: int | None = None,
) -> Advice:
    """Everything there is to say. traffic: of the links on which training sends; names: of links, by number.

    most: jobs that are compared with each other, at most; as many groups that share links as fit into that, the
    smallest first. None: all.
    """
    demand_of = {job.job: demand(job.job, job.starts_ns, traffic, job.flows, capacity_bps) for job in seen}
    demands = [one for one in demand_of.values() if one]
    compared, left_out = _bounded(demands, most)
    of = {one.job: one for one in demands}
    errors = {job.job: job.error_ns for job in seen}
    shares = []
    for fit in fits(compared, capacity_bps):
        own, other = of[fit.job], of[fit.others[0]]
        moves = drift(own.starts_ns[:-1], other.starts_ns[:-1])
        differ_ns = abs(own.period_ns - other.period_ns) if own.alone and other.alone else 0.0
        tied = fit.job, *fit.others
        never = tuple(name for name in tied if not of[name].alone)
        shares.append(Share(fit, moves, differ_ns, max(errors[name] for name in tied), never))
    of_ranks = [pair for job in seen for pair in _pairs(job)]
    over = {(job.job, *ends): links for job in seen for ends, links in zip(job.ends, job.over, strict=False)}
    return Advice(
        *span_ns,
        links=tuple(names),
        capacity_bps=capacity_bps,
        jobs=tuple(demands),
        unjudged=tuple(job for job, one in demand_of.items() if one is None),
        shares=tuple(shares),
        uncompared=left_out,
        pairs=tuple(of_ranks),
        spares=tuple(spares(of_ranks, over, capacity_bps)),
    )


def _pairs(job: JobSeen) -> list[Pair]:
    if len(job.starts_ns) <= FEWEST:
        return []
    lasted = np.diff(job.starts_ns).astype(np.float64)
    return pairs(job.job, job.ends, job.bytes_, job.busy_ns, job.communication_ns, lasted)


def _bounded(demands: Sequence[Demand], most: int | None) -> tuple[list[Demand], tuple[str, ...]]:
    """Those that are compared, and the names of those that are too many."""
    kept: set[int] = set()
    gone: list[str] = []
    for group in sorted(groups(demands), key=len):
        if len(group) > 1 and most is not None and len(kept) + len(group) > most:
            gone += [demands[index].job for index in group]
        elif len(group) > 1:
            kept.update(group)
    return [demands[index] for index in sorted(kept)], tuple(sorted(gone))


# --- What jobs and links did in a window, added up from rows as they come, whoever keeps them.

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
