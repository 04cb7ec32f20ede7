# SPDX-License-Identifier: Apache-2.0
"""A job that sends by the library that stands in for NCCL, past the meter: what is told of it, and why it is slow."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from netmon.history.dataset import Window
from netmon.history.transfers import read_transfers
from netmon.kernel import bpf_calls
from netmon.lab.injections.spec import injection
from netmon.lab.record import FOLDER, Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.lab.trainers.collectives import fused_ends
from netmon.lab.trainers.nccl import ring_slices
from netmon.lab.trainers.ring import OVERLAPPED_FUSION_BYTES

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no cc"),
    pytest.mark.skipif(not bpf_calls.has_uprobe_links(), reason="this kernel cannot distinguish probes"),
]
RING = (0, 1, 2)
INJECTED = ("late:rank=1,at=24.5,for=600ms", "slow-link:host=0,at=36.5,for=2s,strength=0.1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data: Path = tmp_path_factory.mktemp("nccl") / "run"
    run(
        RunSpec(
            data,
            trainer="nccl",
            hosts=3,
            ring=RING,
            cross=(),
            cross_load=0.0,
            parameters=500_000,
            rate_bps=300_000_000,
            iterations=56,
            stream_ns=1_000_000,
            injections=tuple(map(injection, INJECTED)),
        )
    )
    return data


def test_transfers_have_all_bytes_that_were_sent_and_the_meter_none(data: Path) -> None:
    rows = read_transfers(data, Window())
    sends = rows[rows["sends"] == 1]
    ends = fused_ends(Run(data / FOLDER).document["layers"], OVERLAPPED_FUSION_BYTES, len(RING))
    of_step = sum(sum(ring_slices(4 * values, len(RING))) for values in np.diff([0, *ends]).tolist())
    assert sends.groupby("rank")["bytes"].sum().to_dict() == dict.fromkeys(range(3), 56 * of_step)
    assert not rows["missed"].any()
    assert ((sends["rank"] + 1) % 3 == sends["peer_rank"])[sends["peer_rank"] >= 0].all()
    assert (sends["peer_rank"] >= 0).mean() > 0.95
    assert (sends["iteration"] >= 0).mean() > 0.9
    seen = pd.read_parquet(data / "flows")
    assert not seen["job"].astype(str).str.contains("nccl").any()


def test_steps_end_where_ranks_have_waited_for_their_gpu(data: Path) -> None:
    found = pd.read_parquet(data / "iterations")
    run = Run(data / FOLDER)
    for rank, own in found.groupby("rank"):
        log = run.rank(int(rank))["last_wait_ns"] + run.to_utc_ns
        ends = own["comm_end_ns"].dropna().to_numpy(np.int64)
        assert len(ends) > len(log) / 2  # the first ones are known by their sequence
        assert np.median([np.abs(log - end).min() for end in ends]) < 1_000_000
        assert own["exposed_ns"].notna().sum() == len(ends)


def test_verdicts_rest_on_transfers_alone(data: Path) -> None:
    found = pd.read_parquet(data / "verdicts").sort_values("start_ns")
    print(
        found[["iteration", "cause", "culprit", "rank", "host", "duration_ns", "baseline_ns", "confidence"]].to_string()
    )
    assert set(found["cause"]) <= {"straggler", "slow_link", "unknown", "host", "pause"}  # machines are busy in tests
    late, slow = (found[found["cause"] == cause] for cause in ("straggler", "slow_link"))
    assert len(late) >= 1
    assert set(late["culprit"]) == {"rank 1"}
    assert len(slow) >= 1
    assert set(slow["host"]) <= {"h0", "h1"}  # its ends
    assert "h0" in set(slow["host"])
    assert ((late["reported_ns"] - late["end_ns"]) < 4_000_000_000).all()
