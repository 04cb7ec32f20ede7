# SPDX-License-Identifier: Apache-2.0
"""The interactive program: what is on the screen, and what keys and the mouse do."""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rich.color import Color as RichColor
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.events import DescendantFocus, Event, Key, MouseDown, Resize
from textual.filter import LineFilter
from textual.widgets import Input, Static

from netmon.top import layout, moments
from netmon.top.document import plain
from netmon.top.filters import Filter, parse
from netmon.top.flows import GROUPINGS, FlowGroup
from netmon.top.frame import has_many
from netmon.top.glyphs import clock
from netmon.top.incidents import IncidentRow, calm, calm_past, hung
from netmon.top.layout import (
    Level,
    Scene,
    Shown,
    below,
    cost,
    incidents_of,
    iteration_name,
    links_to_draw,
    shown_incidents,
    tables,
)
from netmon.top.moments import Answer, Ended, MomentView, Reader, Update
from netmon.top.options import Options, present_flows, present_links, short_names
from netmon.top.steps import Step
from netmon.top.widgets import FilterLine, HelpScreen, RowTable
from netmon.views import GroupLine, Past, PastSteps, Selection, Snapshot, Verdict
from netmon.wire.watch import Outage

# --- Text that can be read on whatever it stands on: colours keep their hue, and are made as much lighter as it takes.


LEAST = 4.5
"""Contrast of text (WCAG 2, level AA)."""

