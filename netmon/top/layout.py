# SPDX-License-Identifier: Apache-2.0
"""Who gets how many lines of the screen: legend and headings always, then rows, then what is said above them."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from netmon.records import Class
from netmon.top import header
from netmon.top.glyphs import STACK, rate_unit, swatch
from netmon.top.levels import Shown
from netmon.top.rows import Ink

_NARROW = 50  # cells
_SHORT = {Class.DL_ONLY: "dl", Class.DL_SHARED: "sh", Class.CROSS: "x", Class.UNCLASSIFIED: "?"}
_MEDIUM = 14  # lines of the screen: below, there is one table only, and nothing is said above it
_LEAST_ROWS = 3
_MOST_AXIS = 12


class Plan(NamedTuple):
    """Lines of each part; the title has one."""

    legend: int
    about: int
    path: int
    tables: list[int]  # 0: not shown
    axis: int
    keys: int


def legend(ink: Ink, width: int) -> list[Text]:
    """What colours and numbers mean, in one line where the width is small."""
    if width >= _NARROW:
        return header.legend(ink.colour, ink.bytes_, width)
    line = Text(no_wrap=True)
    for class_ in STACK:
        line.append_text(swatch(class_, ink.colour)).append(f"{_SHORT[class_]} ")
    line.append(rate_unit(ink.bytes_), "dim")
    line.truncate(width)
    return [line]


def plan(
    height: int, texts: Sequence[Text], above: int, axis: int, shown: Sequence[Shown], focused: int, typing: bool
) -> Plan:
    """How the lines are shared out. above, axis: lines that these would like; typing: the filter's line is open."""
    left = height - 1 - 2 * typing
    legend_lines = max(min(len(texts), left - 2), 1)
    left -= legend_lines
    path = 1 if left >= 3 else 0
    keys = 1 if left >= 4 else 0
    left -= path + keys
    if height < _MEDIUM:
        tables = [0] * len(shown)
        if shown:
            tables[focused if focused < len(shown) else 0] = max(left, 1)
        return Plan(legend_lines, 0, path, tables, 0, keys)
    least = sum(min(_LEAST_ROWS, len(one.views)) + 1 for one in shown)
    about = max(min(above, left // 3, left - least), 0)
    left -= about
    for_axis = max(min(axis, _MOST_AXIS, left - least), 0)
    for_axis = for_axis if for_axis > 1 else 0
    return Plan(legend_lines, about, path, _tables(left - for_axis, shown, focused), for_axis, keys)


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
    return given
