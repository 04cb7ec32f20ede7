# SPDX-License-Identifier: Apache-2.0
"""Simulated jobs with a known cause in one iteration, of sizes that no lab has (64 ranks, 400 Gbit/s), and verdicts on
them: the collector's judge judges their tables.

Transfers are fluid, computing has a jitter of a hundredth, the links' series have buckets of a quarter to one
millisecond, hosts' clocks are off by up to a bound that the tables state, and now and then a host's rows are missing.
Of TCP, only the cost of a lost packet that the timer (200 ms) detects is simulated. A rank that stops during a transfer
is not simulated: the lab injects that.
Besides the cause there may be bystanders: traffic over a job's link while nobody transfers. They must not be accused.
Some jobs have too few cores, as Horovod in the lab: now and then a transfer stops and resumes, and their ranks wait for
CPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.bench.verdict.scoring import NOTHING, OFTEN, SCORED_FROM, Outcome, judged, share_of
from netmon.dl.verdict import Link, LinkTotals, Steps, Whose, in_cells, judge
from netmon.dl.verdict.connections import SAID
from netmon.dl.verdict.host_part import WAITED
from netmon.dl.verdict.verdict_text import columns as columns_of
from netmon.lab.injections.spec import NETWORK
from netmon.records import Direction

# --- A transfer as a fluid: every link carries its share of a collective, and at each step waits for the others.

_Floats = npt.NDArray[np.float64]

PATTERNS = ("ring", "tree", "star", "clique")
GOODPUT = 1448 / 1514
"""Payload of a full frame."""

STEPS = 12
"""Of a phase: blocks of a fusion buffer, chunks of a ring."""


def phases(pattern: str, ranks: int, payload: float) -> list[_Floats]:
    """What each link carries, phase by phase: arrays (2·ranks,), payload bytes; link 2·r is what rank r receives.

    payload: of the gradients of one rank. Star and tree reduce towards rank 0, then send the sum back; children of rank
    k are 2k+1 and 2k+2. Ring and clique do both in 2·(N−1)/N of the gradients per link (thesis, equation 3.1).
    """
    if pattern in ("ring", "clique"):
        return [np.full(2 * ranks, 2 * (ranks - 1) / ranks * payload)]
    up, down = np.zeros(2 * ranks), np.zeros(2 * ranks)
    for rank in range(1, ranks):
        parent = 0 if pattern == "star" else (rank - 1) // 2
        for sender, receiver, amount in ((rank, parent, up), (parent, rank, down)):
            amount[2 * sender + 1] += payload
            amount[2 * receiver] += payload
    return [up, down]


@dataclass(frozen=True)
class Squeeze:
    """A time in which a link has less capacity for the job: others use it, or it is missing. Times in ns."""

    link: int
    since_ns: float
    until_ns: float
    left: float  # of the link's rate, that the job can have


@dataclass(frozen=True)
class Moved:
    """Cumulated payload bytes of links, linear between knots. Arrays (links, knots), times in ns."""

    time_ns: _Floats
    payload: _Floats

    @property
    def end_ns(self) -> float:
        """When the last link has moved all."""
        return float(self.time_ns.max())

    def stalled(self, at_ns: float, for_ns: float) -> "Moved":
        """The same, if nothing moves for a while from a moment within it on."""
        time, payload = [], []
        for when, moved in zip(self.time_ns, self.payload, strict=True):
            index = int(np.searchsorted(when, at_ns, "right"))
            until = np.full(2, np.interp(at_ns, when, moved))
            time.append(np.concatenate([when[:index], [at_ns, at_ns + for_ns], when[index:] + for_ns]))
            payload.append(np.concatenate([moved[:index], until, moved[index:]]))
        return Moved(np.array(time), np.array(payload))

    def in_buckets(self, width_ns: int) -> tuple[int, _Floats]:
        """The first bucket of this width, and bytes by link and bucket from there on."""
        first, last = int(self.time_ns.min() // width_ns), int(self.end_ns // width_ns)
        edges = np.arange(first, last + 2, dtype=np.float64) * width_ns
        until = [np.interp(edges, *of_link) for of_link in zip(self.time_ns, self.payload, strict=True)]
        return first, np.diff(np.array(until), axis=1)


def transfer(begin_ns: float, parts: Sequence[_Floats], rate_bps: float, squeeze: Squeeze | None) -> Moved:
    """A collective that begins now. rate_bps: of every link, each way.

    Each part goes in steps: in one, a link moves its bytes as fast as it can; the next one begins when all have. So a
    slow link is busy all the time, and the others wait for it.
    """
    links = len(parts[0])
    pace = rate_bps / 8e9 * GOODPUT
    since, until = (squeeze.since_ns, squeeze.until_ns) if squeeze else (begin_ns, begin_ns)
    slow = np.ones(links)
    if squeeze:
        slow[squeeze.link] = squeeze.left
    now, done = begin_ns, np.zeros(links)
    times, payloads = [], []
    for part in parts:
        for _ in range(STEPS):
            bytes_ = part / STEPS
            end = _end(now, bytes_, pace, slow, since, until)
            for knot in (np.full(links, now), np.clip(since, now, end), np.clip(until, now, end), end):
                squeezed = np.clip(np.minimum(knot, until) - max(now, since), 0, None)
                times.append(knot)
                payloads.append(done + pace * (knot - now - (1 - slow) * squeezed))
            done = done + bytes_
            now = float(end.max())
    return Moved(np.array(times).T, np.array(payloads).T)


def _end(now: float, bytes_: _Floats, pace: float, slow: _Floats, since: float, until: float) -> _Floats:
    """When each link has moved its bytes, if it has `slow` of its pace in [since, until)."""
    before = pace * max(0.0, since - now)
    begin = max(now, since)
    within = pace * slow * max(0.0, until - begin)
    rest = np.clip(bytes_ - before, 0, None)
    later: _Floats = np.where(rest <= within, begin + rest / (pace * slow), max(begin, until) + (rest - within) / pace)
    found: _Floats = np.where(bytes_ <= before, now + bytes_ / pace, later)
    return found


# --- What hosts report of simulated ranks: how long they waited for a CPU, and what TCP sent again.

_LOOK_NS, _REQUEST_NS = 100_000_000, 600_000_000  # as the agent does
_SINCE = -5  # rows, before the first iteration that is reported: the job has trained for long
_BASELINE_WAITS = (0.02, 0.1)  # of the time, that a rank waits for a CPU
_UNACKNOWLEDGED = 0.3  # of the time, that something is unacknowledged


@dataclass
class Outcomes:
    """May still grow; moments in ns."""

    waits: list[tuple[int, float, float, float]] = field(default_factory=list)  # rank, since, until, share of that
    again: list[tuple[int, float, float, int]] = field(default_factory=list)  # rank, lost when, sent when, bytes

    def waited(self, ranks: int, until_ns: float, random: np.random.Generator) -> npt.NDArray[np.void]:
        """Of all ranks until then; dtype WAITED."""
        start = np.arange(_SINCE * _LOOK_NS, until_ns, _LOOK_NS, dtype=np.float64)
        ns = random.uniform(*_BASELINE_WAITS, (ranks, len(start))) * _LOOK_NS
        for rank, since, until, share in self.waits:
            ns[rank] += share * np.clip(np.minimum(start + _LOOK_NS, until) - np.maximum(start, since), 0, None)
        rows = np.zeros(ranks * len(start), WAITED)
        rows["rank"] = np.repeat(np.arange(ranks), len(start))
        rows["start_ns"] = np.tile(start, ranks)
        rows["end_ns"] = rows["start_ns"] + _LOOK_NS
        rows["waited_ns"] = np.minimum(ns, _LOOK_NS).ravel()
        return rows

    def tcp_rows(self, ranks: int, until_ns: float, sent_bps: float) -> npt.NDArray[np.void]:
        """Of a connection of each rank until then; dtype SAID, `of`: the rank."""
        start = np.arange(_SINCE * _REQUEST_NS, until_ns, _REQUEST_NS, dtype=np.float64)
        rows = np.zeros(ranks * len(start), SAID)
        rows["of"] = np.repeat(np.arange(ranks), len(start))
        rows["start_ns"] = np.tile(start, ranks)
        rows["end_ns"] = rows["start_ns"] + _REQUEST_NS
        rows["sent_bytes"] = sent_bps / 8e9 * _REQUEST_NS
        rows["busy_ns"] = _UNACKNOWLEDGED * _REQUEST_NS
        for rank, lost, again, size in self.again:
            own = rows[rank * len(start) : (rank + 1) * len(start)]
            own["again_bytes"][int(again // _REQUEST_NS) - _SINCE] += size
            waited = np.clip(np.minimum(start + _REQUEST_NS, again) - np.maximum(start, lost), 0, None)
            own["busy_ns"] += ((1 - _UNACKNOWLEDGED) * waited).astype(np.int64)
        return rows


# --- simulated


CAUSES = ("cross", "other_job", "straggler", "pause", "slow_link", "nothing", "host", "loss")
JOB = SIMULATED = "simulated"
_INTERFACE = "eth0"
_EPOCH_NS = 1_800_000_000_000_000_000
_UPDATE_NS = 1_500_000
_BEFORE, _AFTER = 14, 3  # baseline iterations
_BUSY = 0.15  # of the iterations of a job with too few cores
_TIMER_NS = 200_000_000  # TCP's shortest timeout
_LOST, _OVERFLOWS = 20_000, 200_000  # bytes
_LEAST_NS = 200_000_000  # that a rank waits for a CPU: hosts are looked at ten times a second


@dataclass(frozen=True)
class Scenario:
    """One job, and what happens to one of its iterations. Drawn by scenario()."""

    cause: str
    ranks: int
    pattern: str
    rate_bps: float
    compute_ns: float
    transfer_ns: float  # as it usually lasts
    victim: int  # rank
    direction: Direction  # of the victim's link
    strength: float  # cross: offered load; slow_link: share taken away; straggler, pause: of the baseline duration
    flows: int  # of the others, that share a full link with the job's one
    offset: float  # of the transfer, when the others begin
    lasts: float  # of the transfer, for how long
    bystander: bool
    few_cores: bool
    overflows: bool  # slow_link: the queue before it, when it becomes slow
    quota_period_ns: int  # host: of a CPU quota that stops the victim while it transfers; 0: it is late
    clock_bound_ns: int
    unseen: int  # rank whose host's rows are missing; −1: none
    bucket_ns: int
    seed: int
    also_late: float = 0.0  # of the baseline duration: how late another rank is at the same time

    @property
    def duration_ns(self) -> float:
        """Of a baseline iteration."""
        return self.compute_ns + self.transfer_ns + _UPDATE_NS


@dataclass(frozen=True)
class Simulated:
    steps: Steps
    link_totals: LinkTotals
    number: int  # of the iteration that something happened to
    excess_ns: float  # true one, of its slowest rank
    without_ns: float  # what it would have taken without what squeezed its transfer; 0: nothing did
    baseline_ns: float
    undisturbed_ns: tuple[float, ...]  # what the other iterations took
    injection: dict[str, Any]  # as the lab's injections.json has them


def scenario(seed: int) -> Scenario:
    generator = np.random.default_rng(seed)
    ranks = int(np.round(2 ** generator.uniform(1, 6)))
    duration = 10 ** generator.uniform(7.5, 8.7)
    cause = CAUSES[seed % len(CAUSES)]
    victim = int(generator.integers(ranks))
    share = generator.uniform(0.35, 0.85) if cause in NETWORK else generator.uniform(0.15, 0.7)  # of the transfer
    return Scenario(
        cause=cause,
        ranks=ranks,
        pattern=str(generator.choice(PATTERNS)),
        rate_bps=float(10 ** generator.uniform(9, np.log10(400e9))),
        compute_ns=duration * (1 - share),
        transfer_ns=duration * share,
        victim=victim,
        direction=Direction(int(generator.integers(2))),
        strength=float(generator.uniform(0.5, 0.95)),
        flows=int(generator.choice([1, 2, 4, 16])),
        offset=float(generator.uniform(-0.4, 0.2)),
        lasts=float(generator.uniform(0.8, 2.5)),
        bystander=bool(generator.uniform() < 0.3),
        few_cores=bool(np.random.default_rng([seed, 1]).uniform() < 0.3),
        overflows=bool(np.random.default_rng([seed, 3]).uniform() < 0.5),
        quota_period_ns=int(np.random.default_rng([seed, 2]).choice([0, 0, 20_000_000, 100_000_000])),
        clock_bound_ns=int(generator.choice([0, 10_000, 100_000, 500_000])),
        unseen=_other(generator, victim, ranks) if generator.uniform() < 0.15 and cause != "loss" else -1,
        bucket_ns=int(generator.choice([250_000, 500_000, 1_000_000])),
        seed=seed,
    )


def _other(generator: np.random.Generator, rank: int, ranks: int) -> int:
    """Nobody can name what disturbs a link of which there are no rows."""
    return (rank + 1 + int(generator.integers(ranks - 1))) % ranks


class _Tables:
    """Rows that grow iteration by iteration."""

    def __init__(self, its: Scenario) -> None:
        self._its = its
        self._random = np.random.default_rng(its.seed + 1_000_003)
        self.clock = self._random.uniform(-1, 1, its.ranks) * its.clock_bound_ns
        self.rows: list[list[np.ndarray[Any, Any]]] = []
        self.steps: list[tuple[float, ...]] = []
        self.lasted: list[float] = []
        self.without_ns = 0.0  # what the iteration that had a squeeze would have taken without it
        self.outcomes = Outcomes()
        baseline = phases(its.pattern, its.ranks, 1.0)
        per_byte = transfer(0.0, baseline, its.rate_bps, None).end_ns
        self._parts = [amount * its.transfer_ns / per_byte for amount in baseline]
        self.now_ns = float(self._random.uniform(0, 1e6))

    def iterate(self, cause: str) -> None:
        its, start = self._its, self.now_ns
        jitter = 1 + 0.01 * np.abs(self._random.normal(size=its.ranks))
        extra = max(its.strength * its.duration_ns, _LEAST_NS if cause == "host" else 0.0)
        ready = start + its.compute_ns * jitter
        if cause == "pause":
            ready += extra
        elif cause == "straggler" or (cause == "host" and not its.quota_period_ns):
            ready[its.victim] += extra
            if cause == "host":
                until = float(ready[its.victim])
                self.outcomes.waits.append((its.victim, start, until, 0.9 * extra / (until - start)))
        if cause and its.also_late:
            ready[(its.victim + 1) % its.ranks] += its.also_late * its.duration_ns
        begin = float(ready.max())
        squeeze = self._squeeze(cause, begin)
        parts = [part * self._random.uniform(0.99, 1.01) for part in self._parts]
        moved = transfer(begin, parts, its.rate_bps, squeeze)
        if cause == "loss":
            moved = self._lose(moved)
        elif cause == "slow_link" and its.overflows and squeeze:
            self._overflow(moved, squeeze)
        elif cause == "host" and its.quota_period_ns:
            moved = self._throttle(moved, extra)
        elif not cause and its.few_cores and self._random.uniform() < _BUSY:
            moved = self._stop_and_go(moved, start)
        over = moved.end_ns
        end = over + _UPDATE_NS
        if squeeze:
            self.without_ns = transfer(begin, parts, its.rate_bps, None).end_ns + _UPDATE_NS - start
        self._pour(0, *moved.in_buckets(its.bucket_ns))
        if squeeze and cause in ("cross", "other_job"):
            self._others(squeeze, moved)
        if its.bystander and cause in ("straggler", "pause", "nothing"):
            self._bystander(start, float(ready.min()))
        for rank in range(its.ranks):
            self.steps.append((rank, start, end, float(ready[rank]), over, over - float(ready[rank])))
        self.lasted.append(end - start)
        self.now_ns = end + 100_000

    def _squeeze(self, cause: str, begin: float) -> Squeeze | None:
        its = self._its
        since = begin + its.offset * its.transfer_ns
        until = since + its.lasts * its.transfer_ns
        link = 2 * its.victim + int(its.direction)
        if cause in ("cross", "other_job"):
            return Squeeze(link, since, until, max(1 - its.strength, 1 / (its.flows + 1)))
        if cause == "slow_link":
            return Squeeze(link, since, until, 1 - its.strength)
        return None

    def _lose(self, moved: Moved) -> Moved:
        """The victim's last packets before a moment never arrive, and all wait until TCP's timer has run out."""
        when, sent = (column[2 * self._its.victim + 1] for column in (moved.time_ns, moved.payload))
        at = float(np.interp(self._random.uniform(0.2, 0.8) * sent[-1], sent, when))
        lost = np.zeros((2 * self._its.ranks, 1))
        lost[2 * self._its.victim + 1] = _LOST
        self._pour(0, int(at // self._its.bucket_ns), lost)
        waited = _TIMER_NS * self._random.uniform(1.01, 1.05)
        self.outcomes.again.append((self._its.victim, at, at + waited, _LOST))
        return moved.stalled(at, waited)

    def _overflow(self, moved: Moved, squeeze: Squeeze) -> None:
        """What the queue does not take is sent again at once: it costs hardly any time."""
        its = self._its
        sender = its.victim if its.direction == Direction.TX else (its.victim + 1) % its.ranks
        at = float(np.clip(squeeze.since_ns, moved.time_ns.min(), moved.end_ns))
        lost = np.zeros((2 * its.ranks, 1))
        lost[2 * sender + 1] = _OVERFLOWS
        self._pour(0, int(at // its.bucket_ns), lost)
        self.outcomes.again.append((sender, at, at, _OVERFLOWS))

    def _throttle(self, moved: Moved, extra: float) -> Moved:
        """The victim may run for a part of each period only, until that has cost `extra`, and all wait for it."""
        its, begin = self._its, float(moved.time_ns.min())
        stop = its.quota_period_ns * self._random.uniform(0.6, 0.95)
        stops = int(np.ceil(extra / stop))
        runs = min(its.quota_period_ns - stop, 0.9 * its.transfer_ns / (stops + 1))
        for number in range(stops):
            moved = moved.stalled(begin + runs + number * (runs + stop), stop)
        self.outcomes.waits.append((its.victim, begin, moved.end_ns, 0.95 * stops * stop / (moved.end_ns - begin)))
        return moved

    def _stop_and_go(self, moved: Moved, start: float) -> Moved:
        """Cores are taken from the ranks again and again while they transfer."""
        its, begin = self._its, float(moved.time_ns.min())
        for _ in range(int(self._random.integers(2, 6))):
            at = float(self._random.uniform(begin, moved.end_ns))
            moved = moved.stalled(at, float(self._random.uniform(0.02, 0.1)) * its.duration_ns)
        for rank in range(its.ranks):
            self.outcomes.waits.append((rank, start, moved.end_ns, float(self._random.uniform(0.1, 0.5))))
        return moved

    def _others(self, squeeze: Squeeze, moved: Moved) -> None:
        """Add the others' bytes: what they offer, as far as the job leaves room."""
        its = self._its
        pace = its.rate_bps / 8e9 * GOODPUT
        ends = np.array([[squeeze.since_ns, squeeze.until_ns]])
        first, offered = Moved(ends, np.array([[0.0, its.strength * pace * (ends[0, 1] - ends[0, 0])]])).in_buckets(
            its.bucket_ns
        )
        theirs, own = moved.in_buckets(its.bucket_ns)
        room = np.full(offered.shape[1], pace * its.bucket_ns)
        index = np.arange(offered.shape[1]) + first - theirs
        inside = (index >= 0) & (index < own.shape[1])
        room[inside] -= own[squeeze.link, index[inside]]
        total = np.zeros((2 * its.ranks, offered.shape[1]))
        total[squeeze.link] = np.minimum(offered[0], np.clip(room, 0, None))
        self._pour(1, first, total)

    def _bystander(self, since: float, until: float) -> None:
        its = self._its
        ends = np.array([[since + 0.2 * (until - since), until - 0.1 * (until - since)]])
        amount = 0.9 * its.rate_bps / 8e9 * GOODPUT * (ends[0, 1] - ends[0, 0])
        first, own = Moved(ends, np.array([[0.0, amount]])).in_buckets(its.bucket_ns)
        total = np.zeros((2 * its.ranks, own.shape[1]))
        total[2 * its.victim + int(its.direction)] = own[0]
        self._pour(2, first, total)

    def _pour(self, whose: int, first: int, total: npt.NDArray[np.float64]) -> None:
        """Rows of ranks (0), of what disturbs (1) or of a bystander (2)."""
        width = self._its.bucket_ns
        link, bucket = np.nonzero(total >= 1)
        seen = link // 2 != self._its.unseen
        link, bucket = link[seen], bucket[seen]
        start = _EPOCH_NS + (first + bucket) * width + self.clock[link // 2].astype(np.int64)
        payload = total[link, bucket]
        of = link // 2 if not whose else np.full(len(link), self._its.ranks + whose - 1)
        self.rows.append([link, of, start, np.full(len(link), width), payload / GOODPUT, payload])


def simulate(its: Scenario) -> Simulated:
    tables = _Tables(its)
    for number in range(_BEFORE + 1 + _AFTER):
        tables.iterate(its.cause if number == _BEFORE else "")
    hosts = [f"h{rank}" for rank in range(its.ranks)]
    links = [Link(host, _INTERFACE, way, round(its.rate_bps)) for host in hosts for way in (Direction.RX, Direction.TX)]
    ranks = [Whose(JOB, rank, -1, False, "python3") for rank in range(its.ranks)]
    other = Whose("other", 0, 1, False, "python3") if its.cause == "other_job" else Whose("", -1, -1, False, "iperf3")
    whose = [*ranks, other, Whose("", -1, -1, False, "rsync")]
    columns = [np.concatenate(column).astype(np.int64) for column in zip(*tables.rows, strict=True)]
    rows = in_cells(*columns)
    baseline = float(np.median(tables.lasted[:_BEFORE]))
    until, random = tables.now_ns, np.random.default_rng(its.seed + 2_000_003)
    waited, said = (
        tables.outcomes.waited(its.ranks, until, random),
        tables.outcomes.tcp_rows(its.ranks, until, its.rate_bps / 4),
    )
    for rows_of, rank in ((waited, waited["rank"]), (said, said["of"])):
        for name in ("start_ns", "end_ns"):
            rows_of[name] += _EPOCH_NS + tables.clock[rank].astype(np.int64)
    excess = tables.lasted[_BEFORE] - baseline
    return Simulated(
        _steps(its, tables, hosts),
        LinkTotals(links, whose, rows, its.clock_bound_ns, waited, said, its.bucket_ns),
        _BEFORE,
        excess,
        tables.without_ns,
        baseline,
        tuple(lasted for number, lasted in enumerate(tables.lasted[1:], 1) if number != _BEFORE),
        {
            "kind": its.cause,
            "cause": "" if its.cause == "nothing" else its.cause,
            "host": hosts[its.victim],
            "hosts": [hosts[its.victim]],
            "rank": its.victim,
            "processes": ["iperf3"],
            "job": "other",
        },
    )


def _steps(its: Scenario, tables: _Tables, hosts: list[str]) -> Steps:
    size = its.ranks
    table = np.array(tables.steps)
    rank = table[:, 0].astype(np.int64)
    clock = tables.clock[rank]
    start, end, first, last = (_EPOCH_NS + (table[:, column] + clock).astype(np.int64) for column in (1, 2, 3, 4))
    return Steps(
        number=np.repeat(np.arange(len(tables.lasted), dtype=np.int64), size),
        rank=rank,
        start_ns=start,
        end_ns=end,
        comm_start_ns=first,
        comm_end_ns=last,
        exposed_ns=table[:, 5].astype(np.int64),
        error_ns=np.full(len(table), its.clock_bound_ns, np.int64),
        shared=np.zeros(len(table), np.bool_),
        host=rank,
        hosts=hosts,
        size=size,
    )


def judge_one(its: Scenario) -> Outcome:
    """Judge one scenario. A verdict is made whether the iteration stands out or not, but counts only if it does."""
    made = simulate(its)
    lasted, undisturbed = made.baseline_ns + made.excess_ns, float(np.quantile(made.undisturbed_ns, OFTEN))
    notable = lasted >= SCORED_FROM * made.baseline_ns
    stands_out = notable and lasted > undisturbed
    verdict = columns_of(judge(JOB, made.steps, made.link_totals, made.number)) if notable else None
    cause = made.injection["cause"] or NOTHING
    judged_cause = str(verdict["cause"]) if verdict else NOTHING
    share = float(str(verdict.get(share_of(cause), 0) or 0)) if verdict and cause != NOTHING else None
    return Outcome(
        *(f"{SIMULATED}-{its.seed}", SIMULATED, its.cause, cause, judged_cause),
        judged(cause, judged_cause, stands_out, made.injection, verdict),
        *(0, made.baseline_ns, made.excess_ns, share, None),
        {**made.injection, "scenario": vars(its)},
        verdict,
        undisturbed,
    )
