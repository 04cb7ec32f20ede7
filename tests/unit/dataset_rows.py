# SPDX-License-Identifier: Apache-2.0
"""Rows for a sink, of any number of hosts: as the collector would hand them over, at a given flush; and back."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from collector.dataset.manifest import SessionState
from collector.dataset.tables import SCHEMAS
from netmon.errors import NoRowsError
from netmon.history.dataset import open_table, stream

HOUR_NS = 3_600_000_000_000
BEGIN_NS = 1_795_219_200_000_000_000  # 2026-11-21 00:00 UTC
MS = 1_000_000


def table(name: str, rows: int, **columns: object) -> pa.Table:
    """Rows of a table; columns that are not given are empty or 0."""
    arrays = []
    for field in SCHEMAS[name]:
        value = columns.get(field.name, "" if pa.types.is_dictionary(field.type) else 0)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not isinstance(value, str | int | float):
            arrays.append(pa.array(value).cast(plain).cast(field.type))
        elif plain == field.type:
            arrays.append(pa.array(np.full(rows, value)).cast(plain))
        else:
            zeros = pa.array(np.zeros(rows, np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(zeros, pa.array([value], pa.string())))
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])


def stored_rows(directory: Path, name: str = "buckets", columns: Sequence[str] | None = None) -> pd.DataFrame:
    """All rows of a table, those that are not merged yet, too; none where there is no dataset yet."""
    batches: list[pa.RecordBatch] = []
    with suppress(NoRowsError):
        batches = list(stream(open_table(directory, name), columns)) if directory.is_dir() else []
    names = SCHEMAS[name].names if columns is None else columns
    return pa.Table.from_batches(batches).to_pandas() if batches else pd.DataFrame(columns=names)


def buckets(hosts: int, begin_ns: int, rows: int = 200, flows: int = 20, step_ns: int = MS) -> pa.Table:
    """So many rows of each host, one per step; every third flow trains."""
    generator = np.random.default_rng(begin_ns // MS % 2**32)
    number = np.tile(np.arange(rows), hosts)
    flow = generator.integers(0, flows, hosts * rows)
    host = np.repeat(np.arange(hosts), rows)
    packets = np.where(flow % 3 == 0, 80, generator.geometric(0.2, hosts * rows))
    time = begin_ns + number * step_ns
    training = flow % 3 == 0
    wire = packets * 1514
    columns = {
        "flow_id": flow + 1,
        "bucket_start_ns": time,
        "bucket_ns": np.full(len(time), step_ns),
        "packets": packets,
        "wire_bytes": wire,
        "payload_bytes": packets * 1448,
        "peak_bytes": np.minimum(wire, 15140),
        "busy_buckets": np.minimum(packets, 100),
        "iteration": np.where(training, (time - BEGIN_NS) // (250 * MS), -1),
    }
    words = {
        "host": (host, [f"node{number:04}" for number in range(hosts)]),
        "session": (host, [f"session-{number:04}" for number in range(hosts)]),
        "interface": (np.zeros(len(host)), ["eth0"]),
        "direction": (flow % 2, ["rx", "tx"]),
        "class": (np.where(training, 1, 3), ["unclassified", "DL-only", "DL-shared", "cross"]),
        "job": (np.where(training, 1 + host // 8, 0), ["", *(f"job{number}" for number in range(-(-hosts // 8)))]),
    }
    encoded = {
        name: pa.DictionaryArray.from_arrays(pa.array(np.asarray(codes, np.int32)), pa.array(names, pa.string()))
        for name, (codes, names) in words.items()
    }
    return pa.table({**columns, **encoded}).select(SCHEMAS["buckets"].names).cast(SCHEMAS["buckets"])


def flows(host: str, ids: list[int], **columns: object) -> pa.Table:
    """Rows of the table `flows`."""
    given = {"session": "s1", "interface": "eth0", "direction": "tx", "src": "10.0.0.1", "dst": "10.0.0.2"}
    return table("flows", len(ids), host=host, flow_id=ids, **{**given, "first_ns": BEGIN_NS, **columns})


def state(host: str, sequence: int, **changes: object) -> SessionState:
    return SessionState(host, **{"last_sequence": sequence, "complete_sequence": sequence, **changes})
