# SPDX-License-Identifier: Apache-2.0
"""Traces that profilers wrote, beside the dataset on its clock."""

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_store import store_small
from test_trace import MS, Read, run

from netmon.errors import DataError
from netmon.trace.merge import happenings, open_profile, place


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("profiles") / "data"
    store_small(directory)
    return directory


def kineto(path, rank=1, base=10**18, events=(), **more):
    document = {"baseTimeNanoseconds": base, "traceEvents": list(events), **more}
    if rank is not None:
        document["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 3}
    path.write_text(json.dumps(document))
    return path


EVENTS = [
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "python"}},
    {"ph": "X", "name": "all_reduce", "pid": 7, "tid": 8, "ts": 1000.5, "dur": 20.25, "args": {"bytes": 4, "odd": [1]}},
    {"ph": "i", "name": "mark", "pid": 7, "tid": 8, "ts": 1500},
    {"ph": "X", "name": "no time", "pid": 7, "tid": 8, "ts": "x", "dur": 1},
    "no event",
]


def test_a_trace_of_pytorch(tmp_path):
    profile = open_profile(kineto(tmp_path / "a.json", events=EVENTS))
    assert (profile.rank, profile.size, profile.cut) == (1, 3, "")
    first, second = happenings(profile)
    assert (first.start_ns - 10**18, first.length_ns, first.name, first.details) == (
        1_000_500,
        20_250,
        "all_reduce",
        {"bytes": 4},
    )
    assert (second.start_ns - 10**18, second.length_ns) == (1_500_000, None)
    assert profile.threads == {("7", "8"): "python"}


