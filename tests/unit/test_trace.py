# SPDX-License-Identifier: Apache-2.0
"""Traces for Perfetto, read back event by event."""

import argparse
import gzip
import itertools
import json
from collections import defaultdict

import pandas as pd
import pyarrow as pa
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from test_store import store_small

from netmon.commands import trace
from netmon.errors import DataError, UsageError
from netmon.trace.dataset import COLUMNS, Traffic

MS = 1_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trace") / "data"
    store_small(directory)
    return directory


def run(data, out, *options):
    parser = argparse.ArgumentParser()
    trace.arguments(parser)
    return trace.run(parser.parse_args([str(data), "--out", str(out), *options]))


class Read:
    """A file in Perfetto's format, with every begin's end found."""

    def __init__(self, path):
        self.names, self.parents, self.slices, self.points, self.flags = {}, {}, [], defaultdict(list), []
        open_ = defaultdict(list)
        parsed = Trace.FromString(path.read_bytes())
        for packet in parsed.packet:
            if packet.HasField("track_descriptor"):
                told = packet.track_descriptor
                self.names[told.uuid], self.parents[told.uuid] = told.name, told.parent_uuid
            elif packet.HasField("track_event"):
                event = packet.track_event
                track = event.track_uuid
                if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    open_[track].append((packet.timestamp, event.name))
                elif event.type == TrackEvent.TYPE_SLICE_END:
                    begun, name = open_[track].pop()
                    self.slices.append((self.names[track], name, begun, packet.timestamp, len(open_[track])))
                elif event.type == TrackEvent.TYPE_COUNTER:
                    self.points[track].append((packet.timestamp, event.double_counter_value))
                else:
                    self.flags.append((self.names[track], event.name, packet.timestamp))
        assert not any(open_.values())


def test_iterations_and_bytes_are_those_of_the_dataset(data, tmp_path, capsys):
    out = tmp_path / "x.pftrace"
    assert run(data, out) == 0
    assert str(out) in capsys.readouterr().out
    read = Read(out)
    iterations = pd.read_parquet(data / "iterations")
    drawn = [(begun, end) for lane, name, begun, end, depth in read.slices if lane == "train/0" and not depth]
    assert drawn == list(zip(iterations["start_ns"], iterations["end_ns"], strict=True))
    inner = [name for lane, name, *_, depth in read.slices if lane == "train/0" and depth]
    assert set(inner) <= {"before the first gradient", "communicating", "after the last"}
    sent = sum(
        value * (after - time) / 8e9
        for points in read.points.values()
        for (time, value), (after, _) in itertools.pairwise(points)
    )
    assert round(sent) == pd.read_parquet(data / "buckets")["wire_bytes"].sum()
    assert [points[-1][1] for points in read.points.values()] == [0.0] * len(read.points)
    assert "host h0" in read.names.values()
    assert list(tmp_path.iterdir()) == [out]


def test_json_says_the_same(data, tmp_path):
    run(data, tmp_path / "x.pftrace")
    run(data, tmp_path / "x.json.gz")
    read, told = Read(tmp_path / "x.pftrace"), json.loads(gzip.decompress((tmp_path / "x.json.gz").read_bytes()))
    events = told["traceEvents"]
    slices = [(round(e["ts"] * 1000), round(e["dur"] * 1000), e["name"]) for e in events if e["ph"] == "X"]
    base = told["baseTimeNanoseconds"]
    assert sorted(slices) == sorted((begun - base, end - begun, name) for _, name, begun, end, _ in read.slices)
    assert sum(e["ph"] == "C" for e in events) == sum(map(len, read.points.values()))


def test_part_of_it(data, tmp_path):
    out = tmp_path / "x.pftrace"
    run(data, out, "--job", "train", "--iterations", "2:4")
    numbers = [name for lane, name, *_, depth in Read(out).slices if lane == "train/0" and not depth]
    assert numbers == ["iteration 2", "iteration 3"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--job", "other"], "no iteration of it there; it has jobs: train"),
        (["--iterations", "900:"], "holds none of them"),
        (["--since", "2031-01-01"], "no traffic there"),
    ],
)
def test_what_is_not_there_is_said(data, tmp_path, options, reason):
    with pytest.raises(DataError, match=reason):
        run(data, tmp_path / "x.pftrace", *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--iterations", "1:2"], "with --iterations: that takes its dataset"),
        (["--merge", "a.json"], "with --merge"),
        (["--last", "2h"], "the last 2 h: at most 1 min"),
    ],
)
def test_what_a_live_collector_cannot_do(tmp_path, options, reason):
    with pytest.raises(UsageError, match=reason):
        run(f"unix:{tmp_path}/nobody.sock", tmp_path / "x.pftrace", *options)


def test_the_format_is_told_by_the_name(data, tmp_path):
    with pytest.raises(UsageError, match="end it in"):
        run(data, tmp_path / "x.txt")


def rows(*rows):
    return pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])


def test_rates_fall_to_zero_and_transfers_are_cut_at_silence_and_iterations():
    traffic = Traffic(MS)
    link = ("h0", "s", "eth0", "tx")
    traffic.add(rows((*link, 1, 0, MS, 1000, 900, "DL-only", 3), (*link, 1, MS, MS, 500, 400, "DL-only", 3)))
    traffic.add(rows((*link, 1, 40 * MS, MS, 70, 60, "DL-only", 3), (*link, 1, 41 * MS, MS, 7, 6, "DL-only", 4)))
    traffic.add(rows((*link, 2, 0, MS, 9, 9, "cross", -1), (*link, 2, 80 * MS, MS, 9, 9, "cross", -1)))
    curves = {name[3]: (times.tolist(), values.tolist()) for name, times, values in traffic.rates()}
    assert curves["cross"] == ([0, MS, 80 * MS, 81 * MS], [72_000.0, 0.0, 72_000.0, 0.0])
    assert curves["DL-only"][1] == [8_000_000.0, 4_000_000.0, 0.0, 560_000.0, 56_000.0, 0.0]
    found = traffic.transfers()
    assert list(zip(found["flow_id"], found["iteration"], found["wire_bytes"], found["end_ns"], strict=True)) == [
        (1, 3, 1570, 41 * MS),
        (1, 4, 7, 42 * MS),
        (2, -1, 9, MS),
        (2, -1, 9, 81 * MS),
    ]
