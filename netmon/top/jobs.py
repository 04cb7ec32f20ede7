# SPDX-License-Identifier: Apache-2.0
"""Training jobs: how long their iterations take, what these send, and which nodes share their links."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from netmon.dl.verdict import NOTABLE
from netmon.dl.verdict.baseline import baseline_of_job
from netmon.records import Class
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import (
    UNKNOWN,
    broken,
    class_style,
    iteration,
    longest,
    no_steps,
    rate,
    room,
    share,
    sparkline,
    wrapped,
)
from netmon.top.options import Options, short_names
from netmon.top.rows import Cell, Kind, Part, Printed, numeric, printed, printed_row
from netmon.units import format_bytes, format_count, format_duration
from netmon.views import NOT_UNDERSTOOD, PARAMETERS_BASES, JobView, RankPair, RankTimes, RankView

_INDENT = 2
_SPARKLINE, _LEAST_SPARKLINE = 40, 8
_SHOWN_RANKS = 8
_SHOWN_PAIRS = 8
_WIDE = 105
_GOOD = 0.95


def ordered(jobs: Iterable[JobView]) -> list[JobView]:
    """By name: a job has the same place in every frame."""
    return sorted(jobs, key=lambda job: job.job)


def height(jobs: Iterable[JobView], width: int) -> int:
    return sum(len(lines_of(job, width)) for job in jobs)


def draw(jobs: Iterable[JobView], width: int, lines: int) -> list[Text]:
    """A few lines per job, at most `lines` in all; the last one says how many jobs are not there at all."""
    drawn: list[Text] = []
    wanted = ordered(jobs)
    for index, job in enumerate(wanted):
        if len(drawn) >= lines:
            hidden = len(wanted) - index
            drawn = drawn[: max(lines - 1, 0)]
            return [*drawn, Text(f"… {_count(hidden, 'more job')}", "dim")] if lines else []
        drawn += lines_of(job, width)
    return drawn[:lines]


def lines_of(job: JobView, width: int) -> list[Text]:
    """All that is known of a job as a whole."""
    lines = _with_sparkline(wrapped(_pace(job), width, _INDENT), job, width)
    lines += [_indented(line) for line in wrapped(_traffic(job), width - _INDENT)]
    lines += [_indented(line) for line in wrapped(_sources(job), width - _INDENT)]
    lines += [_indented(line) for line in wrapped(_pairs(job), width - _INDENT)]
    return lines + [_indented(line) for text in job.sharing for line in broken(text, width - _INDENT)]


def ranks(jobs: Iterable[JobView], options: Options, width: int) -> RenderableType:
    """One line per rank of every job: its last finished iteration."""
    jobs = ordered(jobs)
    wide = width >= _WIDE
    fixed = {"host": 10, "iteration": 9, "duration": 8, "communication": 9 * wide, "exposed": 9 * wide}
    fixed |= {"DL sent": 7, "cross ↑": 7, "cross ↓": 7, "node": 9}
    digits = longest((str(rank.rank) for job in jobs for rank in job.ranks), 1, 7)
    most = max(room(width, fixed.values(), 1), 12)
    least = 6 if all(job.known_ranks <= len(job.ranks) for job in jobs) else len("… 1,000,000 more") - digits
    whose = longest((f"{job.job}/" for job in jobs), least, most - digits) + digits
    columns = [
        Printed("rank", whose, Text("RANKS", "bold")),
        *(Printed(part, own, "communic." if part == "communication" else None) for part, own in fixed.items()),
    ]
    ink = replace(options, jobs=short_names((job.job for job in jobs), whose - digits - 1))
    return printed(RANKS, columns, (row for job in jobs for row in _rank_rows(job, columns, ink)))


def height_of_ranks(jobs: Iterable[JobView]) -> int:
    rows = sum(len(job.ranks) + (job.known_ranks > len(job.ranks)) for job in jobs)
    return rows + 1 if rows else 0


def _pace(job: JobView) -> Iterator[Text]:
    yield Text.assemble(("JOB ", "bold"), (job.job, "bold"))
    yield Text(_count(job.size, "rank") if job.size else f"number of ranks {UNKNOWN}")
    if not len(job.durations_ns):
        yield Text(NOT_UNDERSTOOD if job.not_understood else "no finished iteration yet", "dim")
        return
    yield Text.assemble("iteration ", (iteration(job.iteration, job.relative), "bold"))
    yield Text.assemble("last ", (_duration(job.last_ns), "bold"))
    yield Text(f"usual {_duration(baseline_of_job(job))}")
    yield Text(f"p99 {_duration(job.p99_ns)}")
    yield Text(f"{job.source.name.lower()} ± {format_duration(job.error_ns)}")


def _with_sparkline(lines: list[Text], job: JobView, width: int) -> list[Text]:
    """The recent durations, as many as the last line has room for."""
    free = min(width - lines[-1].cell_len - 2, _SPARKLINE)
    if len(job.durations_ns) and free >= _LEAST_SPARKLINE:
        recent = job.durations_ns[-free:].astype(np.float64)
        lines[-1].append("  ").append_text(sparkline(recent, float(recent.max()), ["default"] * len(recent)))
    return lines


def _traffic(job: JobView) -> Iterator[Text]:
    yield Text.assemble("sent per rank and iteration ", (_bytes(job.measured_bytes), "bold"), " payload")
    if math.isnan(job.theory_bytes):
        missing = "number of ranks" if job.parameters else "parameter count"
        yield Text(f"theory (3.1) {UNKNOWN}: no {missing}", "dim")
    else:
        yield Text(f"theory (3.1) {_bytes(job.theory_bytes)}")
        if job.theory_bytes > 0 and not math.isnan(job.measured_bytes):
            yield Text.assemble("ratio ", (f"{job.measured_bytes / job.theory_bytes:.2f}", "bold"))
        if basis := PARAMETERS_BASES.get(job.parameters_basis):
            yield Text(f"{format_count(job.parameters)} parameters, {basis}")
    yield _shared(job)


def _sources(job: JobView) -> Iterator[Text]:
    """What the traffic shows, and how well the other sources of iterations do against the one that decides."""
    if job.pattern:
        yield Text(f"pattern {job.pattern}")
    for score in job.scores:
        found = f"{score.source.name.lower()}: F1 {score.f1:.2f}"
        error = f", {format_duration(score.error_ns)}" if score.matched else ""
        yield Text(f"{found}{error} against {score.reference.name.lower()}", "dim" if score.f1 >= _GOOD else "yellow")


def _pairs(job: JobView) -> Iterator[Text]:
    """What ranks send each other by NCCL: the slowest pairs, where there are many."""
    if not job.pairs:
        return
    sent = sum(pair.bytes for pair in job.pairs if not math.isnan(pair.rdma))
    over_rdma = sum(pair.bytes * pair.rdma for pair in job.pairs if not math.isnan(pair.rdma))
    yield Text(f"NCCL: {_count(len(job.pairs), 'rank pair')}, RDMA {share(over_rdma / sent if sent else math.nan)}")
    slowest = sorted(job.pairs, key=lambda pair: math.inf if math.isnan(pair.bps) else pair.bps)[:_SHOWN_PAIRS]
    for pair in sorted(slowest, key=lambda pair: (pair.rank, pair.peer)):
        yield Text.assemble(f"{_end(pair.rank)} → {_end(pair.peer)} ", (rate(pair.bps, False), "bold"), _carrier(pair))
    if len(job.pairs) > _SHOWN_PAIRS:
        yield Text(f"{len(job.pairs) - _SHOWN_PAIRS} faster", "dim")


def _end(rank: int) -> str:
    return str(rank) if rank >= 0 else "?"


def _carrier(pair: RankPair) -> str:
    return f" {pair.interface}" if pair.interface else f" {pair.transport}" if pair.transport else ""


def _shared(job: JobView) -> Text:
    if not job.ranks:
        return Text(f"DL-shared nodes {UNKNOWN}", "dim")
    shared = [f"rank {rank.rank} ({rank.host})" for rank in job.ranks if rank.node_shared]
    if not shared:
        return Text("no DL-shared node")
    count = job.shared_ranks if job.known_ranks else len(shared)
    hidden = count - min(len(shared), _SHOWN_RANKS)
    more = f" and {hidden} more" if hidden > 0 else ""
    nodes = "node" if count == 1 else "nodes"
    return Text(f"DL-shared {nodes}: {', '.join(shared[:_SHOWN_RANKS])}{more}", class_style(Class.DL_SHARED))


def _rank_rows(job: JobView, columns: Sequence[Printed], ink: Options) -> Iterator[list[Cell]]:
    for rank in sorted(job.ranks, key=lambda rank: rank.rank):
        yield printed_row(RANKS, columns, RankRow(job.job, rank, job.relative), ink)
    if job.known_ranks > len(job.ranks):
        yield [Text(f"… {job.known_ranks - len(job.ranks):,} more", "dim"), *[""] * (len(columns) - 1)]


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT, no_wrap=True).append_text(line)


def _duration(ns: int) -> str:
    return format_duration(ns) if ns > 0 else UNKNOWN


def _bytes(count: float) -> str:
    return UNKNOWN if math.isnan(count) else format_bytes(count)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _shared_ranks(job: JobView) -> int:
    return job.shared_ranks if job.known_ranks else sum(rank.node_shared for rank in job.ranks)


def _known(job: JobView) -> int:
    return job.known_ranks or len(job.ranks)


def _ran(job: JobView) -> bool:
    return len(job.durations_ns) > 0


def _slowness(job: JobView) -> float:
    baseline = baseline_of_job(job)
    return job.last_ns / baseline if baseline else math.nan


def lost_ns(job: JobView) -> int:
    """By all the incidents that are known of it."""
    return sum(one.lost_ns for one in job.incidents)


def last_text(job: JobView) -> Text:
    """`455 / 312 ms`, yellow where that is notably longer than the baseline."""
    if not _ran(job):
        return Text()
    baseline = baseline_of_job(job)
    slow = 0 < NOTABLE * baseline <= job.last_ns
    last, unit = format_duration(job.last_ns).rsplit(" ", 1)
    known = format_duration(baseline) if baseline else UNKNOWN
    text = Text(last if known.endswith(f" {unit}") else f"{last} {unit}", "bold yellow" if slow else "")
    return Text.assemble(text, f" / {known}")


def lost_text(job: JobView) -> Text:
    lost = lost_ns(job)
    return Text(format_duration(lost) if lost else "", "yellow" if any(one.ongoing for one in job.incidents) else "")


def _ratio(job: JobView) -> float:
    return job.measured_bytes / job.theory_bytes if job.theory_bytes > 0 else math.nan


def _shared_text(job: JobView, ink: Options, width: int) -> Text:
    if not _known(job):
        return Text(UNKNOWN, "dim")
    return Text(f"{_shared_ranks(job)}/{_known(job)}", class_style(Class.DL_SHARED) if _shared_ranks(job) else "dim")


def _recent(job: JobView, ink: Options, width: int) -> Text:
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
        numeric("ranks", lambda job, *_: str(job.size or "?"), lambda job: job.size, 5, 16, 6),
        numeric(
            "iteration",
            lambda job, *_: iteration(job.iteration, job.relative) if _ran(job) else no_steps(job),
            lambda job: job.iteration,
            9,
            12,
            8,
        ),
        numeric("last / usual", lambda job, *_: last_text(job), _slowness, 12, 20, 10),
        numeric("lost", lambda job, *_: lost_text(job), lost_ns, 7, 9, 9),
        numeric(
            "p99", lambda job, *_: format_duration(job.p99_ns) if _ran(job) else "", lambda job: job.p99_ns, 7, 9, 4
        ),
        numeric(
            "sent",
            lambda job, *_: "?" if math.isnan(job.measured_bytes) else format_bytes(job.measured_bytes),
            lambda job: job.measured_bytes,
            7,
            9,
            5,
        ),
        numeric("ratio", lambda job, *_: "?" if math.isnan(_ratio(job)) else f"{_ratio(job):.2f}", _ratio, 5, 6, 3),
        numeric("DL-shared", _shared_text, _shared_ranks, 9, 11, 8),
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

    def draw(row: RankRow, ink: Options, width: int) -> str:
        return "" if math.isnan(ns(row)) else format_duration(ns(row))

    return numeric(_TIME_NAMES[name], draw, ns, 8, 10, 9)


_TIME_NAMES = {"computed": "computed", "waited": "waited", "transfer": "transfer", "stalled": "held up"}


def _exposed(row: RankRow) -> float:
    return row.view.exposed_ns if row.view.exposed_ns >= 0 else math.nan


def _bytes_part(name: str, field: str, worth: int) -> Part:
    return numeric(
        name,
        lambda row, *_: format_bytes(count) if (count := getattr(row.view, field)) >= 0 else UNKNOWN,
        lambda row: getattr(row.view, field),
        7,
        9,
        worth,
    )


def _communication(row: RankRow) -> float:
    return row.view.communication_ns if row.view.communication_ns > 0 else math.nan


def _time(ns: float) -> str:
    return UNKNOWN if math.isnan(ns) else format_duration(ns)


def _node(row: RankRow) -> Text:
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
            6,
            40,
            worth=99,
        ),
        Part("host", lambda row, *_: row.view.host, lambda row: row.view.host, 5, 24, worth=8),
        numeric(
            "iteration",
            lambda row, *_: iteration(row.view.iteration, row.relative),
            lambda row: row.view.iteration,
            9,
            12,
            6,
        ),
        numeric(
            "duration",
            lambda row, *_: _time(row.view.duration_ns or math.nan),
            lambda row: row.view.duration_ns,
            8,
            10,
            9,
        ),
        *times,
        numeric("communication", lambda row, *_: _time(_communication(row)), _communication, 10, 13, 4),
        numeric("exposed", lambda row, *_: _time(_exposed(row)), _exposed, 8, 10, 7),
        _bytes_part("DL sent", "dl_tx_bytes", 5),
        _bytes_part("cross ↑", "cross_tx_bytes", 6),
        _bytes_part("cross ↓", "cross_rx_bytes", 6),
        Part("node", lambda row, *_: _node(row), lambda row: row.view.node_shared, 9, 9, falling=True),
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