_STEPS = 20


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: ColorTriplet) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@lru_cache(1024)
def readable(style: Style, background: RichColor) -> Style:
    """The same with a colour that is read on its background, or on this one where it has none."""
    below = style.bgcolor if style.bgcolor and not style.bgcolor.is_default else background
    if style.color is None or style.color.is_default:
        return style
    ink, paper = style.color.get_truecolor(), below.get_truecolor()
    end = max(ColorTriplet(0, 0, 0), ColorTriplet(255, 255, 255), key=lambda end: contrast(end, paper))
    for step in range(_STEPS + 1):
        mixed = ColorTriplet(*(a + (b - a) * step // _STEPS for a, b in zip(ink, end, strict=True)))
        if contrast(mixed, paper) >= LEAST:
            break
    return style + Style(color=RichColor.from_triplet(mixed)) if step else style


class Readable(LineFilter):
    """Of words and figures; bars and courses have the very colours of their classes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        below = background.rich_color
        return [
            Segment(text, readable(style, below), control)
            if style and _is_read(text)
            else Segment(text, style, control)
            for text, style, control in segments
        ]


def _is_read(text: str) -> bool:
    return any(map(str.isalnum, text))


class StandardOutput(LinuxDriver):
    """The driver of a terminal that standard output is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if sys.__stdout__ is not None:
            self._file = sys.__stdout__


# --- What the program itself takes of the machine.


class OwnCost:
    """Measured over the last seconds."""

    _EVERY_S = 2.0

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._text_of: tuple[float, int] = (0.0, _rss_bytes())

    def text(self, width: int) -> str:
        wall, cpu = time.monotonic(), time.process_time()
        if wall - self._wall >= self._EVERY_S:
            self._text_of = (cpu - self._cpu) / (wall - self._wall), _rss_bytes()
            self._wall, self._cpu = wall, cpu
        return cost(*self._text_of, width)


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- program

_SILENCE_NS = 5_000_000_000
"""Without a snapshot for so long, the view says that it is old."""

_TABLES = 3
_LONGEST_JOB = 40
_NOTHING = Snapshot(0, 0.01, 0, (), (), (), ())


class Program(App[None]):
    """Shows snapshots as they come, and moments of the past; `error` is what has ended it, if anything did."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; overflow: hidden; }
    Static { height: auto; background: transparent; text-wrap: nowrap; }
    #space { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("escape,backspace", "up"),
        Binding("space", "pause"),
        Binding("b", "units"),
        Binding("f", "filter"),
        Binding("g", "group"),
        Binding("o", "rank_groups"),
        Binding("s", "sort(1)"),
        Binding("S", "sort(-1)"),
        Binding("v", "verdicts"),
        Binding("l", "live"),
        Binding("left", "step(-1)"),
        Binding("right", "step(1)"),
        Binding("slash", "slow(False)"),
        Binding("backslash", "slow(True)"),
        Binding("plus,equals_sign", "zoom(0.5)"),
        Binding("minus", "zoom(2.0)"),
        Binding("comma", "pan(-0.25)"),
        Binding("full_stop", "pan(0.25)"),
        Binding("n", "page(1)"),
        Binding("p", "page(-1)"),
        Binding("y", "copy(True)"),
        Binding("Y", "copy(False)"),
        Binding("question_mark", "help"),
    ]

    def __init__(
        self,
        updates: Iterable[Snapshot | Outage] | None,
        past: Past | None = None,
        selection: Selection | None = None,
        turned: Callable[[Selection], None] = lambda selection: None,
        colour: bool = True,
    ) -> None:
        """updates: None where there is only a past. turned: called with the new selection."""
        super().__init__()
        self.error: Exception | None = None
        self.ink = Options(colour=colour)
        self.path = [Level()]
        self.filter = Filter()
        self.notice = ""
        self._updates, self._past = updates, past
        self._moments = MomentView(past, self)
        self._selection, self._turned = selection or Selection(), turned
        self._live = self._newest = _NOTHING
        self._received_ns = time.time_ns()
        self._paused = False
        self._grouped_by = ""
        self._groups_of = ""  # the job whose groups of ranks are shown in place of its iterations
        self._shown: list[Shown] = []
        self._put_lines: dict[str, list[Text]] = {}
        self._said_silence = self._touched = False
        self._cost = OwnCost()
        self._readable = Readable()
        self._reader: Reader | None = None

    def compose(self) -> ComposeResult:
        """Everything from above to below; how high each is follows from the screen."""
        for name in ("title", "calm"):
            yield Static(id=name)
        yield RowTable(id="incidents")
        for name in ("about", "legend", "path"):
            yield Static(id=name)
        for index in range(_TABLES):
            yield RowTable(id=f"table{index}")
        yield Static(id="space")
        yield Static(id="axis")
        yield FilterLine()
        yield Static(id="keys")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Whatever is on the screen can be read."""
        return [*super().get_line_filters(), self._readable]

    def on_mount(self) -> None:
        if self._updates is not None:
            self._reader = Reader(self._updates, self)
        else:
            self._moments.refresh(lambda rewinding: rewinding.by(self._job(rewinding.past), -1))
        self.set_interval(1.0, self._say_silence)
        self.redraw()

    async def on_event(self, event: Event) -> None:
        """Until the reader does anything, what is chosen is the first thing there is."""
        self._touched |= isinstance(event, Key | MouseDown)
        await super().on_event(event)

    def on_unmount(self) -> None:
        """Leave no thread that does anything."""
        self._moments.stop()
        if self._reader:
            self._reader.stop()

    @on(Update)
    def _take_update(self, message: Update) -> None:
        self._received_ns = message.received_ns
        if isinstance(message.update, Outage):
            self.notice = f"collector gone since {clock(message.update.since_ns)[:8]}, retrying"
        else:
            self.notice, self._newest = "", message.update
            self._moments.rewinding.add(verdict for job in message.update.jobs for verdict in job.verdicts)
            if not self._paused:
                self._live = message.update
        self.redraw()

    @on(Ended)
    def _end(self, message: Ended) -> None:
        self.error = message.error
        self.exit()

    @on(Answer)
    def _take_answer(self, message: Answer) -> None:
        try:
            self._moments.answer(message)
        except Exception as error:  # nobody meant it to happen: the command tells it when the terminal is put back
            self._end(Ended(error))
            return
        step, moments = self._moments.rewinding.step, self._moments
        if self.path[-1].what == "iteration" and moments.frame is None and not moments.busy:
            self.path.pop()  # there is nothing to be seen of it
        elif step and self.path[-1].what == "iteration":
            self.path[-1] = replace(self.path[-1], job=step.job, name=iteration_name(step))
        self.redraw()

    @on(Resize)
    @on(DescendantFocus)
    def _arrange_anew(self) -> None:
        self.call_later(self.redraw)  # the new size is known when the event has been dealt with

    def _say_silence(self) -> None:
        """Nothing is drawn without news, but that there are none."""
        if self._silent() and not self._said_silence:
            self.redraw()

    def scene(self) -> Scene:
        moments = self._moments
        rewinding, frame = moments.rewinding, moments.frame
        snapshot, step = frame.snapshot if frame else self._live, moments.step
        if frame is None:
            snapshot = replace(snapshot, links=present_links(snapshot), flows=present_flows(snapshot))
        elif step:  # as its verdict says
            jobs = (replace(job, baseline_ns=step.baseline_ns) if job.job == step.job else job for job in snapshot.jobs)
            snapshot = replace(snapshot, jobs=tuple(jobs))
        return Scene(
            *(snapshot, rewinding.past, frame, step, moments.times, self.filter, self._grouped_by),
            steps=rewinding.of(self.path[-1].job),
            past_incidents=rewinding.incidents,
            fresh=rewinding.fresh,
            groups=self._groups(),
        )

    def _groups(self) -> Sequence[GroupLine] | None:
        found, job = self._moments.groups, self.path[-1].job
        if self.path[-1].what != "job" or self._groups_of != job:
            return None
        return found.lines if found and found.job == job else ()

    def redraw(self) -> None:
        """Everything, from what is known now."""
        if not self.is_running or len(self.screen_stack) > 1 or not self.query("#keys"):
            return
        scene, level, (width, height) = self.scene(), self.path[-1], self.size
        names = {job.job: job.name or job.job for job in scene.snapshot.jobs} | dict(scene.past.names)
        short = short_names(names.values(), min(_LONGEST_JOB, max(width // 3, 8)))
        self.ink = replace(
            self.ink, past=scene.frame is not None, jobs={job: short[name] for job, name in names.items()}
        )
        self._shown = tables(level, scene)
        said, incidents = self._incidents(level, scene, width)
        typing = self.query_one(FilterLine).display
        above = layout.about(level, scene, self.ink, width)
        lanes = links_to_draw(level, scene) if scene.frame else []
        axis = 1 + len(lanes) + len(scene.frame.spans) if scene.frame else 0
        wanted = len(incidents.views) + 1 if incidents and incidents.views else 0
        legend = layout.legend(self.ink, width)
        height -= len(said) if height > layout.SMALL else 0
        facts_only = level.what == "all" and scene.frame is None and not has_many(scene.snapshot)
        plan = layout.plan(height, wanted, legend, len(above), axis, self._shown, self._focused(), typing, facts_only)
        self.query_one("#space").display = plan.lines() + 2 * typing < height
        self._put("title", [layout.title_line(self._state(scene), scene, self._cost.text(width), width)])
        self._put("calm", said if self.size.height > layout.SMALL else [])
        self._put("legend", legend[: plan.legend])
        self._put("about", above[: plan.about])
        self._put("path", [layout.path_line(self.path, self._shown, scene, self._moments, width)] if plan.path else [])
        below = [*zip(self._shown, plan.tables, strict=True), *[(None, 0)] * _TABLES][:_TABLES]
        self._draw_tables([(incidents, plan.incidents), *below], scene, width)
        drawn = []
        if scene.frame and self._moments.span and plan.axis:
            drawn = moments.draw(scene.frame, self._moments.span, lanes, width, plan.axis, self.ink)
        self._put("axis", drawn)
        self.screen.scroll_to(0, 0, animate=False)  # whatever has had to be seen: all of it fits
        self._put(
            "keys", [layout.key_line(scene.frame is not None, self._past is not None, width)] if plan.keys else []
        )

    def _incidents(self, level: Level, scene: Scene, width: int) -> tuple[list[Text], Shown | None]:
        """What is said where none goes on, and those that there are."""
        found = incidents_of(level, scene)
        if found is None or not scene.snapshot.time_ns:
            return [], None
        jobs = [job for job in scene.snapshot.jobs if level.job in ("", job.job)]
        said = []
        if scene.frame is None:
            still = hung(jobs, self.ink.jobs, scene.snapshot.time_ns, width)
            said = [*still, *calm(jobs, found, self.ink.jobs, width)]
        if scene.frame and not found:
            said = calm_past(scene.past, level.job, width)
        return said, shown_incidents(found, scene, self.ink.jobs, max(width - 1, 8))

    def _draw_tables(self, drawn: list[tuple[Shown | None, int]], scene: Scene, width: int) -> None:
        """drawn: with how many lines."""
        for table, (shown, height) in zip(self.query(RowTable), drawn, strict=True):
            table.display = shown is not None and height > 0
            if shown and table.display:
                now = scene.snapshot.time_ns
                table.show(shown.kind, shown.views, self.ink, width, height, now, hold=scene.frame is None)
        first = next((table for table in self.query(RowTable) if table.display), None)
        lost = not (isinstance(self.focused, RowTable | Input) and self.focused.display)
        if scene.snapshot.time_ns and (lost or not self._touched):
            self.set_focus(first, scroll_visible=False)

    def _put(self, name: str, lines: list[Text]) -> None:
        before = self._put_lines.get(name)
        if lines != before:
            self._put_lines[name] = lines
            widget = self.query_one(f"#{name}", Static)
            widget.display = bool(lines)
            widget.update(Text("\n").join(lines), layout=before is None or len(lines) != len(before))

    def _state(self, scene: Scene) -> tuple[str, str]:
        if scene.frame:
            return "PAST", ""
        notice = self.notice or ("waiting for the first snapshot …" if self._live is _NOTHING else "")
        self._said_silence = self._silent()
        if not notice and self._said_silence:
            notice = f"no news since {clock(self._received_ns)[:8]}"
        return ("PAUSED" if self._paused else ""), notice

    def _silent(self) -> bool:
        return time.time_ns() - self._received_ns > _SILENCE_NS

    def _focused(self) -> int:
        """Of the tables below the incidents."""
        name = self.focused.id if isinstance(self.focused, RowTable) else None
        return int(name.removeprefix("table")) if name and name != "incidents" else 0

    def _table(self) -> RowTable:
        return self.focused if isinstance(self.focused, RowTable) else self.query_one("#table0", RowTable)

    @on(RowTable.Selected)
    def _into(self) -> None:
        view, kind = self._table().chosen, self._table().kind
        if view is None or kind is None:
            return
        if isinstance(view, FlowGroup):
            self._grouped_by = ""
            self._filter_by(FilterLine.Changed(parse(f"{self.filter.text} {kind.term(view)}")))
        elif level := below(self.path[-1], kind, view):
            if isinstance(view, Step):
                self._moments.move_to(lambda rewinding: rewinding.to(view.job, view.number, view.start_ns))
                if self._moments.problem:
                    level = self.path[-1]
            elif isinstance(view, Verdict):
                self._moments.move_to(lambda rewinding: rewinding.to_verdict(view))
            elif isinstance(view, IncidentRow):
                self._moments.move_to(lambda rewinding: rewinding.to_incident(view.incident))
                if self._moments.problem:
                    level = self.path[-1]
            if level is not self.path[-1]:
                self._enter([*self.path, level])
        self.redraw()

    def action_up(self) -> None:
        """Close what is open; else a level up."""
        if isinstance(self.focused, Input):
            self.query_one(FilterLine).close()
        elif len(self.path) > 1:
            self._enter(self.path[:-1])
        else:
            self._filter_by(FilterLine.Changed(Filter()))

    def _enter(self, path: list[Level]) -> None:
        self.path = path
        self._query()
        for table in self.query(RowTable):
            table.restart()
        self.redraw()
        self.set_focus(self.query_one("#table0", RowTable), scroll_visible=False)

    def _query(self) -> None:
        few, many = self._selection.flows, 10 * self._selection.flows
        selection = replace(self._selection, flows=many if self.filter.text or self._grouped_by else few)
        self._turned(self.path[-1].narrowed(selection))

    def action_verdicts(self) -> None:
        """All verdicts; what has come since is requested."""
        if self._past is not None and self._moments.frame is None:
            self._moments.refresh()
        self._enter([self.path[0], Level("verdicts", name="verdicts")])

    def _job(self, past: PastSteps) -> str:
        """Of which job iterations are stepped through: the chosen one, else that which is at hand."""
        if job := next((level.job for level in reversed(self.path) if level.job), ""):
            return job
        chosen = self._table().chosen
        chosen = chosen.incident if isinstance(chosen, IncidentRow) else chosen
        named = getattr(chosen, "job", "") or getattr(self._moments.rewinding.step, "job", "")
        jobs = [job.job for job in self._live.jobs] or list(past.jobs)
        return named if named in past.jobs or named in jobs else (jobs[0] if jobs else "")

    @on(RowTable.Sideways)
    def _sideways(self, message: RowTable.Sideways) -> None:
        self.action_step(message.step)

    def action_step(self, count: int) -> None:
        self._moments.move_to(lambda rewinding: rewinding.by(self._job(rewinding.past), count))
        self.redraw()

    def action_slow(self, forward: bool) -> None:
        self._moments.move_to(lambda rewinding: rewinding.to_slow(self._job(rewinding.past), forward))
        self.redraw()

    def action_live(self) -> None:
        """Back to now; of a dataset to its newest iteration."""
        self._moments.live()
        self._paused = False
        self._live = self._newest
        if self._updates is None:
            self._moments.refresh(lambda rewinding: rewinding.by(self._job(rewinding.past), -1))
        if self.path[-1].what == "iteration":
            self._enter(self.path[:-1])
        self.redraw()

    def action_zoom(self, factor: float) -> None:
        self._moments.zoom(factor, moments.room_for_axis(self.size.width))
        self.redraw()

    def action_pan(self, part: float) -> None:
        self._moments.pan(part, moments.room_for_axis(self.size.width))
        self.redraw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._live = self._live if self._paused else self._newest
        self.redraw()

    def action_units(self) -> None:
        """Bits or bytes."""
        self.ink = replace(self.ink, bytes_=not self.ink.bytes_)
        self.redraw()

    def action_sort(self, step: int) -> None:
        self._table().sort_by_next(step)
        self.redraw()

    @on(RowTable.HeadingClicked)
    def _sort_by(self, message: RowTable.HeadingClicked) -> None:
        message.table.sort_by(message.name)
        self.redraw()

    def action_group(self) -> None:
        """By the next thing that flows may have in common."""
        choices = ["", *GROUPINGS]
        self._grouped_by = choices[(choices.index(self._grouped_by) + 1) % len(choices)]
        self._query()
        self.redraw()

    def action_rank_groups(self) -> None:
        """Of a job: its groups of ranks in place of its iterations, as they are now; and back."""
        job = self.path[-1].job
        if self.path[-1].what != "job":
            self._moments.problem = "groups of ranks are a job's: choose one"
        elif self._groups_of == job:
            self._groups_of = ""
        else:
            self._groups_of = job
            self._moments.query_groups(job)
        self.redraw()

    def action_page(self, step: int) -> None:
        table, page, selection = self._table(), self._live.page, self._selection
        if table.kind and table.kind.name == "links" and selection.most_links:
            begin = selection.links_from + step * selection.most_links
            if 0 <= begin < page.links:
                self._selection = replace(selection, links_from=begin)
        elif table.kind and table.kind.name == "jobs" and selection.most_jobs:
            begin = selection.jobs_from + step * selection.most_jobs
            if 0 <= begin < page.jobs:
                self._selection = replace(selection, jobs_from=begin)
        self._query()

    def action_filter(self) -> None:
        self.query_one(FilterLine).open(self.filter.text)
        self.redraw()

    @on(FilterLine.Changed)
    def _filter_by(self, message: FilterLine.Changed) -> None:
        self.filter = message.filter
        for table in self.query(RowTable):
            table.reset_order()
        self._query()
        self.redraw()

    @on(FilterLine.Closed)
    def _filtered(self) -> None:
        self.set_focus(self.query_one("#table0", RowTable), scroll_visible=False)
        self.redraw()

    def action_copy(self, as_json: bool) -> None:
        table = self._table()
        if table.chosen is not None and table.kind is not None:
            view: Any = table.chosen
            text = json.dumps(plain(view), ensure_ascii=False) if as_json else table.kind.term(view)
            self.copy_to_clipboard(text)
            self._moments.problem = f"copied: {text}"
            self.redraw()

    def action_help(self) -> None:
        self.push_screen(HelpScreen(), lambda _: self.redraw())
