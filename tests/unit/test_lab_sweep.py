# SPDX-License-Identifier: Apache-2.0
"""What a sweep will do, what it has done already, and what it came to."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from netmon.commands.lab_results import print_sweep
from netmon.errors import DataError, UsageError
from netmon.lab import sweep as sweeps
from netmon.lab.outcome import sweep_document
from netmon.lab.record import Run
from netmon.lab.spec import RunSpec
from netmon.lab.sweep import SweepSpec, plan, run_spec


@pytest.fixture
def spec(tmp_path):
    return SweepSpec(RunSpec(tmp_path, iterations=3), models=("resnet50",), profiles=("burst",), levels=(0.0, 0.8))


def test_every_combination_is_a_run_of_its_own_name(spec):
    spec = replace(spec, models=("resnet50", "vgg16"), profiles=("burst", "websearch"), repetitions=3)
    runs = plan(spec)
    assert len(runs) == len({run.id for run in runs}) == 2 * 2 * 2 * 3
    assert "vgg16-burst-80-3" in {run.id for run in runs}


def test_the_order_is_random_but_the_seeds(spec):
    spec = replace(spec, repetitions=20)
    assert plan(spec) == plan(spec)
    assert plan(spec) != sorted(plan(spec), key=lambda run: run.id)
    assert plan(spec) != plan(replace(spec, base=replace(spec.base, seed=2)))


def test_a_run_has_its_model_its_traffic_from_the_start_and_a_job_of_its_own(spec):
    (run,) = (run for run in plan(spec) if run.level)
    one = run_spec(spec, run)
    assert (one.model, one.cross_profile, one.cross_load, one.cross_after) == ("resnet50", "burst", 0.8, 0)
    assert one.job == run.id


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"models": ("lenet",)}, "no model 'lenet'"),
        ({"models": ()}, "without models"),
        ({"profiles": ("voip",)}, "no cross profile 'voip'"),
        ({"levels": (0.5, 80.0)}, "a share of the rate"),
        ({"levels": (0.5, 0.5)}, "a level twice"),
        ({"repetitions": 0}, "0 repetitions"),
    ],
)
def test_a_sweep_that_cannot_be_done(spec, change, reason):
    with pytest.raises(UsageError, match=reason):
        sweeps.sweep(replace(spec, **change))


def write_run(spec, run, outcome, step_ns=1000):
    folder = spec.base.data / "lab" / "runs" / run.id
    folder.mkdir(parents=True)
    known = {"ring": [0, 1, 3], "rate_bps": 10**9, "monitor": False}
    (folder / "run.json").write_text(json.dumps({"outcome": outcome, "job": run.id, "spec": known, "layers": [10**6]}))
    cross = {"started": {"mono_ns": 0}, "ended": {"mono_ns": 10**12}, "bytes_sent": 10**8, "seconds": 1.0}
    (folder / "cross.json").write_text(json.dumps([cross] if run.level else []))
    steps = [f"0,{k},{k * step_ns},{k * step_ns},{(k + 1) * step_ns},{(k + 1) * step_ns},0" for k in range(3)]
    (folder / "rank-0.csv").write_text("\n".join(["header", *steps]) + "\n")


def test_a_sweep_that_is_done_is_not_done_again(spec):
    runs = plan(spec)
    sweeps._folder(spec, runs)
    for run in runs:
        write_run(spec, run, "complete")
    assert sweeps.sweep(spec) == runs  # without root: nothing is built


def test_only_a_complete_run_counts(spec):
    first, second = plan(spec)
    write_run(spec, first, "interrupted")
    assert not Run(spec.base.data / "lab" / "runs" / first.id).complete
    assert not Run(spec.base.data / "lab" / "runs" / second.id).complete


def test_another_sweep_is_not_gone_on_with(spec):
    sweeps._folder(spec, plan(spec))
    sweeps._folder(spec, plan(spec))
    other = replace(spec, levels=(0.0, 0.9))
    with pytest.raises(DataError, match="other options"):
        sweeps._folder(other, plan(other))


def test_the_time_left_follows_what_runs_took(spec, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: now[0])
    specs = {run.id: run_spec(spec, run) for run in plan(spec)}
    (one, first), (other, second) = ((run, sweeps.expected_seconds(each)) for run, each in specs.items())
    clock = sweeps.TimeLeft(specs)
    assert clock.seconds(one, 0) == pytest.approx(first + second)
    now[0] += 3 * first
    clock.finished(one)
    assert clock.seconds(other, 0) == pytest.approx(3 * second)
    assert clock.seconds(other, 3) == pytest.approx(0, abs=1e-9)


def test_what_a_sweep_came_to(spec):
    quiet, disturbed = sorted(plan(spec), key=lambda run: run.level)
    sweeps._folder(spec, plan(spec))
    write_run(spec, quiet, "complete", step_ns=100_000_000)
    write_run(spec, disturbed, "complete", step_ns=300_000_000)
    document = sweep_document(spec.base.data)
    (model,) = document["models"]
    assert model["quiet_ns"] == 100_000_000
    assert model["congestion_point"] == pytest.approx(1 - 8 * (2 * 2 / 3 * 4e6) / 1e8)
    assert {run["level"]: run["median_ns"] for run in document["runs"]} == {0.0: 1e8, 0.8: 3e8}
    console = Console(record=True, width=120)
    print_sweep(document, console)
    shown = console.export_text()
    assert "100 ms" in shown
    assert "300 ms" in shown


def told(found, wrong_bytes, f1):
    error = {"median_ns": 20_000.0, "p99_ns": 300_000.0, "largest_ns": 400_000.0, "left_out": 0}
    source = {"source": "hook", "logged": 60, "found": found, "invented": 1, "errors": {"step_start": error}}
    score = {"source": "inferred", "reference": "hook", "iterations": 20, "found": 20, "matched": 19, "f1": f1}
    right = {"right_bytes": 9000, "wrong_bytes": wrong_bytes, "unclassified_bytes": 0, "right_share": 0.9}
    return {"sources": [source], "scores": [score], "classification": right}


def test_how_well_a_sweep_was_told_is_shown_by_run_and_in_all(spec):
    runs = [
        {"id": run.id, "model": "m", "profile": "burst", "level": run.level, "median_ns": 1e8} for run in plan(spec)
    ]
    for run, found in zip(runs, (60, 58), strict=True):
        run |= told(found, wrong_bytes=500, f1=found / 60)
    console = Console(record=True, width=160)
    print_sweep({"data": "out", "models": [], "runs": runs}, console)
    shown = console.export_text()
    assert "58/60" in shown
    assert "20 us, 300 us" in shown.replace("µ", "u")
    assert "hook: iterations found: 118 of 120, invented: 2" in shown
    assert "inferred against hook: 38 of 40 iterations, 2 others; the worst run's F1 0.967" in shown
    assert "bytes in the right class: 94.7368%" in shown


def test_a_sweep_that_was_killed_at_its_first_run(spec):
    sweeps._folder(spec, plan(spec))
    assert sweep_document(spec.base.data) == {"data": str(spec.base.data), "models": [], "runs": []}
