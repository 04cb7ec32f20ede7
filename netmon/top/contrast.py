# SPDX-License-Identifier: Apache-2.0
"""Text that can be read on whatever it stands on: colours keep their hue, and are made as much lighter as it takes."""

from functools import lru_cache

from rich.color import Color as RichColor
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

LEAST = 4.5
"""Contrast of text (WCAG 2, level AA)."""

_STEPS = 20


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: ColorTriplet) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@lru_cache(1024)
def readable(style: Style, background: RichColor) -> Style:
    """The same with a colour that is read on its background, or on this one where it has none."""
    below = style.bgcolor if style.bgcolor and not style.bgcolor.is_default else background
    if style.color is None or style.color.is_default:
        return style
    ink, paper = style.color.get_truecolor(), below.get_truecolor()
    end = max(ColorTriplet(0, 0, 0), ColorTriplet(255, 255, 255), key=lambda end: contrast(end, paper))
    for step in range(_STEPS + 1):
        mixed = ColorTriplet(*(a + (b - a) * step // _STEPS for a, b in zip(ink, end, strict=True)))
        if contrast(mixed, paper) >= LEAST:
            break
    return style + Style(color=RichColor.from_triplet(mixed)) if step else style


class Readable(LineFilter):
    """Of words and figures; bars and courses have the very colours of their classes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        below = background.rich_color
        return [
            Segment(text, readable(style, below), control)
            if style and _is_read(text)
            else Segment(text, style, control)
            for text, style, control in segments
        ]


def _is_read(text: str) -> bool:
    return any(map(str.isalnum, text))
