# SPDX-License-Identifier: Apache-2.0
"""Tables that are read interactively: what a row is called, says and looks like, and which columns fit a width."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from netmon.top.filters import Values
from netmon.top.glyphs import shown
from netmon.top.options import Options

GAP = 1


Draw = Callable[[Any, Options, int], str | Text]


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

    name: str  # of several: "flows"
    parts: tuple[Part, ...]
    key: Callable[[Any], Hashable]  # what makes a row the same row in two frames
    values: Callable[[Any], Values]  # what filters look at
    term: Callable[[Any], str]  # a filter that finds the row
    gone: Callable[[Any], Any] = lambda view: view  # as it looks when it is not known any more

    def part(self, name: str | None) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def heading(self, part: Part, ink: Options) -> str:
        """A column's; the first one names the rows."""
        text = part.heading(ink)
        if part is not self.parts[0]:
            return text
        return self.name.upper() if part.name + "s" == self.name else f"{self.name.upper()} {text}"


def ordered(kind: Kind, views: Sequence[Any], by: str | None, falling: bool) -> list[Any]:
    """Sorted by a column; what is not known comes last either way. Without a column, as they are."""
    part = kind.part(by)
    if part is None:
        return list(views)
    known, unknown = list[tuple[Any, Any]](), []
    for view in views:
        value = part.order(view)
        if value is None or value != value:
            unknown.append(view)
        else:
            known.append((value, view))
    known.sort(key=lambda pair: pair[0], reverse=falling)
    return [view for _, view in known] + unknown


class Widths:
    """Column widths that do not shrink from frame to frame."""

    def __init__(self) -> None:
        self._widest: dict[str, int] = {}
        self._for = 0

    def fit(self, kind: Kind, cells: Mapping[str, Sequence[Text]], ink: Options, width: int) -> dict[str, int]:
        """By part: those that fit into `width` cells, in order. cells: of all parts that do not grow."""
        if width != self._for:
            self._widest.clear()
            self._for = width
        wanted = {}
        for part in kind.parts:
            longest = max([cell.cell_len for cell in cells.get(part.name, ())], default=0)
            least = max(part.least, len(kind.heading(part, ink)) + 2)  # the heading is followed by the mark of sorting
            own = least if part.grows else min(max(least, longest), max(part.most, least))
            wanted[part.name] = self._widest[part.name] = max(own, self._widest.get(part.name, 0))
        for part in sorted(kind.parts, key=lambda part: part.worth):
            if sum(wanted.values()) + GAP * (len(wanted) - 1) <= width or len(wanted) == 1:
                break
            del wanted[part.name]
        if len(wanted) == 1:
            return dict.fromkeys(wanted, max(min(width, *wanted.values()), 1))
        rest = width - sum(wanted.values()) - GAP * (len(wanted) - 1)
        growing = [part for part in kind.parts if part.grows and part.name in wanted]
        for index, part in enumerate(growing):
            more = min(rest // (len(growing) - index), max(part.most - wanted[part.name], 0))
            wanted[part.name] += more
            rest -= more
        return wanted


def cells_of(
    kind: Kind, views: Sequence[Any], ink: Options, width: int, widths: Widths
) -> tuple[dict[str, int], list[Any]]:
    """(width by part that fits, one list of texts per view)."""
    fixed = [part for part in kind.parts if not part.grows]
    drawn = {part.name: [shown(part.draw(view, ink, part.most)) for view in views] for part in fixed}
    fits = widths.fit(kind, drawn, ink, width)
    for part in kind.parts:
        if part.grows and part.name in fits:
            drawn[part.name] = [shown(part.draw(view, ink, fits[part.name])) for view in views]
    for name, own in fits.items():
        for cell in drawn[name]:
            cell.no_wrap = True
            cell.truncate(own, overflow="ellipsis")
    return fits, [[drawn[name][index] for name in fits] for index in range(len(views))]
