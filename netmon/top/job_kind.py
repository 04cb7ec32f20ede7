# SPDX-License-Identifier: Apache-2.0
"""Jobs and their ranks as rows."""

import math
from typing import NamedTuple

import numpy as np
from rich.text import Text

from netmon.dl.verdict import NOTABLE
from netmon.records import Class
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import UNKNOWN, class_style, iteration, no_steps, sparkline
from netmon.top.rows import Ink, Kind, Part
from netmon.units import format_bytes, format_duration
from netmon.views import JobView, RankTimes, RankView


def _shared(job: JobView) -> int:
    return job.shared_ranks if job.known_ranks else sum(rank.node_shared for rank in job.ranks)


def _known(job: JobView) -> int:
    return job.known_ranks or len(job.ranks)


def _ran(job: JobView) -> bool:
    return len(job.durations_ns) > 0


def _last(job: JobView, ink: Ink, width: int) -> Text | str:
    if not _ran(job):
        return ""
    slow = job.median_ns > 0 and job.last_ns >= NOTABLE * job.median_ns
    return Text(format_duration(job.last_ns), "yellow" if slow else "")


def _ratio(job: JobView) -> float:
    return job.measured_bytes / job.theory_bytes if job.theory_bytes > 0 else math.nan


def _shared_text(job: JobView, ink: Ink, width: int) -> Text:
    if not _known(job):
        return Text(UNKNOWN, "dim")
    return Text(f"{_shared(job)}/{_known(job)}", class_style(Class.DL_SHARED) if _shared(job) else "dim")


def _recent(job: JobView, ink: Ink, width: int) -> Text:
    recent = job.durations_ns[-width:].astype(np.float64)
    return sparkline(recent, float(recent.max(initial=0)), ["default"] * len(recent))


def _job_values(job: JobView) -> Values:
    return {
        "job": (job.job, job.name),
        "host": tuple({rank.host for rank in job.ranks}),
        "rank": tuple(rank.rank for rank in job.ranks),
        "iteration": (job.iteration,),
        "duration": (job.last_ns,),
    }


JOBS = Kind(
    "jobs",
    (
        Part("job", lambda job, ink, _: Text(ink.job(job.job), "bold"), lambda job: job.job, 8, 40, worth=99),
        Part("ranks", lambda job, *_: str(job.size or "?"), lambda job: job.size, 5, right=True, worth=6, falling=True),
        Part(
            "iteration",
            lambda job, *_: iteration(job.iteration, job.relative) if _ran(job) else no_steps(job),
            lambda job: job.iteration,
            *(9, 12, True, 8),
            falling=True,
        ),
        Part("last", _last, lambda job: job.last_ns, 7, 9, True, 9, falling=True),
        Part(
            "median",
            lambda job, *_: format_duration(job.median_ns) if _ran(job) else "",
            lambda job: job.median_ns,
            *(7, 9, True, 7),
            falling=True,
        ),
        Part(
            "p99",
            lambda job, *_: format_duration(job.p99_ns) if _ran(job) else "",
            lambda job: job.p99_ns,
            *(7, 9, True, 4),
            falling=True,
        ),
        Part(
            "sent",
            lambda job, *_: "?" if math.isnan(job.measured_bytes) else format_bytes(job.measured_bytes),
            lambda job: job.measured_bytes,
            *(7, 9, True, 5),
            falling=True,
        ),
        Part(
            "ratio",
            lambda job, *_: "?" if math.isnan(_ratio(job)) else f"{_ratio(job):.2f}",
            _ratio,
            *(5, 6, True, 3),
            falling=True,
        ),
        Part("DL-shared", _shared_text, _shared, 9, 11, True, 8, falling=True),
        Part("source", lambda job, *_: job.source.name.lower(), lambda job: job.source, 8, 8, worth=2),
        Part("pattern", lambda job, *_: job.pattern, lambda job: job.pattern, 8, 12, worth=1),
        Part("recent", _recent, lambda job: job.last_ns, 10, 60, worth=3, grows=True),
    ),
    key=lambda job: job.job,
    values=_job_values,
    term=lambda job: exactly("job", job.job),
)


