# SPDX-License-Identifier: Apache-2.0
"""Tables whose columns have fixed widths: one line per row, nothing moves between two frames."""

from collections.abc import Iterable
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from netmon.top.glyphs import shown

GAP = 1


class Column(NamedTuple):
    """One column of a table; width 0 leaves it out."""

    heading: str | Text
    width: int
    right: bool = False


def table(columns: Iterable[Column], rows: Iterable[Iterable[str | Text]]) -> Table:
    """A borderless table; cells that are too long end in an ellipsis. Text is shown as it is, never read as markup."""
    columns = tuple(columns)
    drawn = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        if column.width:
            justify = "right" if column.right else "left"
            drawn.add_column(column.heading, width=column.width, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in rows:
        drawn.add_row(*(shown(cell) for cell, column in zip(row, columns, strict=True) if column.width))
    return drawn


def room(width: int, fixed: Iterable[int], flexible: int) -> int:
    """What is left of a line for `flexible` more columns alongside the fixed ones."""
    shown = [one for one in fixed if one]
    return width - sum(shown) - GAP * (len(shown) + flexible - 1)


def longest(texts: Iterable[str], least: int, most: int) -> int:
    """The width of a column for these texts, within bounds."""
    return min(max([least, *map(len, texts)]), most)
