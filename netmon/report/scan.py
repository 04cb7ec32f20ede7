# SPDX-License-Identifier: Apache-2.0
"""One pass over the table `buckets` that feeds every sum the report needs.

The table may have far more rows than fit into memory; what is kept grows with the flows, with the milliseconds that
carry traffic, and with the iterations.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.dl.grouped import distinct, starts
from netmon.history.dataset import Numbered, Words, groups
from netmon.records import CLASS_NAMES, Class

# --- Burstiness: peak to mean by interval, and how long bursts and the gaps between them last.

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOT = 0.5
"""An interval is hot when its bytes are more than this share of what the link carries in it."""


def peak_bytes(bins: Ints, amount: Ints, length: int) -> int:
    """The most that any aligned interval of `length` bins holds. bins: non-empty ones, ascending, unique."""
    if not len(bins):
        return 0
    interval = bins // length
    first = np.flatnonzero(np.r_[True, interval[1:] != interval[:-1]])
    return int(np.add.reduceat(amount, first).max())


def peak_to_mean(peak: int, total: int, length_ns: float, observed_ns: float) -> float:
    """Rate in the busiest interval over the mean rate: (peak / length) / (total / observed).

    The intervals are aligned to multiples of their length, and do not overlap; the mean is over the whole
    observation, silence included.
    """
    return float(peak / length_ns / (total / observed_ns)) if total and observed_ns else float("nan")


@dataclass(frozen=True)
class Spans:
    """Durations in bins: of the bursts, and of the gaps between one burst and the next."""

    bursts: Ints
    gaps: Ints


def burst_spans(bins: Ints, amount: Ints, hot_bytes: float) -> Spans:
    """Runs of adjacent hot bins (more than hot_bytes each), and what lies between them.

    bins: non-empty ones, ascending, unique; those that are absent are empty, so not hot.
    """
    hot = bins[amount > hot_bytes]
    if not len(hot):
        return Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    step = np.diff(hot)
    begins = np.flatnonzero(np.r_[True, step > 1])
    lengths = np.diff(np.r_[begins, len(hot)])
    return Spans(lengths.astype(np.int64), step[step > 1] - 1)


# --- Sums by an integer key, summed piece by piece.

_PENDING = 1 << 22  # keys that wait to be merged
_SPARSE = 16  # times as many places as rows are still looked through


def sum_by(key: Ints, *amounts: Ints) -> tuple[Ints, list[Ints]]:
    """The distinct keys, ascending, and the sum of each amount per key; exact below 2^53."""
    codes, keys = pd.factorize(key)
    order = np.argsort(keys)
    sums = [np.bincount(codes, weights=amount, minlength=len(keys))[order].astype(np.int64) for amount in amounts]
    return np.asarray(keys)[order].astype(np.int64), sums


def sum_cells(series: Ints, bins: Ints, *amounts: Ints) -> tuple[Ints, list[Ints]]:
    """As sum_by, of keys series << _BINS | bins; without a search where rows are close together in time."""
    if not len(bins):
        return series << _BINS | bins, [*amounts]
    least, span = int(bins.min()), int(np.ptp(bins)) + 1
    present = distinct(series)
    if len(present) * span > _SPARSE * len(bins):
        return sum_by(series << _BINS | bins, *amounts)
    place = np.zeros(int(present[-1]) + 1, np.int64)
    place[present] = np.arange(len(present)) * span
    at = place[series] + (bins - least)
    found = distinct(at)
    sums = [np.bincount(at, weights=amount)[found].astype(np.int64) for amount in amounts]
    return present[found // span] << _BINS | found % span + least, sums


class Cells:
    """Sums by key, of which only the non-empty ones take memory."""

    def __init__(self, amounts: int) -> None:
        self._empty = np.empty(0, np.int64)
        self._merged: tuple[Ints, list[Ints]] = (self._empty, [self._empty] * amounts)
        self._waiting: list[tuple[Ints, list[Ints]]] = []
        self._rows = 0

    def add(self, key: Ints, *amounts: Ints) -> None:
        ascending = bool((key[1:] > key[:-1]).all())
        self._waiting.append((key, [*amounts]) if ascending else sum_by(key, *amounts))
        self._rows += len(self._waiting[-1][0])
        if self._rows > max(_PENDING, len(self._merged[0]) // 2):
            self.sums()

    def sums(self) -> tuple[Ints, list[Ints]]:
        """The distinct keys, ascending, and the sums."""
        if self._waiting:
            pieces = [self._merged, *self._waiting]
            key = np.concatenate([piece[0] for piece in pieces])
            order = np.argsort(key, kind="stable")  # each piece is in order: they are merged
            key = key[order]
            first = starts(key)
            columns = zip(*(piece[1] for piece in pieces), strict=True)
            self._merged = key[first], [np.add.reduceat(np.concatenate(c)[order], first) for c in columns]
            self._waiting, self._rows = [], 0
        return self._merged


class Codes(Numbered[int]):
    """Of the distinct values of arrays."""

    def encode(self, values: Ints) -> Ints:
        """The number of each value, same shape."""
        codes, numbered = pd.factorize(values)
        return np.array([self.number(int(value)) for value in numbered], np.int64)[codes]


# --- The numbers of a row's link, class and job as one.

_JOB_BITS, _CLASS_BITS, _DIRECTION_BITS, _INTERFACE_BITS = 20, 4, 3, 14
_CLASS = _JOB_BITS
_DIRECTION = _CLASS + _CLASS_BITS
_INTERFACE = _DIRECTION + _DIRECTION_BITS
_HOST = _INTERFACE + _INTERFACE_BITS
WITHOUT_JOB = -1 << _JOB_BITS
"""Mask of a packed number that leaves its link and class."""
ANY_CLASS = (1 << _CLASS_BITS) - 1 << _CLASS
"""Bits that all are set in a packed number that stands for a link whatever the class."""


def packed(words: dict[str, Ints]) -> Ints:
    """host, interface, direction, class and job of each row in one number."""
    link = words["host"] << _HOST | words["interface"] << _INTERFACE | words["direction"] << _DIRECTION
    return link | words["class"] << _CLASS | words["job"]


def unpacked(value: int, words: dict[str, Words]) -> dict[str, str]:
    """host, interface, direction and class of a packed number."""
    fields = {
        "host": value >> _HOST,
        "interface": value >> _INTERFACE & (1 << _INTERFACE_BITS) - 1,
        "direction": value >> _DIRECTION & (1 << _DIRECTION_BITS) - 1,
    }
    found = {name: words[name].values[number] for name, number in fields.items()}
    return {**found, "class": CLASS_NAMES[value >> _CLASS & (1 << _CLASS_BITS) - 1]}


def job_of(value: int, words: dict[str, Words]) -> str:
    return words["job"].values[value & (1 << _JOB_BITS) - 1]


# --- Peaks, bursts and gaps of each link and class, collected batch by batch.

ALL = "all"
"""The class of a link's whole traffic."""
_UNTIL_NS = 1_000_000  # from here on, the milliseconds count
_LENGTHS = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]


