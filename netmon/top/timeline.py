# SPDX-License-Identifier: Apache-2.0
"""A span of the past on a time axis: what ranks did, and what links carried, as finely as buckets are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.text import Text

from netmon.past import Frame, RankSpan
from netmon.top.glyphs import class_sparkline_styles, clock, shown, sparkline
from netmon.top.links import ARROWS
from netmon.top.options import Options
from netmon.units import format_duration
from netmon.views import LinkView

FINEST_NS = 10_000
"""What a character stands for at least: a bucket."""

_LABEL = 24
_COMPUTING, _COMMUNICATING, _AFTER = "░", "█", "▒"


@dataclass(frozen=True)
class Span:
    """The part of the time axis that is looked at."""

    since_ns: int
    until_ns: int

    @property
    def length_ns(self) -> int:
        return self.until_ns - self.since_ns

    def zoomed(self, factor: float, width: int) -> "Span":
        """Shorter (factor < 1) or longer around its middle; at the finest a bucket for each character."""
        length = max(int(self.length_ns * factor), FINEST_NS * max(width, 1))
        begin = self.since_ns + int((self.length_ns - length) * 0.5)
        return Span(begin, begin + length)

    def moved(self, part: float) -> "Span":
        """Later by a part of its length; earlier where that is negative."""
        by = int(self.length_ns * part)
        return Span(self.since_ns + by, self.until_ns + by)

    def within(self, other: "Span") -> "Span":
        """Moved, and cut, so that it lies in another one."""
        length = min(self.length_ns, other.length_ns)
        begin = min(max(self.since_ns, other.since_ns), other.until_ns - length)
        return Span(begin, begin + length)


def room_for_axis(width: int) -> int:
    """Characters of the time axis on a line."""
    return max(width - label_width(width), 1)


def label_width(width: int) -> int:
    """Of what stands before it."""
    return min(_LABEL, width // 3)


def draw(frame: Frame, span: Span, links: Sequence[LinkView], width: int, lines: int, ink: Options) -> list[Text]:
    """A scale, then ranks and links, as many as there is room for; the last line says how many there is no room for."""
    axis = room_for_axis(width)
    lanes = [_scale(frame, span, width, axis)]
    lanes += [_lane(f"rank {one.rank} {one.host}", _phases(one, span, axis), width) for one in frame.spans]
    lanes += [_lane(_name(link), _course(link, frame.since_ns, span, axis), width) for link in links]
    if len(lanes) > lines > 1:
        hidden = len(lanes) - lines + 1
        lanes = [*lanes[: lines - 1], Text(f"… {hidden} more lanes", "dim")]
    return lanes[:lines]


def legend() -> Text:
    return Text(f"{_COMPUTING} computing {_COMMUNICATING} communicating {_AFTER} afterwards", "dim", no_wrap=True)


def resampled(link: LinkView, begin_ns: int, span: Span, width: int) -> npt.NDArray[np.float64]:
    """(width, class) mean rates over equal parts of the span; nan where the link's columns do not reach.

    begin_ns: of its first column.
    """
    edges = span.since_ns + np.arange(width + 1) * span.length_ns / width
    index = np.clip((edges - begin_ns) / link.interval_ns, 0, len(link.wire_bps))
    sums = np.concatenate([np.zeros((1, link.wire_bps.shape[1])), np.cumsum(link.wire_bps, axis=0)])
    whole = np.minimum(index.astype(np.int64), len(link.wire_bps))
    inside = np.minimum(whole, max(len(link.wire_bps) - 1, 0))
    at = sums[whole] + (index - whole)[:, None] * (link.wire_bps[inside] if len(link.wire_bps) else 0)
    covered = np.diff(index)
    rates: npt.NDArray[np.float64] = np.diff(at, axis=0) / np.where(covered > 0, covered, np.nan)[:, None]
    return rates


def _scale(frame: Frame, span: Span, width: int, axis: int) -> Text:
    begin = clock(span.since_ns)
    text = f"1 character = {format_duration(span.length_ns / axis)}; {frame.basis}"
    left, right = f"{begin} ├", f"┤ +{format_duration(span.length_ns)}"
    middle = text if len(left) + len(right) + len(text) <= axis else ""
    line = f"{left}{middle.center(max(axis - len(left) - len(right), 0), '─')}{right}"
    return shown(Text(" " * label_width(width) + line[:axis], "dim", no_wrap=True))


def _lane(label: str, course: Text, width: int) -> Text:
    room = label_width(width)
    short = label if len(label) < room else f"{label[: max(room - 2, 1)]}…"
    return shown(Text(short.ljust(room), no_wrap=True)).append_text(course)


def _name(link: LinkView) -> str:
    return f"{link.host} {link.interface} {ARROWS[link.direction]}"


def _course(link: LinkView, begin_ns: int, span: Span, axis: int) -> Text:
    rates = resampled(link, begin_ns, span, axis)
    totals = rates.sum(axis=1)
    full = link.capacity_bps or float(np.nanmax(totals, initial=0))
    return sparkline(totals, full, class_sparkline_styles(rates))


def _phases(rank: RankSpan, span: Span, axis: int) -> Text:
    middle = span.since_ns + (np.arange(axis) + 0.5) * span.length_ns / axis
    marks = np.full(axis, " ")
    marks[(middle >= rank.start_ns) & (middle < rank.end_ns)] = _COMPUTING
    if rank.comm_start_ns:
        marks[(middle >= rank.comm_start_ns) & (middle < rank.comm_end_ns)] = _COMMUNICATING
        marks[(middle >= rank.comm_end_ns) & (middle < rank.end_ns)] = _AFTER
    return Text("".join(marks), no_wrap=True)
