# SPDX-License-Identifier: Apache-2.0
"""Training jobs: how long their iterations take, what these send, and which nodes share their links."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from netmon.dl.verdict import sentence
from netmon.dl.verdict.verdict_text import renamed
from netmon.records import Class
from netmon.top.columns import Column, longest, room, table
from netmon.top.glyphs import UNKNOWN, class_style, iteration, shown, sparkline, wrapped
from netmon.top.names import short_names
from netmon.units import format_bytes, format_count, format_duration
from netmon.views import NOT_UNDERSTOOD, PARAMETERS_BASES, JobView

_INDENT = 2
_SPARKLINE, _LEAST_SPARKLINE = 40, 8
_SHOWN_RANKS = 8
_WIDE = 105
_GOOD = 0.95
_MEASURE = Console()  # to break lines with


def ordered(jobs: Iterable[JobView]) -> list[JobView]:
    """By name: a job has the same place in every frame."""
    return sorted(jobs, key=lambda job: job.job)


def height(jobs: Iterable[JobView], width: int) -> int:
    """Lines that drawing all of them takes."""
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
    return lines + [_indented(line) for line in (*_verdict(job, width - _INDENT), *_sharing(job, width - _INDENT))]


def named(job: JobView, names: Mapping[str, str]) -> JobView:
    """The same, called as it is there."""
    verdicts = tuple(renamed(verdict, names) for verdict in job.verdicts)
    return replace(job, job=names.get(job.job, job.job), verdicts=verdicts)


def ranks(jobs: Iterable[JobView], width: int) -> RenderableType:
    """One line per rank of every job: its last finished iteration."""
    jobs = ordered(jobs)
    wide = width >= _WIDE
    fixed = [10, 9, 8, 9 if wide else 0, 9 if wide else 0, 7, 7, 7, 9]
    digits = longest((str(rank.rank) for job in jobs for rank in job.ranks), 1, 7)
    most = max(room(width, fixed, 1), 12)
    least = 6 if all(job.known_ranks <= len(job.ranks) for job in jobs) else len("… 1,000,000 more") - digits
    whose = longest((f"{job.job}/" for job in jobs), least, most - digits) + digits
    columns = [
        Column(Text("RANKS", "bold"), whose),
        Column("host", fixed[0]),
        Column("iteration", fixed[1], right=True),
        Column("duration", fixed[2], right=True),
        Column("communic.", fixed[3], right=True),
        Column("exposed", fixed[4], right=True),
        Column("DL sent", fixed[5], right=True),
        Column("cross ↑", fixed[6], right=True),
        Column("cross ↓", fixed[7], right=True),
        Column("node", fixed[8]),
    ]
    names = short_names((job.job for job in jobs), whose - digits - 1)
    return table(columns, (row for job in jobs for row in _rank_rows(job, names[job.job])))


def height_of_ranks(jobs: Iterable[JobView]) -> int:
    """Lines that drawing all ranks takes."""
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
    yield Text(f"median {_duration(job.median_ns)}")
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
        apart = f", {format_duration(score.error_ns)}" if score.matched else ""
        yield Text(f"{found}{apart} against {score.reference.name.lower()}", "dim" if score.f1 >= _GOOD else "yellow")


def _verdict(job: JobView, width: int) -> list[Text]:
    """On the last iteration that stood out."""
    return [line for verdict in job.verdicts[:1] for line in shown(sentence(verdict)).wrap(_MEASURE, width)]


def _sharing(job: JobView, width: int) -> list[Text]:
    """On the links that it shares with other jobs."""
    return [line for sentence in job.sharing for line in shown(Text(sentence)).wrap(_MEASURE, width)]


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


def _rank_rows(job: JobView, name: str) -> Iterator[list[str | Text]]:
    for rank in sorted(job.ranks, key=lambda rank: rank.rank):
        yield [
            f"{name}/{rank.rank}",
            rank.host,
            iteration(rank.iteration, job.relative),
            _duration(rank.duration_ns),
            _duration(rank.communication_ns),
            format_duration(rank.exposed_ns) if rank.exposed_ns >= 0 else UNKNOWN,
            format_bytes(rank.dl_tx_bytes),
            format_bytes(rank.cross_tx_bytes),
            format_bytes(rank.cross_rx_bytes),
            Text("DL-shared", class_style(Class.DL_SHARED)) if rank.node_shared else "DL-only",
        ]
    if job.known_ranks > len(job.ranks):
        yield [Text(f"… {job.known_ranks - len(job.ranks):,} more", "dim"), *([""] * 9)]


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT, no_wrap=True).append_text(line)


def _duration(ns: int) -> str:
    return format_duration(ns) if ns > 0 else UNKNOWN


def _bytes(count: float) -> str:
    return UNKNOWN if math.isnan(count) else format_bytes(count)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