class BurstScan:
    """Takes cells of the finest bucket. A batch's first and last interval may be cut; there are few batches."""

    def __init__(self, bucket_ns: int, interval_ns: int, rate_bps: float) -> None:
        """interval_ns: the least interval in which a rate is true (rounded up to buckets). rate_bps 0: not known."""
        self._bucket_ns, self._rate = bucket_ns, rate_bps
        self.lengths = [n for n in _LENGTHS if n * bucket_ns < _UNTIL_NS] or [1]
        true = max(1, -(-interval_ns // bucket_ns))
        self._grains = (1, true) if true > 1 else (1,)
        self._peaks: dict[tuple[int, int], int] = {}
        self._totals: Counter[int] = Counter()
        self._spans: dict[tuple[int, int, str], Counter[int]] = {}

    def add(self, link_class: Ints, bins: Ints, amount: Ints) -> None:
        """Cells of one batch; more than one may be of one link, class and bin: they add up."""
        for own in np.unique(link_class).tolist():
            self._add(own, *_summed(bins[link_class == own], amount[link_class == own]))
        links = link_class | ANY_CLASS
        for link in np.unique(links).tolist():
            self._add(link, *_summed(bins[links == link], amount[links == link]))

    def _add(self, key: int, bins: Ints, amount: Ints) -> None:
        self._totals[key] += int(amount.sum())
        for length in self.lengths:
            self._peaks[key, length] = max(self._peaks.get((key, length), 0), peak_bytes(bins, amount, length))
        if not self._rate:
            return
        for grain in self._grains:
            coarse, sums = _summed(bins // grain, amount) if grain > 1 else (bins, amount)
            found = burst_spans(coarse, sums, HOT * self._rate / 8 * grain * self._bucket_ns / 1e9)
            for what, lengths in (("burst", found.bursts), ("gap", found.gaps)):
                values, counts = np.unique(lengths, return_counts=True)
                self._spans.setdefault((key, grain, what), Counter()).update(
                    dict(zip(values.tolist(), counts.tolist(), strict=True))
                )

    def peaks(self, link_of: Callable[[int], dict[str, str]], observed_ns: int) -> pd.DataFrame:
        """host, interface, direction, class, interval_ns, peak_bytes, total_bytes, observed_ns."""
        return pd.DataFrame(
            [
                {
                    **_named(key, link_of),
                    "interval_ns": length * self._bucket_ns,
                    "peak_bytes": peak,
                    "total_bytes": self._totals[key],
                    "observed_ns": observed_ns,
                }
                for (key, length), peak in self._peaks.items()
            ]
        )

    def spans(self, link_of: Callable[[int], dict[str, str]]) -> pd.DataFrame:
        """host, interface, direction, class, interval_ns, kind (burst or gap), duration_ns, count."""
        columns = ["host", "interface", "direction", "class", "interval_ns", "kind", "duration_ns", "count"]
        rows = [
            (*_named(key, link_of).values(), grain * self._bucket_ns, kind, n * grain * self._bucket_ns, count)
            for (key, grain, kind), counts in self._spans.items()
            for n, count in sorted(counts.items())
        ]
        return pd.DataFrame(rows, columns=columns)


def _summed(bins: Ints, amount: Ints) -> tuple[Ints, Ints]:
    """Ascending, unique."""
    if len(bins) < 2 or bool((np.diff(bins) > 0).all()):
        return bins, amount
    order = np.argsort(bins, kind="stable")
    bins, amount = bins[order], amount[order]
    first = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]])
    return bins[first], np.add.reduceat(amount, first)


