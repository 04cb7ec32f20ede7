# SPDX-License-Identifier: Apache-2.0
"""Tables that are read interactively: what a row is called, says and looks like, and which columns fit a width."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from netmon.top.filters import Values
from netmon.top.glyphs import Column, shown, table
from netmon.top.options import Options

GAP = 1


Cell = str | Text
Draw = Callable[[Any, Options, int], Cell]


@dataclass(frozen=True)
class Part:
    """One column of a kind of rows."""

    name: str  # its heading, and what one sorts by
    draw: Draw  # of a view, in that many cells
    order: Callable[[Any], Any]  # what to sort by; nothing is compared across columns
    least: int = 4
    most: int = 16
    right: bool = False
    worth: int = 5  # where not all columns fit, those of least worth are left out
    grows: bool = False  # it takes what the others leave; `most` is its end
    falling: bool = False  # the largest first, at first
    unit: Callable[[Options], str] | None = None  # of its numbers, as the heading's second word

    def heading(self, ink: Options) -> str:
        """Its name, with the unit of what stands below."""
        return f"{self.name} {self.unit(ink)}" if self.unit else self.name


def numeric(
    name: str,
    draw: Draw,
    order: Callable[[Any], Any],
    least: int,
    most: int,
    worth: int,
    unit: Callable[[Options], str] | None = None,
) -> Part:
    """A column of numbers, to the right, the largest first."""
    return Part(name, draw, order, least, most, right=True, worth=worth, falling=True, unit=unit)


@dataclass(frozen=True)
class Kind:
    """A kind of rows, made of views of one type."""

    name: str  # of its rows: "flows"
    parts: tuple[Part, ...]
    key: Callable[[Any], Hashable]  # what makes a row the same row in two frames
    values: Callable[[Any], Values]  # what filters look at
    term: Callable[[Any], str]  # a filter that finds the row
    gone: Callable[[Any], Any] = lambda view: view  # as it looks when it is not known any more
    by: str = ""  # the column that it is sorted by unless the reader wants another; empty: as the views come

    def part(self, name: str | None) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def named(self, name: str) -> Part:
        """The column of that name, which there is."""
        return next(part for part in self.parts if part.name == name)

    def heading(self, part: Part, ink: Options) -> str:
        """A column's; the first one names the rows."""
        text = part.heading(ink)
        if part is not self.parts[0]:
            return text
        return self.name.upper() if part.name + "s" == self.name else f"{self.name.upper()} {text}"


HOLD_NS = 2_000_000_000
"""How old the values may be by which rows are sorted: they do not change their order more often."""


