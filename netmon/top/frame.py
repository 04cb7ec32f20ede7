# SPDX-License-Identifier: Apache-2.0
"""One frame: its header, its sections, and who gets how many lines of the screen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from netmon.records import CLASS_NAMES, STACK, Class
from netmon.top import flows, jobs, links
from netmon.top.glyphs import (
    class_style,
    clock,
    coverage,
    day,
    left_out,
    rate,
    rate_unit,
    room,
    shown,
    swatch,
    wrapped,
    zone,
)
from netmon.top.incidents import calm, hung, lines_of, newest_first
from netmon.top.options import Options, present_links, short_names, silent
from netmon.top.rows import Printed, printed, printed_row
from netmon.units import format_bytes, format_duration
from netmon.views import HostView, JobView, Snapshot, Totals

_FEW_HOSTS, _FEW_JOBS = 8, 4
_FULL_JOBS = 2  # of which there is room for all that is known, on however many hosts
_MORE, _MOST = 100, 140  # widths from which on there are more columns
_LONGEST_NAME = 40
_LEAST_SPARKLINE = 10


def has_many(snapshot: Snapshot) -> bool:
    """Whether there is too much for a few lines about each host and job."""
    return snapshot.page.hosts > _FEW_HOSTS or snapshot.page.jobs > _FEW_JOBS


def jobs_as_table(snapshot: Snapshot) -> bool:
    """Whether each job has one line only."""
    return has_many(snapshot) and snapshot.page.jobs > _FULL_JOBS


def overview_facts(snapshot: Snapshot, options: Options) -> Iterator[Text]:
    totals = snapshot.totals
    yield from _hosts_facts(totals)
    yield _links_fact(totals)
    lost = {
        "overflow": totals.overflow_bytes,
        "lost in the kernel": totals.lost_kernel_bytes,
        "lost in the agent": totals.lost_agent_bytes,
    }
    parts = [f"{name} {format_bytes(amount)}" for name, amount in lost.items() if amount]
    if parts:
        yield Text(", ".join(parts), "red")
    yield _jobs_fact(totals)
    yield Text(f"{totals.flows:,} flows in the last second")
    for class_ in STACK:
        if len(totals.class_bps) > class_:
            yield Text(f"{CLASS_NAMES[class_]} {rate(totals.class_bps[class_], options.bytes_)}", class_style(class_))
    for name in snapshot.page.unknown:
        yield Text(f"no host or job {name}", "bold red")


def _hosts_facts(totals: Totals) -> Iterator[Text]:
    yield Text(f"{totals.hosts:,} host{'' if totals.hosts == 1 else 's'}")
    if totals.hosts > totals.connected:
        yield Text(f"{totals.hosts - totals.connected:,} gone", "bold red")
    if totals.lagging:
        yield Text(f"{totals.lagging:,} lag, up to {format_duration(totals.oldest_ns)}", "yellow")


def _links_fact(totals: Totals) -> Text:
    known = totals.attributed_bytes / totals.nic_bytes if totals.nic_bytes else float("nan")
    text = Text(f"{totals.links:,} links, coverage {coverage(known)}")
    return text.append(f", {totals.low_links:,} below", "bold red") if totals.low_links else text


def _jobs_fact(totals: Totals) -> Text:
    text = Text(f"{totals.jobs:,} job{'' if totals.jobs == 1 else 's'}, {totals.ranks:,} ranks")
    if totals.shared_ranks:
        text.append(f", {totals.shared_ranks:,} DL-shared", class_style(Class.DL_SHARED))
    if totals.behind_ranks:
        text.append(f", {totals.behind_ranks:,} stopped", "bold red")
    if totals.forgotten_jobs:
        text.append(f", {totals.forgotten_jobs:,} more not kept", "yellow")
    return text


def overview_height(snapshot: Snapshot) -> int:
    return 1 + len(snapshot.jobs) + (snapshot.page.jobs > len(snapshot.jobs)) if snapshot.jobs else 0


def fitting(shown: int, page_size: int, lines: int) -> int:
    """How many of `shown` rows fit into `lines` below a heading, with a line more where not all of page_size do."""
    return shown if shown == page_size and shown < lines else max(0, min(shown, lines - 2))


def draw_overview(snapshot: Snapshot, options: Options, width: int, lines: int) -> RenderableType:
    """A heading, one line per job, and what is not shown."""
    shown_jobs = snapshot.jobs[: fitting(len(snapshot.jobs), snapshot.page.jobs, lines)]
    columns = _columns(shown_jobs, width)
    ink = replace(options, jobs=short_names((job.job for job in snapshot.jobs), columns[0].width))
    rows = (printed_row(jobs.JOBS, columns, job, ink) for job in shown_jobs)
    parts: list[RenderableType] = [printed(jobs.JOBS, columns, rows)]
    if len(shown_jobs) < snapshot.page.jobs:
        parts.append(left_out("jobs", snapshot.page.jobs_from, len(shown_jobs), snapshot.page.jobs))
    return Group(*parts)


def _columns(shown_jobs: Sequence[JobView], width: int) -> list[Printed]:
    more, most = width >= _MORE, width >= _MOST
    fixed = {"ranks": 5, "iteration": 9, "last / usual": 17, "lost": 7, "p99": 7 * more, "sent": 7, "ratio": 5 * more}
    fixed |= {"DL-shared": 9, "source": 8 * more, "pattern": 9 * most}
    longest = max((len(job.job) for job in shown_jobs), default=4)
    name = min(room(width, fixed.values(), 1), max(longest, 8), _LONGEST_NAME)
    rest = room(width, [name, *fixed.values()], 1) if most else 0
    return [
        Printed("job", name, Text("JOBS", "bold")),
        *(Printed(part, own) for part, own in fixed.items()),
        Printed("recent", rest if rest >= _LEAST_SPARKLINE else 0),
    ]


_LARGE_OFFSET_NS, _LARGE_SKEW_PPM = 1_000_000, 50
"""A host's own clock is usually no further from the collector's where NTP keeps both."""

_LARGE_SPOOL = 16_000_000
"""What an agent holds until the collector has written it is not worth a word below this."""

_LEAST_FACTS, _FACTS_SHARE = 5, 6  # lines; of the height
_MOST_INCIDENTS = 8
_MOST_ABOUT_HOSTS = 4
"""Facts about single hosts, where there are many hosts."""


def draw_header(snapshot: Snapshot, options: Options, width: int, height: int) -> list[Text]:
    """Title, then what slows jobs, the facts that hold for the whole frame, and the legend; of an overview a part."""
    about, slowed = facts(snapshot, options, width), _incidents(snapshot, width)
    if has_many(snapshot):
        about = about[: max(_LEAST_FACTS, height // _FACTS_SHARE)]
    return [title(snapshot, width), *slowed, *about, *class_legend(options.colour, options.bytes_, width)]


def _incidents(snapshot: Snapshot, width: int) -> list[Text]:
    found = newest_first(one for job in snapshot.jobs for one in job.incidents)
    drawn = [line for one in found[:_MOST_INCIDENTS] for line in lines_of(one, {}, snapshot.time_ns, width)]
    if len(found) > _MOST_INCIDENTS:
        drawn.append(Text(f"… {len(found) - _MOST_INCIDENTS} more incidents", "dim", no_wrap=True))
    still = hung(snapshot.jobs, {}, snapshot.time_ns, width)
    return [*still, *calm(snapshot.jobs, found, {}, width), *drawn]


def title(snapshot: Snapshot, width: int) -> Text:
    """Who, when, and whether anybody can listen."""
    now = snapshot.time_ns
    text = Text.assemble(("netmon", "bold"), f"  {day(now)} {clock(now)[:8]} {zone(now)}", no_wrap=True)
    if snapshot.insecure:
        text.append("  ").append("not encrypted", "bold yellow")
    text.truncate(width, overflow="ellipsis")
    return text


def facts(snapshot: Snapshot, options: Options, width: int) -> list[Text]:
    """What holds for the whole frame, in lines."""
    return wrapped(_facts(snapshot, options), width)


def class_legend(colour: bool, bytes_: bool, width: int) -> list[Text]:
    classes = [swatch(class_, colour).append(f" {CLASS_NAMES[class_]}", "default") for class_ in STACK]
    return wrapped([*classes, Text(f"rates in {rate_unit(bytes_)}", "dim")], width)


def _facts(snapshot: Snapshot, options: Options) -> Iterator[Text]:
    totals = snapshot.totals
    if totals.hosts > snapshot.page.hosts or has_many(snapshot) or snapshot.page.unknown:
        yield from overview_facts(snapshot, options)
        yield from _a_few([fact for host in snapshot.hosts for fact in _about(host)])
        yield Text(
            f"agents: each ≤ {totals.cpu_fraction:.1%} of a core, {format_bytes(totals.rss_bytes)}".replace("%", " %")
        )
        by = f" by {', '.join(totals.clock_sources)}" if totals.clock_sources else ""
        yield Text(f"clocks ± {format_duration(totals.clock_error_ns)}{by}")
        hooks = list(totals.hooks)
    else:
        yield from _few_hosts(snapshot.hosts)
        hooks = sorted({link.hook for link in snapshot.links if link.hook})
    yield Text("wire bytes, " + (", ".join(hooks) or "hook unknown"))
    threshold = f"{snapshot.share_threshold * 100:g} %"
    yield Text(f"DL-shared: cross payload ≥ {threshold} of the link in {format_duration(snapshot.share_window_ns)}")


def _a_few(facts: list[Text]) -> list[Text]:
    """What is to be said about single hosts; how much more there is."""
    more = len(facts) - _MOST_ABOUT_HOSTS
    return [*facts[:_MOST_ABOUT_HOSTS], Text(f"{more} more of such", "yellow")] if more > 0 else facts


def _few_hosts(hosts: tuple[HostView, ...]) -> Iterator[Text]:
    yield Text(f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}" if hosts else "no agent has connected yet")
    for host in sorted(hosts, key=lambda host: host.host):
        yield from _about(host)
    if hosts:
        busiest = max(host.cost.cpu_fraction for host in hosts)
        largest = max(host.cost.rss_bytes for host in hosts)
        each = "each ≤ " if len(hosts) > 1 else ""
        if largest:  # else it is the past, in which nobody knows
            yield Text(f"agents: {each}{busiest:.1%} of a core, {format_bytes(largest)}".replace("%", " %"))
        yield from _clocks(hosts)


def _clocks(hosts: tuple[HostView, ...]) -> Iterator[Text]:
    """How well the hosts are aligned, by what; then the hosts whose own clocks would have misled."""
    worst = max(host.clock_error_ns for host in hosts)
    sources = sorted({host.clock_source for host in hosts if host.clock_source})
    yield Text(f"clocks ± {format_duration(worst)}" + (f" by {', '.join(sources)}" if sources else ""))
    for host in sorted(hosts, key=lambda host: host.host):
        off = [f"{'+' if host.clock_offset_ns > 0 else ''}{format_duration(host.clock_offset_ns)}"]
        off += [f"{host.clock_skew_ppm:+.0f} ppm"] if abs(host.clock_skew_ppm) >= _LARGE_SKEW_PPM else []
        if abs(host.clock_offset_ns) >= _LARGE_OFFSET_NS or len(off) > 1:
            yield Text(f"{host.host}'s clock {', '.join(off)}", "yellow")


def _about(host: HostView) -> Iterator[Text]:
    if not host.connected:
        yield Text(f"{host.host} gone for {format_duration(host.age_ns)}", "bold red")
    elif silent(host):
        yield Text(f"{host.host} lags {format_duration(host.age_ns)}", "yellow")
    if host.cost.spool_bytes > _LARGE_SPOOL:
        yield Text(f"{host.host} holds {format_bytes(host.cost.spool_bytes)} unacknowledged", "yellow")
    if host.bucket_ns > host.stream_ns:
        yield Text(f"{host.host} streams {format_duration(host.bucket_ns)} buckets until it catches up", "yellow")
    if host.cost.warnings:
        yield Text(f"{host.host}: {host.cost.warnings} unusable marks or messages", "yellow")


_MOST_WARNINGS = 3
_LEAST_FLOWS = 6
_FEWEST_FLOWS, _FEWEST_JOBS = 4, 4
_COMFORTABLE_FLOWS = 12


class Plan(NamedTuple):
    """Lines of each section; they add up to no more than the height."""

    header: int
    links: int
    jobs: int
    ranks: int
    flows: int
    warnings: int
    gap: int  # between two sections


def render(snapshot: Snapshot, options: Options, width: int, height: int) -> RenderableType:
    """The snapshot as at most `height` lines of at most `width` cells; flows as arrange() left them."""
    snapshot = replace(snapshot, links=present_links(snapshot))
    lines = plan(snapshot, options, width, height)
    sections: list[RenderableType] = [Group(*draw_header(snapshot, options, width, height)[: lines.header])]
    many = has_many(snapshot)
    shown_links, shown_jobs = _links(snapshot, options, width, lines.links), _jobs(snapshot, options, width, lines.jobs)
    sections += [*shown_jobs, *shown_links] if many else [*shown_links, *shown_jobs]
    if lines.ranks:
        sections.append(jobs.ranks(snapshot.jobs, options, width))
    if lines.flows:
        sections.append(flows.draw(snapshot.flows, options, width, lines.flows))
    if lines.warnings:
        sections.append(_warnings(snapshot, width, lines.warnings))
    return Group(*_spaced(sections, lines.gap))


def _links(snapshot: Snapshot, options: Options, width: int, lines: int) -> list[RenderableType]:
    if not lines:
        return []
    many = has_many(snapshot)
    drawn = snapshot.links if many else links.ordered(snapshot.links)
    return [links.draw(drawn, options, width, lines, snapshot.page, worst_first=many)]


def _jobs(snapshot: Snapshot, options: Options, width: int, lines: int) -> list[RenderableType]:
    if not lines:
        return []
    if jobs_as_table(snapshot):
        return [draw_overview(snapshot, options, width, lines)]
    return [Group(*jobs.draw(snapshot.jobs, width, lines))]


def plan(snapshot: Snapshot, options: Options, width: int, height: int) -> Plan:
    """How the lines are shared out: what is small and always wanted first, then links and jobs, flows the rest."""
    warnings = min(len(snapshot.warnings), _MOST_WARNINGS)
    head = min(len(draw_header(snapshot, options, width, height)), max(height - warnings, 1))
    left = max(height - head - warnings, 0)
    many = has_many(snapshot)
    table = jobs_as_table(snapshot)
    wanted_jobs = overview_height(snapshot) if table else jobs.height(snapshot.jobs, width)
    wanted_links = links.height(snapshot.links) + (snapshot.page.links > len(snapshot.links)) if snapshot.links else 0
    sections = 2 + bool(wanted_jobs) + bool(warnings)
    gap = 1 if left >= wanted_links + wanted_jobs + _LEAST_FLOWS + sections else 0
    left -= gap * sections
    for_links = min(wanted_links, max(left - wanted_jobs, left // 2, 0))
    if many:
        for_links = min(wanted_links, max(left - _FEWEST_FLOWS - min(wanted_jobs, left // 3), 0))
    for_jobs = min(wanted_jobs, max(left - for_links - _FEWEST_FLOWS, min(left - for_links, _FEWEST_JOBS), 0))
    left = max(left - for_links - for_jobs, 0)
    wanted_ranks = 0 if table else jobs.height_of_ranks(snapshot.jobs)
    for_ranks = wanted_ranks if wanted_ranks and left >= wanted_ranks + gap + _COMFORTABLE_FLOWS else 0
    left -= for_ranks + (gap if for_ranks else 0)
    return Plan(head, for_links, for_jobs, for_ranks, left if left > 1 else 0, warnings, gap)


def _spaced(sections: list[RenderableType], gap: int) -> list[RenderableType]:
    if not gap:
        return sections
    return [part for section in sections for part in (Text(), section)][1:]


def _warnings(snapshot: Snapshot, width: int, lines: int) -> RenderableType:
    drawn = [shown(Text(f"! {warning}", "yellow", no_wrap=True)) for warning in snapshot.warnings[-lines:]]
    hidden = max(len(snapshot.warnings), snapshot.totals.warnings) - len(drawn)
    if hidden:
        drawn[0] = Text(f"! {hidden + 1} more warnings", "yellow", no_wrap=True)
    for line in drawn:
        line.truncate(width, overflow="ellipsis")
    return Group(*drawn)