def _named(key: int, link_of: Callable[[int], dict[str, str]]) -> dict[str, str]:
    if key & ANY_CLASS == ANY_CLASS:
        return {**link_of(key & ~ANY_CLASS), "class": ALL}
    return link_of(key)


# --- When jobs trained, on which hosts, and when anybody did: of any number of iterations in little memory.

Span = tuple[int, int]


@dataclass
class TrainingTimes:
    """Spans in ns of UTC. starts, ends: disjoint and ascending; within them some iteration ran."""

    jobs: dict[str, Span] = field(default_factory=dict)
    hosts: dict[str, dict[str, Span]] = field(default_factory=dict)  # by host and job
    starts: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ends: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, iterations: pd.DataFrame) -> None:
        for (host, job), rows in groups(iterations, "host", "job"):
            span = int(rows["start_ns"].min()), int(rows["end_ns"].max())
            of_host = self.hosts.setdefault(str(host), {})
            for known in (of_host, self.jobs):
                before = known.get(str(job), span)
                known[str(job)] = min(before[0], span[0]), max(before[1], span[1])
        starts = np.concatenate([self.starts, iterations["start_ns"].to_numpy(np.int64)])
        ends = np.concatenate([self.ends, iterations["end_ns"].to_numpy(np.int64)])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        first = np.flatnonzero(np.r_[True, starts[1:] > ends[:-1]]) if len(starts) else np.empty(0, np.int64)
        self.starts, self.ends = starts[first], ends[np.r_[first[1:] - 1, len(ends) - 1]] if len(starts) else ends


def training_times(frames: Iterable[pd.DataFrame]) -> TrainingTimes:
    found = TrainingTimes()
    for frame in frames:
        found.add(frame)
    return found


# --- The pass.

COLUMNS = (
    *("session", "host", "interface", "direction", "flow_id", "bucket_start_ns", "packets", "wire_bytes"),
    *("payload_bytes", "class", "job", "iteration", "bucket_ns"),
)
MS, SLICE_NS = 1_000_000, 250_000_000
PHASES = ("before", "inside", "between", "after")
_AMOUNTS = ["packets", "wire_bytes", "payload_bytes"]
_TRAINING = (Class.DL_ONLY, Class.DL_SHARED)
_NOBODY = (np.empty(0, np.int64), np.empty(0, np.int64), ())
_MOST_CELLS = 1 << 21  # that rows are spread over at once
_BINS = 44  # bits of a key that hold the time; the rest tells the series


