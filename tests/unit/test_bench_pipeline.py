# SPDX-License-Identifier: Apache-2.0
"""The pipeline's benchmark: small runs, whose dataset is the truth, and a judge who notices when it is not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from waiting import wait_for

from netmon.bench.pipeline.agents import MS, Account, HostReport, Report, SimulatedHost, coarser
from netmon.bench.pipeline.run import measure
from netmon.bench.pipeline.truth import judge
from netmon.bench.specs import Load, PipelineSpec
from netmon.errors import UsageError

BENCH = [sys.executable, "-m", "netmon", "bench", "pipeline"]
SMALL = Load(hosts=3, rows=200, flows=8, jobs=1, seconds=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """One small run, as the command tells it, and its dataset."""
    data = tmp_path_factory.mktemp("pipeline") / "data"
    options = ["--hosts", "3", "--seconds", "2", "--new-flows", "10", "--flows", "300", "--data", str(data), "--json"]
    done = subprocess.run([*BENCH, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), data


def test_the_dataset_of_a_small_run_is_the_truth(run):
    document, _ = run
    assert "imulated" in document["simulated"]
    verdict = document["verdict"]
    assert document["true"], verdict
    assert (verdict["rows"]["true"], verdict["ledger"]["true"]) == (3 * 200 * 2, 3 * 2 * 2)
    assert verdict["iterations"]["true"] == 3 * 8
    assert verdict["classes"] == verdict["numbers"] == 0
    assert document["failed"] == []
    assert document["stop_status"] == 0
    assert document["seen"]["snapshots"] > 0
    assert document["costs"]["collector"]["resident_bytes"] > 0


@pytest.mark.parametrize("harm", ["lost", "twice"])
def test_a_dataset_that_is_not_the_truth_is_noticed(run, tmp_path, harm):
    document, data = run
    load = Load(**document["load"])
    broken = tmp_path / "data"
    shutil.copytree(data, broken, ignore=shutil.ignore_patterns(".netmon"))  # it has the same rows for a while
    part = max((broken / "buckets").rglob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    rows = pq.read_metadata(part).num_rows
    if harm == "lost":
        part.unlink()
    else:
        shutil.copy(part, part.with_name("part-again-1-1.parquet"))
    report = Report(**document["reported"])
    report.hosts = [HostReport(**host) for host in document["reported"]["hosts"]]
    verdict = judge(broken, load, report)
    assert not verdict.true
    assert (verdict.rows.missing if harm == "lost" else verdict.rows.wrong) == rows


def test_coarser_rows_carry_the_same_bytes():
    rows = SimulatedHost(replace(SMALL, rows=1_000), 0).rows(0)
    for width in (5, 20):
        wide = coarser(rows, width)
        assert len(wide) < len(rows)
        assert not (wide["bucket_start_ns"] % np.uint64(width * MS)).any()
        for name in ("packets", "wire_bytes", "payload_bytes", "busy_buckets"):
            assert wide[name].sum() == rows[name].sum()


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 0)])
def test_what_one_host_sends_another_one_receives(pair):
    first, second = (SimulatedHost(SMALL, number) for number in pair)
    sent, received = (next(f for f in host.first_flows() if f.flow_id == n) for host, n in ((first, 1), (second, 2)))
    assert (sent.src, sent.dst, sent.src_port, sent.dst_port) == (
        *(received.src, received.dst),
        *(received.src_port, received.dst_port),
    )
    for batch in range(5):
        there, here = (host.rows(batch) for host in (first, second))
        names = ["bucket_start_ns", "packets", "wire_bytes", "payload_bytes"]
        assert (there[there["flow_id"] == 1][names] == here[here["flow_id"] == 2][names]).all()


def test_new_flows_take_the_place_of_others():
    load = Load(hosts=1, rows=100, flows=500, jobs=0, seconds=10, new_flows=50)
    host, described = SimulatedHost(load, 0), set(range(1, 501))
    seen: set[int] = set()
    for batch in range(50):
        described |= {flow.flow_id for flow in host.new_flows(batch)}
        ids = set(host.rows(batch)["flow_id"].tolist())
        assert ids <= described
        seen |= ids
    assert len(described) == 500 + 50 * 10
    assert set(range(501, 1001)) <= seen  # every new one has a row


def test_the_ledger_adds_up():
    host = SimulatedHost(SMALL, 0)
    account = Account(host)
    samples = [sample for batch in range(10) for sample in account.samples(batch)]
    assert len(samples) == 2 * 3
    wire = sum(int(host.rows(batch)["wire_bytes"].sum(dtype=np.int64)) for batch in range(10))
    assert sum(sample.wire_bytes for sample in samples[-2:]) == wire + 2 * 2 * 3028


@pytest.mark.parametrize(
    "changes",
    [
        *({"jobs": 4}, {"batches": 7}, {"rows": 100_000}, {"flows": 3}, {"new_flows": 3}, {"hosts": 0}),
        {"rows": 2_000_000, "flows": 4_000},  # 400,000 rows a batch
    ],
)
def test_impossible_loads_are_refused(changes):
    with pytest.raises(UsageError):
        Load(**{"hosts": 3, "rows": 200, "flows": 8, "jobs": 1, "seconds": 2} | changes)


@pytest.fixture
def short_path():
    """A folder whose name leaves room for that of a UNIX socket."""
    with tempfile.TemporaryDirectory(prefix="nmt-") as folder:
        yield Path(folder)


def test_an_interrupt_ends_it_in_order(short_path):
    environment = os.environ | {"TMPDIR": str(short_path)}
    with subprocess.Popen([*BENCH, "--hosts", "2", "--seconds", "600"], env=environment) as bench:
        wait_for(lambda: any("begun" in log.read_text() for log in short_path.glob("*/agents.log")))
        bench.send_signal(signal.SIGINT)
        assert bench.wait(60) == 130
    assert list(short_path.iterdir()) == []
    mine = str(short_path).encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mine in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_over_a_bus_the_dataset_is_the_truth_too():
    result = measure(PipelineSpec(hosts=2, rows=50, flows=8, jobs=1, seconds=3, bus="nats"))
    assert result.true, result.verdict
    assert not result.failed
    assert set(result.costs) >= {"collector", "agents", "bus"}
