# SPDX-License-Identifier: Apache-2.0
"""The last seconds of a live collector as a trace: a real collector, and an agent's end with a real recorder."""

import time

import collector_stream
import pyarrow.parquet as pq
import pytest
from collector_stream import MS, S
from collector_thread import collecting
from sent_agent import Sent, introduction
from test_full_resolution import FINE, with_a_slow_step
from test_recorder import in_memory
from test_trace import Read, run
from waiting import wait_for

from netmon.agent.recorder import Pulls, Recorder
from netmon.errors import DataError
from netmon.history.judging import stored_verdicts
from netmon.trace.dataset import verdicts_table
from netmon.views import Cause, Selection, Verdict
from netmon.wire.watch import watch_once


@pytest.fixture
def live(tmp_path, monkeypatch):
    """The address of a collector that knows the last 8 s of a rank, of whose iterations one is slow."""
    monkeypatch.setattr(collector_stream, "UTC", time.time_ns() - 8 * S)
    address = f"unix:{tmp_path}/collector.sock"
    batches, full = with_a_slow_step(80, slow=20)
    recorder = Recorder(in_memory(1 << 16), FINE, 600 * S, 1 << 24, 0)
    for batch, rows in zip(batches, full, strict=True):
        recorder.add(rows, batch.horizon_ns)
    sent, made = Sent(tmp_path / "spool", address, pulls=Pulls(recorder)), iter(batches)
    sent.spool.hello = introduction(collector_stream.hello(bucket_ns=FINE, stream_ns=MS))
    sent.append(80, lambda _: next(made))
    with collecting(address, tmp_path / "data"):
        sent.start()
        wait_for(lambda: sent.spool.acknowledged > 0)
        asked = Selection(steps_ns=60 * S)
        wait_for(lambda: any(len(job.steps) >= 28 for job in watch_once(address, asked).jobs))
        yield address
        sent.finish()


def test_the_last_seconds_have_iterations_and_rows(live, tmp_path, capsys):
    assert run(live, tmp_path / "x.pftrace", "--last", "5s", "--job", "train") == 0
    stored_verdicts = capsys.readouterr().out
    read = Read(tmp_path / "x.pftrace")
    own = [(name, end - begun) for lane, name, begun, end, depth in read.slices if lane == "train/0" and not depth]
    assert len(own) >= 5
    assert f"{len(own)} iterations" in stored_verdicts
    lengths = sorted(length for _, length in own)
    assert lengths[-1] > 2 * lengths[len(lengths) // 2]
    lanes = {lane for lane, *_ in read.slices}
    assert any("198.18.0.1:1001 → 198.18.0.2:2000 python" in lane for lane in lanes)
    pieces = [name for lane, name, *_ in read.slices if "198.18.0.1:1001" in lane]
    assert any("iteration" in name for name in pieces)


def test_who_is_not_there_is_said(live, tmp_path):
    with pytest.raises(DataError, match=r"cannot trace nobody: .* knows no such name"):
        run(live, tmp_path / "x.pftrace", "--job", "nobody")
    with pytest.raises(DataError, match="knows no such name"):
        run(live, tmp_path / "x.pftrace", "--host", "h9")


@pytest.mark.parametrize("start", [0, 10 * S])
def test_verdicts_of_the_time_are_those_that_the_collector_told(tmp_path, start):
    verdict = Verdict("train", 7, start, start + S, S, S // 4, 3 * S // 4, Cause.CROSS, "iperf3", "h0", "eth0")
    table = verdicts_table([verdict], 9 * S, 20 * S)
    (tmp_path / "verdicts/date=2000-01-01/hour=all").mkdir(parents=True)
    pq.write_table(table, tmp_path / "verdicts/date=2000-01-01/hour=all/part.parquet")
    assert stored_verdicts(tmp_path) == ([verdict] if start else [])