class RankRow(NamedTuple):
    """One rank of a job in one iteration."""

    job: str
    view: RankView
    relative: bool
    times: RankTimes | None = None  # where the time went, if that is known


def _part_ns(name: str) -> Part:
    def ns(row: RankRow) -> float:
        return float(getattr(row.times, f"{name}_ns")) if row.times and row.times.known else math.nan

    def draw(row: RankRow, ink: Ink, width: int) -> str:
        return "" if math.isnan(ns(row)) else format_duration(ns(row))

    return Part(_TIME_NAMES[name], draw, ns, 8, 10, True, 9, falling=True)


_TIME_NAMES = {"computed": "computed", "waited": "waited", "transfer": "transfer", "held": "held up"}


def _exposed(row: RankRow) -> float:
    return row.view.exposed_ns if row.view.exposed_ns >= 0 else math.nan


def _bytes_part(name: str, field: str, worth: int) -> Part:
    return Part(
        name,
        lambda row, *_: format_bytes(count) if (count := getattr(row.view, field)) >= 0 else UNKNOWN,
        lambda row: getattr(row.view, field),
        *(7, 9, True, worth),
        falling=True,
    )


def _communication(row: RankRow) -> float:
    return row.view.communication_ns if row.view.communication_ns > 0 else math.nan


def _time(ns: float) -> str:
    return UNKNOWN if math.isnan(ns) else format_duration(ns)


def _node(row: RankRow) -> Text:
    if row.view.dl_tx_bytes < 0:
        return Text(UNKNOWN, "dim")
    return Text("DL-shared", class_style(Class.DL_SHARED)) if row.view.node_shared else Text("DL-only", "dim")


def _rank_values(row: RankRow) -> Values:
    return {
        "job": (row.job,),
        "rank": (row.view.rank,),
        "host": (row.view.host,),
        "iteration": (row.view.iteration,),
        "duration": (row.view.duration_ns,),
        "class": (_node(row).plain,),
    }


def _rank_parts(with_times: bool) -> tuple[Part, ...]:
    times = tuple(map(_part_ns, _TIME_NAMES)) if with_times else ()
    return (
        Part(
            "rank",
            lambda row, ink, _: Text(f"{ink.job(row.job)}/{row.view.rank}", "bold"),
            lambda row: (row.job, row.view.rank),
            *(6, 40, False, 99),
        ),
        Part("host", lambda row, *_: row.view.host, lambda row: row.view.host, 5, 24, worth=8),
        Part(
            "iteration",
            lambda row, *_: iteration(row.view.iteration, row.relative),
            lambda row: row.view.iteration,
            *(9, 12, True, 6),
            falling=True,
        ),
        Part(
            "duration",
            lambda row, *_: _time(row.view.duration_ns or math.nan),
            lambda row: row.view.duration_ns,
            *(8, 10, True, 9),
            falling=True,
        ),
        *times,
        Part(
            "communication",
            lambda row, *_: _time(_communication(row)),
            _communication,
            *(10, 13, True, 4),
            falling=True,
        ),
        Part("exposed", lambda row, *_: _time(_exposed(row)), _exposed, 8, 10, True, 7, falling=True),
        _bytes_part("DL sent", "dl_tx_bytes", 5),
        _bytes_part("cross ↑", "cross_tx_bytes", 6),
        _bytes_part("cross ↓", "cross_rx_bytes", 6),
        Part(
            "node",
            lambda row, *_: _node(row),
            lambda row: row.view.node_shared,
            *(9, 9),
            falling=True,
        ),
    )


def _rank_kind(with_times: bool) -> Kind:
    return Kind(
        "ranks",
        _rank_parts(with_times),
        key=lambda row: (row.job, row.view.rank),
        values=_rank_values,
        term=lambda row: f"{exactly('job', row.job)} {exactly('rank', row.view.rank)}",
    )


RANKS = _rank_kind(with_times=False)
TIMED_RANKS = _rank_kind(with_times=True)
"""The same with where the time of each rank went."""
