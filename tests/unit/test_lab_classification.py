# SPDX-License-Identifier: Apache-2.0
"""Classes against the lab's own knowledge of who sent what, and iterations against the log."""

import json

import pandas as pd
import pytest

from netmon.history.dataset import Tables
from netmon.lab.outcome import accuracy, classification
from netmon.lab.record import Run

HOSTS = [("h0", "198.18.0.1", 0), ("h1", "198.18.0.2", 1), ("h2", "198.18.0.3", None)]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "lab").mkdir()
    hosts = [{"name": name, "address": address, "rank": rank} for name, address, rank in HOSTS]
    events = [{"event": "start", "mono_ns": 0, "utc_ns": 10**18}]
    (tmp_path / "lab" / "run.json").write_text(json.dumps({"job": "ring", "hosts": hosts, "events": events}))
    (tmp_path / "lab" / "cross.json").write_text(json.dumps([{"to": "h0", "to_port": 5201}]))
    return tmp_path


def store(data, table, rows):
    folder = data / table / "date=2026-01-01" / "hour=00"
    folder.mkdir(parents=True)
    pd.DataFrame(rows).assign(host="h0").to_parquet(folder / "part-0.parquet")


def flow(number, src, dst, src_port=40000, dst_port=29500):
    ends = {"src": src, "dst": dst, "src_port": src_port, "dst_port": dst_port, "protocol": 6}
    return {"session": "s", "flow_id": number, **ends}


def test_bytes_are_right_wrong_or_unclassified(data):
    rank0, rank1, other = (address for _, address, _ in HOSTS)
    flows = [
        flow(1, rank0, rank1),
        flow(2, other, rank0, dst_port=5201),
        flow(3, rank0, other, src_port=5201),
        flow(4, rank1, rank0, dst_port=5201),  # cross traffic between two ranks' hosts
        flow(5, rank1, rank0),
    ]
    classes = {1: "DL-shared", 2: "cross", 3: "unclassified", 4: "DL-only", 5: "DL-only"}
    store(data, "flows", [*flows, flows[0]])  # a flow's row comes again with its owner
    bucket = {"session": "s", "bucket_start_ns": 10**18}
    buckets = [{**bucket, "flow_id": n, "class": name, "wire_bytes": 10**n} for n, name in classes.items()]
    before = {**buckets[0], "bucket_start_ns": 10**18 - 1}  # of another run
    store(data, "buckets", [*buckets, *buckets, before])
    known = classification(Tables(data), Run(data / "lab"))
    assert known.right_bytes == 2 * (10 + 100 + 100_000)
    assert known.wrong_bytes == 2 * 10_000
    assert known.unclassified_bytes == 2 * 1000
    assert known.right_share == pytest.approx(100_110 / 111_110)


def iteration(source, rank, number, start, job="ring", relative=False):
    moments = {"start_moment": "first_enqueue", "end_moment": "last_wait", "relative": relative}
    times = {"start_ns": 10**18 + start, "end_ns": 10**18 + start + 80, "comm_start_ns": 10**18 + start}
    ends = {"comm_end_ns": 10**18 + start + 80}
    return {"job": job, "source": source, "rank": rank, "iteration": number, **moments, **times, **ends}


def test_each_source_is_held_against_the_log(data):
    lines = [f"{{rank}},{k},{1000 * k},{1000 * k + 100},{1000 * k + 180},{1000 * k + 200},0" for k in range(3)]
    for rank in (0, 1):
        text = "\n".join(["header", *lines]).format(rank=rank)
        (data / "lab" / f"rank-{rank}.csv").write_text(text + "\n")
    exact = [iteration("hook", rank, k, 1000 * k + 107) for rank in (0, 1) for k in range(3)]
    invented = [iteration("hook", 0, 7, 7000)]
    of_another = [iteration("hook", 0, 1, 1100, job="other")]
    guessed = [iteration("inferred", 0, 40 + k, 1000 * k + 110, job="10.0.0.1", relative=True) for k in (0, 2, 5)]
    store(data, "iterations", [*exact, *invented, *of_another, *guessed])
    hook, inferred = accuracy(Tables(data), Run(data / "lab"))
    assert (hook.source, hook.logged, hook.found, hook.invented) == ("hook", 6, 6, 1)
    assert {each.moment: each.percentile(50) for each in hook.moments} == {"first_enqueue": 7, "last_wait": 7}
    assert (inferred.source, inferred.found, inferred.invented) == ("inferred", 2, 1)
