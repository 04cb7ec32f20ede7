# SPDX-License-Identifier: Apache-2.0
"""Where a page's contents come from: a dataset, or a collector. All requests block."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from netmon.dl.verdict import NOTABLE
from netmon.records import CLASS_NAMES, COUNTS
from netmon.views import Hang, RankPair, RankTimes, Rows, Verdict

# --- Iterations of many ranks in arrays: where each one's time went, and how much of each bin that is.
#
# What a rank does is distinguished as netmon.dl.verdict.rank_times does: it computes until it waits for gradients; it
# only waits while another rank has not handed its own over; then the transfer begins. Of millions of iterations it is
# not looked up what each is compared with in its verdict. Those are slow that take NOTABLE × what the quickest quarter
# of the rank's iterations take, at most; their transfers stalled for what is beyond the same quarter's.

PHASES = ("computing", "waiting", "transfer", "held up", "not known")

STEP = np.dtype(
    [
        ("job", "<i4"),
        ("rank", "<i4"),
        ("host", "<i4"),
        ("shared", "?"),  # its host had foreign traffic, or it is not known yet
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("comm_start_ns", "<i8"),  # 0: not known, as of the next two
        ("wait_start_ns", "<i8"),
        ("comm_end_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One iteration of one rank; job and host are numbers of the reader's; times in ns of the UTC epoch."""

_Steps = npt.NDArray[np.void]
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lanes:
    """Iterations by lane and time. bounds[:, p] is where phase p of PHASES begins, bounds[:, p + 1] where it ends.

    The order in time is computing, waiting, transfer, held up, and computing again up to end_ns.
    """

    first: npt.NDArray[np.int64]  # (lanes,): of its rows
    last: npt.NDArray[np.int64]  # the one after them
    number: npt.NDArray[np.int64]
    bounds: _Times  # (rows, 5)
    end_ns: _Times
    known: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]  # of an iteration's slowest rank: all that the job has have a row
    shared: npt.NDArray[np.bool_]  # the same: some rank's host had foreign traffic, or it is not known yet

    def of(self, lane: int, begin_ns: int, end_ns: int) -> slice:
        first, last = int(self.first[lane]), int(self.last[lane])
        low = first + int(np.searchsorted(self.end_ns[first:last], begin_ns, "right"))
        high = first + int(np.searchsorted(self.bounds[first:last, 0], end_ns, "left"))
        return slice(low, max(low, high))


def by_lane(steps: _Steps, lanes: Sequence[tuple[int, int]]) -> Lanes:
    """Of lanes (job, rank), as STEP numbers them; rank -1: the slowest rank of each iteration of the job."""
    steps = steps[steps["end_ns"] > steps["start_ns"]]
    bounds, known = _phases(steps)
    slowest = _slowest(steps)
    rows = np.concatenate([np.arange(len(steps)), slowest])
    rank = np.concatenate([steps["rank"], np.full(len(slowest), -1)])
    key = _key(steps["job"][rows], rank)
    order = np.lexsort((steps["start_ns"][rows], key))
    rows, key = rows[order], key[order]
    wanted = np.array(lanes, np.int64).reshape(-1, 2)
    lane = _key(wanted[:, 0], wanted[:, 1])
    indices = np.searchsorted(key, lane, "left"), np.searchsorted(key, lane, "right")
    whole, shared = _of_all_ranks(steps)
    columns = steps["number"], bounds, steps["end_ns"], known, whole, shared
    return Lanes(*indices, *(column[rows] for column in columns))


