# SPDX-License-Identifier: Apache-2.0
"""What stands around the tables, from the title to the keys, and who gets how many lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from rich.text import Text

from netmon.dl.verdict import path_of, sentence
from netmon.dl.verdict.baseline import baseline_of_job
from netmon.dl.verdict.incidents import of_verdict, remedy
from netmon.dl.verdict.incidents import renamed as renamed_incident
from netmon.dl.verdict.verdict_text import arithmetic, renamed
from netmon.records import CLASS_LETTERS, CLASS_NAMES, STACK
from netmon.top.filters import Filter, exactly
from netmon.top.flows import (
    FLOWS,
    GROUPS,
    FlowGroup,
    FlowKey,
    FlowRow,
    five_tuple,
    flow_key,
    flow_rows,
    grouped,
    job_and_rank,
    loss_share,
    owner,
    round_trip,
)
from netmon.top.frame import class_legend, facts
from netmon.top.glyphs import broken, clock, coverage, day, iteration, rate, rate_unit, shown, swatch, wrapped, zone
from netmon.top.glyphs import shown as printable
from netmon.top.incidents import INCIDENTS, IncidentRow, rows_of, with_older
from netmon.top.jobs import JOBS, RANKS, TIMED_RANKS, RankRow, lines_of
from netmon.top.links import ARROWS, LINKS, PAST_LINKS, rates, unattributed
from netmon.top.links import ordered as links_by_name
from netmon.top.moments import MomentView
from netmon.top.options import Options, named
from netmon.top.rows import Kind, Part, numeric
from netmon.top.steps import STEPS, VERDICTS, Step
from netmon.units import format_bytes, format_duration, format_rate
from netmon.views import (
    FlowView,
    Frame,
    GroupLine,
    Incident,
    JobView,
    LinkView,
    PastSteps,
    RankTimes,
    Selection,
    Snapshot,
    Verdict,
)

# --- Where the reader is: everything → job → iteration → rank → flow, links and verdicts; and what is shown there.

RANK_GROUPS = Kind(
    "groups",
    (
        Part("group", lambda one, *_: Text(one.group, "bold"), lambda one: one.group, 9, 14, worth=99),
        Part("kind", lambda one, *_: one.kind, lambda one: one.kind, 7, 12, worth=9),
        Part("ranks", lambda one, *_: one.ranks, lambda one: one.ranks, 5, 24, worth=8),
        Part("in a step, per rank", lambda one, *_: one.calls, lambda one: one.calls, 20, 90, worth=6, grows=True),
        Part("when", lambda one, *_: one.when, lambda one: one.when, 8, 17, worth=4),
        numeric("waits", lambda one, *_: one.waits, lambda one: one.waited_ns, 8, 26, 7),
    ),
    key=lambda one: (one.group, one.kind, one.calls),
    values=lambda one: {"kind": (one.kind,)},
    term=lambda one: exactly("kind", one.kind),
)


@dataclass(frozen=True)
class Level:
    """One step of the way down."""

    what: str = "all"  # "all", "job", "iteration", "rank", "link", "flow", "verdicts"
    job: str = ""
    rank: int = -1
    link: tuple[str, str, int] | None = None
    flow: FlowKey | None = None
    name: str = "all"

    def narrowed(self, selection: Selection) -> Selection:
        if self.what in ("job", "iteration", "rank") and self.job:
            return replace(selection, jobs=(self.job,), hosts=())
        if self.what == "link" and self.link:
            return replace(selection, hosts=(self.link[0],), jobs=())
        return selection


@dataclass(frozen=True)
class Scene:
    """What there is to be shown."""

    snapshot: Snapshot
    past: PastSteps = field(default_factory=lambda: PastSteps({}))
    frame: Frame | None = None  # of a moment of the past; None: it is now
    step: Step | None = None  # in the past: the iteration
    times: tuple[RankTimes, ...] = ()  # where its time went
    filter: Filter = field(default_factory=Filter)
    grouped_by: str = ""
    steps: Sequence[Step] = ()  # of the level's job, oldest first
    past_incidents: Sequence[Incident] = ()  # newest first
    groups: Sequence[GroupLine] | None = None  # of ranks, of the level's job; None: nobody wants to see them
    fresh: Mapping[Any, Verdict] = field(default_factory=dict)  # of snapshots, whether the past has them or not


class Shown(NamedTuple):
    """One table: its rows, how many the filter hides alongside them, and whether there are more."""

    kind: Kind
    views: Sequence[Any]
    hidden: int = 0
    cut: bool = False


def incidents_of(level: Level, scene: Scene) -> list[Incident] | None:
    """Those that the level is about, newest first; None: it is about something smaller."""
    if level.what not in ("all", "job", "verdicts"):
        return None
    most = _MOST_ROWS if level.what == "verdicts" else _MOST_INCIDENTS
    live = [one for job in scene.snapshot.jobs for one in job.incidents] if scene.frame is None else []
    older = scene.past_incidents if scene.frame or level.what != "all" else ()
    own = list(islice((one for one in older if level.job in ("", one.job)), most))
    return with_older([one for one in live if level.job in ("", one.job)], own)[:most] if live else own


def tables(level: Level, scene: Scene) -> list[Shown]:
    jobs, links, flows = scene.snapshot.jobs, scene.snapshot.links, scene.snapshot.flows
    job = next((job for job in jobs if job.job == level.job), None)
    if level.what == "verdicts":
        return [_filtered(VERDICTS, all_verdicts(scene), scene)]
    if level.what == "job":
        own = [view for view in flows if view.flow.owner.job == level.job]
        if scene.groups is not None:
            return [_filtered(RANK_GROUPS, scene.groups, scene), _ranks(job, scene), _flows(own, scene)]
        steps = reversed(scene.steps) if scene.steps else _from_durations(job)
        return [_filtered(STEPS, steps, scene), _ranks(job, scene), _flows(own, scene)]
    if level.what == "iteration":
        return [_ranks(job, scene), _links(links, scene), _flows(flows, scene)]
    if level.what == "rank":
        host = next((rank.host for rank in job.ranks if rank.rank == level.rank), "") if job else ""
        own = [view for view in flows if view.host == host]
        return [_links([link for link in links if link.host == host], scene), _flows(own, scene)]
    if level.what == "link":
        on_it = [view for view in flows if (view.host, view.interface, view.flow.direction) == level.link]
        return [_links([link for link in links if _link_key(link) == level.link], scene), _flows(on_it, scene)]
    if level.what == "flow":
        return [Shown(FLOWS, flow_rows([view for view in flows if _same_ends(view, level.flow)]))]
    many = scene.snapshot.page.links > len(links) or len(links) > 16
    drawn = links if many else links_by_name(links)
    return [_filtered(JOBS, jobs, scene), _links(drawn, scene), _flows(flows, scene)]


def below(level: Level, kind: Kind, view: Any) -> Level | None:
    """Where Enter leads from a row; None: nowhere further down."""
    if isinstance(view, JobView):
        return Level("job", view.job, name=view.name or view.job)
    if isinstance(view, Step | Verdict):
        return Level("iteration", view.job, name=iteration_name(view))
    if isinstance(view, IncidentRow):
        one = view.incident
        return Level("iteration", one.job, name=f"iteration {iteration(one.worst, one.relative)}")
    if isinstance(view, RankRow):
        return Level("rank", view.job, view.view.rank, name=f"rank {view.view.rank} ({view.view.host})")
    if isinstance(view, LinkView) and level.what != "link":
        where = f"{view.host} {view.interface} {ARROWS[view.direction]}"
        return Level("link", level.job, level.rank, _link_key(view), name=where)
    if isinstance(view, FlowRow) and level.what != "flow":
        return Level("flow", level.job, level.rank, level.link, flow_key(view.view), name="flow")
    return None


def iteration_name(of: Step | Verdict) -> str:
    """`iteration 412`; `iteration ~12` where it counts from when somebody began to look."""
    return f"iteration {iteration(of.number if isinstance(of, Step) else of.iteration, of.relative)}"


def links_to_draw(level: Level, scene: Scene) -> list[LinkView]:
    """The lanes of the time axis: what the level is about first."""
    links = links_by_name(scene.snapshot.links)
    job = next((job for job in scene.snapshot.jobs if job.job == level.job), None)
    if level.what == "rank" and job:
        hosts = {rank.host for rank in job.ranks if rank.rank == level.rank}
        return [link for link in links if link.host in hosts]
    if level.link:
        return [link for link in links if _link_key(link) == level.link]
    accused = {(one.host, one.interface) for one in job.verdicts[:1]} if job and scene.step else set()
    return sorted(links, key=lambda link: (link.host, link.interface) not in accused)


def all_verdicts(scene: Scene) -> Iterator[Verdict]:
    """On the slow iterations, about the newest first; some of them twice."""
    if scene.frame is None:
        yield from scene.fresh.values()
    yield from reversed(scene.past.verdicts)


_MOST_INCIDENTS = 30
_MOST_ROWS, _MOST_READ = 1_000, 20_000
"""Of a table, and of what a filter looks through: it is drawn with every snapshot."""


def _filtered(kind: Kind, views: Iterable[Any], scene: Scene) -> Shown:
    kept, hidden, rest = list[Any](), 0, iter(views)
    for view in islice(rest, _MOST_READ):
        if scene.filter.terms and not scene.filter.holds(kind.values(view)):
            hidden += 1
        elif len(kept) < _MOST_ROWS:
            kept.append(view)
        else:
            return Shown(kind, kept, hidden, cut=True)
    return Shown(kind, kept, hidden, cut=next(rest, None) is not None)


def shown_incidents(found: Iterable[Incident], scene: Scene, names: Mapping[str, str], width: int) -> Shown:
    return _filtered(INCIDENTS, rows_of(found, names, scene.snapshot.time_ns, width), scene)


def _links(links: Sequence[LinkView], scene: Scene) -> Shown:
    return _filtered(LINKS if scene.frame is None else PAST_LINKS, links, scene)


def _flows(flows: Sequence[FlowView], scene: Scene) -> Shown:
    shown = _filtered(FLOWS, flow_rows(flows), scene)
    if not scene.grouped_by:
        return shown
    groups: list[FlowGroup] = grouped(shown.views, scene.grouped_by)
    return Shown(GROUPS, groups, shown.hidden)


def _ranks(job: JobView | None, scene: Scene) -> Shown:
    times = {one.rank: one for one in scene.times}
    kind = TIMED_RANKS if times else RANKS
    rows = [RankRow(job.job, rank, job.relative, times.get(rank.rank)) for rank in job.ranks] if job else []
    return _filtered(kind, sorted(rows, key=lambda row: row.view.rank), scene)


def _from_durations(job: JobView | None) -> list[Step]:
    """The last iterations without their times, where no source has them."""
    if job is None:
        return []
    first, baseline = job.iteration - len(job.durations_ns) + 1, baseline_of_job(job)
    each = enumerate(job.durations_ns.tolist(), first)
    steps = [Step(job.job, number, 0, 0, duration, baseline, job.relative) for number, duration in each]
    return steps[::-1]


def _link_key(link: LinkView) -> tuple[str, str, int]:
    return link.host, link.interface, link.direction


def _same_ends(view: FlowView, key: FlowKey | None) -> bool:
    """The flow wherever it is seen, and the other way round."""
    if key is None:
        return False
    flow = view.flow
    ends = {(flow.src, flow.src_port), (flow.dst, flow.dst_port)}
    return ends == {(key.src, key.src_port), (key.dst, key.dst_port)} and flow.protocol == key.protocol


# --- What stands around the tables, from the title to the keys, and who gets how many lines.


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
        baseline = f", usually {format_duration(step.baseline_ns)}" if step.baseline_ns else ""
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
