# SPDX-License-Identifier: Apache-2.0
"""Small pictures, short numbers and tables of fixed widths, as rich text."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netmon.marks import printable
from netmon.records import CLASS_COLOURS, CLASS_PATTERNS, STACK, Class
from netmon.units import format_bytes, format_rate
from netmon.views import JobView

UNKNOWN = "unknown"
_MEASURE = Console()  # to break lines with
_LONGEST = 4096  # bytes of a text

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_EMPTY = "·"


def class_style(class_: Class) -> str:
    return CLASS_COLOURS[class_]


def swatch(class_: Class, colour: bool) -> Text:
    """One character that stands for a class in a legend."""
    return Text("■", class_style(class_)) if colour else Text(CLASS_PATTERNS[class_])


def bar(values: npt.NDArray[np.float64], full: float, width: int, colour: bool) -> Text:
    """A horizontal bar of `width` cells that `full` would fill; values (4,) by Class, one after the other.

    In colour the resolution is an eighth of a cell, and a class with anything at all is seen; else it is a cell.
    """
    steps = 8 if colour else 1
    edges = _edges([float(values[class_]) for class_ in STACK], full, width * steps, least=1 if colour else 0)
    return _in_runs(_bar_cell(edges, cell * steps, steps, colour) for cell in range(width))


def _bar_cell(edges: Sequence[tuple[Class, int, int]], left: int, steps: int, colour: bool) -> tuple[str, str]:
    """A character of a bar, and its style."""
    right = left + steps
    inside = [(class_, high) for class_, low, high in edges if low < right and high > left]
    if not inside:
        return _EMPTY, "dim"
    if not colour:
        return CLASS_PATTERNS[inside[0][0]], ""
    (first, end), *others = inside
    behind = f" on {class_style(others[0][0])}" if others else ""
    return _EIGHTHS[min(end, right) - left], class_style(first) + behind


def _in_runs(characters: Iterable[tuple[str, str]]) -> Text:
    """Characters with their styles as text, which has one span for neighbours that look alike."""
    text = Text(no_wrap=True)
    for style, run in groupby(characters, itemgetter(1)):
        text.append("".join(character for character, _ in run), style)
    return text


def _edges(values: Iterable[float], full: float, steps: int, least: int) -> list[tuple[Class, int, int]]:
    """(class, first step, end step) of each part of a bar; none where its values or its scale are unknown."""
    edges, low = [], 0
    for class_, value in zip(STACK, values, strict=True):
        if value > 0 and full > 0:
            high = min(low + max(least, round(value / full * steps)), steps)
            edges.append((class_, low, high))
            low = high
    return [edge for edge in edges if edge[1] < edge[2]]


def sparkline(values: Sequence[float] | npt.NDArray[np.float64], full: float, styles: Sequence[str]) -> Text:
    """One character per value, `full` the highest; 0 is blank, nan a question mark."""
    return _in_runs(_level(float(value), full, style) for value, style in zip(values, styles, strict=True))


def _level(value: float, full: float, style: str) -> tuple[str, str]:
    if math.isnan(value):
        return "?", "dim"
    if value <= 0 or full <= 0:
        return " ", ""
    return _LEVELS[min(int(value / full * len(_LEVELS)), len(_LEVELS) - 1)], style


def class_sparkline(series: npt.NDArray[np.float64], full: float, width: int) -> Text:
    """(time, class) rates → at most `width` characters, each in the colour of its largest class, the latest last."""
    count = class_sparkline_width(len(series), width)
    if not count:
        return Text()
    group = len(series) // count
    grouped = series[len(series) - count * group :].reshape(count, group, -1).mean(axis=1)
    totals = grouped.sum(axis=1)
    return sparkline(totals, full or float(totals[~np.isnan(totals)].max(initial=0)), class_sparkline_styles(grouped))


def class_sparkline_styles(series: npt.NDArray[np.float64]) -> list[str]:
    """(time, class) rates → the colour of each time's largest class."""
    return [class_style(Class(index)) for index in series.argmax(axis=1)]


