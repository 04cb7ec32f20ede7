# SPDX-License-Identifier: Apache-2.0
"""The drawn text of a frame, compared with the files in frames/.

NETMON_WRITE_FRAMES=1 writes them anew; look at the difference before you commit it.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from snapshot_example import GIGABIT, cluster, example, flow

from netmon.dl.verdict.incidents import incidents
from netmon.records import Class, Direction, Owner
from netmon.top.frame import render
from netmon.top.options import Options, arrange, short_names
from netmon.views import Cause, Page, RankPair, Snapshot, Verdict
from netmon.wire.mapping import decode_snapshot, encode_snapshot

FRAMES = Path(__file__).parent / "frames"
PLAIN = Options(colour=False)


def drawn(snapshot: Snapshot, options: Options, width: int, height: int) -> str:
    console = Console(width=width, height=height, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render(snapshot, options, width, height))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def ordered(snapshot: Snapshot) -> Snapshot:
    return arrange(snapshot)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_a_frame(width: int, height: int) -> None:
    text = drawn(ordered(example()), PLAIN, width, height)
    path = FRAMES / f"top-{width}x{height}.txt"
    if os.environ.get("NETMON_WRITE_FRAMES") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_an_overview(width: int, height: int) -> None:
    text = drawn(ordered(cluster()), PLAIN, width, height)
    path = FRAMES / f"overview-{width}x{height}.txt"
    if os.environ.get("NETMON_WRITE_FRAMES") == "1":
        path.write_text(text)
    assert text == path.read_text()


HEADINGS = "ranks iteration last / usual lost sent DL-shared coverage bytes"


@pytest.mark.parametrize("width", [80, 100, 120, 140, 200])
def test_headings_are_whole_and_no_two_jobs_look_alike(width: int) -> None:
    text = drawn(ordered(cluster()), PLAIN, width, 10**6)
    assert set(HEADINGS.split()) <= set(text.split())
    assert "p99" in text.split() or width < 100
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("JOBS"))
    names = [line.split()[0] for line in lines[first + 1 : first + 33]]
    assert len(set(names)) == 32
    assert "jobs 1–32 of 125" in text
    assert "links 1–64 of 2,000" in text


@pytest.mark.parametrize("width", [80, 100, 105, 120, 200])
def test_the_headings_of_ranks_are_whole(width: int) -> None:
    text = drawn(ordered(example()), PLAIN, width, 80)
    heading = next(line for line in text.splitlines() if line.startswith("RANKS"))
    for words in ("host", "iteration", "duration", "DL sent", "cross ↑", "cross ↓", "node"):
        assert words in heading


def test_jobs_with_addresses_for_names_are_told_apart_by_their_ranks_lines() -> None:
    names = [f"fd00:1234:5678:9abc::{number}:29500" for number in (1, 2)]
    jobs = tuple(replace(example().jobs[0], job=name) for name in names)
    text = drawn(ordered(replace(example(), jobs=jobs)), PLAIN, 80, 80)
    shown = [line.split()[0] for line in text.splitlines() if line.rstrip().endswith(("DL-only", "DL-shared"))]
    assert len(shown) == len(set(shown)) == 6


def test_what_is_not_on_the_screen_is_counted() -> None:
    text = drawn(ordered(cluster(links_from=64, jobs_from=32)), PLAIN, 120, 40)
    jobs = re.search(r"jobs 33–(\d+) of 125", text)
    links = re.search(r"links 65–(\d+) of 2,000", text)
    assert jobs
    assert links
    lines = text.splitlines()
    assert sum("198.19.7.2" in line and "uprobe" in line for line in lines) == int(jobs[1]) - 32
    assert sum(line.startswith("gpu-") and " eth0 " in line and "%" in line for line in lines) == int(links[1]) - 64
    assert "610 more warnings" in text
    few = drawn(replace(example(), jobs=tuple(replace(example().jobs[0], job=str(n)) for n in range(4))), PLAIN, 80, 30)
    assert re.search(r"… \d more jobs?$", few, re.MULTILINE)


def test_one_job_on_many_hosts_is_shown_with_its_ranks_and_how_many_more_there_are() -> None:
    many = cluster()
    job = replace(example().jobs[0], known_ranks=1000, shared_ranks=12)
    text = drawn(ordered(replace(many, jobs=(job,), page=replace(many.page, jobs=1))), PLAIN, 120, 10**6)
    assert "JOB resnet · 3 ranks" in text
    assert "… 997 more" in text
    assert "rank 0 (h0) and 11 more" in text
    assert "links 1–64 of 2,000" in text


def test_links_that_did_not_travel_are_counted_on_few_hosts_too() -> None:
    text = drawn(ordered(replace(example(), page=Page(hosts=4, links=70, jobs=1))), PLAIN, 120, 10**6)
    assert "… 62 more links" in text


def test_a_host_that_nobody_knows_is_said() -> None:
    assert "no host or job gpu-77" in drawn(replace(example(), page=Page(unknown=("gpu-77",))), PLAIN, 80, 24)


@given(st.lists(st.text("ab.:", max_size=20), max_size=30), st.integers(6, 12))
def test_short_names_are_short_and_unique(names: list[str], width: int) -> None:
    short = short_names(names, width)
    assert short.keys() == set(names)
    assert len(set(short.values())) == len(short)
    assert all(len(text) <= width for text in short.values())


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 119, 120, 160, 300])
@pytest.mark.parametrize("height", [24, 50])
def test_a_frame_is_never_larger_than_it_may_be(width: int, height: int) -> None:
    for snapshot in (example(), cluster()):
        lines = drawn(ordered(snapshot), PLAIN, width, height).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_a_frame_without_anything_is_a_frame() -> None:
    text = drawn(Snapshot(0, 0.01, 10_000_000, (), (), (), ()), PLAIN, 80, 24)
    assert "no agent has connected yet" in text


def test_jobs_are_called_what_people_call_them() -> None:
    job = replace(example().jobs[0], job="10.0.0.1:9994", name="train.py@node3", parameters_basis="calls")
    verdict = Verdict("10.0.0.1:9994", 7, 0, 1, 2, 1, 1, Cause.OTHER_JOB, "job 10.0.0.1:9995", "h0", "eth0")
    slowed = tuple(incidents([verdict], {"10.0.0.1:9994": (1, 7)}))
    other = replace(job, job="10.0.0.1:9995", name="bert (Slurm 7)", verdicts=())
    shown = example().flows[0]
    owner = Owner(1, "python3", "", "10.0.0.1:9994", 0, "socket")
    mine = replace(shown, flow=replace(shown.flow, owner=owner))
    text = drawn(
        ordered(replace(example(), jobs=(replace(job, incidents=slowed), other), flows=(mine,))), PLAIN, 200, 50
    )
    assert "10.0.0.1:999" not in text
    for words in (
        *("JOB train.py@node3", "JOB bert (Slurm 7)", "train.py@node3/0"),
        "train.py@node3 2.0 × slower since 1970-01-01 00:00:00: job bert (Slurm 7) into h0",
    ):
        assert words in text
    assert "4 M parameters, read from the calls" in text


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


def test_jobs_that_share_links_say_so() -> None:
    told = (
        "jobs b and [a] share h0 eth0 tx with a compatibility of 0.61: no shift would save more than 2% of their time"
    )
    job = replace(example().jobs[0], sharing=(told,))
    there = decode_snapshot(encode_snapshot(replace(example(), jobs=(job,))))
    assert told in " ".join(drawn(there, PLAIN, 120, 60).split())


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


def test_what_pairs_of_ranks_carry() -> None:
    pairs = tuple(
        RankPair(n, (n + 1) % 12, 10**9, 1e9 * (n + 1) if n else float("nan"), 0, 0.5, "RDMA and sockets", "")
        for n in range(12)
    )
    snapshot = replace(example(), jobs=(replace(example().jobs[0], pairs=pairs),))
    assert decode_snapshot(encode_snapshot(snapshot)).jobs[0].pairs[1:] == pairs[1:]
    text = drawn(snapshot, Options(), 200, 60)
    assert "NCCL: 12 rank pairs, RDMA 50 %" in text
    assert "6 → 7 7 Gbit/s RDMA and sockets" in text
    assert "9 → 10" not in text
    assert "4 faster" in text
    alone = replace(pairs[0], peer=-1, interface="mlx5_0", bps=94e9)
    snapshot = replace(snapshot, jobs=(replace(snapshot.jobs[0], pairs=(alone,)),))
    assert "0 → ? 94 Gbit/s mlx5_0" in drawn(snapshot, Options(), 200, 60)
