# SPDX-License-Identifier: Apache-2.0
"""The past: from a recorded dataset, from what snapshots told, and how rows become columns of a frame."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from snapshot_example import example

from netmon.commands import top
from netmon.dl.past_frames import column_width, flows_of, links_of, step_times
from netmon.errors import DataError
from netmon.history.past import DatasetPast, StoredRows
from netmon.records import Class, Direction
from netmon.top.collector_past import CollectorPast
from netmon.top.flows import owner
from netmon.top.steps import step_of, steps_of
from netmon.views import HOUR_NS, STEP, STEP_TIMES
from netmon.wire.questions import FullPart

RECORDED = Path(__file__).parents[1] / "data/verdict"
MS = 1_000_000


def rows(**columns: object) -> pd.DataFrame:
    plain = {"host": "h0", "interface": "eth0", "direction": "tx", "session": "s", "flow_id": 1, "class": "cross"}
    return pd.DataFrame(plain | columns)


def test_rows_become_columns_and_wide_ones_are_spread() -> None:
    found = rows(
        bucket_start_ns=[0, 10_000, 90_000, 200_000, -50_000],
        bucket_ns=[10_000, 10_000, 10_000, 10_000, 100_000],
        wire_bytes=[100, 200, 50, 999, 1000],
    )
    (link,) = links_of(found, 0, 100_000, {("h0", "eth0"): 10**9})
    assert (link.interval_ns, link.capacity_bps, link.direction) == (10_000, 10**9, Direction.TX)
    sent = link.wire_bps[:, Class.CROSS] * link.interval_ns / 8e9
    assert sent.tolist() == pytest.approx([200, 300, 100, 100, 100, 0, 0, 0, 0, 50])
    (flow,) = flows_of(found, 0, 100_000, lambda keys: [None], 5)
    assert flow.class_ == Class.CROSS
    assert not links_of(found[:0], 0, 100, {})


def test_columns_are_as_fine_as_can_be_kept() -> None:
    assert column_width(0, 300 * MS, 6, 10_000) == 10_000
    assert column_width(0, 60_000 * MS, 64, 10_000) == 10 * MS
    assert column_width(0, 300 * MS, 6, 100_000) == 100_000


def test_iterations_of_all_ranks_make_steps_and_a_job_may_begin_anew() -> None:
    told = [(rank, number, 1000 * run + 10 * number) for run in (0, 1) for number in range(8) for rank in (0, 1)]
    frame = pd.DataFrame(told, columns=["rank", "iteration", "start_ns"])
    frame["end_ns"] = frame["start_ns"] + np.where((frame["iteration"] == 7) & (frame["rank"] == 1), 30, 9)
    frame.loc[frame["start_ns"] >= 1000, "end_ns"] += 4  # it is slower than the one before it was
    (steps,) = step_times(frame.assign(job="a", relative=False)).values()
    assert steps["number"].tolist() == [*range(8), *range(8)]
    assert steps["longest_ns"][7] == 30
    assert steps["baseline_ns"].tolist() == [9] * 8 + [13] * 8
    (few,) = step_times(frame[frame["iteration"] < 5].assign(job="a", relative=False)).values()
    assert not few["baseline_ns"].any()


def test_a_dataset_gives_its_iterations_frames_and_where_the_time_went() -> None:
    past = DatasetPast(StoredRows(RECORDED))
    steps = past.steps()
    every = [
        (job, *step) for job, times in steps.jobs.items() for step in times[["number", "start_ns", "end_ns"]].tolist()
    ]
    frames = ((job, number, past.frame(job, number, since, until)) for job, number, since, until in every)
    job, number, frame = next(one for one in frames if one[2].snapshot.flows)  # few iterations' rows were kept
    since, until = frame.since_ns, frame.until_ns
    assert {span.rank for span in frame.spans} == {rank.rank for rank in frame.snapshot.jobs[0].ranks}
    assert all(since <= span.start_ns < span.end_ns <= until for span in frame.spans)
    assert frame.snapshot.links
    assert frame.snapshot.flows
    half = past.frame(job, number, since, (since + until) // 2)
    assert sum(flow.wire_bytes for flow in half.snapshot.flows) < sum(flow.wire_bytes for flow in frame.snapshot.flows)
    assert past.times(job, number, until) == ()  # nobody has told that it stood out


def test_a_dataset_that_is_not_there_or_empty_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        DatasetPast(StoredRows(tmp_path / "nothing")).steps()
    with pytest.raises(DataError, match="holds no row"):
        DatasetPast(StoredRows(tmp_path)).steps()


def test_the_newest_iteration_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    top.arguments(parser)
    assert top.run(parser.parse_args(["--data", str(RECORDED), "--once", "--job", "ddp-5"])) == 0
    assert "LINKS" in capsys.readouterr().out
    with pytest.raises(DataError, match="no iteration of it"):
        top.run(parser.parse_args(["--data", str(RECORDED), "--once", "--json", "--job", "nobody"]))


def test_what_snapshots_tell_is_remembered_once() -> None:
    steps = np.zeros(4, STEP)
    steps["rank"], steps["number"] = [0, 1, 0, 1], [7, 7, 8, 8]
    steps["start_ns"], steps["end_ns"] = [0, 0, 10**10, 10**10], [10**9, 10**9, 2 * 10**10, 2 * 10**10]
    moved = steps.copy()
    moved["end_ns"] += 1000
    job = example().jobs[0]
    verdict = replace(job.verdicts[0], end_ns=example().time_ns)
    job = replace(job, verdicts=(verdict,))
    past = CollectorPast("localhost:1")
    first, second = (replace(example(), jobs=(replace(job, steps=told),)) for told in (steps, moved[2:]))
    assert list(past.remember([first, second])) == [first, second]
    assert past._steps["resnet"]["end_ns"].tolist() == [10**9, 10**9, 2 * 10**10 + 1000, 2 * 10**10 + 1000]
    assert verdict.ranks
    assert past.times("resnet", verdict.iteration, verdict.end_ns) == verdict.ranks
    list(past.remember([replace(first, time_ns=verdict.end_ns + HOUR_NS, jobs=())]))
    assert past.times("resnet", verdict.iteration, verdict.end_ns) == ()


def test_the_iteration_that_is_meant_is_the_one_nearest_to_the_moment() -> None:
    from netmon.views import PastSteps

    table = np.zeros(4, STEP_TIMES)
    table["number"], table["start_ns"] = [1, 2, 1, 2], [10, 20, 1000, 1010]
    table["end_ns"] = table["start_ns"] + 9
    steps = steps_of(PastSteps({"a": table}), "a")
    assert step_of(steps, 2, 1005) == steps[3]
    assert step_of(steps, 2, 25) == steps[1]
    assert step_of(steps, 9, 100) == steps[2]
    assert step_of([], 9, 100) is None


def test_the_past_of_a_live_run_knows_owners_classes_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.zeros(2, STEP)
    steps["rank"], steps["number"], steps["end_ns"] = [0, 1], 7, 10**9
    told = {
        **{"host": ["h0", "h0", "h1"], "session": "s", "interface": "eth0", "direction": "rx", "flow_id": [1, 2, 3]},
        **{"bucket_start_ns": 10**8, "bucket_ns": 10**6, "wire_bytes": [5_000, 9_000, 5_000], "payload_bytes": 1},
        **{"class": ["DL-shared", "cross", "DL-only"], "job": "resnet", "iteration": 7},
        **{"src": "10.0.0.2", "dst": "10.0.0.1", "src_port": [1, 2, 3], "dst_port": 5201, "protocol": 6},
        **{"process": ["python", "iperf3", "python"], "container": "", "user": "root", "pid": [11, 12, 13]},
        **{"owner_job": ["resnet", "", "resnet"], "owner_rank": [0, -1, 1], "owner_source": "socket"},
    }
    part = FullPart("h0", pa.Table.from_pandas(pd.DataFrame(told)), "")
    monkeypatch.setattr("netmon.wire.questions.get_full", lambda *_: iter([part]))
    monkeypatch.setattr("netmon.top.collector_past.watch_once", lambda *_: example())
    past = CollectorPast("localhost:1")
    list(past.remember([replace(example(), jobs=(replace(example().jobs[0], steps=steps),))]))
    [job] = past.frame("resnet", 7, 0, 10**9).snapshot.jobs
    assert (job.shared_ranks, job.known_ranks) == (1, 2)
    assert [rank.node_shared for rank in job.ranks] == [True, False]
    flows = past.frame("resnet", 7, 0, 10**9).snapshot.flows
    seen = {(view.flow.owner.process, view.flow.owner.pid): (view.class_, view.flow.owner.job) for view in flows[:2]}
    assert seen[("iperf3", 12)] == (Class.CROSS, "")
    assert owner(flows[0].flow.owner) == "iperf3[12]"
