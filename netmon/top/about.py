# SPDX-License-Identifier: Apache-2.0
"""The lines above the tables: what is to be said of the level as a whole."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from netmon.dl.verdict import path_of, sentence
from netmon.dl.verdict.verdict_text import arithmetic, renamed
from netmon.records import CLASS_NAMES
from netmon.top import header, jobs
from netmon.top.flow_key import flow_key
from netmon.top.flows import five_tuple, job_and_rank, loss_share, owner, round_trip
from netmon.top.glyphs import coverage, iteration, rate, shown, wrapped
from netmon.top.levels import Level, Scene
from netmon.top.link_kind import rates
from netmon.top.links import ARROWS, unattributed
from netmon.top.options import Options
from netmon.top.rows import Ink
from netmon.top.step_kind import clock
from netmon.units import format_bytes, format_duration, format_rate
from netmon.views import Verdict

_MEASURE = Console()  # to break lines with


def lines(level: Level, scene: Scene, ink: Ink, width: int) -> list[Text]:
    """As many as there are; the most important ones first."""
    drawn = [*_moment(scene, ink, width), *_of_level(level, scene, ink, width)]
    return [shown(line) for line in drawn]


def _moment(scene: Scene, ink: Ink, width: int) -> Iterator[Text]:
    """What iteration it is, and why it took so long."""
    step, frame = scene.step, scene.frame
    if step is None:
        return
    baseline = f", usually {format_duration(step.usual_ns)}" if step.usual_ns else ""
    heading = f"{ink.job(step.job)}, iteration {iteration(step.number, step.relative)}: "
    yield from _broken(
        f"{heading}{clock(step.start_ns)} UTC, took {format_duration(step.longest_ns)}{baseline}", width, "bold"
    )
    if step.verdict:
        verdict = renamed(step.verdict, ink.jobs)
        yield from _broken(sentence(verdict), width, "yellow")
        if path := path_of(scene.times, verdict) if scene.times else "":
            yield from _broken(path, width)
        yield from _arithmetic(verdict, width)
    for gap in frame.gaps if frame else ():
        yield from _broken(f"missing: {gap}", width, "yellow")


def _arithmetic(verdict: Verdict, width: int) -> list[Text]:
    first, *shares = list(arithmetic(verdict)) or [""]
    return wrapped((Text(" ".join(line.split()), "dim") for line in (first, *shares) if line), width)


def _of_level(level: Level, scene: Scene, ink: Ink, width: int) -> list[Text]:
    snapshot = scene.snapshot
    job = next((job for job in snapshot.jobs if job.job == level.job), None)
    if level.what == "job" and job and scene.frame is None:
        return jobs.lines_of(jobs.named(job, ink.jobs), width)
    if level.what == "link":
        return wrapped(_link(level, scene, ink), width)
    if level.what == "flow":
        return wrapped(_flow(level, scene, ink), width)
    if level.what == "rank" and scene.frame is None and job:
        return [line for verdict in job.verdicts[:1] for line in _broken(sentence(renamed(verdict, ink.jobs)), width)]
    if level.what == "verdicts":
        return [Text("Enter goes to the moment that a verdict is about", "dim")]
    if level.what == "all" and scene.frame is None and snapshot.time_ns:
        warnings = [Text(f"! {line}", "yellow", no_wrap=True) for line in snapshot.warnings[-3:]]
        return [*header.facts(snapshot, Options(ink.colour, ink.bytes_), width), *warnings]
    return []


def _link(level: Level, scene: Scene, ink: Ink) -> Iterator[Text]:
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


def _flow(level: Level, scene: Scene, ink: Ink) -> Iterator[Text]:
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


def _broken(text: str, width: int, style: str = "") -> list[Text]:
    return list(shown(Text(text, style)).wrap(_MEASURE, max(width, 1)))


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
