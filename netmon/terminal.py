# SPDX-License-Identifier: Apache-2.0
"""Tables that fit the width they have: nothing is cut, no column left out.

Where there is room, a row is a line. Where there is less, headings and prose take multiple lines; where even that is
too wide, each row is a label with `heading value` below it.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from netmon.marks import harmless

BREAK = "\x1f"
"""In a heading or a cell: a space where there is room, else a new line."""

ENDLESS = 100_000
"""The width, in columns, of an output that is no terminal: programs read it, and lines need no breaks."""

_FORMS = (
    *((False, ENDLESS, 2), (False, 48, 2), (True, ENDLESS, 2), (True, 24, 2)),
    *((True, 24, 1), (True, 12, 1)),
)  # headings broken, the least that prose gets, columns between columns; the first that fits
_DRAWING = 200
_CAPTION = 100  # columns that are read easily
_BETWEEN = " · "


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, but what data say does nothing to the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def say(line: str) -> None:
    """Print a line in which there may be words of a dataset or a collector."""
    print(harmless(line).replace("\n", "\ufffd"))


def console(stderr: bool = False) -> Console:
    """Standard output (or error) as wide as its terminal, endless where it is none; COLUMNS in the environment wins."""
    made = _Console(highlight=False, stderr=stderr)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = ENDLESS
    return made


def drawing_width(of: Console) -> int:
    """Columns for what fills the width that it is given, such as a bar: those of a terminal, else 200."""
    return of.width if of.is_terminal or os.environ.get("COLUMNS") else _DRAWING


class Column(NamedTuple):
    """A column of a table. prose: its cells may be broken between words."""

    heading: str
    right: bool = False
    prose: bool = False
    style: str = ""


def labels(*headings: str, prose: bool = False) -> list[Column]:
    return [Column(heading, prose=prose) for heading in headings]


def figures(*headings: str) -> list[Column]:
    return [Column(heading, right=True) for heading in headings]


class _Row(NamedTuple):
    cells: tuple[Text, ...]
    style: str


class FittingTable:
    """A table for rich's console. Cells are shown as they are, never read as markup."""

    def __init__(self, columns: Iterable[Column], title: str = "", caption: str = "", headings: bool = True) -> None:
        """headings: whether they are shown above the columns."""
        self._columns = list(columns)
        self._title, self._caption, self._headings = title, caption, headings
        self._rows: list[_Row | None] = []  # None: a section ends

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """As many cells as columns; they may have multiple lines. Raises ValueError for another number."""
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} cells for {len(self._columns)} columns")
        self._rows.append(_Row(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells), style))

    @property
    def row_count(self) -> int:
        """Rows; what parts sections is none."""
        return sum(row is not None for row in self._rows)

    def add_section(self) -> None:
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, rows and caption, in the widest form that fits."""
        if self._title:
            yield Text(self._title, style="bold")
        yield from self._drawn(options.max_width)
        if self._caption:
            for line in Text(self._caption).wrap(console, min(_CAPTION, options.max_width)):
                line.stylize("dim")
                yield line

    def _drawn(self, room: int) -> Iterator[Table | Text]:
        for broken, prose, gap in _FORMS:
            rows = [row and _Row(tuple(_broken(cell, broken) for cell in row.cells), row.style) for row in self._rows]
            headings = [self._heading(index, rows, broken) for index in range(len(self._columns))]
            if widths := self._widths(room - gap * (len(headings) - 1), headings, rows, prose):
                yield self._table(headings, rows, widths, gap)
                return
        yield from self._as_list(room)

    def _heading(self, index: int, rows: list[_Row | None], broken: bool) -> Text:
        text = self._columns[index].heading if self._headings else ""
        cells = [_width(row.cells[index]) for row in rows if row]
        if not broken or _width(Text(text)) <= max(cells, default=0):
            return Text(text.replace(BREAK, " "))
        if BREAK in text:
            return Text(text.replace(BREAK, "\n"))
        room = max([*cells, *map(cell_len, text.split())], default=0)
        return Text("\n".join(_packed(text.split(), room, " ")))

    def _widths(self, room: int, headings: list[Text], rows: list[_Row | None], prose: int) -> list[int] | None:
        """Of each column; prose: the least of those that may be broken. None: they do not fit."""
        least, most = [], []
        for index, column in enumerate(self._columns):
            cells = [row.cells[index] for row in rows if row]
            most.append(max(map(_width, [headings[index], *cells])))
            words = (cell_len(word) for cell in cells for word in cell.plain.split())
            least.append(max(_width(headings[index]), min(prose, most[-1]), *words) if column.prose else most[-1])
        spare = room - sum(least)
        if spare < 0:
            return None
        for index in sorted(range(len(least)), key=lambda index: most[index] - least[index]):
            more = min(spare, most[index] - least[index])
            least[index], spare = least[index] + more, spare - more
        return least

    def _table(self, headings: list[Text], rows: list[_Row | None], widths: list[int], gap: int) -> Table:
        table = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),
            show_header=self._headings,
            header_style="bold",
        )
        for column, heading, width in zip(self._columns, headings, widths, strict=True):
            justify = "right" if column.right else "left"
            table.add_column(heading, width=width, justify=justify, vertical="top", style=column.style, overflow="fold")  # type: ignore[arg-type]
        for row in rows:
            if row:
                table.add_row(*row.cells, style=row.style)
            else:
                table.add_section()
        return table

    def _as_list(self, room: int) -> Iterator[Text]:
        """A row's first cell, and below it the others, each after its heading."""
        for row in self._rows:
            if row is None:
                continue
            first, *others = (" ".join(cell.plain.replace(BREAK, " ").split()) for cell in row.cells)
            if first.isdigit():
                first = f"{self._columns[0].heading} {first}"
            if first:
                yield Text(first, style="bold", overflow="fold")
            named = zip(self._columns[1:], others, strict=True)
            items = [f"{one.heading.replace(BREAK, ' ')} {value}".strip() for one, value in named if value]
            for line in _packed(items, max(1, room - 2), _BETWEEN):
                yield Text.assemble("  ", line, style=row.style, overflow="fold")


def _broken(cell: Text, broken: bool) -> Text:
    return Text(cell.plain.replace(BREAK, "\n" if broken else " "), style=cell.style) if BREAK in cell.plain else cell


def _width(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _packed(items: Iterable[str], room: int, between: str) -> Iterator[str]:
    line = ""
    for item in items:
        if line and cell_len(line) + len(between) + cell_len(item) > room:
            yield line
            line = ""
        line = f"{line}{between}{item}" if line else item
    if line:
        yield line
