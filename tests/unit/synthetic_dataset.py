# SPDX-License-Identifier: Apache-2.0
"""A sweep of the lab that never was: a dataset of any size whose congestion point, ring and volumes are known.

Three hosts train in a ring, a fourth sends cross traffic to the first. The iteration time follows the thesis exactly:
t = max(t₀, 8·D / (C − BW)), times 1 + 1 % of noise. Burst traffic stretches what is above t₀ by half.

    python tests/unit/synthetic_dataset.py DIR 10e6        # ten million rows
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.tables import SCHEMAS

RATE = 1_000_000_000
BUCKET_NS = 10_000
MS = 1_000_000
BEGIN_NS = 1_795_219_200_000_000_000 + 3_600_000_000_000  # 2026-11-21 01:00 UTC
DATE = "2026-11-21"
QUIET_NS = 30 * MS
STEP_BUCKETS = 1_700  # at the full rate
STEP_BYTES = STEP_BUCKETS * RATE // 8 * BUCKET_NS // 1_000_000_000
PARAMETERS = round(STEP_BYTES / (2 * 2 / 3 * 4))
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
PROFILES = ("websearch", "burst")
RING = ("h0", "h1", "h2")
CROSS = "h3"
CROSS_FLOWS = 50
THEORY = 1 - 8 * STEP_BYTES / (QUIET_NS / 1e9 * RATE)
BASIS = "frames as sent on the link, without preamble and FCS; one header per segment"


@dataclass(frozen=True)
class Run:
    name: str
    profile: str
    level: float
    number: int

    def durations(self, iterations: int) -> np.ndarray:
        ideal = max(QUIET_NS, 8e9 * STEP_BYTES / (RATE * (1 - self.level)))
        slower = 1.5 if self.profile == "burst" else 1.0
        noise = np.random.default_rng(self.number).normal(1, 0.01, iterations)
        return np.rint((QUIET_NS + slower * (ideal - QUIET_NS)) * noise).astype(np.int64)


def runs() -> list[Run]:
    pairs = [(profile, level) for profile in PROFILES for level in LEVELS if level or profile == PROFILES[0]]
    return [Run(f"synthetic-{p}-{x:g}", p, x, number) for number, (p, x) in enumerate(pairs)]


def rows_per_iteration() -> float:
    cross = np.mean([run.level * run.durations(100).mean() / BUCKET_NS for run in runs()])
    return 2 * len(RING) * STEP_BUCKETS + 2 * float(cross)


def write_dataset(data: Path, iterations: int, lab: bool = True, thin: int = 1) -> int:
    """Write all tables, with the lab's notes or without; returns the rows of `buckets`.

    thin: so many buckets' bytes in one of them, and none in the others: fewer rows, the same volume.
    """
    rows, begin = 0, BEGIN_NS
    plan = []
    for run in runs():
        durations = run.durations(iterations)
        starts = begin + np.r_[0, np.cumsum(durations)[:-1]]
        ends = starts + durations
        for host in (*RING, CROSS):
            rows += _write(data, "buckets", host, run.name, _buckets(run, host, starts, ends, thin))
            _write(data, "flows", host, run.name, _flows(run, host, starts[0], ends[-1]))
        for rank, host in enumerate(RING):
            _write(data, "iterations", host, run.name, _iterations(run, rank, starts, ends))
        if lab:
            _write_lab(data / "lab" / "runs" / run.name, run, int(starts[0]) - 5 * MS, int(ends[-1]) + 5 * MS)
        plan.append({"id": run.name, "model": "", "profile": run.profile, "level": run.level, "repetition": 0})
        begin = int(ends[-1]) + 50 * MS
    for host in (*RING, CROSS):
        _write(data, "ledger", host, "all", _ledger(host, begin))
        _write(data, "sessions", host, "all", _session())
    if lab:
        (data / "lab" / "sweep.json").write_text(json.dumps(plan))
    return rows


def _write(data: Path, table: str, host: str, stem: str, columns: dict[str, object]) -> int:
    schema = SCHEMAS[table]
    count = max(len(value) for value in columns.values() if isinstance(value, np.ndarray))
    full = {"host": host, "session": f"session-{host}", **columns}
    arrays = [_array(full.get(field.name), field.type, count) for field in schema]
    folder = data / table / f"date={DATE}" / "hour=01"
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.Table.from_arrays(arrays, schema=schema)
    pq.write_table(rows, folder / f"part-{host}-{stem}.parquet", compression="zstd")
    return count


def _array(value: object, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(value, np.ndarray) and not pa.types.is_dictionary(kind):
        return pa.array(value, kind)
    if isinstance(value, np.ndarray):
        codes, words = pd.factorize(value)
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words, pa.string()))
    if pa.types.is_dictionary(kind):
        zeros = pa.array(np.zeros(count, np.int32))
        return pa.DictionaryArray.from_arrays(zeros, pa.array([value or ""], pa.string()))
    return pa.array([value] * count, kind) if value is None else pa.array(np.full(count, value), kind)


def _buckets(run: Run, host: str, starts: np.ndarray, ends: np.ndarray, thin: int) -> dict[str, object]:
    parts = [_training(host, direction, starts, ends, run, thin) for direction in ("tx", "rx") if host in RING]
    if run.level and host in (RING[0], CROSS):
        parts.append(_cross(run, host, starts, ends, thin))
    frame = pd.concat(parts) if parts else _keepalive(starts)
    frame = frame.sort_values("bucket_start_ns", kind="stable")
    return {"interface": "eth0", "bucket_ns": BUCKET_NS, **{name: frame[name].to_numpy() for name in frame}}


def _training(host: str, direction: str, starts: np.ndarray, ends: np.ndarray, run: Run, thin: int) -> pd.DataFrame:
    """A step's bytes, evenly over as much of the iteration's end as they take at the rate that is left."""
    takes = np.minimum((ends - starts) * 0.95, STEP_BUCKETS * BUCKET_NS / (1 - run.level))
    time = (ends - takes)[:, None] + np.linspace(0, 0.999, STEP_BUCKETS // thin)[None, :] * takes[:, None]
    shared = run.level and host == RING[0] and direction == "rx"
    payload = STEP_BYTES // (STEP_BUCKETS // thin)
    return _frame(
        time=time.ravel().astype(np.int64),
        direction=direction,
        flow_id=2 * run.number + (direction == "rx") + 1,
        payload=payload,
        name="DL-shared" if shared else "DL-only",
        job=run.name,
        iteration=np.repeat(np.arange(len(starts)), STEP_BUCKETS // thin),
    )


def _cross(run: Run, host: str, starts: np.ndarray, ends: np.ndarray, thin: int) -> pd.DataFrame:
    slots = np.arange(starts[0], ends[-1], BUCKET_NS * thin)
    if run.profile == "burst":  # 1 ms of every 10 ms holds 3/10 of the bytes
        phase = (slots - slots[0]) // MS % 10
        chance = np.where(phase == 0, min(1.0, 3 * run.level), run.level * 7 / 9)
    else:
        chance = np.full(len(slots), run.level)
    rng = np.random.default_rng(100 + run.number)
    time = slots[rng.random(len(slots)) < chance]
    inside = np.searchsorted(starts, time, side="right") - 1
    return _frame(
        time=time,
        direction="rx" if host == RING[0] else "tx",
        flow_id=1_000 + run.number * CROSS_FLOWS + np.arange(len(time)) * CROSS_FLOWS // max(len(time), 1),
        payload=1_200 * thin,
        name="cross",
        job=run.name if host == RING[0] else "",
        iteration=inside if host == RING[0] else -1,
    )


def _keepalive(starts: np.ndarray) -> pd.DataFrame:
    return _frame(time=starts, direction="tx", flow_id=1, payload=0, name="cross", job="", iteration=-1)


def _frame(time, direction, flow_id, payload, name, job, iteration) -> pd.DataFrame:
    columns = {"bucket_start_ns": time, "direction": direction, "flow_id": flow_id, "packets": 1}
    columns |= {"wire_bytes": payload + 66, "payload_bytes": payload, "class": name, "job": job, "iteration": iteration}
    return pd.DataFrame(columns)


def _flows(run: Run, host: str, begin: int, end: int) -> dict[str, object]:
    place = RING.index(host) if host in RING else -1
    rows = []
    if place >= 0:
        after, before = RING[(place + 1) % len(RING)], RING[place - 1]
        rows.append((2 * run.number + 1, "tx", host, after, 40_000 + run.number, "python", run.name, place, "DL-only"))
        rows.append((2 * run.number + 2, "rx", before, host, 40_000 + run.number, "python", run.name, place, "DL-only"))
    if run.level and host in (RING[0], CROSS):
        direction = "rx" if host == RING[0] else "tx"
        ids = 1_000 + run.number * CROSS_FLOWS + np.arange(CROSS_FLOWS)
        rows += [(i, direction, CROSS, RING[0], 10_000 + int(i), "backup", "", -1, "cross") for i in ids.tolist()]
    if not rows:
        rows.append((1, "tx", host, "198.18.0.99", 9, "", "", -1, "cross"))
    names = ["flow_id", "direction", "src", "dst", "src_port", "process", "job", "rank", "class"]
    frame = pd.DataFrame(rows, columns=names)
    columns: dict[str, object] = {name: frame[name].to_numpy() for name in names}
    same = {"interface": "eth0", "dst_port": 5201, "protocol": 6, "pid": 1, "peer_rank": -1, "class_source": "socket"}
    return {**columns, **same, "first_ns": begin, "last_ns": end}


def _iterations(run: Run, rank: int, starts: np.ndarray, ends: np.ndarray) -> dict[str, object]:
    host = RING[rank]
    cross = (run.level * (ends - starts) / BUCKET_NS * 1_200).astype(np.int64) if host == RING[0] else 0
    return {
        **{"job": run.name, "rank": rank, "size": len(RING), "iteration": np.arange(len(starts))},
        **{"start_ns": starts, "end_ns": ends, "start_moment": "step_start", "end_moment": "step_end"},
        **{"comm_start_ns": starts + 5 * MS, "comm_end_ns": ends - MS // 2, "source": "hook", "error_ns": 2_000},
        **{"relative": False, "parameters": PARAMETERS, "node_shared": bool(run.level and host == RING[0])},
        **{"dl_tx_bytes": STEP_BYTES, "dl_rx_bytes": STEP_BYTES, "cross_rx_bytes": cross, "cross_tx_bytes": 0},
        **{"dl_shared_tx_bytes": 0, "dl_shared_rx_bytes": 0, "unclassified_tx_bytes": 0, "unclassified_rx_bytes": 0},
        **{"peak_bps": RATE},
    }


def _ledger(host: str, end: int) -> dict[str, object]:
    count = {"nic_bytes": 10**9, "attributed_bytes": 10**9, "nic_counter_bytes": 10**9, "nic_packets": 10**6}
    none = dict.fromkeys(("overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes", "invisible_bytes"), 0)
    links = {"interface": "eth0", "direction": np.array(["rx", "tx"]), "hook": "tcx", "byte_basis": BASIS}
    return {**links, "start_ns": BEGIN_NS, "end_ns": end, "coverage": 1.0, **count, **none}


def _session() -> dict[str, object]:
    each = {"interface": np.array(["eth0"]), "byte_basis": BASIS, "super_packet_ns": 128_000}
    return {**each, "start_ns": BEGIN_NS, "bucket_ns": BUCKET_NS, "capacity_bps": RATE}


def _write_lab(folder: Path, run: Run, begin: int, end: int) -> None:
    folder.mkdir(parents=True)
    spec = {
        **{"trainer": "ring", "ring": [0, 1, 2], "rate_bps": RATE, "parameters": PARAMETERS, "compute_ns": 10 * MS},
        **{"cross_load": run.level, "cross_profile": run.profile},
    }
    events = [{"event": "start", "utc_ns": begin}, {"event": "end", "utc_ns": end}]
    told = {"spec": spec, "events": events, "job": run.name, "outcome": "complete"}
    (folder / "run.json").write_text(json.dumps(told))
    sender = {"profile": run.profile, "from": CROSS, "to": RING[0], "offered_bps": run.level * RATE}
    sender |= {"started": {"utc_ns": begin}, "ended": {"utc_ns": end}}
    (folder / "cross.json").write_text(json.dumps([sender] if run.level else []))


if __name__ == "__main__":
    wanted = float(sys.argv[2]) / len(runs()) / rows_per_iteration()
    print(write_dataset(Path(sys.argv[1]), max(2, round(wanted))), "rows")
