# SPDX-License-Identifier: Apache-2.0
"""A coarse stream and full resolution on request: the real agent and the real collector on a veth pair."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from both import FLOW, Both
from pair import NETMON, Watched
from test_agent import check_account
from waiting import wait_for

from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel
MS, US = 1_000_000, 1_000
_FLOW = ["session", "interface", "direction", "flow_id"]
_COUNTS = ["packets", "wire_bytes", "payload_bytes"]


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


def export(watched: Watched, since_ns: int, until_ns: int, *options: str) -> subprocess.CompletedProcess[str]:
    window = ["--since", _iso(since_ns), "--until", _iso(until_ns), "--out", str(watched.folder / "full.parquet")]
    command = [*NETMON, "export", "--full", "--collector", watched.address, *window, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def _iso(time_ns: int) -> str:
    return pd.Timestamp(time_ns, unit="ns").strftime("%Y-%m-%dT%H:%M:%S.%f")


def stored(watched: Watched, name: str = "buckets") -> pd.DataFrame:
    found = watched.table(name)
    return found if len(found) else pd.DataFrame(columns=[*_FLOW, "bucket_start_ns", "bucket_ns", *_COUNTS])


def transferred(watched: Watched, megabytes: int) -> pd.DataFrame:
    """Sends, and waits until the dataset has it: its rows."""
    before = stored(watched)["payload_bytes"].sum()
    watched.transfer(megabytes, rate="100M")
    wait_for(lambda: stored(watched)["payload_bytes"].sum() >= before + megabytes * 1_000_000)
    return stored(watched)


def test_the_stream_and_the_recorder_tell_the_same_to_the_byte(watched: Watched) -> None:
    collector, agent = watched.both()
    before = watched.counters()
    transferred(watched, 3)
    watched.settled()
    live = stored(watched)
    assert set(live["bucket_ns"]) == {MS}
    begin, end = live["bucket_start_ns"].min(), live["bucket_start_ns"].max() + MS
    done = export(watched, begin // 1000 * 1000, end + 1000, "--host", "right")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    full = pd.read_parquet(watched.folder / "full.parquet")
    assert set(full["bucket_ns"]) == {10 * US}
    assert full.groupby(["flow_id", "bucket_start_ns"]).size().max() == 1
    assert set(full["host"]) == {"right"}
    assert 5999 in set(full["dst_port"])
    of_flow = full.groupby("flow_id")[_COUNTS].sum()
    assert of_flow.equals(live.groupby("flow_id")[_COUNTS].sum().astype(of_flow.dtypes))
    assert (live["peak_bytes"] <= live["wire_bytes"]).all()
    peaks = full.groupby("flow_id")["wire_bytes"].max()
    assert peaks.to_dict() == live.groupby("flow_id")["peak_bytes"].max().to_dict()
    busy = full.groupby("flow_id").size()
    assert busy.to_dict() == live.groupby("flow_id")["busy_buckets"].sum().to_dict()
    after = watched.settled()
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    check_account(watched, before, after)


def test_full_resolution_is_what_tcpdump_captures(watched: Watched) -> None:
    """Each connection to the byte, and at each millisecond as much as tcpdump has by then.

    The two read their clocks one after the other, tcpdump UTC and the agent the monotonic one, which may be micro-
    seconds apart, or more where the processor is taken away in between; so a time is compared with what is around it.
    """
    both = Both(watched, offload=False)
    collector, agent = watched.both()
    with both.captured():
        transferred(watched, 3)
        watched.settled()
    frames = both.frames()
    frames = frames[frames["protocol"] == 6]
    done = export(watched, frames["time_ns"].min() - 1_000 * MS, frames["time_ns"].max() + 1_000 * MS)
    assert done.returncode == 0, done.stderr
    full = pd.read_parquet(watched.folder / "full.parquet").rename(columns={"bucket_start_ns": "time_ns"})
    full = full[full["protocol"] == 6].astype({"direction": str})
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    totals = [table.groupby(FLOW)[_COUNTS].sum().astype("int64") for table in (full, frames)]
    pd.testing.assert_frame_equal(*totals, check_index_type=False)
    assert len(totals[0]) == 4  # iperf3's two connections, both directions
    close = []
    for flow, captured in frames.groupby(FLOW):
        recorded = full[(full[FLOW] == list(flow)).all(axis=1)]
        times = np.arange(captured["time_ns"].min() // MS * MS, captured["time_ns"].max() + 2 * MS, MS)
        for around, most_beyond in ((200 * US, 0.05), (50 * MS, 0)):
            low, by_then, high = (
                until(table, times + shift) for table, shift in ((captured, -around), (recorded, 0), (captured, around))
            )
            beyond = ((by_then < low) | (by_then > high)).mean()
            close.append(beyond <= most_beyond)
            print(f"{flow}: {beyond:.2%} of the milliseconds are further apart than {around / 1000} us")
    assert all(close)


def until(table: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """Wire bytes that came before each of the times."""
    ordered = table.sort_values("time_ns")
    sums = np.concatenate([[0], ordered["wire_bytes"].cumsum().to_numpy()])
    return sums[np.searchsorted(ordered["time_ns"].to_numpy(), times)]


def test_as_wide_as_the_buckets_it_streams_full_resolution(watched: Watched) -> None:
    collector, agent = watched.both("--stream-bucket", "10us")
    transferred(watched, 1)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    rows = watched.table("buckets")
    assert set(rows["bucket_ns"]) == {10 * US}
    assert (rows["peak_bytes"] == rows["wire_bytes"]).all()
    assert set(rows["busy_buckets"]) == {1}


def test_it_outlives_the_collector_and_says_what_it_does_not_have(watched: Watched) -> None:
    collector, agent = watched.both("--record", "memory")
    live = transferred(watched, 1)
    begin, end = int(live["bucket_start_ns"].min()), int(live["bucket_start_ns"].max()) + MS
    os.kill(collector.pid, signal.SIGKILL)
    collector.end(seconds=60)
    collector = watched.collector()
    wait_for(lambda: export(watched, begin - MS, end + MS).returncode == 0)
    full = pd.read_parquet(watched.folder / "full.parquet")
    assert full["payload_bytes"].sum() == live["payload_bytes"].sum()
    done = export(watched, begin - 5_000 * MS, end)
    assert "right: the first " in done.stderr
    assert "are not recorded any more" in done.stderr
    assert "cannot get full resolution from nobody" in export(watched, begin, end, "--host", "nobody").stderr
    os.kill(agent.pid, signal.SIGSTOP)  # it has been asked, and goes away
    window = ["--since", _iso(begin), "--until", _iso(end), "--out", str(watched.folder / "gone.parquet")]
    with subprocess.Popen(
        [*NETMON, "export", "--full", "--collector", watched.address, *window], stderr=subprocess.PIPE, text=True
    ) as asking:
        os.kill(agent.pid, signal.SIGKILL)
        _, error = asking.communicate(timeout=120)
    assert asking.returncode == 1
    assert "it went away before it had answered" in error or "it is not connected" in error
    collector.end_in_order(seconds=60)


def test_the_last_seconds_as_a_trace(watched: Watched) -> None:
    watched.both()
    transferred(watched, 2)
    out = watched.folder / "now.json"
    command = [*NETMON, "trace", watched.address, "--last", "30s", "--out", str(out)]

    def traced() -> bool:  # what is younger than a second has not settled
        return subprocess.run(command, capture_output=True, check=False).returncode == 0 and ":5999" in out.read_text()

    wait_for(traced)
    names = {event["args"].get("name") for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "M"}
    assert "host right" in names
    refused = subprocess.run([*command, "--since", "2026-01-01"], capture_output=True, text=True, check=False)
    assert "cannot trace a live collector with --since" in refused.stderr
    unknown = subprocess.run([*command, "--job", "x"], capture_output=True, text=True, check=False)
    assert "knows no such name" in unknown.stderr


def test_an_agent_that_records_nothing_says_so(watched: Watched) -> None:
    collector, agent = watched.both("--record", "off")
    live = transferred(watched, 1)
    begin = int(live["bucket_start_ns"].min())
    done = export(watched, begin, begin + 1_000 * MS)
    assert done.returncode == 1
    assert "right: the agent records nothing (--record off)" in done.stderr
    assert "no agent has a row of that window" in done.stderr
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)


def test_a_place_that_cannot_be_written_ends_the_recording_only(watched: Watched) -> None:
    collector, agent = watched.both("--record", "/proc/nowhere")
    assert agent.output().count("nothing is recorded: cannot record in /proc/nowhere") == 1
    transferred(watched, 1)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)


@pytest.mark.parametrize("width", ["15us", "1s", "0s"])
def test_a_stream_that_is_no_multiple_is_refused(watched: Watched, width: str) -> None:
    done = subprocess.run(
        [*watched.agent_command(), "--stream-bucket", width], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--stream-bucket is a multiple of --bucket" in done.stderr


def test_a_burst_brings_its_full_resolution_into_the_dataset(watched: Watched) -> None:
    options = ["--full-on", "burst", "--full-burst", "0.01", "--full-rest", "100s"]
    collector = watched.collector(*options)
    agent = watched.agent("--capacity", "10gbit")
    transferred(watched, 3)
    wait_for(lambda: len(stored(watched, "full")))
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    full, live = watched.table("full"), watched.table("buckets")
    assert set(full["bucket_ns"]) == {10 * US}
    assert set(full.columns) == {*live.columns, "reason", "gap"}
    (told,) = full["reason"].unique()
    assert told.startswith("a burst on right ")
    limit = 0.01 * 10e9 * 10e-6 / 8
    first = live[live["peak_bytes"] > limit]["bucket_start_ns"].min()
    assert full["bucket_start_ns"].between(first - 50 * MS, first + 51 * MS).all()
    inside = live[live["bucket_start_ns"].between(first - 49 * MS, first + 49 * MS)]
    again = full[full["bucket_start_ns"].between(first - 49 * MS, first + 50 * MS - 1)]
    assert again["wire_bytes"].sum() == inside["wire_bytes"].sum()


def test_a_slow_iteration_of_the_lab_is_in_the_dataset_in_full(tmp_path: Path) -> None:
    """Cross traffic that begins late makes the iterations after it slow: the first of them is stored, on every host."""
    spec = RunSpec(tmp_path, parameters=999_999, compute_ns=20_000_000, iterations=60, stream_ns=MS, cross_after=0.7)
    run(spec)
    full, live, iterations = (pd.read_parquet(tmp_path / name) for name in ("full", "buckets", "iterations"))
    assert set(live["bucket_ns"]) == {MS}
    assert set(full["bucket_ns"]) == {10 * US}
    (told,) = full["reason"].unique()
    number = int(told.removeprefix("iteration ").split(" of job ")[0])
    durations = iterations["end_ns"] - iterations["start_ns"]  # of each rank
    # The collector knew those whose rows had settled: some before, or some after, of rows that settled with it.
    usual = min(durations[iterations["iteration"] < known].median() for known in range(5, 61))
    assert durations[iterations["iteration"] == number].max() >= 1.2 * usual
    assert full["host"].nunique() == 3
    for host, rows in full.groupby("host", observed=True):
        begin, end = rows["bucket_start_ns"].min() // MS * MS + MS, rows["bucket_start_ns"].max() // MS * MS - MS
        inside, again = (
            table[(table["host"] == host) & table["bucket_start_ns"].between(begin, end - 1)] for table in (live, rows)
        )
        assert again["wire_bytes"].sum() == pytest.approx(inside["wire_bytes"].sum(), rel=0.05)  # the grids are mono's
    ranks = full[(full["job"] != "") & full["class"].isin(["DL-only", "DL-shared"])]
    assert number in set(ranks["iteration"])


@pytest.mark.long
def test_a_stream_that_falls_behind_gets_coarser_and_comes_back(watched: Watched) -> None:
    collector, agent = watched.both()
    before = watched.counters()
    transferred(watched, 1)
    collector.end_in_order(seconds=60)
    wait_for(lambda: "streaming buckets of 5 ms until the collector catches up" in agent.output(), seconds=60)
    watched.transfer(1, rate="10M")
    collector = watched.collector()
    wait_for(lambda: "streaming buckets of 1 ms again: the collector has caught up" in agent.output(), seconds=120)
    watched.transfer(1, rate="10M")
    after = watched.settled()
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    check_account(watched, before, after)
    rows = watched.table("buckets")
    assert {MS, 5 * MS} <= set(rows["bucket_ns"]) <= {MS, 5 * MS, 20 * MS}
    assert (rows["peak_bytes"] <= rows["wire_bytes"]).all()
