# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of real training, of hosts whose clocks are set apart, on one clock: DDP's and Horovod's.

A run of Horovod is kept in tests/data/merge (NETMON_RECORD_MERGE=1 makes it anew), which test_trace_profiles.py reads.
"""

import contextlib
import gzip
import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from netmon.bench import clock
from netmon.bench.clock import Relay, Shift
from netmon.cli import main
from netmon.lab.network import network
from netmon.lab.record import utc_minus_mono_ns
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training, trainer_python
from netmon.units import parse_duration

pytestmark = pytest.mark.kernel

MS = 1_000_000


def watched_training(spec: RunSpec, folder, shifts: list[Shift]) -> None:
    """Trains, with one agent a host, whose clocks are shifted for the collector."""
    collector = f"unix:{folder}/collector.sock"
    python = trainer_python(spec)
    with contextlib.ExitStack() as stack, network(spec.hosts, spec.rate_bps) as testbed:
        last = stack.enter_context(clock._collector(collector, folder))
        last.wait_ready(120)
        agents = []
        for host, shift in zip(testbed.hosts, shifts, strict=True):
            address = f"unix:{folder}/{host.name}-relay.sock"
            stack.enter_context(Relay(address, collector, shift))
            agents.append(stack.enter_context(clock._agent(host, address, folder)))
        for agent in agents:
            agent.wait_ready(120)
        training = stack.enter_context(Training(spec, testbed, folder, python))
        deadline = time.monotonic() + 240
        while not training.finished():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)  # for what is in flight
        for agent in agents:
            agent.end_in_order(seconds=30)
        last.end_in_order(seconds=60)


def as_the_host_wrote_it(path, shift: Shift) -> None:
    """The trace with the times of that host's clock: the machine has one clock only."""
    trace = json.loads(path.read_text())
    base = trace.get("baseTimeNanoseconds", 0)
    to_mono = base - utc_minus_mono_ns()
    for event in trace["traceEvents"]:
        if isinstance(event.get("ts"), int | float):
            event["ts"] += shift.ahead(round(event["ts"] * 1000) + to_mono) / 1000
    path.write_text(json.dumps(trace))


