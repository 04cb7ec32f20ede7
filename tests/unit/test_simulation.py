# SPDX-License-Identifier: Apache-2.0
"""A recorded training as the input of simulators, each format read back by what reads it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic_dataset
from chakra.schema.protobuf.et_def_pb2 import ALL_REDUCE, COMM_COLL_NODE, COMP_NODE, GlobalMetadata, Node
from google.protobuf.proto import parse_length_prefixed
from scapy.layers import inet, l2  # noqa: F401 (the reader knows what has been imported)
from scapy.utils import rdpcap
from test_store import store_small

from netmon.cli import main
from netmon.dl.generated import read_generator
from netmon.errors import DataError

JOB = "synthetic-websearch-0.2"
US = 1000


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("simulation")
    synthetic_dataset.write_dataset(folder, iterations=6, thin=5)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pcap") / "data"
    store_small(folder)
    return folder


def export(data: Path, name: str, out: Path, *more: str) -> int:
    return main(["export", "--data", str(data), "--format", name, "--out", str(out), *more])


def of_job(data: Path, table: str) -> pd.DataFrame:
    rows = pd.read_parquet(data / table)
    return rows[rows["job"] == JOB]


def sent_payload(data: Path) -> int:
    flows, buckets = of_job(data, "flows"), pd.read_parquet(data / "buckets")
    sent = flows[flows["direction"] == "tx"][["session", "flow_id"]].astype({"session": str})
    rows = buckets.astype({"session": str}).merge(sent.drop_duplicates(), on=["session", "flow_id"])
    return int(rows.loc[rows["job"] == JOB, "payload_bytes"].sum())


def test_flows_for_ns3(sweep, tmp_path):
    assert export(sweep, "ns3", tmp_path / "flows", "--job", JOB) == 0
    first, *lines = (tmp_path / "flows").read_text().splitlines()
    assert int(first) == len(lines)
    rows = [line.split() for line in lines]
    assert {len(row) for row in rows} == {6}
    assert sum(int(row[4]) for row in rows) == sent_payload(sweep)
    assert min(float(row[5]) for row in rows) == 0
    nodes = dict(line.split() for line in (tmp_path / "flows.nodes").read_text().splitlines())
    assert {(nodes[row[0]], nodes[row[1]]) for row in rows} == {("h0", "h1"), ("h1", "h2"), ("h2", "h0")}


def test_connections_for_htsim(sweep, tmp_path):
    assert export(sweep, "htsim", tmp_path / "x.cm", "--job", JOB) == 0
    nodes, connections, *lines = (tmp_path / "x.cm").read_text().splitlines()
    assert (nodes, connections) == ("Nodes 3", f"Connections {len(lines)}")
    words = [line.split(" ") for line in lines]
    assert [word[1::2] for word in words] == [["id", "start", "size"]] * len(words)
    assert [int(word[2]) for word in words] == list(range(1, len(words) + 1))
    assert sum(int(word[6]) for word in words) == sent_payload(sweep)


def read_trace(path: Path) -> list[Node]:
    with path.open("rb") as file:
        assert parse_length_prefixed(GlobalMetadata, file).version
        nodes = []
        while (node := parse_length_prefixed(Node, file)) is not None:
            nodes.append(node)
        return nodes


def test_execution_traces_have_what_was_computed_and_reduced(sweep, tmp_path):
    assert export(sweep, "chakra", tmp_path / "et", "--job", JOB, "--iterations", "1:4") == 0
    assert sorted(path.name for path in (tmp_path / "et").iterdir()) == [f"chakra.{rank}.et" for rank in range(3)]
    rows = of_job(sweep, "iterations")
    for rank in range(3):
        nodes = read_trace(tmp_path / f"et/chakra.{rank}.et")
        own = rows[(rows["rank"] == rank) & rows["iteration"].between(1, 3)].sort_values("iteration")
        kinds = [node.type for node in nodes]
        assert kinds == [COMP_NODE, COMM_COLL_NODE, COMP_NODE] * 3
        assert [node.id for node in nodes] == list(range(1, 10))
        assert [list(node.data_deps) for node in nodes] == [[], *([number] for number in range(1, 9))]
        said = {a.name: a.int64_val for a in nodes[1].attr if a.name.startswith("comm")}
        assert said == {"comm_type": ALL_REDUCE, "comm_size": 4 * synthetic_dataset.PARAMETERS}
        command = [sys.executable, "-m", "chakra.src.jsonizer.jsonizer"]  # Chakra's own reader
        files = ["--input_filename", tmp_path / f"et/chakra.{rank}.et", "--output_filename", tmp_path / "et.json"]
        subprocess.run([*command, *files], check=True)
        assert (tmp_path / "et.json").read_text().count('"COMM_COLL_NODE"') == 3
        before = (own["comm_start_ns"] - own["start_ns"]).tolist()
        assert [node.duration_micros for node in nodes[::3]] == [round(ns / US) for ns in before]


def test_headers_carry_the_bytes_of_the_buckets(small, tmp_path):
    assert export(small, "pcap", tmp_path / "x.pcap") == 0
    packets = rdpcap(str(tmp_path / "x.pcap"))
    buckets = pd.read_parquet(small / "buckets")
    assert len(packets) == buckets["packets"].sum()
    assert sum(packet.wirelen for packet in packets) == buckets["wire_bytes"].sum()
    times = np.array([int(packet.time * 1_000_000_000) for packet in packets])
    assert (np.diff(times) >= 0).all()
    assert times[0] == buckets["bucket_start_ns"].min()
    ports = {(packet.sport, packet.dport) for packet in packets}
    flows = pd.read_parquet(small / "flows")
    assert ports <= set(zip(flows["src_port"], flows["dst_port"], strict=True))
    payload = sum(packet["IP"].len - 20 - 4 * packet["TCP"].dataofs for packet in packets if "TCP" in packet)
    headers = 20 + 32  # a packet of the example may be of 100 kB, of which IP can tell 64 KiB
    assert payload == np.minimum(buckets["payload_bytes"], 65_535 - headers).sum()


def test_a_generator_is_what_the_job_sent(sweep, tmp_path):
    out = tmp_path / "job.json"
    assert export(sweep, "generator", out, "--job", JOB) == 0
    generator = read_generator(json.loads(out.read_text()), "it")
    sizes = {pair: size for phase in generator.phases for pair, size in phase.bytes.items()}
    rows = of_job(sweep, "iterations")
    assert set(sizes) == {(0, 1), (1, 2), (2, 0)}
    median = rows["dl_tx_bytes"].median()
    assert all(abs(size - median) < 0.1 * median for size in sizes.values())
    assert abs(generator.iteration_ns - (rows["end_ns"] - rows["start_ns"]).median()) < 1_000_000
    assert json.loads(out.read_text()) == generator.document()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "pcap"}, "its format is 'pcap'"),
        ({"ranks": 5}, "not one for each"),
        ({"phases": [[[0, 7, 3]]]}, "one that does not exist"),
        ({"phases": [[[0, 1, -3]]]}, "a size is none"),
        ({"gaps_ns": []}, "not one for each"),
        ({"job": None, "phases": 3}, "not iterable"),
    ],
)
def test_what_is_no_generator(change, reason):
    good = {"format": "netmon generator 1", "job": "j", "ranks": 2, "iteration_ns": 5, "phases": [[[0, 1, 9]]]}
    good |= {"gaps_ns": [[[1, 2]]], "after_ns": [[3, 4]]}
    assert read_generator(good, "x").ranks == 2
    with pytest.raises(DataError, match=reason):
        read_generator(good | change, "x.json")


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("chakra", [], "more than one job"),
        ("generator", [], "give --job"),
        ("generator", ["--job", JOB, "--iterations", "0:1"], "to 1 iterations that are alike"),
        ("ns3", ["--host", "nobody"], "no flow there"),
        ("pcap", ["--job", JOB], "none of its flows there can be played"),
        ("chakra", ["--job", JOB, "--iterations", "90:"], "no such iteration"),
    ],
)
def test_what_cannot_be_exported(sweep, tmp_path, capsys, name, options, reason):
    assert export(sweep, name, tmp_path / "out", *options) == 1
    told = capsys.readouterr().err
    assert reason in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
