# SPDX-License-Identifier: Apache-2.0
"""The last seconds of a live collector as a small dataset: iterations and verdicts that it reports, and rows at full

resolution, from the agents' recorders.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from netmon.dl.verdict.verdict_text import columns, renamed
from netmon.errors import DataError
from netmon.views import JobView, Selection, Snapshot, Verdict
from netmon.wire.queries import get_full
from netmon.wire.security import Security
from netmon.wire.watch import UnreachableError, split, watch_once

_FOLDER = Path("date=2000-01-01/hour=all")  # of one part, whenever it was
_FLOW = ("host", "session", "interface", "direction", "flow_id", "src", "dst", "src_port", "dst_port", "protocol")
_KNOWN = ("process", "job", "class")
_SETTLED_NS = 1_000_000_000
MOST_NS = 60_000_000_000
_ITERATION = pa.schema(
    [(name, pa.string()) for name in ("job", "host", "source")]
    + [(name, pa.int64()) for name in ("rank", "iteration", "start_ns", "end_ns", "error_ns")]
    + [(name, pa.int64()) for name in ("comm_start_ns", "comm_end_ns", "exposed_ns")]
    + [("relative", pa.bool_())]
)
_NO_VERDICT = pa.schema([("job", pa.string()), ("start_ns", pa.int64()), ("end_ns", pa.int64())])


def fetch(
    address: str, security: Security, job: str | None, hosts: Sequence[str], last_ns: int, folder: Path
) -> list[str]:
    """Write the tables `iterations`, `verdicts`, `buckets` and `flows` → sentences on what is missing; blocks.

    address: of a collector, or of several workers with commas. job: only its hosts, by either of its names; None: all.
    last_ns: how much, at most MOST_NS; it ends a second ago. Raises DataError where nobody has a row, and as get_full.
    """
    selection = Selection(
        hosts=tuple(hosts), jobs=(job,) if job else (), most_links=1, most_hosts=1, steps_ns=last_ns + 2 * _SETTLED_NS
    )
    snapshots = watch_once(address, selection, security)
    if snapshots.page.unknown:
        raise DataError(
            f"cannot trace {', '.join(snapshots.page.unknown)}: the collector at {address} knows no such name"
        )
    until_ns = snapshots.time_ns - _SETTLED_NS  # by the collector's clock, which the rows are on
    since_ns = until_ns - last_ns
    names = {view.job: view.name or view.job for view in snapshots.jobs}
    if job and not hosts:
        hosts = sorted({rank.host for view in snapshots.jobs for rank in view.ranks})
    rows, gaps = _rows(address, security, hosts, since_ns, until_ns)
    rows = _renamed(rows, names)
    flows = rows.select([name for name in (*_FLOW, *_KNOWN) if name in rows.column_names])
    flows = flows.group_by(flows.column_names).aggregate([])
    for name in ("rank", "peer_rank"):
        flows = flows.append_column(name, pa.nulls(len(flows), pa.int32()))
    judged = (renamed(one, names) for view in snapshots.jobs for one in view.verdicts)
    tables = {
        "iterations": _iterations(snapshots, names, since_ns, until_ns),
        "verdicts": verdicts_table(judged, since_ns, until_ns),
        "buckets": rows,
        "flows": flows,
    }
    for table, found in tables.items():
        (folder / table / _FOLDER).mkdir(parents=True)
        pq.write_table(found, folder / table / _FOLDER / "part.parquet")
    return gaps


def _rows(
    address: str, security: Security, hosts: Sequence[str], since_ns: int, until_ns: int
) -> tuple[pa.Table, list[str]]:
    """What the hosts' recorders have, and what is missing. A worker that has none of these hosts is passed over."""
    parts, gaps, refused = list[pa.Table](), list[str](), list[UnreachableError]()
    for worker in split(address):
        try:
            for part in get_full(worker, hosts, since_ns, until_ns, security):
                if part.gap:
                    gaps.append(f"{part.host}: {part.gap}")
                if len(part.rows):
                    parts.append(_plain(part.rows))
        except UnreachableError as error:
            refused.append(error)
    if not parts and refused:
        raise refused[0]
    gaps += map(str, refused)
    if not parts:
        raise DataError(f"cannot trace the collector at {address}: nobody has a row of the last seconds")
    return pa.concat_tables(parts, promote_options="permissive"), gaps


def _iterations(snapshot: Snapshot, names: Mapping[str, str], since_ns: int, until_ns: int) -> pa.Table:
    rows = [row for view in snapshot.jobs for row in _of_job(view, names[view.job], since_ns, until_ns)]
    return pa.Table.from_pylist(rows, _ITERATION)


def _of_job(view: JobView, name: str, since_ns: int, until_ns: int) -> list[dict[str, object]]:
    """Rows of the table `iterations`, as far as a snapshot has its columns."""
    host_of = {rank.rank: rank.host for rank in view.ranks}
    steps = view.steps
    inside = (steps["end_ns"] > since_ns) & (steps["start_ns"] < until_ns)
    steps = np.sort(steps[inside & np.isin(steps["rank"], list(host_of))], order=["rank", "start_ns"])
    always = {"job": name, "source": view.source.name.lower(), "error_ns": view.error_ns}
    return [
        always
        | {"host": host_of[rank], "rank": rank, "iteration": number, "start_ns": start, "end_ns": end}
        | {"comm_start_ns": begun or None, "comm_end_ns": done or None, "relative": view.relative}
        | {"exposed_ns": done - waited if waited and done else None}
        for rank, number, start, begun, waited, done, end in steps.tolist()
    ]


def verdicts_table(verdicts: Iterable[Verdict], since_ns: int, until_ns: int) -> pa.Table:
    """Those on iterations that overlap [since, until) (UTC), as the table `verdicts`."""
    found = [columns(each) for each in verdicts if each.end_ns > since_ns and each.start_ns < until_ns]
    return pa.Table.from_pylist(found, None if found else _NO_VERDICT)


def _plain(rows: pa.Table) -> pa.Table:
    """Words as they are: each part numbers them in its own way."""
    kinds = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(kinds)).replace_schema_metadata(None)


def _renamed(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """With jobs called what people call them."""
    index = rows.column_names.index("job")
    known = rows["job"].unique()
    words = pa.array([names.get(word, word) for word in known.to_pylist()], pa.string())
    return rows.set_column(index, "job", words.take(pc.index_in(rows["job"], known)))