@dataclass(frozen=True)
class Traffic:
    """What the pass found. Times in ns of UTC.

    series: host, interface, direction, class, job (of other than training traffic: the one that trained on the host at
    that time); the row's number is the `series` of the others.
    milliseconds: series, time_ns, wire_bytes, packets, in the order of the first two; only those that carry something.
    flows: session, flow_id, class and its sums, with host, interface, direction and job.
    flow_slices: session, flow_id, time_ns, payload_bytes by 250 ms.
    flow_iterations: session, flow_id, iteration, payload_bytes of DL flows.
    phases: series, phase and sums. peaks, spans: see BurstScan.
    detail_ns: begin and end of the time that milliseconds, flow_slices and flow_iterations are of.
    """

    rows: int
    begin_ns: int
    end_ns: int
    detail_ns: tuple[int, int]
    series: pd.DataFrame
    milliseconds: pd.DataFrame
    flows: pd.DataFrame
    flow_slices: pd.DataFrame
    flow_iterations: pd.DataFrame
    phases: pd.DataFrame
    peaks: pd.DataFrame
    spans: pd.DataFrame

    def cells(self, series: Iterable[int], begin_ns: int, end_ns: int) -> pd.DataFrame:
        """The rows of `milliseconds` of these series and this time."""
        of, time = (self.milliseconds[name].to_numpy() for name in ("series", "time_ns"))
        found = [np.empty(0, np.int64)]
        for number in series:
            first, last = np.searchsorted(of, (number, number + 1))
            found.append(first + np.arange(*np.searchsorted(time[first:last], (begin_ns, end_ns))))
        return self.milliseconds.iloc[np.concatenate(found)]


