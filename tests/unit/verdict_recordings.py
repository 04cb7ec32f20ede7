# SPDX-License-Identifier: Apache-2.0
"""Small recordings of injections, for tests: the rows of a few iterations out of runs, as one dataset with its truth.

OUT has the tables of a dataset, one file each, cut to the time around each recorded injection, and truth.json: a list
of what scoring.Outcome has of each, with the name under which its job appears there: names are unique.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.bench.verdict.scoring import Outcome
from netmon.errors import DataError
from netmon.evidence import EVIDENCE
from netmon.history.dataset import open_table, stream
from netmon.lab.record import read_truth
from netmon.records import COUNTS

TRUTH = "truth.json"
_TIMED = {"buckets": "bucket_start_ns", "iterations": "start_ns", **dict.fromkeys(EVIDENCE, "start_ns")}
_WHOLE = ("flows", "sessions")
_LEFT_OUT = {"buckets": (*({*COUNTS} - {"wire_bytes", "payload_bytes"}), "class", "iteration")}
_ORDER = ("job", "session", "direction", "flow_id", "bucket_start_ns", "iteration", "rank", "start_ns")
_BEFORE = 9  # iterations, so that there is a baseline


def record(data: Path, chosen: Sequence[Outcome], out: Path) -> None:
    """Write OUT. data: the campaign's --data, which has the runs of the outcomes chosen. Raises DataError."""
    pieces: dict[str, list[pa.Table]] = {}
    truths: list[dict[str, Any]] = []
    for number, outcome in enumerate(chosen):
        run, name = data / outcome.run, f"{outcome.trainer}-{number}"
        truth = read_truth(run)
        since, until = _span(truth.start_ns, truth.end_ns, outcome)
        for table in (*_TIMED, *_WHOLE):
            if (run / table).is_dir():
                rows = _renamed(_cut(run, table, since, until), truth.job, name)
                pieces.setdefault(table, []).append(rows)
        truths.append({**asdict(outcome), "job": name, "verdict": None})
    if not pieces:
        raise DataError(f"cannot record from {data}: nothing was chosen, or it holds no dataset")
    used = _sessions_and_flows(pieces)
    for table, rows in {**pieces, **used}.items():
        folder = out / table / "date=2026-01-01" / "hour=all"  # of any hour: read whatever time is requested
        folder.mkdir(parents=True, exist_ok=True)
        whole = pa.concat_tables(rows, promote_options="permissive").combine_chunks()
        order = [(name, "ascending") for name in _ORDER if name in whole.schema.names]
        pq.write_table(_narrow(whole.sort_by(order)), folder / "part.parquet", compression="zstd", compression_level=19)
    (out / TRUTH).write_text(json.dumps(truths, indent=1) + "\n")


def _span(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any], outcome: Outcome) -> tuple[int, int]:
    """From some iterations before the injection to one after the last that it met. ns of UTC."""
    first = int(np.searchsorted(end, outcome.at_ns))
    last = int(np.searchsorted(start, outcome.injection["end_ns"] or outcome.at_ns))
    return int(start[max(0, first - _BEFORE)]), int(end[min(len(end) - 1, last)])


def _cut(run: Path, table: str, since: int, until: int) -> pa.Table:
    dataset = open_table(run, table)
    left_out = ("date", *_LEFT_OUT.get(table, ()))
    moment = _TIMED.get(table)
    condition = (ds.field(moment) >= since) & (ds.field(moment) <= until) if moment else None
    schema = pa.schema([field for field in dataset.schema if field.name not in left_out])
    rows = pa.Table.from_batches(stream(dataset, schema.names, condition), schema)
    plain = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in schema]
    return rows.cast(pa.schema(plain)).replace_schema_metadata(dataset.schema.metadata)


def _renamed(rows: pa.Table, job: str, name: str) -> pa.Table:
    """The job and its hosts' sessions with names of their own: a run may be recorded twice."""
    index = {column: rows.schema.get_field_index(column) for column in ("job", "session")}
    if index["job"] >= 0:
        old = rows["job"]
        rows = rows.set_column(index["job"], "job", pc.if_else(pc.equal(old, job), name, old))
    if index["session"] >= 0:
        named = pc.binary_join_element_wise(rows["session"], name, "-")
        rows = rows.set_column(index["session"], "session", named)
    return rows


def _sessions_and_flows(pieces: dict[str, list[pa.Table]]) -> dict[str, list[pa.Table]]:
    """Of the flows, those that have rows; of the iterations, only the recorded jobs'."""
    kept: dict[str, list[pa.Table]] = {"flows": []}
    for flows, buckets in zip(pieces["flows"], pieces["buckets"], strict=True):
        pairs = set(zip(buckets["session"].to_pylist(), buckets["flow_id"].to_pylist(), strict=True))
        own = [pair in pairs for pair in zip(flows["session"].to_pylist(), flows["flow_id"].to_pylist(), strict=True)]
        kept["flows"].append(flows.filter(pa.array(own)))
    return kept


def _narrow(rows: pa.Table) -> pa.Table:
    """Words as dictionaries: a file of few rows is mostly words."""
    narrow = [
        pa.field(f.name, pa.dictionary(pa.int32(), pa.string())) if pa.types.is_string(f.type) else f
        for f in rows.schema
    ]
    return rows.cast(pa.schema(narrow, metadata=rows.schema.metadata))