class StableOrder:
    """Sorts a table's rows by a column; what is not known comes last either way.

    Within HOLD_NS a row keeps its place, a new one comes where its value belongs, and one that is not known any more
    stays as the kind shows it. Then all of them are sorted anew.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rows: dict[Hashable, tuple[Any, Any]] = {}  # value, view
        self._since_ns = 0

    def clear(self) -> None:
        """Sort anew the next time: the reader wants another order, or other rows."""
        self._rows.clear()

    def place(self, views: Sequence[Any], by: str | None, falling: bool, now_ns: int) -> list[Any]:
        """All of them. by: a column; None: as they come."""
        if not 0 <= now_ns - self._since_ns < HOLD_NS or not self._rows:
            self._rows, self._since_ns = {}, now_ns
        part, key = self._kind.part(by), self._kind.key
        before, known = self._rows, {key(view): view for view in views}
        self._rows = {
            name: (before[name][0] if name in before else part.order(view) if part else index, view)
            for index, (name, view) in enumerate(known.items())
        }
        self._rows |= {name: (row[0], self._kind.gone(row[1])) for name, row in before.items() if name not in known}
        return _sorted(list(self._rows.values()), falling and part is not None)


def ordered(kind: Kind, views: Sequence[Any], by: str | None, falling: bool) -> list[Any]:
    """Sorted by a column; what is not known comes last either way. Without a column, as they are."""
    part = kind.part(by)
    return _sorted([(part.order(view), view) for view in views], falling) if part else list(views)


def _sorted(rows: Sequence[tuple[Any, Any]], falling: bool) -> list[Any]:
    """rows: value, view."""
    known = [row for row in rows if row[0] is not None and row[0] == row[0]]
    unknown = [view for value, view in rows if value is None or value != value]
    return [view for _, view in sorted(known, key=lambda row: row[0], reverse=falling)] + unknown


class Widths:
    """Column widths that do not shrink from frame to frame."""

    def __init__(self) -> None:
        self._widest: dict[str, int] = {}
        self._for = 0

    def fit(self, kind: Kind, cells: Mapping[str, Sequence[Cell]], ink: Options, width: int) -> dict[str, int]:
        """By part: those that fit into `width` cells, in order. cells: of all parts that may fit and do not grow."""
        if width != self._for:
            self._widest.clear()
            self._for = width
        wanted = {}
        for part in may_fit(kind, ink, width):
            longest = max(map(_cells, cells.get(part.name, ())), default=0)
            least = _least(kind, part, ink)
            own = least if part.grows else min(max(least, longest), max(part.most, least))
            wanted[part.name] = self._widest[part.name] = max(own, self._widest.get(part.name, 0))
        for part in sorted((part for part in kind.parts if part.name in wanted), key=lambda part: part.worth):
            if sum(wanted.values()) + GAP * (len(wanted) - 1) <= width or len(wanted) == 1:
                break
            del wanted[part.name]
        growing = [part for part in kind.parts if part.grows and part.name in wanted]
        if len(wanted) == 1 and not growing:
            return dict.fromkeys(wanted, max(min(width, *wanted.values()), 1))
        rest = width - sum(wanted.values()) - GAP * (len(wanted) - 1)
        for index, part in enumerate(growing):
            more = min(rest // (len(growing) - index), max(part.most - wanted[part.name], 0))
            wanted[part.name] += more
            rest -= more
        return wanted


def _least(kind: Kind, part: Part, ink: Options) -> int:
    return max(part.least, len(kind.heading(part, ink)) + 2)  # the heading is followed by the mark of sorting


def may_fit(kind: Kind, ink: Options, width: int) -> list[Part]:
    """Those that are shown if their cells are short; in order."""
    fitting, left = list[Part](), width + GAP
    for part in sorted(kind.parts, key=lambda part: part.worth)[::-1]:
        left -= _least(kind, part, ink) + GAP
        if left < 0 and fitting:
            break
        fitting.append(part)
    return [part for part in kind.parts if part in fitting]


def cells_of(
    kind: Kind, views: Sequence[Any], ink: Options, width: int, widths: Widths
) -> tuple[dict[str, int], list[list[Cell]]]:
    """(width by part that fits, one list of cells per view, as long as they come)."""
    fixed = [part for part in may_fit(kind, ink, width) if not part.grows]
    cells = {part.name: [_shown(part.draw(view, ink, part.most)) for view in views] for part in fixed}
    fits = widths.fit(kind, cells, ink, width)
    for part in kind.parts:
        if part.grows and part.name in fits:
            cells[part.name] = [_shown(part.draw(view, ink, fits[part.name])) for view in views]
    return fits, [[cells[name][index] for name in fits] for index in range(len(views))]


def row_of(kind: Kind, view: Any, ink: Options, fits: Mapping[str, int]) -> list[Cell]:
    """The cells of one more view."""
    parts = [part for part in kind.parts if part.name in fits]
    return [_shown(part.draw(view, ink, fits[part.name] if part.grows else part.most)) for part in parts]


class Printed(NamedTuple):
    """A column of a kind in a table that is printed, where widths are given."""

    part: str
    width: int  # 0 leaves it out
    heading: str | Text | None = None  # where it is not the part's name
    draw: Draw | None = None  # where it is not as the part does


def printed_row(kind: Kind, columns: Sequence[Printed], view: Any, ink: Options) -> list[Cell]:
    """The cells of a view; empty where there is no room."""
    drawn = ((one, one.draw or kind.named(one.part).draw) for one in columns)
    return [draw(view, ink, one.width) if one.width else "" for one, draw in drawn]


def printed(kind: Kind, columns: Sequence[Printed], rows: Iterable[Sequence[Cell]]) -> Table:
    """rows: printed_row of each view."""
    parts = [kind.named(one.part) for one in columns]
    headings = [part.name if one.heading is None else one.heading for one, part in zip(columns, parts, strict=True)]
    return table(
        (Column(heading, one.width, part.right) for heading, one, part in zip(headings, columns, parts, strict=True)),
        rows,
    )


def _shown(cell: Cell) -> Cell:
    return cell if isinstance(cell, str) and cell.isprintable() else shown(cell)


def _cells(cell: Cell) -> int:
    return cell_len(cell) if isinstance(cell, str) else cell.cell_len


def drawn(cell: Cell, width: int, gap: int, right: bool, below: Style) -> list[Segment]:
    """A cell of so many characters and the gap after it. below: what its own styles lie on."""
    length = _cells(cell)
    if length > width:
        cell = cell.copy() if isinstance(cell, Text) else Text(cell)
        cell.truncate(width, overflow="ellipsis")
        length = cell.cell_len
    before, after = " " * (width - length if right else 0), " " * ((0 if right else width - length) + gap)
    if isinstance(cell, str):
        return [Segment(f"{before}{cell}{after}", below)]
    own = below + _style(cell.style)
    segments = [Segment(before, own)] if before else []
    end = 0
    for span in cell.spans:  # one after the other: nothing here is styled twice
        if span.start > end:
            segments.append(Segment(cell.plain[end : span.start], own))
        segments.append(Segment(cell.plain[span.start : span.end], own + _style(span.style)))
        end = span.end
    return [*segments, Segment(cell.plain[end:] + after, own)]


def _style(style: str | Style) -> Style:
    return Style.parse(style) if isinstance(style, str) else style
