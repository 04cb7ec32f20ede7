# SPDX-License-Identifier: Apache-2.0
"""Many hosts at a glance: what all of them do together, and one line per job."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from netmon.records import CLASS_NAMES, Class
from netmon.top.columns import Column, room, table
from netmon.top.glyphs import STACK, UNKNOWN, class_style, coverage, iteration, no_steps, rate, sparkline
from netmon.top.names import short_names
from netmon.top.options import Options
from netmon.top.paging import left_out
from netmon.units import format_bytes, format_duration
from netmon.views import JobView, Snapshot, Totals

_FEW_HOSTS, _FEW_JOBS = 8, 4
_FULL_JOBS = 2  # of which there is room for all that is known, on however many hosts
_MORE, _MOST = 100, 140  # widths from which on there are more columns
_LONGEST_NAME = 40
_LEAST_SPARKLINE = 10


def wanted(snapshot: Snapshot) -> bool:
    """Whether there is too much for a few lines about each host and job."""
    return snapshot.page.hosts > _FEW_HOSTS or snapshot.page.jobs > _FEW_JOBS


def jobs_as_table(snapshot: Snapshot) -> bool:
    """Whether each job has one line only."""
    return wanted(snapshot) and snapshot.page.jobs > _FULL_JOBS


def facts(snapshot: Snapshot, options: Options) -> Iterator[Text]:
    """What holds of everything, shown or not."""
    totals = snapshot.totals
    yield from _hosts(totals)
    yield _links(totals)
    lost = {
        "overflow": totals.overflow_bytes,
        "lost in the kernel": totals.lost_kernel_bytes,
        "lost in the agent": totals.lost_agent_bytes,
    }
    parts = [f"{name} {format_bytes(amount)}" for name, amount in lost.items() if amount]
    if parts:
        yield Text(", ".join(parts), "red")
    yield _jobs(totals)
    yield Text(f"{totals.flows:,} flows in the last second")
    for class_ in STACK:
        if len(totals.class_bps) > class_:
            yield Text(f"{CLASS_NAMES[class_]} {rate(totals.class_bps[class_], options.bytes_)}", class_style(class_))
    for name in snapshot.page.unknown:
        yield Text(f"no host or job {name}", "bold red")


def _hosts(totals: Totals) -> Iterator[Text]:
    yield Text(f"{totals.hosts:,} host{'' if totals.hosts == 1 else 's'}")
    if totals.hosts > totals.connected:
        yield Text(f"{totals.hosts - totals.connected:,} gone", "bold red")
    if totals.lagging:
        yield Text(f"{totals.lagging:,} lag, up to {format_duration(totals.oldest_ns)}", "yellow")


def _links(totals: Totals) -> Text:
    known = totals.attributed_bytes / totals.nic_bytes if totals.nic_bytes else float("nan")
    text = Text(f"{totals.links:,} links, coverage {coverage(known)}")
    return text.append(f", {totals.low_links:,} below", "bold red") if totals.low_links else text


def _jobs(totals: Totals) -> Text:
    text = Text(f"{totals.jobs:,} job{'' if totals.jobs == 1 else 's'}, {totals.ranks:,} ranks")
    if totals.shared_ranks:
        text.append(f", {totals.shared_ranks:,} DL-shared", class_style(Class.DL_SHARED))
    if totals.behind_ranks:
        text.append(f", {totals.behind_ranks:,} stopped", "bold red")
    if totals.forgotten_jobs:
        text.append(f", {totals.forgotten_jobs:,} more not kept", "yellow")
    return text


def height(snapshot: Snapshot) -> int:
    """Lines that drawing all jobs takes."""
    return 1 + len(snapshot.jobs) + (snapshot.page.jobs > len(snapshot.jobs)) if snapshot.jobs else 0


def fitting(shown: int, page_size: int, lines: int) -> int:
    """How many of `shown` rows fit into `lines` below a heading, with a line more where not all of page_size do."""
    return shown if shown == page_size and shown < lines else max(0, min(shown, lines - 2))


def draw(snapshot: Snapshot, width: int, lines: int) -> RenderableType:
    """A heading, one line per job, and what is not shown."""
    jobs = snapshot.jobs[: fitting(len(snapshot.jobs), snapshot.page.jobs, lines)]
    columns = _columns(jobs, width)
    names = short_names((job.job for job in snapshot.jobs), columns[0].width)
    parts: list[RenderableType] = [table(columns, (_row(job, names[job.job], columns[-1].width) for job in jobs))]
    if len(jobs) < snapshot.page.jobs:
        parts.append(left_out("jobs", snapshot.page.jobs_from, len(jobs), snapshot.page.jobs))
    return Group(*parts)


def _columns(jobs: Sequence[JobView], width: int) -> list[Column]:
    more, most = width >= _MORE, width >= _MOST
    fixed = [5, 9, 7, 7, 7, 7, 5 if more else 0, 9, 8 if more else 0, 9 if more else 0]
    longest = max((len(job.job) for job in jobs), default=4)
    name = min(room(width, fixed, 1), max(longest, 8), _LONGEST_NAME)
    rest = room(width, [name, *fixed], 1) if most else 0
    return [
        Column(Text("JOBS", "bold"), name),
        Column("ranks", fixed[0], right=True),
        Column("iteration", fixed[1], right=True),
        Column("last", fixed[2], right=True),
        Column("median", fixed[3], right=True),
        Column("p99", fixed[4], right=True),
        Column("sent", fixed[5], right=True),
        Column("ratio", fixed[6], right=True),
        Column("DL-shared", fixed[7], right=True),
        Column("source", fixed[8]),
        Column("pattern", fixed[9]),
        Column("recent", rest if rest >= _LEAST_SPARKLINE else 0),
    ]


def _row(job: JobView, name: str, room_for_recent: int) -> list[str | Text]:
    ran = len(job.durations_ns) > 0
    known = job.known_ranks or len(job.ranks)
    shared = job.shared_ranks if job.known_ranks else sum(rank.node_shared for rank in job.ranks)
    recent = job.durations_ns[-room_for_recent:].astype(np.float64) if room_for_recent else np.empty(0)
    slow = ran and job.median_ns > 0 and job.last_ns >= 1.2 * job.median_ns
    measured = not np.isnan(job.measured_bytes)
    return [
        Text(name, "bold"),
        f"{job.size}" if job.size else "?",
        iteration(job.iteration, job.relative) if ran else no_steps(job),
        Text(format_duration(job.last_ns), "yellow" if slow else "") if ran else "",
        format_duration(job.median_ns) if ran else "",
        format_duration(job.p99_ns) if ran else "",
        format_bytes(job.measured_bytes) if measured else "?",
        f"{job.measured_bytes / job.theory_bytes:.2f}" if measured and job.theory_bytes > 0 else "?",
        Text(f"{shared}/{known}" if known else UNKNOWN, class_style(Class.DL_SHARED) if shared else "dim"),
        job.source.name.lower(),
        job.pattern,
        sparkline(recent, float(recent.max(initial=0)), ["default"] * len(recent)),
    ]