class Scan:
    """Takes the batches, one after the other; traffic() tells what was in them."""

    def __init__(
        self,
        bucket_ns: int,
        rate_bps: float,
        interval_ns: int,
        training: TrainingTimes,
        detail_ns: tuple[int, int] | None = None,
    ) -> None:
        """interval_ns: how long the largest packet that a hook saw as one takes on the link.

        training: for before, inside and after. detail_ns: the time of which milliseconds, slices of flows and
        iterations of flows are kept; all of it where none is given.
        """
        self._bucket_ns, self._origin_ns = bucket_ns, 0
        self._detail = detail_ns
        self._words = {name: Words() for name in ("session", "host", "interface", "direction", "class", "job")}
        for name in CLASS_NAMES:
            self._words["class"].number(name)
        self._series, self._flow_codes = Codes(), Codes()
        self._flow_series: dict[int, int] = {}
        self._milliseconds, self._phases, self._flows = Cells(2), Cells(3), Cells(3)
        self._slices, self._iterations = Cells(1), Cells(1)
        self._bursts = BurstScan(bucket_ns, interval_ns, rate_bps)
        self._jobs = training.jobs
        self._on_host = {host: _by_beginning(jobs) for host, jobs in training.hosts.items()}
        self._spans = training.starts, training.ends
        self._rows, self._begin, self._end = 0, np.iinfo(np.int64).max, 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch with COLUMNS, its rows in order of time."""
        time = _numbers(batch, "bucket_start_ns")
        if not self._rows:
            self._origin_ns = int(time.min()) // 86_400_000_000_000 * 86_400_000_000_000 - 30 * 86_400_000_000_000
        self._rows += len(time)
        self._begin, self._end = min(self._begin, int(time.min())), max(self._end, int(time.max()) + self._bucket_ns)
        packets, wire, payload = (_numbers(batch, name) for name in _AMOUNTS)
        words = {name: known.encode(batch.column(name)) for name, known in self._words.items()}
        words["job"] = self._whose(words, time)
        series = self._series.encode(packed(words))
        flow = self._flow_codes.encode(words["session"] << 32 | _numbers(batch, "flow_id"))
        self._remember(flow, series)
        since = time - self._origin_ns
        detail = slice(None) if self._detail is None else (time >= self._detail[0]) & (time < self._detail[1])
        width = _numbers(batch, "bucket_ns")
        for some in self._at_once(width):
            spread = self._spread(*(c[some] for c in (series, since // self._bucket_ns, width, wire, packets)))
            self._add_cells(*sum_cells(*spread))
        iteration = _numbers(batch, "iteration")
        self._phases.add(series * len(PHASES) + self._phase(words, time, iteration), packets, wire, payload)
        self._flows.add(flow * len(Class) + words["class"], packets, wire, payload)
        self._slices.add((flow << 32 | since // SLICE_NS)[detail], payload[detail])
        training = (iteration >= 0) & np.isin(words["class"], _TRAINING)
        of_iterations = (flow << 32 | iteration)[detail], payload[detail]
        self._iterations.add(*(column[training[detail]] for column in of_iterations))

    def _at_once(self, width_ns: Ints) -> list[slice]:
        """The rows in parts that few cells are made of: a row may be many times as wide as one."""
        cells = np.cumsum(np.maximum(1, width_ns // self._bucket_ns))
        cuts = np.searchsorted(cells, np.arange(_MOST_CELLS, int(cells[-1]), _MOST_CELLS))
        edges = np.unique([0, *cuts.tolist(), len(width_ns)]).tolist()
        return [slice(*edge) for edge in pairwise(edges)]

    def _spread(self, series: Ints, bins: Ints, width_ns: Ints, *amounts: Ints) -> tuple[Ints, ...]:
        """Series, bin and amounts of cells: a row that is wider than one, as under pressure, evenly over its cells."""
        parts = np.maximum(1, width_ns // self._bucket_ns)
        if int(parts.max(initial=1)) == 1:
            return series, bins, *amounts
        row = np.repeat(np.arange(len(parts)), parts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        shares = [amount[row] // parts[row] + (number < amount[row] % parts[row]) for amount in amounts]
        return series[row], bins[row] + number, *shares

    def _whose(self, words: dict[str, Ints], time: Ints) -> Ints:
        """The job of each row; of other than training traffic the one that trained on the host at that time."""
        jobs = words["job"].copy()
        others = ~np.isin(words["class"], _TRAINING)
        for host in np.unique(words["host"][others]).tolist():
            starts, ends, names = self._on_host.get(self._words["host"].values[host], _NOBODY)
            rows = others & (words["host"] == host)
            index = np.searchsorted(starts, time[rows], side="right")  # 0: before any
            trains = (index > 0) & (time[rows] < np.r_[0, ends][index])
            numbers = np.array([self._words["job"].number(name) for name in ("", *names)], np.int64)
            jobs[rows] = numbers[np.where(trains, index, 0)]
        return jobs

    def _remember(self, flow: Ints, series: Ints) -> None:
        flows, first = np.unique(flow, return_index=True)
        for number, index in zip(flows.tolist(), first.tolist(), strict=True):
            self._flow_series.setdefault(number, int(series[index]))

    def _add_cells(self, key: Ints, sums: list[Ints]) -> None:
        series, bins = key >> _BINS, key & ((1 << _BINS) - 1)
        milliseconds = bins * self._bucket_ns // MS
        if self._detail is None:
            self._milliseconds.add(series << _BINS | milliseconds, *sums)
        else:
            first, last = ((time - self._origin_ns) // MS for time in self._detail)
            detail = (milliseconds >= first) & (milliseconds < last)
            kept = (series << _BINS | milliseconds)[detail]
            self._milliseconds.add(kept, *(amount[detail] for amount in sums))
        linked = np.array(self._series.values, np.int64)[series] & WITHOUT_JOB
        self._bursts.add(linked, bins, sums[0])

    def _phase(self, words: dict[str, Ints], time: Ints, iteration: Ints) -> Ints:
        """Index into PHASES: by the row's own job where it has one, else by the time of anybody's iterations."""
        begins = np.array([self._jobs.get(job, (0, 0))[0] for job in self._words["job"].values], np.int64)
        ends = np.array([self._jobs.get(job, (0, 0))[1] for job in self._words["job"].values], np.int64)
        starts, stops = self._spans
        own = np.isin(words["job"], [i for i, job in enumerate(self._words["job"].values) if job in self._jobs])
        index = np.searchsorted(starts, time, side="right") - 1
        within = (index >= 0) & (time < stops[index]) if len(starts) else np.zeros(len(time), bool)
        inside = np.where(own, iteration >= 0, within)
        first = np.where(own, begins[words["job"]], starts[0] if len(starts) else 0)
        last = np.where(own, ends[words["job"]], stops.max() if len(starts) else 0)
        phase: Ints = np.select([inside, time < first, time >= last], [1, 0, 3], 2)
        return phase

    def traffic(self) -> Traffic:
        """Everything so far. Raises ValueError where there was no row."""
        if not self._rows:
            raise ValueError("the table buckets holds no row")
        series = self._series_table()
        link_of = partial(unpacked, words=self._words)
        key, (wire, packets) = self._milliseconds.sums()
        milliseconds = pd.DataFrame(
            {
                "series": (key >> _BINS).astype(np.int32),
                "time_ns": (key & ((1 << _BINS) - 1)) * MS + self._origin_ns,
                "wire_bytes": wire,
                "packets": packets,
            }
        )
        key, sums = self._phases.sums()
        phases = pd.DataFrame(dict(zip(_AMOUNTS, sums, strict=True)))
        phases = phases.assign(phase=np.array(PHASES)[key % len(PHASES)]).join(
            series.loc[key // len(PHASES)].reset_index(drop=True)
        )
        slices, (slice_bytes,) = self._slices.sums()
        steps, (step_bytes,) = self._iterations.sums()
        detail = self._detail or (self._begin, self._end)
        return Traffic(
            rows=self._rows,
            begin_ns=self._begin,
            end_ns=self._end,
            detail_ns=(max(detail[0], self._begin), min(detail[1], self._end)),
            series=series,
            milliseconds=milliseconds,
            flows=self._flow_table(series),
            flow_slices=self._flow_ids(slices >> 32).assign(
                time_ns=(slices & 0xFFFFFFFF) * SLICE_NS + self._origin_ns, payload_bytes=slice_bytes
            ),
            flow_iterations=self._flow_ids(steps >> 32).assign(iteration=steps & 0xFFFFFFFF, payload_bytes=step_bytes),
            phases=phases,
            peaks=self._bursts.peaks(link_of, self._end - self._begin),
            spans=self._bursts.spans(link_of),
        )

    def _series_table(self) -> pd.DataFrame:
        return pd.DataFrame(
            [{**unpacked(value, self._words), "job": job_of(value, self._words)} for value in self._series.values]
        )

    def _flow_table(self, series: pd.DataFrame) -> pd.DataFrame:
        key, sums = self._flows.sums()
        of_flow = series.loc[[self._flow_series[number] for number in (key // len(Class)).tolist()]].reset_index(
            drop=True
        )
        table = self._flow_ids(key // len(Class)).join(of_flow.drop(columns="class"))
        return table.assign(
            **{"class": np.array(CLASS_NAMES)[key % len(Class)]}, **dict(zip(_AMOUNTS, sums, strict=True))
        )

    def _flow_ids(self, number: Ints) -> pd.DataFrame:
        packed = np.array(self._flow_codes.values, np.int64)[number]
        sessions = np.array(self._words["session"].values, object)
        return pd.DataFrame({"session": sessions[packed >> 32], "flow_id": packed & 0xFFFFFFFF})


def _numbers(batch: pa.RecordBatch, name: str) -> Ints:
    column = batch.column(name)
    values: Ints = pc.fill_null(column, -1 if name == "iteration" else 0).to_numpy(zero_copy_only=False)
    return values.astype(np.int64, copy=False)


def _by_beginning(jobs: dict[str, Span]) -> tuple[Ints, Ints, tuple[str, ...]]:
    """When the jobs of one host began and ended, by their beginning."""
    begins, ends, names = zip(*sorted((*span, job) for job, span in jobs.items()), strict=True)
    return np.array(begins, np.int64), np.array(ends, np.int64), names


def scan(batches: Iterable[pa.RecordBatch], into: Scan, progress: Callable[[int], None] = lambda rows: None) -> Traffic:
    """Feed every batch, telling how many rows are done; blocks until the last one. Raises ValueError without rows."""
    rows = 0
    for batch in batches:
        into.add(batch)
        rows += batch.num_rows
        progress(rows)
    return into.traffic()
