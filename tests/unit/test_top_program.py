# SPDX-License-Identifier: Apache-2.0
"""The interactive program without a terminal: its screens, compared with the files in screens/, and its keys.

NETMON_WRITE_FRAMES=1 writes them anew; look at the difference before you commit it.
"""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from snapshot_example import cluster, example
from synthetic_past import SLOW, SyntheticPast
from textual.pilot import Pilot
from textual.strip import Strip

from netmon.errors import WireError
from netmon.top.program import Program
from netmon.top.widgets import RowTable
from netmon.views import Past, Selection, Snapshot
from netmon.wire.watch import Outage

SCREENS = Path(__file__).parent / "screens"
_WAIT_S = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy is no source that is silent."""
    monkeypatch.setattr("netmon.top.program._SILENCE_NS", 1 << 62)


class Source:
    """Snapshots that a test hands over one by one."""

    def __init__(self, *first: Snapshot | Outage) -> None:
        self.updates = list(first)
        self.more = threading.Condition()
        self.over = False

    def put(self, update: Snapshot | Outage) -> None:
        with self.more:
            self.updates.append(update)
            self.more.notify()

    def __iter__(self) -> Iterator[Snapshot | Outage]:
        while True:
            with self.more:
                self.more.wait_for(lambda: self.updates or self.over)
                if not self.updates:
                    return
                update = self.updates.pop(0)
            yield update


class Seen:
    """A running program and what stands on its screen."""

    def __init__(self, program: Program, pilot: Pilot[None], asked: list[Selection]) -> None:
        self.program, self.pilot, self.asked = program, pilot, asked

    def text(self) -> str:
        strips = self.program.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, *words: str) -> str:
        async def there() -> None:
            while not all(word in self.text() for word in words):
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(there(), _WAIT_S)
        except asyncio.TimeoutError:
            raise AssertionError(f"{words} not in:\n{self.text()}") from None
        return self.text()


def run(
    test: Callable[[Seen], Awaitable[None]],
    updates: Iterable[Snapshot | Outage] | None,
    past: Past | None = None,
    size: tuple[int, int] = (120, 40),
) -> Program:
    """Run the program until the test is over."""
    asked: list[Selection] = []
    program = Program(updates, past, Selection(flows=20, most_links=64, most_jobs=32), asked.append, colour=False)
    program._cost.text = lambda width: ""  # type: ignore[method-assign]

    async def both() -> None:
        async with program.run_test(size=size) as pilot:
            await test(Seen(program, pilot, asked))
        if isinstance(updates, Source):
            with updates.more:
                updates.over = True
                updates.more.notify()

    asyncio.run(both())
    return program


def compare(text: str, name: str) -> None:
    path = SCREENS / f"{name}.txt"
    if os.environ.get("NETMON_WRITE_FRAMES") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (120, 40), (200, 50)])
def test_the_screen_of_everything(size: tuple[int, int]) -> None:
    async def look(seen: Seen) -> None:
        compare(await seen.until("JOBS", "resne"), f"all-{size[0]}x{size[1]}")

    run(look, Source(example()), size=size)


def test_the_screen_of_a_cluster() -> None:
    async def look(seen: Seen) -> None:
        compare(await seen.until("links 1–64 of 2,000"), "cluster-120x40")
        await seen.press("tab", "n")
        assert seen.asked[-1].links_from == 64
        await seen.press("p")
        assert seen.asked[-1].links_from == 0

    run(look, Source(cluster()))


def test_down_to_a_flow_and_up_again() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("JOBS")
        await seen.press("enter")
        compare(await seen.until("all › resnet", "ITERATIONS"), "job-120x40")
        assert seen.asked[-1].jobs == ("resnet",)
        await seen.press("tab", "enter")
        compare(await seen.until("rank 0 (h0)"), "rank-120x40")
        await seen.press("tab", "enter")
        compare(await seen.until("rank 0 (h0) › flow", "process python3[4711], by socket"), "flow-120x40")
        await seen.press("escape", "escape", "escape", "escape")
        await seen.until("all\n")
        assert seen.asked[-1].jobs == ()

    run(look, Source(example()))


def test_the_groups_of_a_jobs_ranks() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("JOBS")
        await seen.press("o")
        await seen.until("groups of ranks are a job's")
        await seen.press("enter")
        await seen.until("all › resnet", "ITERATIONS")
        await seen.press("o")
        compare(await seen.until("GROUPS", "sharded data"), "rank-groups-120x40")
        await seen.press("o")
        await seen.until("ITERATIONS")

    run(look, Source(example()), SyntheticPast())


def test_back_in_time_and_live_again() -> None:
    past, source = SyntheticPast(), Source(example())

    async def look(seen: Seen) -> None:
        await seen.until("JOBS")
        await seen.press("left")
        await seen.until("PAST", "iteration 39:", "rows of 1 ms, made up")
        await seen.press("left")
        await seen.until("iteration 38:")
        await seen.press("slash")
        compare(await seen.until(f"iteration {SLOW} of job", "held the transfer up"), "past-120x40")
        await seen.press("right")
        await seen.until("iteration 37:")
        await seen.press("backslash")
        await seen.until("there is no such iteration")
        await seen.press("l")
        await seen.until("2026-11-21 10:12:13 UTC")
        assert "PAST" not in seen.text()

    run(look, source, past)


def test_a_verdict_is_a_place_to_jump_to_and_the_axis_zooms() -> None:
    past = SyntheticPast()

    async def look(seen: Seen) -> None:
        await seen.until("PAST", "iteration 39:")
        await seen.press("v")
        compare(await seen.until("VERDICTS", "cross: backup"), "verdicts-120x40")
        await seen.press("enter")
        compare(await seen.until("held up", "261 ms", "transfer"), "iteration-120x40")
        whole = past.asked[-1]
        await seen.press("plus", "plus", "plus")
        await seen.until("+73.8 ms")
        await seen.press("full_stop")
        assert past.asked[-1][1] > whole[1]  # finer rows are asked for where there may be some
        await seen.press("minus", "minus", "minus", "minus", "minus")
        await seen.until("+1.18 s")
        await seen.press("left", "left")
        await seen.until(f"iteration {SLOW - 2}")

    run(look, None, past)


def test_a_moment_that_cannot_be_had_says_why_and_the_view_stays() -> None:
    past = SyntheticPast()

    async def look(seen: Seen) -> None:
        await seen.until("iteration 39:")
        await seen.press(*["left"] * 45)
        await seen.until("its rows were cleaned away")

    run(look, None, past)


def test_without_a_past_that_is_said() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("JOBS")
        await seen.press("left")
        await seen.until("nothing is known of the past here")

    run(look, Source(example()))


def test_a_filter_is_applied_as_it_is_typed_and_says_where_it_is_wrong() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("iperf3")
        await seen.press("f", *"host:h2 cla")
        text = await seen.until("filter host:h2 hides", "fields: class:")
        assert "10.77.0.12:5201" in text
        assert "10.77.0.10:40000" not in text
        assert seen.asked[-1].flows == 200
        await seen.press(*"ss:crss")
        compare(await seen.until("^ no class is like 'crss'"), "filter-120x40")
        await seen.press("enter")
        await seen.until("^ no class is like")
        await seen.press("backspace", "backspace", "backspace", *"ross", "enter")
        await seen.until("filter host:h2 class:cross hides")
        await seen.press("escape")
        assert "filter" not in (await seen.until("10.77.0.10:40000")).splitlines()[8]

    run(look, Source(example()))


def test_groups_sorting_units_and_copies() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("FLOWS")
        await seen.press("b")
        await seen.until("rates in B/s")
        await seen.press("g")
        compare(await seen.until("GROUPS", "by process"), "groups-120x40")
        await seen.press("tab", "tab", "enter")
        await seen.until("filter proc:^iperf3$ hides")
        table = seen.program.query_one("#table1", RowTable)
        table.focus()
        await seen.press("escape", "s", "s", "s", "s")
        assert table.by == "used"
        await seen.press("y")
        assert json.loads(seen.program.clipboard)["interface"] == "eth0"
        await seen.press("Y")
        assert (
            seen.program.clipboard == f"host:^{table.chosen.host}$ if:^eth0$ dir:{table.chosen.direction.name.lower()}"
        )
        await seen.press("question_mark")
        await seen.until("Filters", "any text of the row")
        await seen.press("escape")
        await seen.until("FLOWS")

    run(look, Source(example()))


def test_a_click_on_a_heading_sorts_and_on_a_row_enters() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("FLOWS")
        place = seen.text().splitlines()[next(n for n, line in enumerate(seen.text().splitlines()) if "LINKS" in line)]
        await seen.pilot.click("#table1", offset=(place.index("coverage") + 2, 0))
        await seen.until("coverage▲")
        await seen.pilot.click("#table0", offset=(3, 1))
        await seen.pilot.click("#table0", offset=(3, 1))
        await seen.until("all › resnet")

    run(look, Source(example()))


def test_an_outage_leaves_the_last_snapshot_and_says_so_and_a_pause_leaves_it_too() -> None:
    source = Source(example())

    async def look(seen: Seen) -> None:
        await seen.until("10:12:13 UTC")
        source.put(Outage(example().time_ns, "gone"))
        await seen.until("collector gone since 10:12:13, retrying", "FLOWS")
        source.put(example(example().time_ns + 1_000_000_000))
        await seen.until("10:12:14 UTC")
        await seen.press("space")
        await seen.until("PAUSED")
        source.put(replace(example(), time_ns=example().time_ns + 9_000_000_000, jobs=()))
        await seen.press("b")
        assert "resnet" in await seen.until("rates in B/s", "10:12:14 UTC")
        await seen.press("space")
        await seen.until("10:12:22 UTC")

    run(look, source)


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (20, 5), (40, 10), (79, 23), (300, 90)])
def test_every_size_can_be_drawn_and_changed(size: tuple[int, int]) -> None:
    async def look(seen: Seen) -> None:
        await seen.pilot.pause()
        lines = seen.text().splitlines()
        assert len(lines) <= size[1]
        assert max(map(len, lines), default=0) <= size[0]
        await seen.pilot.resize_terminal(100, 30)
        await seen.until("DL-shared", "JOBS", "FLOWS")

    run(look, Source(example()), SyntheticPast(), size=size)


def test_it_ends_with_its_updates_and_keeps_their_error() -> None:
    def broken() -> Iterator[Snapshot]:
        yield example()
        raise WireError("nonsense")

    async def look(seen: Seen) -> None:
        while seen.program.is_running and not seen.program._exit:
            await asyncio.sleep(0.02)

    assert "nonsense" in str(run(look, broken()).error)
    assert run(look, iter([example()])).error is None


def test_only_lines_that_have_changed_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    source, lines = Source(example()), list[tuple[str, int]]()

    def counted(table: RowTable, y: int, render_line: Callable[[RowTable, int], Strip] = RowTable.render_line) -> Strip:
        lines.append((table.id or "", y))
        return render_line(table, y)

    monkeypatch.setattr(RowTable, "render_line", counted)

    async def look(seen: Seen) -> None:
        await seen.until("JOBS", "FLOWS")
        await seen.pilot.pause()
        lines.clear()
        later = example(example().time_ns + 1_000_000_000)
        source.put(later)
        await seen.until("10:12:14 UTC")
        assert lines == []
        links = sorted(later.links, key=lambda link: (link.host, link.interface, link.direction))
        changed = replace(links[1], coverage=0.5)
        source.put(replace(later, links=(links[0], changed, *links[2:])))
        await seen.until("50.00 %")
        assert lines == [("table1", 2)]

    run(look, source)


def test_silence_is_said_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netmon.top.program._SILENCE_NS", 1)

    async def look(seen: Seen) -> None:
        await seen.until("10:12:13 UTC", "no news since")

    run(look, Source(example()))


def test_the_cursor_reaches_both_ends_and_stays_on_its_row_when_rows_are_sorted() -> None:
    async def look(seen: Seen) -> None:
        await seen.until("links 1–64 of 2,000")
        table = seen.program.query_one("#table1", RowTable)
        await seen.press("tab", "ctrl+end")
        assert table.cursor_row == 63
        await seen.until(f"{table.chosen.host} ")
        await seen.press("pageup", "up")
        assert 40 < table.cursor_row < 62
        chosen = table.chosen
        await seen.press("S")
        assert table.kind is not None
        assert table.kind.key(table.chosen) == table.kind.key(chosen)
        await seen.press("home")
        assert table.cursor_row == 0

    run(look, Source(cluster()))
