# SPDX-License-Identifier: Apache-2.0
"""What stands around the tables, from the title to the keys, and who gets how many lines."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from netmon.dl.verdict import path_of, sentence
from netmon.dl.verdict.incidents import of_verdict, remedy
from netmon.dl.verdict.incidents import renamed as renamed_incident
from netmon.dl.verdict.verdict_text import arithmetic, renamed
from netmon.records import CLASS_LETTERS, CLASS_NAMES, STACK
from netmon.top.flows import five_tuple, flow_key, job_and_rank, loss_share, owner, round_trip
from netmon.top.frame import class_legend, facts
from netmon.top.glyphs import (
    broken,
    clock,
    coverage,
    day,
    iteration,
    rate,
    rate_unit,
    shown,
    swatch,
    wrapped,
    zone,
)
from netmon.top.glyphs import shown as printable
from netmon.top.jobs import lines_of
from netmon.top.levels import Level, Scene, Shown, incidents_of
from netmon.top.links import ARROWS, rates, unattributed
from netmon.top.moments import MomentView
from netmon.top.options import Options, named
from netmon.units import format_bytes, format_duration, format_rate
from netmon.views import Verdict


def about(level: Level, scene: Scene, ink: Options, width: int) -> list[Text]:
    """As many as there are; the most important ones first."""
    drawn = [*_moment(level, scene, ink, width), *_of_level(level, scene, ink, width)]
    return [shown(line) for line in drawn]


def _moment(level: Level, scene: Scene, ink: Options, width: int) -> Iterator[Text]:
    step, frame = scene.step, scene.frame
    if step is None:
        return
    if step.verdict:
        verdict = renamed(step.verdict, ink.jobs)
        yield from broken(sentence(verdict), width, "bold yellow")
        incident = of_verdict(scene.past_incidents, step.verdict)
        if incident and incidents_of(level, scene) is None:
            yield from broken(f"→ {remedy(renamed_incident(incident, ink.jobs))}", width)
        if path := path_of(scene.times, verdict) if scene.times else "":
            yield from broken(path, width)
        yield from _arithmetic(verdict, width)
    else:
        baseline = f", usually {format_duration(step.usual_ns)}" if step.usual_ns else ""
        heading = f"{ink.job(step.job)}, iteration {iteration(step.number, step.relative)}:"
        yield from broken(f"{heading} took {format_duration(step.longest_ns)}{baseline}", width, "bold")
    for gap in frame.gaps if frame else ():
        yield from broken(f"missing: {gap}", width, "yellow")


def _arithmetic(verdict: Verdict, width: int) -> list[Text]:
    first, *shares = list(arithmetic(verdict)) or [""]
    return wrapped((Text(" ".join(line.split()), "dim") for line in (first, *shares) if line), width)


def _of_level(level: Level, scene: Scene, ink: Options, width: int) -> list[Text]:
    snapshot = scene.snapshot
    job = next((job for job in snapshot.jobs if job.job == level.job), None)
    if level.what == "job" and job and scene.frame is None:
        return lines_of(named(job, ink.jobs), width)
    if level.what == "link":
        return wrapped(_link(level, scene, ink), width)
    if level.what == "flow":
        return wrapped(_flow(level, scene, ink), width)
    if level.what == "rank" and scene.frame is None and job:
        return [line for verdict in job.verdicts[:1] for line in broken(sentence(renamed(verdict, ink.jobs)), width)]
    if level.what == "verdicts":
        return [Text("Enter goes to the moment that a verdict is about", "dim")]
    if level.what == "all" and scene.frame is None and snapshot.time_ns:
        warnings = [Text(f"! {line}", "yellow", no_wrap=True) for line in snapshot.warnings[-3:]]
        return [*warnings, *facts(snapshot, ink, width)]
    return []


def _link(level: Level, scene: Scene, ink: Options) -> Iterator[Text]:
    for link in scene.snapshot.links:
        if (link.host, link.interface, link.direction) != level.link:
            continue
        yield Text(f"{link.host} {link.interface} {ARROWS[link.direction]}", "bold")
        yield Text(format_rate(link.capacity_bps) if link.capacity_bps else "capacity unknown")
        yield Text(f"carries {rate(float(rates(link, ink.past).sum()), ink.bytes_)}")
        if link.hook:
            yield Text(f"hook {link.hook}")
        yield Text(f"coverage {coverage(link.coverage)}")
        for name, amount in unattributed(link).items():
            yield Text(f"{name} {format_bytes(amount)}", "red")


def _flow(level: Level, scene: Scene, ink: Options) -> Iterator[Text]:
    for view in scene.snapshot.flows:
        if flow_key(view) != level.flow:
            continue
        yield Text(five_tuple(view.flow), "bold")
        yield Text(f"on {view.host} {view.interface} {ARROWS[view.flow.direction]}")
        yield Text(CLASS_NAMES[view.class_])
        yield Text(
            f"process {owner(view.flow.owner)}" + (f", by {view.flow.owner.source}" if view.flow.owner.source else "")
        )
        if view.flow.owner.job:
            yield Text(job_and_rank(view, ink.job(view.flow.owner.job)))
        yield Text(rate(view.wire_bps, ink.bytes_))
        yield Text(f"{format_bytes(view.wire_bytes)} since " + ("the span's beginning" if ink.past else "its start"))
        if rtt := round_trip(view):
            lost = loss_share(view)
            yield Text(f"round trip {rtt}" + (f", sent again {lost}" if lost else ""))
        return
    yield Text("the flow is silent, or no longer among the largest", "dim")


def cost(cpu_fraction: float, rss_bytes: int, width: int) -> str:
    """`top 1.2 % of a core, 84.1 MB`; less where there is little room."""
    share = f"{cpu_fraction:.1%}".replace("%", " %")
    if width < 40:
        return ""
    return (
        f"top {share}, {format_bytes(rss_bytes)}"
        if width < 100
        else f"top {share} of a core, {format_bytes(rss_bytes)}"
    )


_KEYS = (
    *("? help", "q quit", "⏎ in", "esc out", "f filter", "s sort", "g group", "v verdicts"),
    *("space pause", "y copy", "o groups of ranks"),
)
_OF_PAST = ("← → iteration", "/ slow")
_IN_PAST = ("l live", "← → iteration", "/ \\ slow", "+ − zoom")


def title_line(state: tuple[str, str], scene: Scene, cost: str, width: int) -> Text:
    """When it is, what is the matter, and in the corner what the program itself takes. state: a word, a sentence."""
    word, notice = state
    snapshot, frame = scene.snapshot, scene.frame
    now = snapshot.time_ns
    date = f"{day(now)} " if width >= 60 else ""
    where = f" {zone(now)}" if width >= 20 else ""
    text = Text(no_wrap=True)
    if width >= 30:
        text.append("netmon  ", "bold")
    if frame:
        text.append(f" {word} ", "bold reverse yellow").append(f" {date}{clock(frame.since_ns)}{where}")
    elif snapshot.time_ns:
        text.append(f"{date}{clock(now)[:8]}{where}")
        if word:
            text.append(" ").append(f" {word} ", "bold reverse yellow")
    if snapshot.insecure:
        text.append("  ").append("not encrypted", "bold yellow")
    if notice:
        text.append("  " if text else "").append(notice, "bold red")
    text.truncate(width, overflow="ellipsis")
    if text.cell_len + len(cost) + 2 <= width:
        text.pad_right(width - text.cell_len - len(cost))
        text.append(cost, "dim")
    return printable(text)


def path_line(path: Sequence[Level], shown: Sequence[Shown], scene: Scene, moments: MomentView, width: int) -> Text:
    """`all › resnet › iteration 412   filter host:h3: 12 rows hidden`."""
    text = Text(" › ".join(level.name for level in path), "bold", no_wrap=True)
    if moments.busy:
        text.append(f"  {moments.busy} …", "italic")
    if moments.problem:
        text.append(f"  {moments.problem}", "yellow")
    if scene.filter.text:
        hidden = sum(one.hidden for one in shown)
        text.append(f"  filter {scene.filter.text}", "reverse").append(f" hides {hidden:,} rows", "dim")
    for one in shown:
        if one.cut:
            text.append(f"  the newest {len(one.views):,} {one.kind.name} only", "dim")
    if scene.grouped_by:
        text.append(f"  by {scene.grouped_by}", "reverse")
    page = scene.snapshot.page
    if len(path) == 1 and page.links > len(scene.snapshot.links) and scene.frame is None:
        last = page.links_from + len(scene.snapshot.links)
        text.append(f"  links {page.links_from + 1:,}–{last:,} of {page.links:,}, worst first; n p", "dim")
    if len(path) == 1 and page.jobs > len(scene.snapshot.jobs) and scene.frame is None:
        last = page.jobs_from + len(scene.snapshot.jobs)
        text.append(f"  jobs {page.jobs_from + 1:,}–{last:,} of {page.jobs:,}", "dim")
    if scene.frame:
        text.append(f"  {format_duration(scene.frame.until_ns - scene.frame.since_ns)} at {scene.frame.basis}", "dim")
    text = printable(text)
    text.truncate(width, overflow="ellipsis")
    return text


def key_line(in_past: bool, has_past: bool, width: int) -> Text:
    first, rest = _KEYS[:2], _KEYS[2:]
    names = [
        *first,
        *(_IN_PAST if in_past else ()),
        *rest[:2],
        *(_OF_PAST if has_past and not in_past else ()),
        *rest[2:],
    ]
    text = Text(no_wrap=True, style="dim")
    for name in names:
        if text.cell_len + len(name) + 2 > width:
            break
        text.append(("  " if text else "") + name)
    return text


_NARROW = 50  # cells
SMALL = 7  # lines of the screen: up to so many, nothing is said of what is not the matter
_MEDIUM = 14  # lines of the screen: below, there is one table only, and nothing is said above it
_LEAST_ROWS, _FEW_FACTS = 3, 2
_PART_OF_INCIDENTS = 3  # of the lines
_LEAST_AXIS, _MOST_AXIS = 3, 12


class Plan(NamedTuple):
    """Lines of each part; the title has one."""

    incidents: int
    legend: int
    about: int
    path: int
    tables: list[int]  # 0: not shown
    axis: int
    keys: int

    def lines(self) -> int:
        return 1 + self.incidents + self.legend + self.about + self.path + sum(self.tables) + self.axis + self.keys


def legend(ink: Options, width: int) -> list[Text]:
    """What colours and numbers mean, in one line where the width is small."""
    if width >= _NARROW:
        return class_legend(ink.colour, ink.bytes_, width)
    line = Text(no_wrap=True)
    for class_ in STACK:
        line.append_text(swatch(class_, ink.colour)).append(f"{CLASS_LETTERS[class_]} ")
    line.append(rate_unit(ink.bytes_), "dim")
    line.truncate(width)
    return [line]


def plan(
    height: int,
    incidents: int,
    texts: Sequence[Text],
    above: int,
    axis: int,
    shown: Sequence[Shown],
    focused: int,
    typing: bool,
    facts_only: bool = False,
) -> Plan:
    """How the lines are shared out. incidents, above, axis: lines that these would like; typing: a filter.

    facts_only: what is above the tables is of less worth than their rows.
    """
    left = height - 1 - 2 * typing
    incidents = min(incidents, max(left // _PART_OF_INCIDENTS, 2)) if left > SMALL else 0
    left -= incidents
    legend_lines = max(min(len(texts), left - 2), 1)
    left -= legend_lines
    path = 1 if left >= 3 else 0
    keys = 1 if left >= 4 else 0
    left -= path + keys
    if height < _MEDIUM:
        tables = [0] * len(shown)
        if shown:
            tables[focused if focused < len(shown) else 0] = max(left, 1)
        return Plan(incidents, legend_lines, 0, path, tables, 0, keys)
    least = sum(min(_LEAST_ROWS, len(one.views)) + 1 for one in shown)
    spare = left - sum(len(one.views) + 1 for one in shown)
    most = max(spare, _FEW_FACTS) if facts_only else left // 3
    about = max(min(above, most, left - least - min(axis, _LEAST_AXIS)), 0)
    left -= about
    for_axis = max(min(axis, _MOST_AXIS, left - least), 0)
    for_axis = for_axis if for_axis > 1 else 0
    return Plan(incidents, legend_lines, about, path, _tables(left - for_axis, shown, focused), for_axis, keys)


def _tables(left: int, shown: Sequence[Shown], focused: int) -> list[int]:
    """What each would like, but no more than its part; what is left over goes to whom has more to show."""
    if left < 2 * len(shown):
        return [left if index == focused else 0 for index in range(len(shown))]
    wanted = [max(len(one.views), 1) + 1 for one in shown]
    part = left // len(shown)
    given = [min(lines, part) for lines in wanted]
    for index in sorted(range(len(shown)), key=lambda index: index != focused):
        more = min(wanted[index] - given[index], left - sum(given))
        given[index] += max(more, 0)
    if given:
        given[-1] += max(left - sum(given), 0)  # so its height is the same while rows come and go: nothing is laid out
    return given
