# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of a real DDP training, of hosts whose clocks are set apart, on one clock."""

import contextlib
import json
import re
import time

import pytest

from netmon.bench import clock
from netmon.bench.relay import Relay, Shift
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
