# SPDX-License-Identifier: Apache-2.0
"""How many files and bytes a dataset takes, by the real sink and its upkeep, in less time than the rows tell of."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dataset_rows import BEGIN_NS, MS, buckets, flows, table

from collector.dataset.sink import ParquetSink

FLUSH_S, EACH_S = 2, 1000  # rows a second of each host: five batches of 200
SECOND_NS = 1000 * MS


def every(hosts: int, step_ns: int, at_ns: int, rows: int = 1) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Host, time and names of so many rows per host and step of a flush."""
    steps = FLUSH_S * SECOND_NS // step_ns
    host = np.repeat(np.arange(hosts), steps * rows)
    names = {"host": [f"node{n:04}" for n in host], "session": [f"session-{n:04}" for n in host]}
    return host, at_ns + np.tile(np.repeat(np.arange(steps), rows), hosts) * step_ns, names


def flushed(at_ns: int, rows: int, hosts: int = 20) -> dict:
    """What a collector writes at once: buckets, four iterations a second, the ledger's rows, the flows that are new."""
    random = np.random.default_rng(at_ns // MS % 2**32)
    host, start, names = every(hosts, 250 * MS, at_ns)
    length = random.integers(200 * MS, 250 * MS, len(host))
    iterations = table(
        "iterations", len(host), **names, job=[f"job{n // 8}" for n in host], rank=host % 8, size=8, source="hook",
        iteration=(start - BEGIN_NS) // (250 * MS), start_ns=start, end_ns=start + length,
        comm_start_ns=start + length // 2, comm_end_ns=start + length, exposed_ns=length // 3, parameters=25_600_000,
        dl_tx_bytes=10**7, cross_rx_bytes=random.integers(0, 10**6, len(host)), cross_top="iperf3",
    )  # fmt: skip
    host, start, names = every(hosts, SECOND_NS, at_ns, rows=2)
    nic = random.integers(10**8, 2 * 10**8, len(host))
    ledger = table(
        "ledger", len(host), **names, interface="eth0", direction=["rx", "tx"] * (len(host) // 2), start_ns=start,
        end_ns=start + SECOND_NS, nic_bytes=nic, attributed_bytes=nic, nic_counter_bytes=np.cumsum(nic), hook="tcx",
        nic_packets=nic // 1500, coverage=1.0, byte_basis="wire",
    )  # fmt: skip
    number = 1 + (at_ns - BEGIN_NS) // (FLUSH_S * SECOND_NS)
    told = flows("node0001", [int(number)], session="session-0001", first_ns=at_ns, last_ns=at_ns)
    step_ns = FLUSH_S * SECOND_NS // rows // MS * MS
    return {"buckets": buckets(hosts, at_ns, rows, step_ns=step_ns), "iterations": iterations, "ledger": ledger} | {
        "flows": told
    }


def kept(directory: Path) -> tuple[Counter, Counter]:
    """Files and bytes by table; without what is a part of another file, which goes some minutes later."""
    files, size = Counter(), Counter()
    for path in directory.glob("[!.]*/*/*/*.parquet"):
        files[path.parts[-4]] += 1
        size[path.parts[-4]] += path.stat().st_size
    return files, size


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, rows: int, hosts: int = 20) -> int:
    """Flushes of so many rows of each host, upkeep every 20 s of their time; returns the bucket rows."""
    clock = SimpleNamespace(now=BEGIN_NS / 1e9)
    turned = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now)
    for module in ("files", "manifest", "sink"):
        monkeypatch.setattr(f"collector.dataset.{module}.time", turned)
    sink = ParquetSink(directory)
    for second in range(0, seconds, FLUSH_S):
        clock.now = BEGIN_NS / 1e9 + second
        sink.write(flushed(BEGIN_NS + second * SECOND_NS, rows, hosts), {})
        while second % 20 == 0 and sink.merge_some(lambda: True):
            pass
    sink.close()
    return hosts * rows * seconds // FLUSH_S


def test_a_bucket_row_takes_four_bytes_over_all_tables(tmp_path, monkeypatch):
    rows = run(tmp_path, monkeypatch, seconds=120, rows=FLUSH_S * EACH_S)
    files, size = kept(tmp_path)
    assert set(files.values()) == {1}
    assert sum(size.values()) <= 4 * rows
    assert size["iterations"] <= 20 * 20 * 4 * 120  # rows that hardly repeat, with footers


@pytest.mark.long
def test_a_third_of_an_hour_has_a_file_of_a_table_every_five_minutes(tmp_path, monkeypatch):
    run(tmp_path, monkeypatch, seconds=1200, rows=20)
    assert kept(tmp_path)[0] == {"buckets": 4, "iterations": 4, "ledger": 4, "flows": 1}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_hour_of_a_hundred_hosts(tmp_path, monkeypatch):
    """At the rate of a cluster that trains: 200 rows, four iterations, two ledger rows a second and host."""
    rows = run(tmp_path, monkeypatch, seconds=3600, rows=FLUSH_S * 200, hosts=100)
    files, size = kept(tmp_path)
    print(rows, dict(files), {name: round(amount / rows, 3) for name, amount in size.items()})
    assert sum(files.values()) <= 3 * 12 + 2
