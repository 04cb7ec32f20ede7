# SPDX-License-Identifier: Apache-2.0
"""Links: how full each is, with what, and whether every byte of it was seen."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.text import Text

from netmon.records import CLASS_NAMES, STACK, Class, Direction
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import (
    bar,
    class_sparkline,
    class_sparkline_width,
    class_style,
    coverage,
    left_out,
    longest,
    rate,
    room,
    share,
    short_rate,
    swatch,
)
from netmon.top.options import Options
from netmon.top.rows import Cell, Kind, Part, Printed, numeric, printed, printed_row
from netmon.units import format_bytes
from netmon.views import FULL_COVERAGE, LinkView, Page

ARROWS = {Direction.RX: "↓", Direction.TX: "↑"}
WIDE = 120
"""From this width on, columns spell out their units and classes."""

_NOW_NS = 1_000_000_000
"""How much of the series the bar and the rates stand for."""

_WORTH = {Class.CROSS: 6, Class.UNCLASSIFIED: 3}  # of a class's rate; 5: any other
_EDGE_BYTES = 1 << 17
_SHARE, _COVERAGE, _SHORT, _LONG = 6, 8, 5, 10
_LEAST_BAR, _LEAST_SPARKLINE, _MOST_BAR = 16, 8, 50


def ordered(links: Iterable[LinkView]) -> list[LinkView]:
    """By name: a link has the same place in every frame."""
    return sorted(links, key=lambda link: (link.host, link.interface, link.direction))


def height(links: Iterable[LinkView]) -> int:
    return 1 + sum(2 if _unattributed(link) else 1 for link in links)


def fitting(links: Sequence[LinkView], matching: int, lines: int) -> int:
    """How many of the links fit into `lines`, with a heading, and a line more where not all that match do."""
    shown, used = 0, 1
    for link in links:
        used += height([link]) - 1
        if used > lines - (shown + 1 < max(matching, len(links))):
            break
        shown += 1
    return shown


def draw(
    links: Sequence[LinkView], options: Options, width: int, lines: int, page: Page, worst_first: bool = False
) -> Group:
    """At most `lines` lines: one per link, one more where bytes were not attributed, and how many are left out."""
    matching = max(page.links, len(links))
    shown = links[: fitting(links, matching, lines)]
    parts: list[RenderableType] = [_table(list(shown), options, width)]
    if worst_first and len(shown) < matching:
        parts.append(left_out("links", page.links_from, len(shown), matching))
    elif len(shown) < matching:
        parts.append(Text(f"… {matching - len(shown)} more links", "dim"))
    return Group(*parts)


def _table(links: list[LinkView], options: Options, width: int) -> RenderableType:
    columns = _columns(links, options, width)
    pieces: list[RenderableType] = []
    rows: list[list[Cell]] = []
    for index, link in enumerate(links):
        row = printed_row(LINKS, columns, link, options)
        if index > 0 and links[index - 1].host == link.host:
            row[0] = Text(link.host, "dim")
        rows.append(row)
        if note := _unattributed(link):
            pieces += [_piece(columns, rows, headed=not pieces), note]
            rows = []
    if rows or not pieces:
        pieces.append(_piece(columns, rows, headed=not pieces))
    return Group(*pieces)


def _piece(columns: Sequence[Printed], rows: Sequence[Sequence[Cell]], headed: bool) -> RenderableType:
    drawn = printed(LINKS, columns, rows)
    drawn.show_header = headed
    return drawn


def _columns(links: list[LinkView], options: Options, width: int) -> list[Printed]:
    host = longest((link.host for link in links), 5, 16 if width >= WIDE else 10)
    name = longest((_name(link) for link in links), 4, 16 if width >= WIDE else 10)
    wide = width >= WIDE
    rates = [max(_LONG, len(CLASS_NAMES[class_]) + 2) if wide else _SHORT for class_ in STACK]
    cover = _COVERAGE
    if room(width, [host, name, _SHARE, *rates, cover], 1) < _LEAST_BAR:
        rates = [0] * len(STACK)
    if room(width, [host, name, _SHARE, *rates, cover], 1) < _LEAST_BAR:
        cover = 0
    rest = room(width, [host, name, _SHARE, *rates, cover], 2)
    columns = max((len(link.wire_bps) for link in links), default=0)
    sparkline = class_sparkline_width(columns, min(rest // 2, rest - _LEAST_BAR))
    bar_width = min(rest - sparkline, _MOST_BAR)
    if sparkline < _LEAST_SPARKLINE:
        bar_width, sparkline = room(width, [host, name, _SHARE, *rates, cover], 1), 0
    return [
        Printed("link", host, Text("LINKS", "bold")),
        Printed("at", name, ""),
        Printed("load", max(bar_width, 1), "last second"),
        Printed("used", _SHARE, ""),
        Printed("course", sparkline, "last 10 s"),
        *(
            Printed(CLASS_NAMES[class_], own, _heading(class_, own, options))
            for class_, own in zip(STACK, rates, strict=True)
        ),
        Printed("coverage", cover),
    ]


def _heading(class_: Class, width: int, options: Options) -> Text:
    heading = swatch(class_, options.colour)
    return heading.append(f" {CLASS_NAMES[class_]}", "dim") if width > _SHORT else heading


def _name(link: LinkView) -> str:
    return f"{link.interface} {ARROWS[link.direction]}"


def current_rates(link: LinkView) -> npt.NDArray[np.float64]:
    """Mean rate of each class over the last second, (4,) bit/s; nan where nothing is known."""
    columns = link.wire_bps[-max(1, _NOW_NS // max(link.interval_ns, 1)) :]
    return columns.mean(axis=0) if len(columns) else np.full(link.wire_bps.shape[1], np.nan)


def unattributed(link: LinkView) -> dict[str, int]:
    """Where the bytes are that the NIC counted and no flow has: what became of them → how many, none of 0."""
    # The buckets that are open when the NIC is read stand on either side of that moment, by a packet or two a link.
    invisible = link.invisible_bytes if abs(link.invisible_bytes) > _EDGE_BYTES else 0
    amounts = {
        "overflow": link.overflow_bytes,
        "lost in the kernel": link.lost_kernel_bytes,
        "lost in the agent": link.lost_agent_bytes,
        "not visible to the hook": max(0, invisible),
        "counted beyond the NIC": max(0, -invisible),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _unattributed(link: LinkView) -> Text | None:
    """The same as a line; None where there are none."""
    parts = [f"{name} {format_bytes(amount)}" for name, amount in unattributed(link).items()]
    if not parts:
        return None
    style = "red" if link.coverage < FULL_COVERAGE else "dim"
    return Text(f"  └ not attributed: {', '.join(parts)}", style, no_wrap=True, overflow="ellipsis")


def rates(link: LinkView, past: bool) -> npt.NDArray[np.float64]:
    """Mean rate of each class, (4,) bit/s: over the last second, or of the past over all columns."""
    if not past:
        return current_rates(link)
    return link.wire_bps.mean(axis=0) if len(link.wire_bps) else np.full(4, np.nan)


def _used(link: LinkView, past: bool) -> float:
    total = float(rates(link, past).sum())
    return total / link.capacity_bps if link.capacity_bps else math.nan


def _bar(link: LinkView, past: bool, width: int, colour: bool) -> Text:
    if not link.capacity_bps:
        return Text("capacity unknown" if width >= len("capacity unknown") else "unknown", "dim italic")
    return bar(rates(link, past), link.capacity_bps, width, colour)


def _course(link: LinkView, ink: Options, width: int) -> Text:
    return class_sparkline(link.wire_bps, link.capacity_bps, width)


def _rate_part(class_: Class, worth: int, past: bool) -> Part:
    def draw(link: LinkView, ink: Options, width: int) -> Text:
        value = rates(link, past)[class_]
        written = short_rate if width < _LONG else rate
        return Text("0" if value == 0 else written(value, ink.bytes_), class_style(class_) if value > 0 else "dim")

    return numeric(CLASS_NAMES[class_], draw, lambda link: float(rates(link, past)[class_]), 5, 6, worth)


def _missing(link: LinkView) -> int:
    return sum(unattributed(link).values())


def _link_values(link: LinkView) -> Values:
    current = current_rates(link)
    return {
        "host": (link.host,),
        "if": (link.interface,),
        "dir": (link.direction.name.lower(),),
        "class": tuple(CLASS_NAMES[class_] for class_ in STACK if current[class_] > 0),
        "rate": (float(current.sum()),),
    }


def _coverage(link: LinkView, ink: Options, width: int) -> Text:
    return Text(coverage(link.coverage), "bold red" if link.coverage < FULL_COVERAGE else "dim")


def _kind(past: bool) -> Kind:
    """past: rates are of all that the links' series have, not of their last second."""

    def total(link: LinkView) -> float:
        return float(rates(link, past).sum())

    return Kind(
        "links",
        (
            Part("link", lambda link, *_: Text(link.host, "bold"), lambda link: link.host, 6, 24, worth=99),
            Part("at", lambda link, *_: _name(link), lambda link: (link.interface, link.direction), 6, 16, worth=98),
            Part(
                "load",
                lambda link, ink, width: _bar(link, past, width, ink.colour),
                total,
                12,
                50,
                worth=7,
                grows=True,
                falling=True,
            ),
            numeric(
                "used",
                lambda link, *_: "?" if math.isnan(_used(link, past)) else share(_used(link, past)),
                lambda link: _used(link, past),
                6,
                7,
                9,
            ),
            Part("course", _course, total, 10, 100, worth=4, grows=True, falling=True),
            *(_rate_part(class_, _WORTH.get(class_, 5), past) for class_ in STACK),
            Part("coverage", _coverage, lambda link: link.coverage, 8, 9, right=True, worth=8),
            numeric(
                "not attributed",
                lambda link, *_: Text(format_bytes(_missing(link)), "red") if _missing(link) else "",
                _missing,
                8,
                14,
                2,
            ),
        ),
        key=lambda link: (link.host, link.interface, link.direction),
        values=_link_values,
        term=lambda link: " ".join(
            (exactly("host", link.host), exactly("if", link.interface), exactly("dir", link.direction.name.lower()))
        ),
    )


LINKS, PAST_LINKS = _kind(past=False), _kind(past=True)
