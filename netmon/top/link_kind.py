# SPDX-License-Identifier: Apache-2.0
"""Links as rows."""

import math

import numpy as np
import numpy.typing as npt
from rich.text import Text

from netmon.records import CLASS_NAMES, Class
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import (
    STACK,
    bar,
    class_sparkline,
    class_style,
    coverage,
    share,
    short_rate,
)
from netmon.top.links import ARROWS, current_rates, unattributed
from netmon.top.rows import Ink, Kind, Part
from netmon.units import format_bytes
from netmon.views import FULL_COVERAGE, LinkView


def rates(link: LinkView, past: bool) -> npt.NDArray[np.float64]:
    """Mean rate of each class, (4,) bit/s: over the last second, or of the past over all columns."""
    if not past:
        return current_rates(link)
    return link.wire_bps.mean(axis=0) if len(link.wire_bps) else np.full(4, np.nan)


def _used(link: LinkView, past: bool = False) -> float:
    total = float(rates(link, past).sum())
    return total / link.capacity_bps if link.capacity_bps else math.nan


def _bar(link: LinkView, ink: Ink, width: int) -> Text:
    if not link.capacity_bps:
        return Text("capacity unknown" if width >= len("capacity unknown") else "unknown", "dim italic")
    return bar(rates(link, ink.past), link.capacity_bps, width, ink.colour)


def _course(link: LinkView, ink: Ink, width: int) -> Text:
    return class_sparkline(link.wire_bps, link.capacity_bps, width)


def _rate_part(class_: Class, worth: int) -> Part:
    def draw(link: LinkView, ink: Ink, width: int) -> Text:
        value = rates(link, ink.past)[class_]
        return Text("0" if value == 0 else short_rate(value, ink.bytes_), class_style(class_) if value > 0 else "dim")

    return Part(
        CLASS_NAMES[class_],
        draw,
        lambda link: float(current_rates(link)[class_]),
        *(5, 6, True, worth),
        falling=True,
    )


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


def _coverage(link: LinkView, ink: Ink, width: int) -> Text:
    return Text(coverage(link.coverage), "bold red" if link.coverage < FULL_COVERAGE else "dim")


LINKS = Kind(
    "links",
    (
        Part("link", lambda link, *_: Text(link.host, "bold"), lambda link: link.host, 6, 24, worth=99),
        Part(
            "at",
            lambda link, *_: f"{link.interface} {ARROWS[link.direction]}",
            lambda link: (link.interface, link.direction),
            *(6, 16, False, 98),
        ),
        Part("load", _bar, lambda link: float(current_rates(link).sum()), 12, 50, worth=7, grows=True, falling=True),
        Part(
            "used",
            lambda link, ink, _: "?" if math.isnan(_used(link, ink.past)) else share(_used(link, ink.past)),
            _used,
            *(6, 7, True, 9),
            falling=True,
        ),
        Part(
            "course", _course, lambda link: float(current_rates(link).sum()), 10, 100, worth=4, grows=True, falling=True
        ),
        _rate_part(Class.DL_ONLY, 5),
        _rate_part(Class.DL_SHARED, 5),
        _rate_part(Class.CROSS, 6),
        _rate_part(Class.UNCLASSIFIED, 3),
        Part("coverage", _coverage, lambda link: link.coverage, 8, 9, True, 8),
        Part(
            "not attributed",
            lambda link, *_: Text(format_bytes(_missing(link)), "red") if _missing(link) else "",
            _missing,
            *(8, 14, True, 2),
            falling=True,
        ),
    ),
    key=lambda link: (link.host, link.interface, link.direction),
    values=_link_values,
    term=lambda link: " ".join(
        (exactly("host", link.host), exactly("if", link.interface), exactly("dir", link.direction.name.lower()))
    ),
)
