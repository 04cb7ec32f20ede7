# SPDX-License-Identifier: Apache-2.0
"""A table on the screen: rows keep their place, its heading stays, and the cursor stays with its row."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable

from netmon.top.rows import GAP, Ink, Kind, Widths, cells_of, ordered

# --- Rows that stay where they are while one reads them.

HOLD_NS = 2_000_000_000
"""How long a row keeps its place after it has left the top."""


@dataclass
class _Row:
    view: Any
    seen_ns: int


class StableRows:
    """Remembers which view stands in which row of a table."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rows: list[_Row] = []

    def clear(self) -> None:
        """Forget where rows stood: the reader asked for another order."""
        self._rows.clear()

    def place(self, views: Sequence[Any], rows: int, now_ns: int) -> list[Any]:
        """All views to show, given in the wanted order, of which `rows` fit on the screen.

        A view stays in its row while it is among the first `rows`, and for HOLD_NS after; a row that became free goes
        to the first view that has none. What is below the screen stands in the wanted order. A view that is shown but
        is not known any more is what the kind makes of it.
        """
        key = self._kind.key
        known = {key(view): view for view in views}
        top = dict(list(known.items())[:rows])
        kept: list[_Row | None] = [self._renewed(row, known, top, now_ns) for row in self._rows[:rows]]
        kept += [None] * (rows - len(kept))
        placed = {key(row.view) for row in kept if row}
        newcomers = iter([view for name, view in top.items() if name not in placed])
        filled = [row or _new_row(next(newcomers, None), now_ns) for row in kept]
        self._rows = [row for row in filled if row]
        shown = {key(row.view) for row in self._rows}
        return [row.view for row in self._rows] + [view for name, view in known.items() if name not in shown]

    def _renewed(self, row: _Row, known: dict[Hashable, Any], top: dict[Hashable, Any], now_ns: int) -> _Row | None:
        name = self._kind.key(row.view)
        if name in top:
            return _Row(top[name], now_ns)
        if now_ns - row.seen_ns >= HOLD_NS:
            return None
        return _Row(known[name] if name in known else self._kind.gone(row.view), row.seen_ns)


def _new_row(view: Any, now_ns: int) -> _Row | None:
    return None if view is None else _Row(view, now_ns)


# --- row table


_RISING, _FALLING = "▲", "▼"


