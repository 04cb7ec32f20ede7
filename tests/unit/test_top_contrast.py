# SPDX-License-Identifier: Apache-2.0
"""What is read can be read: contrast of every word on the screen, rows that are chosen keep the colours of classes."""

import asyncio

import pytest
from incident_scenes import scene
from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style
from synthetic_past import SyntheticPast
from test_top_program import Seen, Source, patient  # noqa: F401
from textual.pilot import Pilot

from netmon.records import CLASS_COLOURS
from netmon.top.program import LEAST, Program, contrast, readable
from netmon.top.widgets import _FILTERS, _KEYS, _WORDS, RowTable, page


def test_contrast_is_as_wcag_has_it() -> None:
    assert contrast(ColorTriplet(0, 0, 0), ColorTriplet(255, 255, 255)) == pytest.approx(21)
    assert contrast(ColorTriplet(119, 119, 119), ColorTriplet(255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("colour", CLASS_COLOURS)
@pytest.mark.parametrize("background", ["#121212", "#152c42", "#ffffff"])
def test_colours_are_made_lighter_or_darker_until_they_can_be_read(colour: str, background: str) -> None:
    style = readable(Style(color=colour), Color.parse(background))
    assert style.color
    assert contrast(style.color.get_truecolor(), Color.parse(background).get_truecolor()) >= LEAST


def too_faint(program: Program) -> list[str]:
    below = program.screen.background_colors[1].rich_color.get_truecolor()
    found = []
    for strip in program.screen._compositor.render_strips():
        for text, style, _ in strip:
            if style and style.color and any(map(str.isalnum, text)):
                paper = style.bgcolor.get_truecolor() if style.bgcolor and not style.bgcolor.is_default else below
                if contrast(style.color.get_truecolor(), paper) < LEAST - 0.01:
                    found.append(f"{text!r} {style}")
    return found


def test_every_word_on_every_screen_has_enough_contrast() -> None:
    program = Program(Source(scene("two")), SyntheticPast())
    program._cost.text = lambda width: "top 1 % of a core"  # type: ignore[method-assign]

    async def look(pilot: Pilot[None]) -> None:
        seen = Seen(program, pilot, [])
        await seen.until("INCIDENTS", "FLOWS")
        assert too_faint(program) == []
        table = program.query_one("#table2", RowTable)
        table.focus()
        await pilot.pause()
        assert too_faint(program) == []
        [chosen] = [strip for strip in program.screen._compositor.render_strips() if "iperf3[999]" in strip.text]
        colours = {str(style.color.name) for text, style, _ in chosen if style and style.color and "800M" in text}
        assert colours == {CLASS_COLOURS[3].lower()}
        for keys in (["f", "h"], ["escape", "question_mark"], ["escape", "v"], ["escape", "left"], ["enter"]):
            await pilot.press(*keys)
            await pilot.pause(0.3)
            assert too_faint(program) == []

    async def both() -> None:
        async with program.run_test(size=(120, 40)) as pilot:
            await look(pilot)

    asyncio.run(both())
    source = program._updates
    assert isinstance(source, Source)
    with source.more:
        source.over = True
        source.more.notify()


@pytest.mark.parametrize("width", [40, 78, 118])
def test_the_page_of_help_is_whole(width: int) -> None:
    text = page(width).plain
    assert max(map(len, text.splitlines())) <= width
    words = set(text.split())
    assert all(set(meaning.split()) <= words for _, meaning in (*_KEYS, *_FILTERS, *_WORDS))
