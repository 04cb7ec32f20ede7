# SPDX-License-Identifier: Apache-2.0
"""The drawn text of a frame, compared with the files in frames/.

NETMON_WRITE_FRAMES=1 writes them anew; look at the difference before you commit it.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from snapshot_example import GIGABIT, example, flow

from netmon.records import Class, Direction, Owner
from netmon.top.frame import render
from netmon.top.options import Options, arrange
from netmon.views import Snapshot

FRAMES = Path(__file__).parent / "frames"
PLAIN = Options(colour=False)


def drawn(snapshot: Snapshot, options: Options, width: int, height: int) -> str:
    console = Console(width=width, height=height, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render(snapshot, options, width, height))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def ordered(snapshot: Snapshot) -> Snapshot:
    return arrange(snapshot, PLAIN)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_a_frame(width: int, height: int) -> None:
    text = drawn(ordered(example()), replace(PLAIN, live=True), width, height)
    path = FRAMES / f"top-{width}x{height}.txt"
    if os.environ.get("NETMON_WRITE_FRAMES") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 119, 120, 160, 300])
@pytest.mark.parametrize("height", [3, 10, 24, 50])
@pytest.mark.parametrize("help_", [False, True])
def test_a_live_frame_is_exactly_as_large_as_the_screen(width: int, height: int, help_: bool) -> None:
    lines = drawn(ordered(example()), replace(PLAIN, live=True, help=help_), width, height).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_a_frame_without_anything_is_a_frame() -> None:
    text = drawn(Snapshot(0, 0.01, 10_000_000, (), (), (), ()), PLAIN, 80, 24)
    assert "no agent has connected yet" in text


def test_what_is_not_known_is_not_zero() -> None:
    job = replace(example().jobs[0], theory_bytes=np.nan, measured_bytes=np.nan, parameters=0, size=0, ranks=())
    link = replace(example().links[0], wire_bps=np.full((100, 4), np.nan), coverage=np.nan, capacity_bps=0)
    text = drawn(replace(example(), jobs=(job,), links=(link,)), PLAIN, 120, 40)
    for words in (
        "number of ranks unknown",
        "sent per rank and iteration unknown",
        "theory (3.1) unknown: no parameter count",
        "DL-shared nodes unknown",
        "capacity unknown",
    ):
        assert words in text
    (row,) = (line for line in text.splitlines() if line.startswith("h0    eth0 ↓"))
    assert row.split().count("unknown") == 6  # capacity, four classes, coverage
    assert "0" not in row.replace("h0", "").replace("eth0", "")


def test_a_host_that_streams_coarser_says_so() -> None:
    hosts = tuple(replace(host, connected=True, bucket_ns=5_000_000, stream_ns=1_000_000) for host in example().hosts)
    assert "h0 streams 5 ms buckets until it catches up" in drawn(replace(example(), hosts=hosts), PLAIN, 120, 40)


def test_a_silent_host_has_no_present() -> None:
    hosts = tuple(replace(host, connected=True, age_ns=5_000_000_000) for host in example().hosts)
    text = drawn(ordered(replace(example(), hosts=hosts)), PLAIN, 120, 40)
    assert "h0 lags 5 s" in text
    row = next(line for line in text.splitlines() if line.startswith("h0    eth0 ↑"))
    assert row.split().count("unknown") == len(Class)
    assert "??????????" in row
    assert "410M" not in text


def test_a_job_that_has_not_finished_an_iteration_says_so() -> None:
    job = replace(example().jobs[0], durations_ns=np.empty(0, np.int64), ranks=())
    assert "no finished iteration yet" in drawn(replace(example(), jobs=(job,)), PLAIN, 80, 24)


def test_a_series_without_columns_is_unknown() -> None:
    link = replace(example().links[0], wire_bps=np.empty((0, 4)))
    assert "?" in drawn(replace(example(), links=(link,)), PLAIN, 80, 24)


def test_names_are_text_and_never_markup() -> None:
    odd = Owner(1, "[red]sh[/red]", "[/]", "", -1, "socket")
    flows = (flow("h[0]", Direction.TX, "fd00::1", 1, "fd00::2", 2, odd, Class.CROSS, 1e6),)
    text = drawn(replace(example(), flows=flows), PLAIN, 200, 50)
    assert "[red]sh[/red][1] ([/])" in text
    assert "[fd00::1]:1 → [fd00::2]:2 tcp" in text


def test_links_keep_their_order_whatever_the_collector_sends() -> None:
    snapshot = ordered(example())
    other = replace(snapshot, links=snapshot.links[::-1], hosts=snapshot.hosts[::-1], jobs=snapshot.jobs[::-1])
    assert drawn(other, PLAIN, 120, 40) == drawn(snapshot, PLAIN, 120, 40)


def test_low_coverage_is_red_and_says_where_the_bytes_are() -> None:
    console = Console(width=120, highlight=False, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(render(example(), Options(), 120, 40))
    lines = capture.get().splitlines()
    (index,) = (number for number, line in enumerate(lines) if "99.49 %" in line)
    assert "\x1b[1;31m" in lines[index]
    assert "lost in the kernel 5 MB" in lines[index + 1]


def test_rates_in_bytes() -> None:
    text = drawn(ordered(example()), replace(PLAIN, bytes_=True), 120, 40)
    assert "rates in B/s" in text
    assert f"{0.8 * GIGABIT / 8 / 1e6:.0f} MB/s" in text


def test_an_outage_and_a_pause_are_in_the_title() -> None:
    options = replace(PLAIN, paused=True, notice="collector gone since 12:00:00, retrying")
    title = drawn(example(), options, 120, 40).splitlines()[0]
    assert "collector gone since 12:00:00, retrying" in title
    assert title.endswith("PAUSED")