class RowTable(DataTable[Text]):
    """Rows of one kind. Sorted as they come until the reader chooses a column."""

    DEFAULT_CSS = """
    RowTable { background: transparent; overflow-x: hidden; scrollbar-size-vertical: 1; height: auto; }
    """

    class Sideways(Message):
        """The reader has pressed an arrow to the left (−1) or right (1): rows have nothing there, but time has."""

        def __init__(self, step: int) -> None:
            """step: −1 or 1."""
            super().__init__()
            self.step = step

    def __init__(self, id: str) -> None:
        """Empty; `show` says of what it is."""
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self.kind: Kind | None = None
        self.views: list[Any] = []
        self.by: str | None = None  # the column that the reader has chosen
        self.falling = False
        self._widths = Widths()
        self._fits: dict[str, int] = {}
        self._headings: list[str] = []
        self._drawn: list[list[Text]] = []
        self._stable_rows: StableRows | None = None

    def action_cursor_left(self) -> None:
        """Earlier."""
        self.post_message(self.Sideways(-1))

    def action_cursor_right(self) -> None:
        """Later."""
        self.post_message(self.Sideways(1))

    @property
    def chosen(self) -> Any | None:
        """The view that the cursor is on."""
        return self.views[self.cursor_row] if 0 <= self.cursor_row < len(self.views) else None

    def restart(self) -> None:
        """Another level: the cursor is at the top, and rows have no places yet."""
        self.kind = None
        if self.row_count:
            self.move_cursor(row=0, animate=False)

    def reset_order(self) -> None:
        """Other rows are wanted: those that are shown keep no place."""
        if self._stable_rows:
            self._stable_rows.clear()

    def sort_by(self, name: str) -> None:
        """By that column; the other way round if it is so already."""
        part = self.kind.part(name) if self.kind else None
        if part is None:
            return
        self.falling = not self.falling if name == self.by else part.falling
        self.by = name
        self.reset_order()

    def sort_by_next(self, step: int) -> None:
        """By the next of the columns that are shown."""
        names = list(self._fits)
        if names:
            index = names.index(self.by) + step if self.by in names else (0 if step > 0 else -1)
            self.by = None
            self.sort_by(names[index % len(names)])

    def show(
        self, kind: Kind, views: Sequence[Any], ink: Ink, width: int, height: int, now_ns: int, hold: bool = True
    ) -> None:
        """Draw these views into so many cells and lines. hold: rows keep their place although their order changes."""
        if kind is not self.kind:
            self.kind, self._stable_rows, self._widths, self.by = kind, StableRows(kind), Widths(), None
        chosen = self.chosen
        key = kind.key(chosen) if chosen is not None and self.cursor_row > 0 else None
        wanted = ordered(kind, views, self.by, self.falling)
        assert self._stable_rows is not None
        self.styles.height = height
        on_screen = max(height - 1, 1) if self.scroll_offset.y == 0 else len(wanted)
        self.views = self._stable_rows.place(wanted, on_screen, now_ns) if hold else wanted
        fits, cells = cells_of(kind, self.views, ink, max(width - 1, 8), self._widths)  # the last is the scroll bar's
        headings = [kind_heading(kind, name, ink, self.by, self.falling) for name in fits]
        if fits != self._fits or headings != self._headings:
            self._new_columns(kind, fits, headings)
        self._put([_aligned(row, kind, fits) for row in cells])
        if key is not None:
            index = next((index for index, view in enumerate(self.views) if kind.key(view) == key), None)
            if index is not None and index != self.cursor_row:
                self.move_cursor(row=index, animate=False)

    def _new_columns(self, kind: Kind, fits: dict[str, int], headings: list[str]) -> None:
        row, offset = self.cursor_row, self.scroll_offset.y
        self.clear(columns=True)
        self._fits, self._headings, self._drawn = fits, headings, []
        for (name, width), heading in zip(fits.items(), headings, strict=True):
            part = kind.part(name)
            label = Text(heading[:width], "bold", no_wrap=True)
            label.align("right" if part and part.right else "left", width)
            self.add_column(label.append(" " * GAP), width=width + GAP, key=name)
        self.call_after_refresh(self._back_to, row, offset)

    def _back_to(self, row: int, offset: float) -> None:
        if self.row_count:
            self.move_cursor(row=min(row, self.row_count - 1), animate=False, scroll=False)
            self.scroll_to(y=offset, animate=False)

    def _put(self, rows: list[list[Text]]) -> None:
        """Change the cells that are not what they were."""
        for index, row in enumerate(rows[: len(self._drawn)]):
            before = self._drawn[index]
            for column, cell in enumerate(row):
                if cell != before[column]:
                    self.update_cell_at(Coordinate(index, column), cell)
        for index, row in enumerate(rows[len(self._drawn) :], len(self._drawn)):
            self.add_row(*row, key=str(index))
        for index in range(len(self._drawn) - 1, len(rows) - 1, -1):
            self.remove_row(str(index))
        self._drawn = rows


def kind_heading(kind: Kind, name: str, ink: Ink, by: str | None, falling: bool) -> str:
    """A column's heading, with the mark of sorting."""
    part = kind.part(name)
    text = kind.heading(part, ink) if part else name
    mark = (_FALLING if falling else _RISING) if name == by else ""
    return f"{text}{mark}"


def _aligned(row: list[Text], kind: Kind, fits: dict[str, int]) -> list[Text]:
    for cell, (name, width) in zip(row, fits.items(), strict=True):
        part = kind.part(name)
        cell.align("right" if part and part.right else "left", width)
        cell.append(" " * GAP)
    return row
