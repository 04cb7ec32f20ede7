# SPDX-License-Identifier: Apache-2.0
"""Where the reader is: everything → job → iteration → rank → flow, links and verdicts; and what is shown there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from rich.text import Text

from netmon.dl.verdict.baseline import usual_of_job
from netmon.past import Frame, PastSteps
from netmon.top.filters import Filter, exactly
from netmon.top.flows import FLOWS, GROUPS, FlowGroup, FlowKey, FlowRow, flow_key, flow_rows, grouped
from netmon.top.glyphs import iteration
from netmon.top.incidents import INCIDENTS, IncidentRow, rows_of, with_older
from netmon.top.jobs import JOBS, RANKS, TIMED_RANKS, RankRow
from netmon.top.links import ARROWS, LINKS, PAST_LINKS
from netmon.top.links import ordered as links_by_name
from netmon.top.rows import Kind, Part, numeric
from netmon.top.steps import STEPS, VERDICTS, Step
from netmon.views import FlowView, GroupLine, Incident, JobView, LinkView, RankTimes, Selection, Snapshot, Verdict

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
    """On the iterations that stood out, about the newest first; some of them twice."""
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
    """The last iterations without their times, where nobody can be asked about them."""
    if job is None:
        return []
    first, usual = job.iteration - len(job.durations_ns) + 1, usual_of_job(job)
    each = enumerate(job.durations_ns.tolist(), first)
    steps = [Step(job.job, number, 0, 0, duration, usual, job.relative) for number, duration in each]
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
