# SPDX-License-Identifier: Apache-2.0
"""One pass over the table `buckets` that feeds every sum the report needs.

The table may have far more rows than fit into memory; what is kept grows with the flows, with the milliseconds that
carry traffic, and with the iterations.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.records import CLASS_NAMES, Class
from netmon.report.burst_scan import BurstScan
from netmon.report.bursts import Ints
from netmon.report.cells import Cells, Codes
from netmon.report.report_text import WITHOUT_JOB, Words, job_of, packed, unpacked
from netmon.report.training_times import Span, TrainingTimes

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
    milliseconds: series, time_ns, wire_bytes, packets; only those that carry something.
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
            cells = Cells(2)
            cells.add(*self._spread(*(c[some] for c in (series, since // self._bucket_ns, width, wire, packets))))
            self._add_cells(*cells.sums())
        iteration = _numbers(batch, "iteration")
        self._phases.add(series * 4 + self._phase(words, time, iteration), packets, wire, payload)
        self._flows.add(flow * 4 + words["class"], packets, wire, payload)
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
        """Keys of cells and amounts: a row that is wider than a cell, as under pressure, evenly over its cells."""
        parts = np.maximum(1, width_ns // self._bucket_ns)
        if int(parts.max(initial=1)) == 1:
            return series << _BINS | bins, *amounts
        row = np.repeat(np.arange(len(parts)), parts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        shares = [amount[row] // parts[row] + (number < amount[row] % parts[row]) for amount in amounts]
        return series[row] << _BINS | bins[row] + number, *shares

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
        distinct, first = np.unique(flow, return_index=True)
        for number, index in zip(distinct.tolist(), first.tolist(), strict=True):
            self._flow_series.setdefault(number, int(series[index]))

    def _add_cells(self, key: Ints, sums: list[Ints]) -> None:
        """Cells of the finest bucket: into milliseconds, and into the bursts."""
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
                "series": key >> _BINS,
                "time_ns": (key & ((1 << _BINS) - 1)) * MS + self._origin_ns,
                "wire_bytes": wire,
                "packets": packets,
            }
        )
        key, sums = self._phases.sums()
        phases = pd.DataFrame(dict(zip(_AMOUNTS, sums, strict=True)))
        phases = phases.assign(phase=np.array(PHASES)[key % 4]).join(series.loc[key // 4].reset_index(drop=True))
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
        of_flow = series.loc[[self._flow_series[number] for number in (key // 4).tolist()]].reset_index(drop=True)
        table = self._flow_ids(key // 4).join(of_flow.drop(columns="class"))
        return table.assign(**{"class": np.array(CLASS_NAMES)[key % 4]}, **dict(zip(_AMOUNTS, sums, strict=True)))

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
