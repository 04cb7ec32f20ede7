# SPDX-License-Identifier: Apache-2.0
"""What the reader handles: the tables with their cursors, the line for a filter, and the page of help."""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Click, MouseMove, Resize
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from netmon.top.filters import FIELDS, Filter, FilterError, hint, parse
from netmon.top.glyphs import broken
from netmon.top.options import Options
from netmon.top.rows import GAP, Cell, Kind, StableOrder, Widths, cells_of, drawn, ordered, row_of

_RISING, _FALLING = "▲", "▼"


class RowTable(ScrollView, can_focus=True):
    """Rows of one kind below their headings.

    A line is drawn when its cells have changed.
    """

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select"),
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("left", "sideways(-1)"),
        Binding("right", "sideways(1)"),
        Binding("pageup", "turn(-1)"),
        Binding("pagedown", "turn(1)"),
        Binding("home,ctrl+home", "end(-1)"),
        Binding("end,ctrl+end", "end(1)"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--cursor", "rows--header", "rows--hover", "rows--header-hover"}
    DEFAULT_CSS = """
    RowTable {
        background: transparent; color: $foreground; max-height: 100%;
        overflow-x: hidden; scrollbar-size-vertical: 1; height: auto;
        &:focus {
            background-tint: $foreground 5%;
            & > .rows--cursor { background: #152c42; }
            & > .rows--header { background-tint: $foreground 5%; }
        }
        & > .rows--header { text-style: bold; background: $panel; color: $foreground; }
        &:ansi > .rows--header { background: ansi_bright_blue; color: ansi_default; }
        & > .rows--cursor { background: #262c33; }
        & > .rows--hover { background: $block-hover-background; }
        & > .rows--header-hover { background: $accent 30%; }
    }
    """
    _HEADER = -1  # in place of a row's index

    class Sideways(Message):
        """The reader has pressed an arrow to the left (−1) or right (1): rows have nothing there, but time has."""

        def __init__(self, step: int) -> None:
            """step: −1 or 1."""
            super().__init__()
            self.step = step

    class Selected(Message):
        """The reader wants to go into the chosen row."""

    class HeadingClicked(Message):
        """The reader wants the rows sorted by a column."""

        def __init__(self, table: "RowTable", name: str) -> None:
            """table: it; name: the column's."""
            super().__init__()
            self.table, self.name = table, name

    def __init__(self, id: str) -> None:
        """Empty; `show` says of what it is."""
        super().__init__(id=id)
        self.kind: Kind | None = None
        self.views: list[Any] = []
        self.by: str | None = None  # the column that the reader has chosen
        self.falling = False
        self.cursor_row = 0
        self._widths = Widths()
        self._fits: dict[str, int] = {}
        self._header: list[Cell] = []
        self._rows: dict[int, list[Cell]] = {}  # those that have been on the screen
        self._right: list[bool] = []  # of each column, whether it stands to the right
        self._ink, self._base = Options(), Style()
        self._hover: int | None = None
        self._order: StableOrder | None = None

    def action_sideways(self, step: int) -> None:
        self.post_message(self.Sideways(step))

    def action_select(self) -> None:
        self._point_at(None)
        if self.views:
            self.post_message(self.Selected())

    def action_move(self, step: int) -> None:
        self._point_at(None)
        self.move_cursor(self.cursor_row + step)

    def action_turn(self, step: int) -> None:
        lines = max(self.scrollable_content_region.height - 1, 1)
        self._point_at(None)
        self.scroll_relative(y=step * lines, animate=False, force=True)
        self.move_cursor(self.cursor_row + step * lines, scroll=False)

    def action_end(self, step: int) -> None:
        self._point_at(None)
        self.move_cursor(0 if step < 0 else len(self.views) - 1)

    def move_cursor(self, row: int, scroll: bool = True) -> None:
        """To that row, or the nearest one that there is. scroll: until it is seen."""
        row = max(min(row, len(self.views) - 1), 0)
        if row != self.cursor_row:
            before, self.cursor_row = self.cursor_row, row
            self._refresh_rows(before, row)
            if scroll:
                self._scroll_to_cursor()

    def _scroll_to_cursor(self) -> None:
        line = Region(0, self.cursor_row + 1, self.size.width, 1)
        self.scroll_to_region(line, animate=False, spacing=Spacing(top=1), force=True)

    def _point_at(self, row: int | None) -> None:
        if row != self._hover:
            before, self._hover = self._hover, row
            self._refresh_rows(*(one for one in (before, row) if one is not None))

    def _at(self, y: int) -> int | None:
        """The row on a line of the screen."""
        row = self._HEADER if y == 0 else y - 1 + self.scroll_offset.y
        return row if row < len(self.views) else None

    def on_mouse_move(self, event: MouseMove) -> None:
        self._point_at(self._at(event.y))

    def on_leave(self) -> None:
        self._point_at(None)

    def on_click(self, event: Click) -> None:
        row = self._at(event.y)
        if row is None:
            return
        if row == self._HEADER:
            ends = accumulate(width + GAP for width in self._fits.values())
            if name := next((name for name, end in zip(self._fits, ends, strict=True) if event.x < end), ""):
                self.post_message(self.HeadingClicked(self, name))
        elif row == self.cursor_row:
            self.post_message(self.Selected())
        else:
            self.move_cursor(row)
        event.stop()

    @property
    def chosen(self) -> Any | None:
        return self.views[self.cursor_row] if 0 <= self.cursor_row < len(self.views) else None

    def restart(self) -> None:
        """Another level: the cursor is at the top, and rows have no order yet."""
        self.kind = None
        self.move_cursor(0)

    def reset_order(self) -> None:
        """Other rows are wanted: those that are shown keep no place."""
        if self._order:
            self._order.clear()

    def sort_by(self, name: str) -> None:
        """By that column; the other way round if it is so already."""
        part = self.kind.part(name) if self.kind else None
        if part is None:
            return
        self.falling = not self.falling if name == self.by else part.falling
        self.by = name
        self.reset_order()

    def sort_by_next(self, step: int) -> None:
        names = list(self._fits)
        if names:
            index = names.index(self.by) + step if self.by in names else (0 if step > 0 else -1)
            self.by = None
            self.sort_by(names[index % len(names)])

    def show(
        self, kind: Kind, views: Sequence[Any], ink: Options, width: int, height: int, now_ns: int, hold: bool = True
    ) -> None:
        """Draw these views into so many cells and lines. hold: rows keep their order for a while (StableOrder)."""
        if kind is not self.kind:
            self.kind, self._order, self._widths = kind, StableOrder(kind), Widths()
            part = kind.part(kind.by)
            self.by, self.falling = kind.by or None, bool(part and part.falling)
        chosen = self.chosen
        key = kind.key(chosen) if chosen is not None and self.cursor_row > 0 else None
        assert self._order is not None
        if self.styles.height is None or self.styles.height.cells != height:
            self.styles.height = height
        if hold:
            self.views = self._order.place(views, self.by, self.falling, now_ns)
        else:
            self.views = ordered(kind, views, self.by, self.falling)
        first = min(int(self.scroll_offset.y), max(len(self.views) - 1, 0))
        seen = self.views[first : first + height]
        fits, cells = cells_of(kind, seen, ink, max(width - 1, 8), self._widths)  # the last is the scroll bar's
        header = [_heading(kind, name, own, ink, self.by, self.falling) for name, own in fits.items()]
        self._ink, self._right = ink, [part.right for part in kind.parts if part.name in fits]
        self._put(fits, header, dict(enumerate(cells, first)), len(self.views))
        if key is not None:
            index = next((index for index, view in enumerate(self.views) if kind.key(view) == key), self.cursor_row)
            self.move_cursor(index)

    def _put(self, fits: dict[str, int], header: list[Cell], rows: dict[int, list[Cell]], count: int) -> None:
        """Have the lines drawn that are not what they were."""
        before, self._rows = self._rows, rows
        size = Size(sum(fits.values()) + GAP * len(fits), count + 1)
        if fits != self._fits or header != self._header or size != self.virtual_size:
            self._fits, self._header, self.virtual_size = fits, header, size
            self.refresh()
        else:
            self._refresh_rows(*(index for index, row in rows.items() if row != before.get(index)))
        self.move_cursor(self.cursor_row)

    def _refresh_rows(self, *rows: int) -> None:
        lines = [0 if row == self._HEADER else row + 1 - self.scroll_offset.y for row in rows]
        width, height = self.size
        shown = [Region(0, y, width, 1) for y, row in zip(lines, rows, strict=True) if (row < 0 or 0 < y < height)]
        if shown:
            self.refresh(*shown)

    def render_lines(self, crop: Region) -> list[Strip]:
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        row, width, base = self._at(y), self.size.width, self._base
        if row is None or not self._fits or self.kind is None:
            return Strip.blank(width, base)
        if row not in self._rows and row != self._HEADER:
            self._rows[row] = row_of(self.kind, self.views[row], self._ink, self._fits)
        cells = self._header if row == self._HEADER else self._rows[row]
        style, segments = self._row_style(row, base), list[Segment]()
        for cell, own, right in zip(cells, self._fits.values(), self._right, strict=True):
            for segment in drawn(cell, own, GAP, right, style):
                if segments and segments[-1].style is segment.style:  # less to do for whatever is done to each
                    segments[-1] = Segment(segments[-1].text + segment.text, segment.style)
                else:
                    segments.append(segment)
        return Strip(segments, sum(self._fits.values()) + GAP * len(cells)).adjust_cell_length(width, style)

    def _row_style(self, row: int, base: Style) -> Style:
        """What is below a row's cells; the colours of these stay."""
        style = self.get_component_styles("rows--header").rich_style if row == self._HEADER else base
        if row == self._hover:
            style += self._background("rows--header-hover" if row == self._HEADER else "rows--hover")
        return style + self._background("rows--cursor") if row == self.cursor_row else style

    def _background(self, name: str) -> Style:
        return Style(bgcolor=self.get_component_rich_style(name).bgcolor)


def _heading(kind: Kind, name: str, width: int, ink: Options, by: str | None, falling: bool) -> Cell:
    return Text(kind_heading(kind, name, ink, by, falling)[:width], "bold")


def kind_heading(kind: Kind, name: str, ink: Options, by: str | None, falling: bool) -> str:
    part = kind.part(name)
    text = kind.heading(part, ink) if part else name
    mark = (_FALLING if falling else _RISING) if name == by else ""
    return f"{text}{mark}"


class FilterLine(Vertical):
    """Two lines while it is open: what is typed, and what is possible there."""

    DEFAULT_CSS = """
    FilterLine { height: 2; }
    FilterLine Input { height: 1; border: none; padding: 0; background: $surface; }
    """

    class Changed(Message):
        """Another filter holds."""

        def __init__(self, filter: Filter) -> None:
            """filter: the one that parses."""
            super().__init__()
            self.filter = filter

    class Closed(Message):
        """The reader has finished."""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="host:h3 class:cross proc:iperf3 port:5201", compact=True)
        yield Static()

    def on_mount(self) -> None:
        """It is opened by a key."""
        self.display = False

    def open(self, text: str) -> None:
        line = self.query_one(Input)
        self.display, line.value = True, text
        line.cursor_position = len(text)
        line.focus(scroll_visible=False)
        self._show_message(text)

    def close(self) -> None:
        """The filter that holds stays."""
        self.display = False
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.display:
            self._show_message(message.value)

    @on(Input.Submitted)
    def _typed_all(self, message: Input.Submitted) -> None:
        message.stop()
        try:
            self.post_message(self.Changed(parse(message.value)))
        except FilterError:
            return  # the line below says what is wrong
        self.close()

    def _show_message(self, text: str) -> None:
        message = hint(text) or "Enter keeps it, Esc closes the line"
        try:
            self.post_message(self.Changed(parse(_finished(text))))
        except FilterError as error:
            index = min(error.place, max(self.size.width // 2, 1))
            message = f"{' ' * index}^ {error.problem}; possible: {error.possible}"
        self.query_one(Static).update(Text(message, "dim", no_wrap=True, overflow="ellipsis"))


def _finished(text: str) -> str:
    """Without a last word that may become a field's name, or a field without its value yet: it would hide all rows."""
    *before, last = re.split(r"(\s+)", text)
    word = last.lstrip("-!")
    begins = bool(word) and any(f"{field}:".startswith(word) for field in FIELDS)
    return "".join(before) if begins or not word else text


_KEYS = (
    ("Enter Esc", "into the row, and back: an incident → its worst step; jobs → iterations → ranks → flows; links"),
    ("← →", "one iteration back or on, of the job that is chosen; from now on into the past"),
    ("/ \\", "the slow iteration before, or after, this moment"),
    ("l", "live: back to now"),
    ("o", "of a job: its groups of ranks, what they exchange in a step and how long they wait, and back"),
    ("v", "all incidents and verdicts: Enter goes to the moment of one"),
    ("+ − , .", "in the past: zoom the time axis, down to 10 µs a character; move it"),
    ("f", "filter the rows, as below; empty: all of them"),
    ("g", "group the flows by process, container, user, job, peer host, prefix, host"),
    ("s S", "sort by the next, the previous column; s on the last one and so on; or click a heading"),
    ("tab", "the next table; also a click"),
    ("y Y", "copy the row as JSON; as a filter"),
    ("n p", "the next and the previous page of links or jobs, where there are too many for one"),
    ("b", "rates in bit/s or in byte/s"),
    ("space", "pause the view, and go on"),
    ("?", "this page"),
    ("q", "quit"),
)
_FILTERS = (
    ("host:h3", "text is a regular expression, found anywhere; ^h3$ is h3 only"),
    ("port:80,443", "also port:5000-5300 and port:>1024"),
    ("rate:>100mbit", "rates, bytes:>1GB, duration:>300ms, rtt:>1ms are compared"),
    ("-proc:python", "not so"),
    ("iperf3", "any text of the row"),
    ("fields", " ".join(FIELDS)),
)
_WORDS = (
    ("incident", "slow steps of a job, one after the other, with one cause; → what to do while it goes on"),
    ("last / usual", "how long a job's last step took; the median of the 200 nearest ones without foreign traffic"),
    ("lost", "by a job's steps in its last incidents, beyond what they usually take"),
    ("DL-only", "a training flow whose link carries no cross traffic in the window; live with hysteresis"),
    ("DL-shared", "a training flow whose link does; also a node any of whose links does"),
    ("cross", "every other flow on the link, those of other jobs included where a rank's are counted"),
    ("control", "a training flow of short messages: negotiation, rendezvous; the others carry gradients"),
    ("unclassified", "not known, and not guessed"),
    ("coverage", "bytes attributed to flows / bytes counted by the NIC, since the agent's start"),
    ("theory (3.1)", "2·(N−1)/N · parameters · 4 bytes sent by each of N ranks (ring all-reduce)"),
    ("~ iteration", "counted from when the agent began to look, not from the job's start"),
    ("exposed", "communication during which the training thread had nothing left but to wait"),
    ("held up", "waited for gradients for longer than usual, with every rank there"),
    ("F1", "of a source's iterations, compared with those of the source that decides; and their distance"),
    ("source ±", "who reported the iteration, and how far off its boundaries can be"),
    ("↑ ↓ ?", "sent, received, unknown"),
)


_WORD = 16


class HelpScreen(ModalScreen[None]):
    """The page; any of its keys leads back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "back"),
        Binding("ctrl+c", "app.quit", "quit", priority=True),
    ]
    DEFAULT_CSS = "HelpScreen { background: $background; } HelpScreen VerticalScroll { height: 1fr; }"

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static()

    @on(Resize)
    def _write(self) -> None:
        self.query_one(Static).update(page(max(self.size.width - 2, _WORD + 8)))  # the last is the scroll bar's


def page(width: int) -> Text:
    """Lines no longer than the width."""
    text = Text()
    for title, lines in (("netmon top: keys", _KEYS), ("Filters", _FILTERS), ("Words", _WORDS)):
        text.append(f"{title}\n", "bold")
        for word, meaning in lines:
            for index, line in enumerate(broken(meaning, width - _WORD)):
                text.append(f"  {'' if index else word}".ljust(_WORD)).append(f"{line.plain}\n", "dim")
        text.append("\n")
    return text.append("? back", "dim")
