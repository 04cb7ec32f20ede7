# SPDX-License-Identifier: Apache-2.0
"""Which hosts, jobs and ranks a dataset is of: read from its small tables, of its last day."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from netmon.dl.theory import ring_bytes
from netmon.errors import DataError
from netmon.report.dataset import leave_out, open_table, stream
from netmon.report.job_names import names_of, not_understood
from netmon.web.hours import span
from netmon.web.lanes import Catalogue, arranged

_DAY_NS = 86_400_000_000_000
_RANKS = ["job", "rank", "host", "size", "parameters", "gradient_bytes", "job_name"]


def read_catalogue(data: Path, generation: int, known: tuple[int, int] | None = None) -> Catalogue:
    """Blocks. known: begin and end, where they have been read already. Raises DataError where there is nothing."""
    if not data.is_dir():
        raise DataError(f"cannot show {data}: no such directory; give the --data of a collector")
    begin, end = known or span(data, "buckets", "bucket_start_ns")
    ranks = _ranks(data, end - _DAY_NS, end)
    capacity = _capacity(data)
    hosts = set(capacity) or _hosts(data, end - _DAY_NS, end)
    triples = [
        (str(job), int(rank), str(host)) for job, rank, host in ranks[["job", "rank", "host"]].itertuples(index=False)
    ]
    called = names_of(ranks)
    jobs = sorted({job for job, _, _ in triples})
    return Catalogue(
        lanes=arranged([one for one in triples if one[1] >= 0], hosts),
        begin_ns=begin,
        end_ns=end,
        capacity_bps=capacity,
        job_names={job: called.get(job, job) for job in jobs},
        not_understood=not_understood(data),
        theory={str(job): _theory(own) for job, own in ranks.groupby("job")},
        generation=generation,
    )


def _ranks(data: Path, begin_ns: int, end_ns: int) -> pd.DataFrame:
    """One row of each rank, with the payload that it sent in its iterations (median of the batches' means)."""
    try:
        table = open_table(data, "iterations", (begin_ns, end_ns))
    except DataError:
        return pd.DataFrame(columns=[*_RANKS, "sent"])
    known = [name for name in _RANKS if name in table.schema.names]
    pieces = []
    for batch in stream(table, [*known, "dl_tx_bytes"], None, leave_out):
        found = pa.Table.from_batches([batch]).group_by(known).aggregate([("dl_tx_bytes", "mean")])
        pieces.append(found.to_pandas().rename(columns={"dl_tx_bytes_mean": "sent"}))
    frame = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
    words = [name for name in ("job", "host", "job_name") if name in frame]
    frame = frame.astype(dict.fromkeys(words, str)).reindex(columns=[*_RANKS, "sent"])
    frame = frame[frame["job"].fillna("") != ""]
    return frame.groupby(["job", "rank", "host"], as_index=False).agg(
        {**dict.fromkeys(["size", "parameters", "gradient_bytes", "job_name"], "last"), "sent": "median"}
    )


def _theory(ranks: pd.DataFrame) -> tuple[float, float]:
    """Payload bytes that a rank sends in an iteration: measured, and by equation 3.1; nan: not known."""
    size = int(max(ranks["rank"].nunique(), ranks["size"].fillna(0).max()))
    parameters, gradients = (int(ranks[name].fillna(0).max()) for name in ("parameters", "gradient_bytes"))
    return float(ranks["sent"].median()), ring_bytes(size, parameters, gradients)


def _capacity(data: Path) -> dict[str, float]:
    """Of each host that has had a session, one direction of all its interfaces; 0: not known."""
    try:
        table = open_table(data, "sessions")
    except DataError:
        return {}
    pieces = [
        pa.Table.from_batches([batch]).to_pandas() for batch in stream(table, ["host", "interface", "capacity_bps"])
    ]
    if not pieces:
        return {}
    rows = pd.concat(pieces).astype({"host": str, "interface": str})
    last = rows.drop_duplicates(["host", "interface"], keep="last")
    return {str(host): float(value) for host, value in last.groupby("host")["capacity_bps"].sum().items()}


def _hosts(data: Path, begin_ns: int, end_ns: int) -> set[str]:
    """Of a dataset of an earlier version, which has no table of sessions."""
    table = open_table(data, "buckets", (begin_ns, end_ns))
    return {str(host) for batch in stream(table, ["host"]) for host in batch.column(0).unique().to_pylist()}