def class_sparkline_width(columns: int, width: int) -> int:
    """How many characters class_sparkline makes of so many columns: each stands for the same number of them."""
    return columns // max(1, math.ceil(columns / max(width, 1)))


def rate(bits_per_second: float, in_bytes: bool) -> str:
    """`941 Mbit/s` or `118 MB/s`; unknown for nan."""
    if math.isnan(bits_per_second):
        return UNKNOWN
    return f"{format_bytes(bits_per_second / 8)}/s" if in_bytes else format_rate(bits_per_second)


def short_rate(bits_per_second: float, in_bytes: bool) -> str:
    """`941M`: for a column whose heading names the unit (see rate_unit); ? for nan."""
    if math.isnan(bits_per_second):
        return "?"
    return rate(bits_per_second, in_bytes).removesuffix(rate_unit(in_bytes)).replace(" ", "")


def rate_unit(in_bytes: bool) -> str:
    return "B/s" if in_bytes else "bit/s"


def share(fraction: float) -> str:
    """`43 %`, `0.4 %`, `<0.1 %`; unknown for nan."""
    if math.isnan(fraction):
        return UNKNOWN
    percent = fraction * 100
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def no_steps(job: JobView) -> str:
    """In place of the iteration of a job that has none."""
    return "unexplained" if job.not_understood else "none yet"


def iteration(number: int, relative: bool) -> str:
    """`812`; `~12` where it counts from when somebody began to look."""
    return f"~{number}" if relative else str(number)


def coverage(fraction: float) -> str:
    """`99.98 %`, never rounded up to 100 %; unknown for nan."""
    if math.isnan(fraction):
        return UNKNOWN
    return "100 %" if fraction == 1 else f"{math.floor(fraction * 10_000) / 100:.2f} %"


def local(utc_ns: int) -> datetime:
    """The time of day where it is read."""
    return datetime.fromtimestamp(utc_ns // 1_000_000_000).astimezone()


def clock(utc_ns: int) -> str:
    """`10:12:13.427`, as all that follow in the reader's own time."""
    return f"{local(utc_ns):%H:%M:%S}.{utc_ns // 1_000_000 % 1000:03}"


def day(utc_ns: int) -> str:
    """`2026-11-21`."""
    return f"{local(utc_ns):%Y-%m-%d}"


def zone(utc_ns: int) -> str:
    """`CET`."""
    return f"{local(utc_ns):%Z}"


def shown(text: str | Text) -> Text:
    """As it may be drawn: names are what strangers wrote, and no character of them does anything but stand there."""
    drawn = Text(text) if isinstance(text, str) else text
    if not drawn.plain.isprintable():
        drawn.plain = printable(drawn.plain, _LONGEST)  # one character for one, so that styles stay in place
    return drawn


def broken(text: str, width: int, style: str = "") -> list[Text]:
    """Prose in lines no longer than width."""
    return list(shown(Text(text, style)).wrap(_MEASURE, max(width, 1)))


def wrapped(parts: Iterable[Text], width: int, indent: int = 0) -> list[Text]:
    """Parts joined by a dot, broken between parts only; each line no longer than width."""
    lines: list[Text] = []
    for part in map(shown, parts):
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append(" · ", "dim").append_text(part)
        else:
            lines.append(Text(" " * (indent if lines else 0), no_wrap=True).append_text(part))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


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


def left_out(what: str, begin: int, shown: int, matching: int) -> Text:
    """`links 17–32 of 2,000, worst first; …`: of what is printed."""
    if not shown:
        return Text(f"none of {matching:,} {what} shown", "dim", no_wrap=True)
    part = f"{begin + 1:,}–{begin + shown:,}" if shown > 1 else f"{begin + 1:,}"
    text = f"{what} {part} of {matching:,}, worst first; --all prints them all"
    return Text(text, "dim", no_wrap=True, overflow="ellipsis")
