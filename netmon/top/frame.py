# SPDX-License-Identifier: Apache-2.0
"""One frame: the sections, and who gets how many lines of the screen."""

from dataclasses import replace
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from netmon.top import flows, header, jobs, links, overview
from netmon.top.glyphs import shown
from netmon.top.options import Options
from netmon.top.staleness import present_links
from netmon.views import Snapshot

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
    sections: list[RenderableType] = [Group(*header.draw(snapshot, options, width, height)[: lines.header])]
    many = overview.wanted(snapshot)
    shown_links, shown_jobs = _links(snapshot, options, width, lines.links), _jobs(snapshot, width, lines.jobs)
    sections += [*shown_jobs, *shown_links] if many else [*shown_links, *shown_jobs]
    if lines.ranks:
        sections.append(jobs.ranks(snapshot.jobs, width))
    if lines.flows:
        sections.append(flows.draw(snapshot.flows, options, width, lines.flows))
    if lines.warnings:
        sections.append(_warnings(snapshot, width, lines.warnings))
    return Group(*_spaced(sections, lines.gap))


def _links(snapshot: Snapshot, options: Options, width: int, lines: int) -> list[RenderableType]:
    if not lines:
        return []
    many = overview.wanted(snapshot)
    drawn = snapshot.links if many else links.ordered(snapshot.links)
    return [links.draw(drawn, options, width, lines, snapshot.page, worst_first=many)]


def _jobs(snapshot: Snapshot, width: int, lines: int) -> list[RenderableType]:
    if not lines:
        return []
    if overview.jobs_as_table(snapshot):
        return [overview.draw(snapshot, width, lines)]
    return [Group(*jobs.draw(snapshot.jobs, width, lines))]


def plan(snapshot: Snapshot, options: Options, width: int, height: int) -> Plan:
    """How the lines are shared out: what is small and always wanted first, then links and jobs, flows the rest."""
    warnings = min(len(snapshot.warnings), _MOST_WARNINGS)
    head = min(len(header.draw(snapshot, options, width, height)), max(height - warnings, 1))
    left = max(height - head - warnings, 0)
    many = overview.wanted(snapshot)
    table = overview.jobs_as_table(snapshot)
    wanted_jobs = overview.height(snapshot) if table else jobs.height(snapshot.jobs, width)
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