def test_a_timeline_that_was_cut(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(
        '[{"ph": "M", "name": "start_time", "args": {"start_time_since_epoch_in_micros": 1700000000000000}},'
        '{"ph": "B", "name": "NEGOTIATE", "ts": 100, "pid": 1},{"ph": "E", "ts": 150, "pid": 1},{"ph": "B", "na'
    )
    profile = open_profile(path)
    (only,) = happenings(profile)
    assert (profile.rank, only.start_ns, only.length_ns) == (0, 1_700_000_000_000_100_000, 50_000)
    assert profile.cut


def test_a_zipped_trace_that_was_cut(tmp_path):
    whole = gzip.compress(kineto(tmp_path / "a.json", events=EVENTS * 500).read_bytes())
    path = tmp_path / "rank-2.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    profile = open_profile(path)
    assert profile.rank in (1, 2)
    assert list(happenings(profile))
    assert profile.cut


def test_absolute_times_need_no_base(tmp_path):
    path = tmp_path / "rank3.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 17e14, "dur": 1, "pid": 1, "tid": 1}]}))
    profile = open_profile(path)
    (only,) = happenings(profile)
    assert (profile.rank, only.start_ns) == (3, 1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PNG", "no trace in JSON"),
        ('{"traceEvents": [{"ph": "X", "ts": 5, "dur": 1}]}', "no clock that could be compared"),
        ('{"baseTimeNanoseconds": 5000000000000000000, "traceEvents": [{"ts": 5}]}', "no clock that could be compared"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}]}', "holds no trace events"),
        ('{"rows": [1, 2], "what": "of another tool"}', "holds no trace events"),
        ('{"traceEvents": [}', "cannot read"),
        ("", "no trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, reason):
    path = tmp_path / "rank0.json"
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        open_profile(path)


ITERATIONS = pd.DataFrame(
    {
        "job": ["train"] * 4,
        "rank": [0, 1] * 2,
        "host": ["h0", "h1"] * 2,
        "end_ns": [5, 6, 7, 8],
        "comm_end_ns": [4, 5, 6, 7],
    }
)
CLOCKS = pd.DataFrame(
    {"host": ["h1"] * 2, "time_ns": [0, 10**9], "clock_offset_ns": [5 * MS, 7 * MS], "clock_error_ns": [100, 200]}
)


def test_times_are_moved_by_the_clock_of_then(tmp_path):
    (placed,) = place([kineto(tmp_path / "a.json")], ITERATIONS, CLOCKS, None, {})
    assert (placed.job, placed.rank, placed.host, placed.error_ns) == ("train", 1, "h1", 200)
    for time, offset in ((0, 5 * MS), (5 * 10**8, 6 * MS), (10**9, 7 * MS), (2 * 10**9, 7 * MS)):
        assert placed.on_the_clock(np.array([time + offset])).tolist() == [time]


def test_whose_trace_it_is_has_to_be_known(tmp_path):
    nobody = kineto(tmp_path / "a.json", rank=None)
    with pytest.raises(DataError, match="names no rank"):
        place([nobody], ITERATIONS, CLOCKS, None, {})
    with pytest.raises(DataError, match="no iteration of rank 9; it has ranks 0, 1"):
        place([kineto(tmp_path / "b.json", rank=9)], ITERATIONS, CLOCKS, None, {})
    one, two = kineto(tmp_path / "c.json"), kineto(tmp_path / "d.json")
    with pytest.raises(DataError, match="both are of rank 1"):
        place([one, two], ITERATIONS, CLOCKS, None, {})
    with pytest.raises(DataError, match="does not say how h0's clock went"):
        place([kineto(tmp_path / "e.json", rank=0)], ITERATIONS, CLOCKS, None, {})
    both = pd.concat([ITERATIONS, ITERATIONS.assign(job="other")])
    with pytest.raises(DataError, match="other, train have a rank 1; give --job"):
        place([one], both, CLOCKS, None, {})


def test_profiles_beside_the_dataset(data, tmp_path, capsys):
    first = pd.read_parquet(data / "iterations").iloc[0]
    clocks = pd.read_parquet(data / "ledger")[["clock_offset_ns", "clock_error_ns"]]
    offset = int(clocks["clock_offset_ns"].median())
    begun = (first["start_ns"] + offset - 10**18) / 1000
    events = [*EVENTS, {"ph": "X", "name": "step", "pid": 7, "tid": 8, "ts": begun, "dur": 1000}]
    path = kineto(tmp_path / "a.json", rank=0, events=events)
    run(data, tmp_path / "x.pftrace", "--merge", str(path))
    assert f"{path}: rank 0 of train on h0, shifted by" in capsys.readouterr().out
    read = Read(tmp_path / "x.pftrace")
    ((lane, _, start, end, _),) = [one for one in read.slices if one[1] == "step"]
    assert lane == "train/0 python"
    assert (abs(start - first["start_ns"]) <= 1_000, end - start) == (True, 1_000_000)
    bounds = [one for one in read.slices if one[0] == "train/0 last gradient ± clock"]
    assert len(bounds) == pd.read_parquet(data / "iterations")["comm_end_ns"].notna().sum()


INSPECTED = {
    "header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {"dump_timestamp_us": 1_748_030_377_748_202},
    "coll_perf": {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 61_974},
}


def test_what_ncclis_inspector_wrote(tmp_path):
    verbose = json.loads(json.dumps(INSPECTED))
    verbose["coll_perf"]["event_trace_ts"] = {"coll_start_ts": 1_748_030_377_000_000}
    path = tmp_path / "nccl.log"
    path.write_text(json.dumps(INSPECTED, indent=1) + "\n" + json.dumps(verbose) + '\n{"header": {"ra')
    profile = open_profile(path)
    assert (profile.rank, profile.size) == (2, 8)
    found = list(happenings(profile))
    assert [(each.name, each.length_ns) for each in found] == [("AllReduce", 61_974_000)] * 2
    assert [each.start_ns for each in found] == [1_748_030_377_686_228_000, 1_748_030_377_000_000_000]
    assert found[0].details["coll_sn"] == 7
    assert profile.threads[found[0].thread] == "NCCL communicator 0x7f"
    assert profile.cut == "its end is missing"


def test_a_width_finer_than_the_rows_is_that_of_the_rows(data, tmp_path, capsys):
    coarse = Read((run(data, tmp_path / "a.pftrace"), tmp_path / "a.pftrace")[1])
    fine = Read((run(data, tmp_path / "b.pftrace", "--width", "1us"), tmp_path / "b.pftrace")[1])
    rows = pd.read_parquet(data / "buckets")
    most = (rows.groupby(["direction", "class", "bucket_start_ns"], observed=True)["wire_bytes"].sum() * 8e9).max()
    highest = [max(v for points in read.points.values() for _, v in points) for read in (coarse, fine)]
    assert highest[1] == pytest.approx(most / rows["bucket_ns"].max())
    assert highest[0] <= highest[1]


def test_what_begins_and_ends_by_itself(tmp_path):
    path = tmp_path / "rank1.json"
    event = {"name": "AllReduce", "cat": "COLL", "id": 3, "pid": 1, "tid": 1, "ts": 1e15 + 10}
    path.write_text(
        json.dumps([event | {"ph": "b"}, event | {"ph": "b", "id": 4}, event | {"ph": "e", "ts": 1e15 + 12}])
    )
    found = [(each.name, each.length_ns) for each in happenings(open_profile(path))]
    assert found == [("AllReduce", 2_000), ("AllReduce (never ends)", None)]


def slice_of(start, length, name, **more):
    return {"ph": "X", "name": name, "pid": 7, "tid": 8, "ts": start, "dur": length, **more}


def test_what_overlaps_has_lanes_of_its_own_and_what_lies_within_has_none(data, tmp_path, capsys):
    begun = pd.read_parquet(data / "iterations")["start_ns"].iloc[0]
    offset = int(pd.read_parquet(data / "ledger")["clock_offset_ns"].median())
    events = [
        slice_of(4, 2, "inner"),
        slice_of(0, 10, "outer"),
        slice_of(0, 4, "first, within"),
        slice_of(10, 5, "next"),
        slice_of(8, 4, "across"),
        slice_of(9, 10, "across both"),
        slice_of(10, 5.5, "rounded"),
        {"ph": "b", "cat": "c", "id": 1, "name": "by itself", "pid": 7, "tid": 9, "ts": 0},
        {"ph": "b", "cat": "c", "id": 2, "name": "too", "pid": 7, "tid": 9, "ts": 3},
        {"ph": "e", "cat": "c", "id": 1, "pid": 7, "tid": 9, "ts": 6},
        {"ph": "e", "cat": "c", "id": 2, "pid": 7, "tid": 9, "ts": 9},
        {"ph": "B", "name": "begun", "pid": 7, "tid": 9, "ts": 5},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "told at the end"}},
    ]
    path = kineto(tmp_path / "a.json", rank=0, base=int(begun) + offset + MS, events=events)
    run(data, tmp_path / "x.pftrace", "--merge", str(path))
    assert "10 events" in capsys.readouterr().out
    read = Read(tmp_path / "x.pftrace")
    lane = "train/0 told at the end"
    found = {
        name: (at.removeprefix(lane), end - begin, depth)
        for at, name, begin, end, depth in read.slices
        if at.startswith(lane)
    }
    assert found == {
        "outer": ("", 10_000, 0),
        "first, within": ("", 4_000, 1),
        "inner": ("", 2_000, 1),
        "rounded": ("", 5_500, 0),
        "next": ("", 5_000, 1),
        "across": (" (2)", 4_000, 0),
        "across both": (" (3)", 10_000, 0),
    }
    assert {at for at, name, *_ in read.slices if name == "too"} == {"train/0 7/9 (2)"}
    assert [name for _, name, _ in read.flags if "begun" in name] == ["begun (never ends)"]


