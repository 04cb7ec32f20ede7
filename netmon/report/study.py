# SPDX-License-Identifier: Apache-2.0
"""Everything that the report draws on, read once, and what its chapters are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.dl.sharing.advice import Advice
from netmon.errors import DataError
from netmon.history.dataset import EXPECTED, Tables, groups, names_of, plain_words, records
from netmon.history.judging import incidents_of, stored_verdicts
from netmon.report.estimates import (
    CongestionPoint,
    add_levels,
    congestion_point,
    congestion_theory,
    iteration_times,
    level_statistics,
    without_warm_up,
)
from netmon.report.scan import COLUMNS, MS, SLICE_NS, Scan, Traffic, TrainingTimes, scan, training_times
from netmon.report.summary import ACCOUNT_COLUMNS, LINK, SIZE, link_accounts, read_runs, runs_from_jobs
from netmon.units import format_duration
from netmon.views import Incident, Verdict

# --- A chapter: tables, and figures that are drawn from them.

Frames = Mapping[str, pd.DataFrame]


class GapError(Exception):
    """An exhibit cannot be shown; its text says why. It never leaves this room."""


@dataclass(frozen=True)
class Exhibit:
    """tables: tidy frames by name, or a GapError. draw: onto a matplotlib figure, the frames as keyword arguments."""

    name: str  # of its files
    title: str
    follows: str  # the figure or equation it repeats
    text: str  # what is shown and how it is defined
    tables: Callable[["Study"], Frames]
    draw: Callable[..., None] | None = None
    rows: int = 12  # of the first table that the page shows where there is no figure, or these columns of it
    shown: tuple[str, ...] = ()  # columns that the page shows next to the figure


@dataclass(frozen=True)
class Chapter:
    title: str
    exhibits: tuple[Exhibit, ...]


def need(table: pd.DataFrame, reason: str) -> pd.DataFrame:
    """The table, where it has rows. Raises GapError with the reason where it has none."""
    if table.empty:
        raise GapError(reason)
    return table


# --- What was read.

_ADVISED_S = 60.0
_MOST_JOBS = 64  # that are compared with each other


@dataclass(frozen=True)
class Study:
    """A dataset, read. Times in ns of UTC, rates in bit/s; see the functions that make the frames for their columns."""

    tables: Tables
    runs: pd.DataFrame  # runs.RUN_COLUMNS
    senders: pd.DataFrame  # runs.SENDER_COLUMNS
    ranks: pd.DataFrame  # table iterations, with run
    flows: pd.DataFrame  # table flows, with run, class and sums; one row per flow and class
    traffic: Traffic | None
    rate_bps: float  # capacity C of a link; 0: not known
    bucket_ns: int
    interval_ns: int  # least interval in which a rate is true: the bucket, or one super-packet on the link

    @cached_property
    def job_names(self) -> dict[str, str]:
        """What people call each job, no two alike."""
        return names_of(self.ranks)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The stored verdicts on all its iterations."""
        return stored_verdicts(self.tables.data)

    @cached_property
    def incidents(self) -> list[Incident]:
        """Of its jobs, in the order of their beginnings."""
        jobs = set(self.ranks["job"]) if len(self.ranks) else set()
        return incidents_of(self.tables.data, [one for one in self.verdicts if one.job in jobs])

    @cached_property
    def accounts(self) -> pd.DataFrame:
        return link_accounts(self.tables.sums("ledger", LINK, ACCOUNT_COLUMNS))

    @cached_property
    def all_times(self) -> pd.DataFrame:
        """iteration_times with levels, the first iterations included."""
        return add_levels(iteration_times(self.ranks), self.runs, self.senders)

    @cached_property
    def times(self) -> pd.DataFrame:
        """The same without each job's first iteration."""
        return without_warm_up(self.all_times)

    @cached_property
    def levels(self) -> pd.DataFrame:
        return level_statistics(self.times)

    @cached_property
    def congestion(self) -> dict[tuple[str, str], CongestionPoint]:
        """By model and profile."""
        return {
            key: congestion_point(rows["level"], rows["median_s"]) for key, rows in by_profile(self.levels) if len(rows)
        }

    @cached_property
    def advice(self) -> Advice:
        """On jobs that share links, in the last minute. Raises DataError where there is nothing in it."""
        from netmon.history.advice import advice

        jobs = [str(job) for job in self.ranks["job"].unique()] if len(self.ranks) else []
        return advice(self.tables.data, _ADVISED_S, jobs=jobs if len(jobs) == 1 else (), most=_MOST_JOBS)

    def congestion_in_theory(self, model: str, profile: str) -> float:
        """1 − 8·D/(t₀·C), with D by equation 3.1 where the model's size is known, else as measured."""
        rows = self.levels[(self.levels["model"] == model) & (self.levels["profile"] == profile)]
        quiet = rows[rows["level"] == 0]
        if quiet.empty:
            return float("nan")
        return congestion_theory(self.step_bytes(model), float(quiet["median_s"].iloc[0]), self.rate_of(model))

    def step_bytes(self, model: str) -> float:
        """Bytes that a rank sends per iteration: equation 3.1, or the measured median where it cannot be known."""
        from netmon.dl.classify import ring_bytes

        run = self.runs[self.runs["model"] == model].iloc[0]
        theory = ring_bytes(*(int(run[name]) for name in SIZE)) if run["pattern"] in ("ring", None) else None
        if theory is not None and theory > 0:
            return theory
        return float(self.times.loc[self.times["model"] == model, "dl_tx_bytes"].median())

    def rate_of(self, model: str) -> float:
        """Capacity of the links on which the model's runs trained."""
        return float(self.runs.loc[self.runs["model"] == model, "rate_bps"].median())

    @cached_property
    def focus(self) -> str:
        """The run that figures of single runs show: the one with the most cross traffic up to 80 %, else the longest.

        Empty where no run has an iteration.
        """
        if self.times.empty:
            return ""
        runs = self.times.groupby("run").agg(load=("measured", "max"), level=("level", "max"), rows=("time_s", "size"))
        eligible = runs[runs["level"].fillna(0) <= 0.8]
        chosen = eligible if len(eligible) else runs
        return str(chosen.fillna(0).sort_values(["level", "load", "rows"]).index[-1])