def reductions(path) -> list[int]:
    """When every all-reduce of a trace of the profiler ended, UTC ns, in order."""
    trace = json.loads(path.read_text())
    base = trace.get("baseTimeNanoseconds", 0)
    own = [event for event in trace["traceEvents"] if "gloo:all_reduce" in event.get("name", "") and "dur" in event]
    return sorted(base + round((event["ts"] + event["dur"]) * 1000) for event in own)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_all_reduce_ends_at_the_same_time(tmp_path, capsys):
    spec = RunSpec(tmp_path, trainer="ddp", hosts=2, ring=(0, 1), parameters=500_000, compute_ns=60 * MS, iterations=40)
    (tmp_path / "log").mkdir()
    now = time.monotonic_ns()
    shifts = [Shift(now, 250 * MS, 50e-6), Shift(now, -40 * MS, -30e-6)]
    watched_training(RunSpec(**{**vars(spec), "cross": (), "cross_load": 0, "profile": True}), tmp_path, shifts)
    traces = [tmp_path / f"rank-{rank}.pt.trace.json" for rank in range(2)]
    true = [reductions(path) for path in traces]
    assert len(true[0]) == len(true[1]) >= spec.iterations
    for path, shift in zip(traces, shifts, strict=True):
        as_the_host_wrote_it(path, shift)
    out = tmp_path / "merged.json"
    assert main(["trace", str(tmp_path / "data"), "--merge", *map(str, traces), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    bounds = [parse_duration(text) for text in re.findall(r"right to ([0-9.]+ \w+)", told)]
    assert len(bounds) == 2
    merged = json.loads(out.read_text())
    names = {e["pid"]: e["args"]["name"] for e in merged["traceEvents"] if e.get("name") == "process_name"}
    found: dict[str, list[int]] = {}
    for event in merged["traceEvents"]:
        if "gloo:all_reduce" in event.get("name", "") and "dur" in event:
            end = merged["baseTimeNanoseconds"] + round((event["ts"] + event["dur"]) * 1000)
            found.setdefault(names[event["pid"]], []).append(end)
    rounding = 2_000
    for bound, ends, host in zip(bounds, true, sorted(found), strict=True):
        shown = sorted(found[host])
        first = next(n for n, end in enumerate(ends) if abs(end - shown[0]) <= bound + rounding)
        matched = ends[first : first + len(shown)]
        assert max(abs(a - b) for a, b in zip(shown, matched, strict=True)) <= bound + rounding
        assert len(shown) >= spec.iterations // 2


def horovods(path: Path) -> list[dict]:
    """A Timeline, whose end may be torn: it is written until its process ends."""
    text = path.read_text().rstrip().rstrip("],\n ")
    while True:
        try:
            return json.loads(f"{text}]")
        except ValueError:
            text = text[: text.rindex("}", 0, len(text) - 1) + 1]


def ends_of(events: list[dict], base_ns: int) -> list[int]:
    """When Gloo had reduced each tensor, UTC ns, in order: as Horovod begins and ends it, or as one slice."""
    ends, open_ = [], {}
    for event in events:
        if event.get("ph") == "B":
            open_.setdefault((event["pid"], event.get("tid")), []).append(event["name"])
        elif event.get("ph") == "E" and open_.get((event["pid"], event.get("tid"))):
            if open_[event["pid"], event.get("tid")].pop() == "GLOO_ALLREDUCE":
                ends.append(event["ts"])
        elif event.get("ph") == "X" and event["name"] == "GLOO_ALLREDUCE":
            ends.append(event["ts"] + event["dur"])
    return sorted(base_ns + round(end * 1000) for end in ends)


def start_of(event: dict) -> dict:
    """What says when a Timeline began."""
    told = event.get("args")
    return told if isinstance(told, dict) and "start_time_since_epoch_in_micros" in told else {}


def last_waits(folder: Path, rank: int) -> np.ndarray:
    """When the training script of a rank had its last gradient of each iteration, UTC ns."""
    return pd.read_csv(folder / f"rank-{rank}.csv")["last_wait_ns"].to_numpy() + utc_minus_mono_ns()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_horovods_timeline_meets_the_other_ranks(tmp_path, capsys):
    from netmon.lab.training import TIMELINE

    (tmp_path / "log").mkdir()
    spec = RunSpec(
        *(tmp_path, "horovod", 2, (0, 1), ()),
        parameters=500_000,
        compute_ns=60 * MS,
        iterations=40,
        cross_load=0,
        timeline=True,
    )
    now = time.monotonic_ns()
    shifts = [Shift(now, 250 * MS, 50e-6), Shift(now, -40 * MS, -30e-6)]
    watched_training(spec, tmp_path, shifts)
    path = tmp_path / TIMELINE
    events = horovods(path)
    (base,) = [told["start_time_since_epoch_in_micros"] * 1000 for told in map(start_of, events) if told]
    true = ends_of(events, base)
    assert len(true) >= spec.iterations
    for event in events:  # as that host would have written it: the machine has one clock only
        if isinstance(event.get("ts"), int | float):
            event["ts"] += shifts[0].ahead(base + round(event["ts"] * 1000) - utc_minus_mono_ns()) / 1000
    path.write_text(json.dumps(events))
    out = tmp_path / "merged.json"
    assert main(["trace", str(tmp_path / "data"), "--merge", str(path), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    (bound,) = [parse_duration(text) for text in re.findall(r"right to ([0-9.]+ \w+)", told)]
    merged = json.loads(out.read_text())
    shown = ends_of(merged["traceEvents"], merged["baseTimeNanoseconds"])
    first = next(n for n, end in enumerate(true) if abs(end - shown[0]) <= bound + 2_000)
    apart = np.abs(np.array(shown) - np.array(true[first : first + len(shown)]))
    assert len(shown) >= len(true) // 2
    assert apart.max() <= bound + 2_000  # the Timeline has µs
    met = of_the_other_rank(tmp_path, np.array(true), np.array(shown))
    print(
        told, f"own ends off by {apart.max()} ns at most, bound {bound} ns; against rank 1: median {np.median(met)} ns"
    )
    if os.environ.get("NETMON_RECORD_MERGE") == "1":
        record(tmp_path, events, np.array(true), shifts)


def of_the_other_rank(folder: Path, true: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """By how much the distance of the two ranks' ends of an iteration differs from what it was, in ns.

    Rank 0's is its Timeline's last reduction, rank 1's what the dataset says of its last wait.
    """
    iterations = pd.read_parquet(folder / "data/iterations")
    own = iterations[(iterations["rank"] == 1) & iterations["comm_end_ns"].notna()]
    truth = last_waits(folder, 1)
    error = int(pd.read_parquet(folder / "data/ledger")["clock_error_ns"].max()) + own["error_ns"].max()
    found = []
    for end in own["comm_end_ns"].astype(np.int64).tolist():
        was = truth[np.abs(truth - end).argmin()]
        before = [series[series <= moment + 5 * MS].max(initial=0) for series, moment in ((true, was), (shown, end))]
        found.append(abs((was - before[0]) - (end - before[1])))
    assert len(found) >= len(truth) // 2
    assert np.median(found) <= 2 * error + 100_000
    return np.array(found)


def record(folder: Path, events: list[dict], true: np.ndarray, shifts: list[Shift]) -> None:
    """What test_trace_profiles.py needs of this run: the first seconds of the Timeline, and two narrow tables."""
    kept = Path(__file__).parents[1] / "data/merge"
    kept.mkdir(exist_ok=True)
    iterations = pd.read_parquet(folder / "data/iterations").head(30)
    until = iterations["end_ns"].max()
    columns = ["host", "job", "rank", "start_ns", "end_ns", "comm_end_ns"]
    iterations[columns].to_parquet(kept / "iterations.parquet")
    ledger = pd.read_parquet(folder / "data/ledger")[["host", "end_ns", "clock_offset_ns", "clock_error_ns"]]
    ledger.drop_duplicates(["host", "end_ns"]).to_parquet(kept / "ledger.parquet")
    with gzip.GzipFile(kept / "timeline.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(events[:4000]).encode())
    (kept / "truth.json").write_text(json.dumps({"ends_ns": true[true < until].tolist()}) + "\n")