def test_a_trace_of_any_size_is_read_in_the_memory_of_an_event(tmp_path):
    path = tmp_path / "rank0.json.gz"
    event = b'{"ph": "X", "pid": 1, "tid": 1, "ts": 1000000000000000.5, "dur": 1, "name": "' + b"x" * 300 + b'"},'
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[" + event * 40_000)  # 16 MB; and cut
    profile = open_profile(path)
    tracemalloc.start()
    count = sum(1 for _ in happenings(profile))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 40_000
    assert most < 3_000_000
    assert profile.cut


RECORDED = Path(__file__).parents[1] / "data/merge"


def test_a_recorded_timeline_of_horovod_is_where_it_was():
    """Of real Horovod, its host's clock a quarter of a second ahead and fast; tests/lab/test_trace_merge.py made it."""
    iterations = pd.read_parquet(RECORDED / "iterations.parquet")
    ledger = pd.read_parquet(RECORDED / "ledger.parquet").rename(columns={"end_ns": "time_ns"})
    (placed,) = place([RECORDED / "timeline.json.gz"], iterations, ledger, None, {})
    assert (placed.rank, placed.host) == (0, "h0")
    assert placed.shift_ns < -200 * MS
    own = [each for each in happenings(placed.profile) if each.name == "GLOO_ALLREDUCE"]
    shown = np.sort(placed.on_the_clock(np.array([each.start_ns + each.length_ns for each in own])))
    true = np.array(json.loads((RECORDED / "truth.json").read_text())["ends_ns"])
    until = min(true[-1], shown[-1])
    true, shown = true[true < until - MS], shown[shown < until - MS]
    assert len(true) == len(shown) > 20
    assert np.abs(true - shown).max() <= placed.error_ns + 2_000  # a Timeline has µs


DEEP, LONG = 1_000_000, 1 << 24


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"traceEvents":' + "[" * DEEP, "levels deep"),
        ('{"traceEvents":[{"ts":1e15,"ph":"X","args":' + '{"a":' * DEEP, "levels deep"),
        ("[" * DEEP, "levels deep"),
        ('{"traceEvents":[{"ts":1e15,"ph":"X","name":"' + "a" * LONG + '"}]}', "has more than 4 MiB"),
        ('{"traceEvents":[{"ts":1e15,"ph":"X","args":[' + "0," * LONG + "0]}]}", "has more than 4 MiB"),
        ('{"traceEvents":[' + " " * (LONG << 3) + "]}", "200 times as long"),
    ],
)
def test_what_unzips_into_much_memory_is_refused_in_a_line(tmp_path, text, why):
    """In a process that may have a gigabyte: it ends where it takes more."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    program = (
        "import resource, sys; from pathlib import Path; from netmon.trace.merge import happenings, open_profile\n"
        "from netmon.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "try: list(happenings(open_profile(Path(sys.argv[1]))))\n"
        "except DataError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=120)
    assert why in done.stdout, done.stderr[-500:]
    assert len(done.stdout.splitlines()) == 1


def test_words_and_escapes_do_not_count_as_depth(tmp_path):
    names = ["[" * 500, '\\"{[' * 300, "\\\\", "}" * 500]
    events = [{"ph": "i", "name": name, "pid": 1, "tid": 1, "ts": number} for number, name in enumerate(names * 2000)]
    found = list(happenings(open_profile(kineto(tmp_path / "a.json", events=events))))
    assert [one.name for one in found] == [name[:200] for name in names * 2000]
