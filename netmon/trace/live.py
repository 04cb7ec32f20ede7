# SPDX-License-Identifier: Apache-2.0
"""The last seconds of a live collector as a small dataset: full resolution, from the agents' recorders."""

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from netmon.errors import DataError
from netmon.wire.full import get_full
from netmon.wire.security import Security

_FOLDER = Path("date=2000-01-01/hour=all")  # of one part, whenever it was
_FLOW = ("host", "session", "interface", "direction", "flow_id", "src", "dst", "src_port", "dst_port", "protocol")
_KNOWN = ("process", "job", "class")
_SETTLED_NS = 1_000_000_000
MOST_NS = 60_000_000_000


def fetch(address: str, security: Security, hosts: Sequence[str], last_ns: int, folder: Path) -> list[str]:
    """Write the tables `buckets` and `flows` below a folder → sentences on what is missing; blocks.

    last_ns: how much, at most MOST_NS; it ends a second ago. Raises DataError where nobody has a row, and as get_full.
    """
    until_ns = time.time_ns() - _SETTLED_NS
    parts, gaps = list[pa.Table](), []
    for part in get_full(address, hosts, until_ns - last_ns, until_ns, security):
        if part.gap:
            gaps.append(f"{part.host}: {part.gap}")
        if len(part.rows):
            parts.append(_plain(part.rows))
    if not parts:
        raise DataError(f"cannot trace the collector at {address}: nobody has a row of the last seconds")
    rows = pa.concat_tables(parts, promote_options="permissive")
    names = [name for name in (*_FLOW, *_KNOWN) if name in rows.column_names]
    flows = rows.select(names).group_by(names).aggregate([])
    missing = {"rank": pa.int32(), "peer_rank": pa.int32()}
    for name, kind in missing.items():
        flows = flows.append_column(name, pa.nulls(len(flows), kind))
    for table, found in (("buckets", rows), ("flows", flows)):
        (folder / table / _FOLDER).mkdir(parents=True)
        pq.write_table(found, folder / table / _FOLDER / "part.parquet")
    return gaps


def _plain(rows: pa.Table) -> pa.Table:
    """Words as they are: each part numbers them in its own way."""
    kinds = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(kinds)).replace_schema_metadata(None)
