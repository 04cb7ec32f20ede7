# SPDX-License-Identifier: Apache-2.0
"""What slowed whom, since when, by how much, and what to do: the first lines of every view."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.text import Text

from netmon.dl.hangs import line as hang_line
from netmon.dl.verdict import NOTABLE
from netmon.dl.verdict.baseline import baseline_of_job
from netmon.dl.verdict.incidents import incidents, line, remedy, renamed
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import broken, clock, day
from netmon.top.rows import Kind, Part
from netmon.units import format_duration
from netmon.views import Incident, JobView, PastSteps

_MOST_HUNG = 3  # jobs that stand still
_MOST_LINES = 3  # of one incident


class IncidentRow(NamedTuple):
    """A line of an incident; a long one is wrapped."""

    incident: Incident
    number: int  # of the line, from 0
    text: Text


def of_past(past: PastSteps) -> list[Incident]:
    """Newest first."""
    return newest_first(incidents(past.verdicts, past.go_on(), time.time_ns()))


def calm_past(past: PastSteps, job: str, width: int) -> list[Text]:
    """What is said where there is no verdict on a job's steps, or on all jobs' ("")."""
    tables = [rows for name, rows in past.jobs.items() if job in ("", name)]
    slow = sum(
        int(((rows["baseline_ns"] > 0) & (rows["longest_ns"] >= NOTABLE * rows["baseline_ns"])).sum())
        for rows in tables
    )
    if slow:
        text = f"{slow:,} of {sum(map(len, tables)):,} steps took notably longer than usual; none of them is judged"
        return broken(text, width, "yellow")
    return broken("no job was slower than usual", width, "green") if any(map(len, tables)) else []


def newest_first(found: Iterable[Incident]) -> list[Incident]:
    """Those that go on before all others. By their beginnings, which do not change while they go on."""
    return sorted(found, key=lambda one: (one.ongoing, one.since_ns), reverse=True)


def with_older(live: Sequence[Incident], past: Sequence[Incident]) -> list[Incident]:
    """live: the last ones of each job, as its collector tells; past: all of the hour."""
    oldest: dict[str, int] = {}
    for one in live:
        oldest[one.job] = min(one.since_ns, oldest.get(one.job, one.since_ns))
    older = [replace(one, ongoing=False) for one in past if one.until_ns <= oldest.get(one.job, one.until_ns)]
    return newest_first([*live, *older])


def lines_of(incident: Incident, names: Mapping[str, str], now_ns: int, width: int) -> list[Text]:
    """It in words, and what to do while it goes on. names: of jobs, as they are shown."""
    incident = renamed(incident, names)
    text = line(incident, lambda ns: _moment(ns, now_ns))
    found = _hanging(text, width, 0, "bold yellow" if incident.ongoing else "")
    return found + (_hanging(f"→ {remedy(incident)}", width, 2) if incident.ongoing else [])


def _hanging(text: str, width: int, indent: int, style: str = "") -> list[Text]:
    """In lines, of which the first begins at the indent, and the others two characters later."""
    lines = broken(text, width - indent, style)
    if len(lines) > 1:
        lines = broken(text, width - indent - 2, style)
    begins = (" " * (indent + 2 * bool(index)) for index in range(_MOST_LINES))
    return [Text(begin, style).append_text(line) for begin, line in zip(begins, lines, strict=False)]


def _moment(utc_ns: int, now_ns: int) -> str:
    time = clock(utc_ns)[:8]
    return time if day(utc_ns) == day(now_ns) else f"{day(utc_ns)} {time}"


def rows_of(found: Iterable[Incident], names: Mapping[str, str], now_ns: int, width: int) -> list[IncidentRow]:
    return [
        IncidentRow(one, number, text)
        for one in found
        for number, text in enumerate(lines_of(one, names, now_ns, width))
    ]


def hung(jobs: Iterable[JobView], names: Mapping[str, str], now_ns: int, width: int) -> list[Text]:
    """The jobs that stand still now, or in which ranks wait unusually long, in words."""
    found = [replace(one, job=names.get(one.job, one.job)) for job in jobs for one in job.hangs if not one.until_ns]
    return [
        text
        for one in sorted(found, key=lambda one: one.since_ns)[:_MOST_HUNG]
        for text in _hanging(
            hang_line(one, lambda ns: _moment(ns, now_ns)), width, 0, "bold red" if one.reported_ns else "yellow"
        )
    ]


def calm(jobs: Sequence[JobView], found: Sequence[Incident], names: Mapping[str, str], width: int) -> list[Text]:
    """What is said where no incident goes on. jobs: those that train."""
    if not jobs or any(one.ongoing for one in found) or any(not hang.until_ns for job in jobs for hang in job.hangs):
        return []
    baselines = {job.job: baseline_of_job(job) for job in jobs}
    slow = [job for job in jobs if 0 < NOTABLE * baselines[job.job] <= job.last_ns]
    if slow:
        job, *more = slow
        text = f"{names.get(job.job, job.job)}'s last step took {format_duration(job.last_ns)}"
        others = f" (and {len(more)} more)" if more else ""
        shown = any(one.job == job.job and one.first <= job.iteration <= one.last for one in found)
        text = f"{text}, usually {format_duration(baselines[job.job])}{others}{'' if shown else '; not judged yet'}"
        return broken(text, width, "yellow")
    if any(baselines.values()):
        return broken("no job is slower than usual" + (" now" if found else ""), width, "green")
    return broken("no job has had enough steps to say what is usual", width, "dim")


def _values(row: IncidentRow) -> Values:
    one = row.incident
    return {
        "job": (one.job,),
        "host": (one.host,),
        "rank": (one.rank,),
        "user": (one.culprit_user,),
        "cause": (one.cause.name.lower(),),
        "culprit": (one.culprit,),
    }


INCIDENTS = Kind(
    "incidents",
    (
        Part(
            "newest first; Enter shows the worst step",
            lambda row, *_: row.text,
            lambda row: row.incident.since_ns,
            20,
            1_000,
            grows=True,
        ),
    ),
    key=lambda row: (row.incident.job, row.incident.cause, row.incident.culprit, row.incident.since_ns, row.number),
    values=_values,
    term=lambda row: exactly("job", row.incident.job),
)