def by_profile(table: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    return [((str(model), str(profile)), rows) for (model, profile), rows in groups(table, "model", "profile")]


NO_TIMES = "there is no iteration after the first one"
NO_LEVELS = "there is no iteration whose cross traffic is known"
NO_FLOWS = "the table flows is missing, or none of its flows has a bucket: it is not known who sends to whom"


def traffic_of(study: Study) -> Traffic:
    """What the pass over the buckets found. Raises GapError where there was no row."""
    if study.traffic is None:
        raise GapError("there is no row of buckets")
    return study.traffic


# --- Reading it.

_AROUND_NS = 1_000_000_000
_DEFAULT_BUCKET_NS = 10_000
MOST_CELLS = 3_000_000
"""Milliseconds of links and classes that are kept; chapters make a few copies of them."""
MOST_ITERATIONS = 250_000
"""Rows of the table iterations that are kept; chapters make a few copies of them."""


def read_study(
    data: Path,
    job: str | None = None,
    rate_bps: float = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Study:
    """Read DATA; blocks. job: only this job and its hosts. rate_bps: of a link, where it is not known.

    Raises DataError where there is no directory, or no such job in it.
    """
    tables = Tables(data)
    runs, senders = read_runs(data, tables.missing)
    ranks, times = _iterations(tables, job)
    rate = rate_bps or _rate(runs, tables)
    if not rate:
        tables.missing.append("the links' capacity is unknown: give --rate; shares of it are not shown")
    ranks, runs = _with_runs(ranks, runs, rate, tables.missing)
    buckets = list(tables.sessions["bucket_ns"].unique()) or [_narrowest(tables)]
    bucket_ns = max(int(value) for value in buckets)
    if len(buckets) > 1:
        tables.missing.append(f"buckets of {len(buckets)} widths: bursts and peaks are given at {bucket_ns} ns")
    interval_ns = max([bucket_ns, *(int(ns) for ns in tables.sessions["super_packet_ns"] if ns)])
    total = tables.rows("buckets")
    into = Scan(bucket_ns, rate, interval_ns, times or training_times([ranks]), _detail(tables, total))
    lacks = sorted({*COLUMNS}.difference(tables.columns("buckets"))) if total else []
    if lacks:
        tables.missing.append(f"buckets has no column {', '.join(lacks)}: what was on the links is not shown")
    try:
        batches = tables.batches("buckets", COLUMNS, _around(ranks) if job else None)
        traffic = None if lacks else scan(batches, into, lambda rows: progress(rows, total))
    except ValueError:
        traffic = None
    flows = _flows(tables, traffic, runs)
    return Study(tables, runs, senders, ranks, flows, traffic, rate, bucket_ns, interval_ns)


def _narrowest(tables: Tables) -> int:
    """Of the first rows, where their width is not known."""
    for batch in tables.batches("buckets", ["bucket_ns"]):
        width = pc.min(batch.column("bucket_ns")).as_py() if batch.num_columns else None
        return int(width or _DEFAULT_BUCKET_NS)
    return _DEFAULT_BUCKET_NS


def _iterations(tables: Tables, job: str | None) -> tuple[pd.DataFrame, TrainingTimes | None]:
    """The rows of the table `iterations`, and when there was training where these are not all rows.

    Of more than can be kept, every so many-th iteration is, of all ranks.
    """
    every = -(-tables.rows("iterations") // MOST_ITERATIONS)
    if every <= 1:
        return _of_job(_plausible(tables.read("iterations"), tables.missing), job), None
    times, kept = TrainingTimes(), []
    for batch in tables.batches("iterations", EXPECTED["iterations"]):
        rows = pa.Table.from_batches([batch]).to_pandas()
        rows = rows[rows["end_ns"] > rows["start_ns"]]
        times.add(rows if job is None else rows[rows["job"] == job])
        kept.append(rows[rows["iteration"] % every == 0])
    tables.missing.append(
        f"{tables.rows('iterations')} rows of iterations: durations are those of every {every}th iteration"
    )
    ranks = pd.concat(kept, ignore_index=True).reindex(columns=list(EXPECTED["iterations"]))
    return _of_job(plain_words(ranks), job), times


def _detail(tables: Tables, rows: int) -> tuple[int, int] | None:
    """The time of which milliseconds are kept: all of it (None), or of more than can be kept a while in its middle."""
    widths = (batch.column("bucket_ns") for batch in tables.batches("buckets", ["bucket_ns"]) if batch.num_columns)
    cells = sum(pc.sum(width).as_py() or 0 for width in widths) / MS
    span = tables.span("buckets", "bucket_start_ns") if cells > MOST_CELLS else None
    if span is None:
        return None
    length = max(1, int((span[1] - span[0]) * MOST_CELLS / cells) // SLICE_NS) * SLICE_NS
    begin = (span[0] + span[1] - length) // 2 // SLICE_NS * SLICE_NS
    tables.missing.append(
        f"{rows} rows of buckets: sums are of all of them, what is given by milliseconds, slices of 250 ms and single "
        f"flows' iterations is of {format_duration(length)} in the middle"
    )
    return begin, begin + length


def _plausible(ranks: pd.DataFrame, missing: list[str]) -> pd.DataFrame:
    """Without iterations that end before they start, as a clock that is set back makes them."""
    forward = ranks["end_ns"] > ranks["start_ns"]
    if not forward.all():
        missing.append(f"{(~forward).sum()} rows of iterations do not end after their start: left out")
    return ranks[forward].reset_index(drop=True)


def _of_job(ranks: pd.DataFrame, job: str | None) -> pd.DataFrame:
    if job is None:
        return ranks
    if ranks.empty or not (ranks["job"] == job).any():
        known = ", ".join(sorted(ranks["job"].unique())) if len(ranks) else "none"
        raise DataError(f"cannot report on job {job}: the dataset has no iteration of it; it has jobs: {known}")
    return ranks[ranks["job"] == job].reset_index(drop=True)


def _rate(runs: pd.DataFrame, tables: Tables) -> float:
    rates = [float(rate) for rate in runs["rate_bps"] if rate > 0]
    known = rates or [float(rate) for rate in tables.sessions["capacity_bps"] if rate > 0]
    if len(set(known)) > 1:
        tables.missing.append(f"links of {len(set(known))} capacities: per-link figures use the most common one")
    return max(set(known), key=known.count) if known else 0.0


def _with_runs(
    ranks: pd.DataFrame, runs: pd.DataFrame, rate: float, missing: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every iteration's run, by job and time; iterations outside of all runs of a lab are left out, and counted."""
    if ranks.empty:
        return ranks.assign(run=""), runs
    if runs.empty:
        return ranks.assign(run=ranks["job"]), runs_from_jobs(ranks, rate)
    ranks = ranks.assign(run=run_of(ranks["start_ns"], runs, ranks["job"]))
    outside = int((ranks["run"] == "").sum())
    if outside:
        missing.append(f"{outside} rows of iterations belong to no run that the lab wrote down: left out")
    return ranks[ranks["run"] != ""].reset_index(drop=True), runs


def run_of(time_ns: pd.Series, runs: pd.DataFrame, job: pd.Series | None = None) -> pd.Series:
    """The run during which each moment lies (and whose job it is); empty: none."""
    found = pd.Series("", time_ns.index, dtype=object)
    for run in records(runs):
        within = (time_ns >= run.begin_ns) & (time_ns < run.end_ns)
        if job is not None and run.job:
            within &= job == run.job
        found[within] = run.run
    return found


def _around(ranks: pd.DataFrame) -> ds.Expression:
    """The traffic of the job's hosts while it trained; shortly before and after, what is its own or nobody's."""
    begin, end = int(ranks["start_ns"].min()), int(ranks["end_ns"].max())
    time, host, job = (ds.field(name) for name in ("bucket_start_ns", "host", "job"))
    training = (time >= begin) & (time < end)
    around = (time >= begin - _AROUND_NS) & (time < end + _AROUND_NS) & job.isin([str(ranks["job"].iloc[0]), ""])
    return host.isin(sorted(ranks["host"].unique())) & (training | around)


def _flows(tables: Tables, traffic: Traffic | None, runs: pd.DataFrame) -> pd.DataFrame:
    """The flows that had buckets, with what the table `flows` says of them where it has them."""
    table = tables.read("flows")
    if traffic is None or table.empty:
        return pd.DataFrame()
    last = table.sort_values("last_ns", kind="stable").drop_duplicates(["session", "flow_id"], keep="last")
    known = last.drop(columns=["class", "host", "interface", "direction", "date"], errors="ignore")
    flows = traffic.flows.drop(columns="job").merge(known, on=["session", "flow_id"], how="left")
    without = int(flows["src"].isna().sum())
    if without:
        tables.missing.append(f"{without} flows have buckets but no row in the table flows: their ends are not known")
    flows = flows[flows["src"].notna()].reset_index(drop=True)
    once = runs.drop_duplicates("job", keep=False)  # a job's name may come back in another run
    by_job = flows["job"].map(dict(zip(once["job"], once["run"], strict=True)))
    flows["run"] = by_job.fillna(run_of((flows["first_ns"] + flows["last_ns"]) // 2, runs))
    return flows
