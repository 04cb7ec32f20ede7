# SPDX-License-Identifier: Apache-2.0
"""Bars, sparklines and short numbers."""

import numpy as np
import pytest
from rich.text import Text

from netmon.records import CLASS_COLOURS, Class
from netmon.top.glyphs import bar, class_sparkline, coverage, share, short_rate, sparkline, wrapped

NAN = float("nan")


def rates(dl_only: float = 0, dl_shared: float = 0, cross: float = 0, unclassified: float = 0) -> np.ndarray:
    values = np.zeros(4)
    values[[Class.DL_ONLY, Class.DL_SHARED, Class.CROSS, Class.UNCLASSIFIED]] = dl_only, dl_shared, cross, unclassified
    return values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (rates(), "··········"),
        (rates(dl_only=100), "██████████"),
        (rates(dl_only=50), "█████·····"),
        (rates(dl_only=45), "████▌·····"),
        (rates(dl_only=0.1), "▏·········"),
        (rates(dl_only=300, cross=5), "██████████"),
        (rates(dl_only=NAN), "··········"),
    ],
)
def test_a_bar_in_colour(values: np.ndarray, expected: str) -> None:
    assert bar(values, 100, 10, colour=True).plain == expected


def test_a_cell_of_two_classes_has_the_colour_of_the_second_behind_the_first() -> None:
    drawn = bar(rates(dl_only=45, cross=55), 100, 10, colour=True)
    assert drawn.plain == "████▌█████"
    styles = [span.style for span in drawn.spans]
    assert f"{CLASS_COLOURS[Class.DL_ONLY]} on {CLASS_COLOURS[Class.CROSS]}" in styles


def test_a_bar_without_colour_has_a_pattern_per_class() -> None:
    assert bar(rates(20, 20, 20, 20), 100, 10, colour=False).plain == "██▓▓▒▒░░··"
    assert bar(rates(dl_only=0.1), 100, 10, colour=False).plain == "··········"


def test_a_sparkline() -> None:
    assert sparkline([0, 1, 50, 100, 1000, NAN], 100, ["red"] * 6).plain == " ▁▅██?"


def test_a_class_sparkline_has_the_colour_of_the_largest_class_and_ends_with_the_latest() -> None:
    series = np.zeros((100, 4))
    series[90:, Class.CROSS] = 100
    drawn = class_sparkline(series, 100, 10)
    assert drawn.plain == " " * 9 + "█"
    assert [str(span.style) for span in drawn.spans] == [CLASS_COLOURS[Class.CROSS]]


@pytest.mark.parametrize("width", [0, 1, 7, 33, 99, 100, 500])
def test_a_class_sparkline_is_never_too_wide(width: int) -> None:
    assert class_sparkline(np.ones((100, 4)), 0, width).cell_len <= max(width, 1)


def test_numbers() -> None:
    assert short_rate(941e6, False) == "941M"
    assert short_rate(941e6, True) == "118M"
    assert short_rate(0, False) == "0"
    assert short_rate(NAN, False) == "?"
    assert [share(value) for value in (0, 0.0004, 0.004, 0.0996, 0.43, 1, NAN)] == [
        "0 %",
        "<0.1 %",
        "0.4 %",
        "10 %",
        "43 %",
        "100 %",
        "unknown",
    ]
    assert [coverage(value) for value in (1, 0.999999, 0.9989, NAN)] == ["100 %", "99.99 %", "99.89 %", "unknown"]


def test_parts_are_broken_between_them_only() -> None:
    lines = wrapped([Text("one"), Text("two"), Text("three"), Text("a very long one")], 11, 2)
    assert [line.plain for line in lines] == ["one · two", "  three", "  a very l…"]
