# SPDX-License-Identifier: Apache-2.0
"""A day of a cluster at 1 ms, as a collector stores it: iterations and ledger whole, buckets of a share of each hour.

    python tests/unit/synthetic_day.py DIR --hosts 100 --share 0.01   # 86 million rows of buckets; 1: 8.6 billion

Jobs of eight hosts, an iteration every 250 ms, 20 flows and one link pair per host.
"""

import argparse
from pathlib import Path

import numpy as np
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, flows, table

from collector.dataset.sink import ParquetSink

STEP_NS = 250 * MS
SECOND_NS = 1000 * MS
CHUNK = 2000  # rows of a host in one write


def write_day(data: Path, hosts: int, share: float, hours: int = 24) -> int:
    """Write it; returns the rows of `buckets`."""
    sink = ParquetSink(data)
    names = [f"node{number:04}" for number in range(hosts)]
    sink.write({"sessions": _sessions(names)}, {})
    for name in names:
        ids = list(range(1, 21))
        columns = {"session": name.replace("node", "session-"), "last_ns": BEGIN_NS + hours * HOUR_NS, "src": name}
        sink.write({"flows": flows(name, ids, **columns)}, {})
    rows = 0
    for hour in range(hours):
        begin = BEGIN_NS + hour * HOUR_NS
        sink.write({"iterations": _iterations(names, begin), "ledger": _ledger(names, begin)}, {})
        for chunk in range(max(1, int(3600 * 1000 * share / CHUNK))):
            sink.write({"buckets": buckets(hosts, begin + chunk * CHUNK * MS, CHUNK)}, {})
            rows += hosts * CHUNK
        while sink.merge_some(lambda: True, at_once=True):
            pass
    sink.close()
    return rows


def _sessions(names: list[str]):
    told = {"bucket_ns": MS, "full_bucket_ns": MS // 100, "capacity_bps": 25 * 10**9, "byte_basis": "wire"}
    sessions = [name.replace("node", "session-") for name in names]
    return table("sessions", len(names), host=names, session=sessions, interface="eth0", start_ns=BEGIN_NS, **told)


def _iterations(names: list[str], begin: int):
    steps = HOUR_NS // STEP_NS
    number = np.tile(np.arange(steps), len(names))
    host = np.repeat(np.arange(len(names)), steps)
    start = begin + number * STEP_NS
    generator = np.random.default_rng(begin // HOUR_NS)
    length = generator.integers(STEP_NS * 8 // 10, STEP_NS, len(start))
    return table(
        "iterations",
        len(start),
        host=np.array(names)[host],
        session=np.array([name.replace("node", "session-") for name in names])[host],
        job=np.array([f"job{number}" for number in range(len(names))])[host // 8],
        rank=host % 8,
        size=8,
        iteration=(start - BEGIN_NS) // STEP_NS,
        start_ns=start,
        end_ns=start + length,
        comm_start_ns=start + STEP_NS // 2,
        comm_end_ns=start + length,
        exposed_ns=length - STEP_NS // 2,
        source="hook",
        parameters=25_600_000,
        dl_tx_bytes=np.full(len(start), 10**7),
        cross_rx_bytes=generator.integers(0, 10**6, len(start)),
        cross_top="iperf3",
    )


def _ledger(names: list[str], begin: int):
    seconds = HOUR_NS // SECOND_NS
    host = np.repeat(np.arange(len(names)), 2 * seconds)
    start = begin + np.tile(np.arange(2 * seconds) // 2, len(names)) * SECOND_NS
    return table(
        "ledger",
        len(host),
        host=np.array(names)[host],
        session=np.array([name.replace("node", "session-") for name in names])[host],
        interface="eth0",
        direction=np.tile(["rx", "tx"], len(names) * seconds),
        start_ns=start,
        end_ns=start + SECOND_NS,
        nic_bytes=10**6,
        attributed_bytes=10**6,
        coverage=1.0,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--hours", type=int, default=24)
    args = parser.parse_args()
    print(write_day(args.data, args.hosts, args.share, args.hours), "rows")
