# SPDX-License-Identifier: Apache-2.0
"""What ranks have sent each other by NCCL, out of a dataset: in Python, as pairs, in a trace."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from dataset_rows import table
from test_rank_pairs import a_ring
from test_trace import Read, run

import netmon
from collector.dataset.tables import SCHEMAS
from netmon.history.dataset import Window
from netmon.history.transfers import pairs_of, read_transfers

MS = 1_000_000
BEGIN = 1_790_000_000_000_000_000


def store(data: Path, name: str, rows: list[dict[str, object]], host: str) -> None:
    folder = data / name / "date=2026-09-21/hour=14"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {column: [row[column] for row in rows] for column in SCHEMAS[name].names if column in rows[0]}
    pq.write_table(table(name, len(rows), **columns), folder / f"{host}.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks, five steps of 10 ms, an operation in each; they send by RDMA, but for the last one."""
    data: Path = tmp_path_factory.mktemp("transfers")
    for rank in range(3):
        host = f"h{rank}"
        same: dict[str, object] = {"host": host, "session": f"s{rank}", "job": "train", "rank": rank}
        own = [row for row in a_ring([0, 1, 2], 5, BEGIN) if row["rank"] == rank]
        store(data, "transfers", [{**row, **same, "pid": 10 + rank, "device": 0} for row in own], host)
        steps = [
            same | {"size": 3, "iteration": n, "start_ns": BEGIN + n * 10 * MS, "end_ns": BEGIN + (n + 1) * 10 * MS}
            for n in range(4)
        ]
        store(data, "iterations", steps, host)
        flow = same | {"flow_id": 1, "interface": "eth0", "direction": "tx", "first_ns": BEGIN, "last_ns": BEGIN}
        store(data, "flows", [flow], host)
        bucket = same | {"flow_id": 1, "interface": "eth0", "direction": "tx", "bucket_start_ns": BEGIN}
        store(data, "buckets", [bucket | {"bucket_ns": MS, "wire_bytes": 100, "class": "DL-only"}], host)
        span = {"start_ns": BEGIN, "end_ns": BEGIN + 100 * MS}
        if rank == 2:
            sent = same | span | {"flow_id": 1, "sent_bytes": 5100, "retransmitted_bytes": 100}
            store(data, "transport", [sent], host)
        else:
            posted = same | span | {"pid": 10 + rank, "rdma_device": "mlx5_0", "verb": "write", "bytes": 5000}
            store(data, "rdma", [posted], host)
    return data


def test_rows_have_the_other_rank_the_iteration_and_the_way(data: Path) -> None:
    rows = read_transfers(data, Window())
    assert len(rows) == 30
    sends = rows[rows["sends"] == 1]
    assert ((sends["rank"] + 1) % 3 == sends["peer_rank"]).all()
    assert sends.groupby("iteration").size().to_dict() == {-1: 3, 0: 3, 1: 3, 2: 3, 3: 3}
    other = rows.loc[sends["other_end"]]
    assert (other["number"].to_numpy() == sends["number"].to_numpy()).all()
    assert (other["rank"].to_numpy() == sends["peer_rank"].to_numpy()).all()
    ways = sends.groupby("rank")[["transport", "interface"]].first().to_numpy().tolist()
    assert ways == [["RDMA", "mlx5_0"], ["RDMA", "mlx5_0"], ["sockets", "eth0"]]
    assert len(read_transfers(data, Window(iterations=(1, 2)))) == 6
    assert read_transfers(data, Window(hosts=("nobody",))).empty


def test_pairs_in_a_notebook(data: Path) -> None:
    recording = netmon.open(data)
    rows = recording.transfers(job="train")
    assert isinstance(rows["start"].dtype, pd.DatetimeTZDtype)
    pairs = recording.rank_pairs()
    assert pairs[["job", "rank", "peer", "bytes"]].to_numpy().tolist() == [
        ["train", 0, 1, 5000],
        ["train", 1, 2, 5000],
        ["train", 2, 0, 5000],
    ]
    assert set(pairs["rdma"]) == {0.0, 1.0}
    steps = recording.nccl_steps()
    assert len(steps) == 12
    assert (steps["first_transfer"] >= steps["start"]).all()
    assert ((steps["last_transfer"] - steps["first_transfer"]).dt.total_seconds() > 0.0039).all()
    assert list(pairs_of(data, Window())) == ["train"]


def test_operations_are_slices_with_arrows(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.pftrace"
    assert run(data, out) == 0
    read = Read(out)
    lanes = {lane for lane, *_ in read.slices if "NCCL" in lane}
    assert lanes == {
        f"train/{rank} NCCL {way}, channel 0"
        for rank in range(3)
        for way in (f"→ {(rank + 1) % 3}", f"← {(rank - 1) % 3}")
    }
    names = {name for lane, name, *_ in read.slices if "NCCL" in lane}
    assert names == {"all-reduce 1 kB"}


def test_who_sends_by_rdma_only_has_no_flows(tmp_path: Path) -> None:
    own: dict[str, object] = {"host": "h0", "session": "s0", "job": "train", "rank": 0}
    store(tmp_path, "transfers", [{**row, **own, "pid": 10} for row in a_ring([0, 1], 2, BEGIN)], "h0")
    other = {"host": "h0", "session": "s0", "flow_id": 7, "interface": "eth0", "direction": "tx"}
    store(tmp_path, "flows", [other | {"first_ns": BEGIN, "last_ns": BEGIN, "job": None, "rank": None}], "h0")
    assert set(read_transfers(tmp_path, Window())["transport"]) == {""}