def _key(job: npt.NDArray[np.integer], rank: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return (job.astype(np.int64) << 32) + rank.astype(np.int64) + 1


def _slowest(steps: _Steps) -> npt.NDArray[np.int64]:
    """A row of each job and iteration."""
    order = np.lexsort((steps["end_ns"] - steps["start_ns"], steps["number"], steps["job"]))
    own = steps[order]
    last = (np.diff(own["number"], append=-1) != 0) | (np.diff(own["job"], append=-1) != 0)
    found: npt.NDArray[np.int64] = order[last]
    return found


def _of_all_ranks(steps: _Steps) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of each row's iteration: whether it has as many ranks as the job's others, and whether one is shared."""
    group, count = _groups(steps, "number", "job")
    job, jobs = _groups(steps, "job")
    ranks = np.bincount(group, minlength=count)[group]
    most = np.zeros(jobs, np.int64)
    np.maximum.at(most, job, ranks)
    return ranks == most[job], np.bincount(group, steps["shared"], count)[group] > 0


def _phases(steps: _Steps) -> tuple[_Times, npt.NDArray[np.bool_]]:
    start, end, begun, done = (steps[name] for name in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns"))
    known = (begun >= start) & (done >= begun) & (done <= end)
    exposed_from = np.where(steps["wait_start_ns"] > 0, steps["wait_start_ns"], begun)
    idle = np.where(known, np.clip(exposed_from, begun, done), end)
    everybody = np.where(known, np.clip(_everybody(steps, known), idle, done), end)
    done = np.where(known, done, end)
    transfer = done - everybody
    stalled = np.where(_slow(steps), np.maximum(0, transfer - _quick_transfer(steps, transfer, known)), 0).astype(
        np.int64
    )
    return np.stack([start, idle, everybody, done - stalled, done], axis=1), known


def _groups(steps: _Steps, *names: str) -> tuple[npt.NDArray[np.int64], int]:
    """The number of each row's combination, and how many there are."""
    if not len(steps):
        return np.empty(0, np.int64), 0
    order = np.lexsort([steps[name] for name in names])
    change = np.zeros(len(steps), np.bool_)
    for name in names:
        change[1:] |= np.diff(steps[name][order]) != 0
    group = np.empty(len(steps), np.int64)
    group[order] = np.cumsum(change)
    return group, int(group.max()) + 1


def _everybody(steps: _Steps, known: npt.NDArray[np.bool_]) -> _Times:
    """When the last rank of the iteration had its first gradient; 0 where that is not known of all."""
    group, count = _groups(steps, "number", "job")
    last = np.zeros(count, np.int64)
    np.maximum.at(last, group, np.where(known, steps["comm_start_ns"], np.iinfo(np.int64).max))
    there = last[group]
    return np.where(there < steps["end_ns"], there, 0)  # else it is of another run, or of a rank that nobody knows


def _quartiles(steps: _Steps, values: npt.NDArray[np.float64], *names: str) -> npt.NDArray[np.float64]:
    """The lower one of each row's group, without nan: half of the time may be disturbed."""
    group, count = _groups(steps, *names)
    order = np.lexsort((values, group))
    known = np.bincount(group, np.isfinite(values), count).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=count))])[:-1]
    index = np.minimum(first + known // 4, max(len(values) - 1, 0)).astype(np.int64)
    found = np.where(known > 0, values[order][index], np.nan) if len(values) else np.empty(0)
    return found[group]


def _quick_transfer(steps: _Steps, transfer: _Times, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(_quartiles(steps, np.where(known, transfer.astype(float), np.nan), "rank", "job"))


def _slow(steps: _Steps) -> npt.NDArray[np.bool_]:
    duration = (steps["end_ns"] - steps["start_ns"]).astype(float)
    slow: npt.NDArray[np.bool_] = duration >= NOTABLE * _quartiles(steps, duration, "rank", "job")
    return slow


def density(lanes: Lanes, lane: int, begin_ns: int, width_ns: int, bins: int) -> npt.NDArray[np.uint8]:
    """(phases, bins): how much of each bin a lane spent in each phase, 255: all of it."""
    rows = lanes.of(lane, begin_ns, begin_ns + width_ns * bins)
    edges = begin_ns + width_ns * np.arange(bins + 1, dtype=np.int64)
    bounds, end, known = lanes.bounds[rows], lanes.end_ns[rows], lanes.known[rows]
    shares = np.zeros((len(PHASES), bins))
    if len(end):
        for phase in range(4):
            ends = bounds[:, phase + 1]
            shares[phase] += _covered(bounds[known, phase], ends[known], edges)
        shares[0] += _covered(bounds[known, 4], end[known], edges)
        shares[4] = _covered(bounds[~known, 0], end[~known], edges)
    scaled: npt.NDArray[np.uint8] = np.clip(np.rint(shares * (255 / width_ns)), 0, 255).astype(np.uint8)
    return scaled


def _covered(begins: _Times, ends: _Times, edges: _Times) -> npt.NDArray[np.float64]:
    """How much of each bin intervals cover that ascend; where they overlap, the later one begins later."""
    if not len(begins):
        return np.zeros(len(edges) - 1)
    begins = np.maximum(begins, np.concatenate([begins[:1], np.maximum.accumulate(ends)[:-1]]))
    ends = np.maximum(begins, ends)
    base = int(edges[0])
    points = np.stack([begins, ends], axis=1).ravel() - base
    until = np.cumsum(ends - begins)
    covered = np.stack([np.concatenate([[0], until[:-1]]), until], axis=1).ravel()
    found: npt.NDArray[np.float64] = np.diff(np.interp(edges - base, points, covered))
    return found


# --- Bytes on a grid of time: rows of buckets into bins, and bins of one width into bins of another.

DIRECTIONS = ("rx", "tx")
SERIES = len(DIRECTIONS) * len(CLASS_NAMES)
"""Of a host: by direction, then by class in the order of netmon.records.Class."""

ROW_COLUMNS = ["host", "direction", "class", "bucket_start_ns", "bucket_ns", "wire_bytes"]
_LEAST = 1e-3  # bytes: less is what sums leave over

Floats = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.int64]


def in_bins(
    series: _Indices,
    start_ns: npt.NDArray[np.int64],
    length_ns: npt.NDArray[np.int64],
    wire_bytes: npt.NDArray[np.int64],
    of: tuple[int, int, int, int],
) -> Floats:
    """(series, bins) bytes of rows; one that is wider than a bin is spread over those that it touches.

    series: of each row, below 0 to leave it out; of: how many series, begin (ns), width (ns) and number of the bins.
    """
    count, begin_ns, width_ns, bins = of
    first = (start_ns - begin_ns) // width_ns
    last = (start_ns + np.maximum(length_ns, 1) - 1 - begin_ns) // width_ns
    inside = (series >= 0) & (last >= 0) & (first < bins)
    row, first, last = series[inside], first[inside], last[inside]
    share = wire_bytes[inside] / (last - first + 1)
    begins = row * (bins + 1) + np.maximum(first, 0)
    ends = row * (bins + 1) + np.minimum(last, bins - 1) + 1
    size = count * (bins + 1)
    steps = np.bincount(begins, share, size) - np.bincount(ends, share, size)
    values: Floats = np.cumsum(steps.reshape(count, bins + 1), axis=1)[:, :bins]
    values[values < _LEAST] = 0
    return values


def resampled(
    values: npt.NDArray[np.float32], grid: tuple[int, int], begin_ns: int, width_ns: int, bins: int
) -> Floats:
    """(…, cells) bytes on one grid (begin, width in ns) → (…, bins) on another; outside of it there is nothing."""
    first_ns, cell_ns = grid
    cells = values.shape[-1]
    low = max(0, (begin_ns - first_ns) // cell_ns)
    high = min(cells, -(-(begin_ns + width_ns * bins - first_ns) // cell_ns))
    if high <= low:
        return np.zeros((*values.shape[:-1], bins))
    part = values[..., low:high].astype(np.float64)
    until = np.concatenate([np.zeros((*part.shape[:-1], 1)), np.cumsum(part, axis=-1)], axis=-1)
    edge = (begin_ns - first_ns + width_ns * np.arange(bins + 1, dtype=np.int64)) / cell_ns - low
    edge = np.clip(edge, 0, high - low)
    cell = np.minimum(edge.astype(np.int64), high - low - 1)
    return np.diff(until[..., cell] + (edge - cell) * part[..., cell], axis=-1)


class RowReader:
    """Batches of rows with ROW_COLUMNS, as arrays of numbers."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """hosts: those that count, in the order of their series."""
        self._host = {host: number for number, host in enumerate(hosts)}
        self._direction = {name: number for number, name in enumerate(DIRECTIONS)}
        self._class = {name: number for number, name in enumerate(CLASS_NAMES)}

    def read(self, batch: pa.RecordBatch) -> tuple[_Indices, _Indices, _Indices, _Indices]:
        """The series of each row, its start and width (ns) and its bytes."""
        host = numbers(batch.column("host"), self._host)
        direction = numbers(batch.column("direction"), self._direction)
        has_class = "class" in batch.schema.names  # a part of a dataset may have been cut out without it
        class_ = numbers(batch.column("class"), self._class) if has_class else np.zeros(len(host), np.int64)
        series = (host * len(DIRECTIONS) + direction) * len(CLASS_NAMES) + class_
        series[(host < 0) | (direction < 0) | (class_ < 0)] = -1
        start, width, wire = (
            batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
            for name in ("bucket_start_ns", "bucket_ns", "wire_bytes")
        )
        return series, start, width, wire


def row_columns(schema: pa.Schema) -> list[str]:
    """Those of ROW_COLUMNS that a table has."""
    return [name for name in ROW_COLUMNS if name in schema.names]


def numbers(column: pa.Array, known: Mapping[str, int]) -> _Indices:
    """The number of each row's word; -1: it has none."""
    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    lookup = np.array([*(known.get(str(word), -1) for word in words.dictionary.to_pylist()), -1], np.int64)
    found: _Indices = lookup[words.indices.fill_null(len(lookup) - 1).to_numpy(zero_copy_only=False)]
    return found


# --- source

JOB, RANK, HOST = "job", "rank", "host"

SHOWN = {name: count.heading for name, count in COUNTS.items() if count.heading}
"""Counts of a host's largest flows, and what stands over them."""

BLOCK = 32
"""Lanes that are requested together."""


@dataclass(frozen=True)
class Lane:
    """A row of the timeline. JOB: its slowest rank's iterations; RANK: one rank's; HOST: bytes by class."""

    kind: str
    job: str = ""
    rank: int = -1
    host: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All lanes, and what is to be known of them. Times in ns of the UTC epoch."""

    lanes: tuple[Lane, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0
    capacity_bps: Mapping[str, float] = field(default_factory=dict)  # by host: one direction, all interfaces
    job_names: Mapping[str, str] = field(default_factory=dict)  # what people call them
    baseline_ns: Mapping[str, int] = field(default_factory=dict)  # of each job's last iteration, if reported
    theory: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by job: bytes measured, equation 3.1
    not_understood: Sequence[str] = ()  # names of jobs of whose steps nothing is said
    unheard_ns: tuple[tuple[int, int], ...] = ()  # begin and end of times of which rates are known of moments only
    generation: int = 0  # another one: other lanes


def arranged(ranks: Iterable[tuple[str, int, str]], hosts: Iterable[str]) -> tuple[Lane, ...]:
    """Lanes of (job, rank, host) and of the hosts without ranks: by job, then by host; each host below its ranks."""
    by_job: dict[str, dict[str, list[int]]] = {}
    for job, rank, host in sorted(set(ranks)):
        by_job.setdefault(job, {}).setdefault(host, []).append(rank)
    lanes = []
    for job, indices in by_job.items():
        lanes.append(Lane(JOB, job))
        for host, own in indices.items():
            lanes += [Lane(RANK, job, rank, host) for rank in own]
            lanes.append(Lane(HOST, job, host=host))
    busy = {host for indices in by_job.values() for host in indices}
    idle = sorted(set(hosts) - busy)
    return (*lanes, *(Lane(HOST, host=host) for host in idle))


@dataclass(frozen=True)
class Rates:
    """Bytes of some hosts in some bins."""

    wire_bytes: Floats  # (hosts, SERIES, bins)
    resolution_ns: int  # what they are really known to
    pending: bool = False  # there is more, which is being read

    @classmethod
    def nothing(cls, hosts: int, bins: int) -> "Rates":
        """No bytes at all."""
        return cls(np.zeros((hosts, SERIES, bins)), 0)


@dataclass(frozen=True)
class State:
    """How it stands, looked at once a second."""

    generation: int  # of the catalogue
    end_ns: int  # of what is known, UTC
    live: bool  # it goes on
    verdicts: int  # how many there are
    trouble: str = ""  # empty: there is none
    reading: float = 1.0  # how much of what there is has been read
    warnings: tuple[str, ...] = field(default=())
    hangs: tuple[Hang, ...] = ()  # that go on, of jobs called what people call them
    pairs: Mapping[str, tuple[RankPair, ...]] = field(default_factory=dict)  # by what people call the job


def nearest(verdicts: Iterable[Verdict], job: str, iteration: int, end_ns: int) -> Verdict | None:
    """The one on a step that ended about then; job: what the verdicts call it."""
    same = (one for one in verdicts if one.iteration == iteration and one.job == job)
    return min(same, key=lambda one: abs(one.end_ns - end_ns), default=None)


class Source(Protocol):
    """What a server shows. Its methods may be called on concurrent threads."""

    title: str
    synthetic: bool  # nobody measured it

    def state(self) -> State:
        """How it stands; does not block for long."""

    def catalogue(self) -> Catalogue:
        """Its lanes."""

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """The traffic of hosts. full: agents may be requested full resolution."""

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        """(SERIES, bins): bytes of all these hosts together, as well as is known without reading on."""

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        """Iterations that may overlap a time, each once, and whether there are more that are being read."""

    def verdicts(self) -> list[Verdict]:
        """By time; jobs called what people call them."""

    def explain(self, job: str, iteration: int, end_ns: int) -> tuple[Verdict, Sequence[RankTimes]]:
        """A verdict, jobs called what people call them, and where each rank's time went, if that is known.

        end_ns: about when it ended, for a job may have begun anew. Raises NetmonError.
        """

    def advice(self) -> dict[str, Any]:
        """As netmon.dl.sharing.advice_text.document has it. Raises NetmonError where there is nothing to go by."""

    def rows(self) -> Rows:
        """Those that were stored."""

    def close(self) -> None:
        """Let go of what it holds."""
