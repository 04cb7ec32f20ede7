# SPDX-License-Identifier: Apache-2.0
"""What the ranks of jobs called in their steps, out of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.dl.groups import GroupUse, OperationUse, group_uses, group_waits, ranks_in_words
from netmon.dl.hangs import operation_name
from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import TRAFFIC, InferredJob, LinkFlow, TrafficGroup
from netmon.dl.rank_activity import OVER
from netmon.errors import NoRowsError
from netmon.evidence import GROUP_COLUMNS, UNKNOWN
from netmon.history.dataset import jobs_of, open_table, read_rows, stream
from netmon.records import Direction, Table
from netmon.units import format_bytes, format_duration
from netmon.views import GroupLine, Hang, Hung, RowQuery, Rows, Verdict

_COLUMNS = ["host", "job", *GROUP_COLUMNS]
_LATELY_NS = 600_000_000_000  # of a job's last steps, which say what its groups are
_CLEARLY = 1.5  # times the mean: the longest wait of a rank that is named
_STEPS = 200  # on either side of one that is compared


def groups_of(
    data: Path, job: str | None = None, by_traffic: bool = False
) -> dict[str, tuple[list[GroupUse], pd.DataFrame]]:
    """By job, what its groups were used for in its last minutes, and the rows that say so (of the table `collectives`).

    job: only this one; by_traffic: where nobody tells what its ranks call, as its first minute of traffic shows.
    Raises DataError where there is no dataset.
    """
    found = _by_calls(data, job)
    if by_traffic:
        with suppress(NoRowsError):
            for name in sorted({*jobs_of(data)[0]} - found.keys()):
                if job in (None, name) and (uses := _by_traffic(data, name)):
                    found[name] = uses, pd.DataFrame(columns=_COLUMNS)
    return found


def _by_calls(data: Path, job: str | None) -> dict[str, tuple[list[GroupUse], pd.DataFrame]]:
    try:
        table = open_table(data, "collectives")
    except NoRowsError:
        return {}
    last = dict[str, int]()
    for batch in stream(table, ["job", "end_ns"], None if job is None else ds.field("job") == job):
        ends = pa.Table.from_batches([batch]).group_by("job", use_threads=False).aggregate([("end_ns", "max")])
        for name, end_ns in zip(ends["job"].to_pylist(), ends["end_ns_max"].to_pylist(), strict=True):
            last[name] = max(last.get(name, 0), end_ns)
    found = {}
    for name, end_ns in sorted(last.items()):
        rows = _rows(data, name, (end_ns - _LATELY_NS, end_ns))
        found[name] = group_uses(rows), rows
    return found


# --- From traffic alone.

_SEEN_NS, _SLICE_NS, _RESOLUTION_NS = 60_000_000_000, 200_000_000, 1_000_000
_KEY = ["session", "flow_id"]
_LINK_FLOW = [f.name for f in fields(LinkFlow) if f.name not in ("host", "link", "direction")]


def _by_traffic(data: Path, job: str) -> list[GroupUse]:
    """The groups of a job's ranks that its first minute of traffic shows, if each has a host of its own."""
    own = (ds.field("job") == job) & (ds.field("rank") >= 0)
    flows = read_rows(data, "flows", [*_KEY, "host", "direction", *_LINK_FLOW, "rank", "first_ns"], own)
    if flows.empty:
        return []
    local = flows["src"].where(flows["direction"] == "tx", flows["dst"])
    rank_of = flows["rank"].groupby(local).unique()
    if (rank_of.map(len) > 1).any():
        return []
    begin = int(flows["first_ns"].min())
    inference = Inference(_RESOLUTION_NS)
    sessions = read_rows(data, "sessions", ["host", "start_ns"], ds.field("session").isin(sorted({*flows["session"]})))
    for host, since_ns in zip(sessions["host"], sessions["start_ns"], strict=True):
        inference.watch([str(host)], int(since_ns))
    for number, row in enumerate(flows.to_dict("records")):
        way = Direction[str(row["direction"]).upper()]
        inference.describe(number, LinkFlow(str(row["host"]), "", int(way), *(row[name] for name in _LINK_FLOW)))
    traffic = _traffic(data, flows, (begin, begin + _SEEN_NS))
    jobs = dict[str, InferredJob]()
    for until_ns in range(begin, begin + _SEEN_NS, _SLICE_NS):
        first, last = np.searchsorted(traffic["time_ns"], (until_ns - _SLICE_NS, until_ns))
        inference.add(traffic[first:last])
        jobs.update({one.name: one for one in inference.advance(until_ns).jobs})
    whole = max(jobs.values(), key=lambda one: len(one.members), default=None)
    if whole is None or not set(whole.members) <= set(rank_of.index):
        return []
    return [_as_use(one, [int(rank_of[member][0]) for member in one.members], len(rank_of)) for one in whole.groups]


def _traffic(data: Path, flows: pd.DataFrame, span: tuple[int, int]) -> Table:
    """dtype TRAFFIC, ordered by time; `flow` is a row of flows."""
    when, sessions = ds.field("bucket_start_ns"), sorted({*flows["session"]})
    wanted = ds.field("session").isin(sessions) & (when >= span[0]) & (when < span[1]) & (ds.field("payload_bytes") > 0)
    rows = read_rows(data, "buckets", [*_KEY, "bucket_start_ns", "payload_bytes"], wanted, span)
    rows = rows.merge(flows[_KEY].assign(flow=range(len(flows))), on=_KEY).sort_values("bucket_start_ns")
    traffic = np.empty(len(rows), TRAFFIC)
    for name, column in zip(TRAFFIC.names or (), ("bucket_start_ns", "flow", "payload_bytes"), strict=True):
        traffic[name] = rows[column]
    return traffic


def _as_use(group: TrafficGroup, ranks: list[int], size: int) -> GroupUse:
    each = float(group.bytes_per_iteration)
    sent = OperationUse("sent", (-1.0, -1.0), (each, each), -1.0, -1.0)
    name = "all ranks" if len(ranks) == size else f"a group of {len(ranks)}"
    return GroupUse(UNKNOWN, name, group.kind, tuple(ranks), len(ranks), (sent,))


_LEAST_STEPS_NS, _MOST_ROWS = 60_000_000_000, 200_000  # of what is shown while it happens


def groups_lately(source: Rows, job: str, until_ns: int) -> list[GroupLine]:
    """What the groups of a job were used for in the minute before a time (UTC); blocks. Raises NetmonError."""
    wanted = RowQuery("collectives", _COLUMNS, until_ns - _LEAST_STEPS_NS, until_ns, {"job": [job]})
    batches, count = list[pa.Table](), 0
    for batch in source.batches(wanted):
        batches.append(pa.Table.from_batches([batch]))
        count += len(batch)
        if count > _MOST_ROWS:
            break
    rows = _frame(pa.concat_tables(batches, promote_options="permissive")) if batches else None
    return group_lines(group_uses(rows)) if rows is not None and len(rows) else []


def group_lines(uses: Sequence[GroupUse]) -> list[GroupLine]:
    """As they are shown wherever they are."""

    def span(values: tuple[float, float], text: Callable[[float], str]) -> str:
        return "–".join(dict.fromkeys(map(text, values)))

    lines = []
    for use in uses:
        calls = [
            f"{span(one.calls, '{:.3g}'.format)} {one.name}"
            + (f" ({span(one.bytes, format_bytes)})" if max(one.bytes) > 0 else "")
            if max(one.calls) >= 0
            else f"{span(one.bytes, format_bytes)} {one.name}"
            for one in use.operations
        ]
        ranks = ranks_in_words(use.ranks) if use.whole else f"{len(use.ranks)} of {use.size} known"
        waits, (rank, longest_ns) = format_duration(use.waited_ns) if use.waited_ns >= 0 else "?", use.longest
        if longest_ns >= _CLEARLY * use.waited_ns > 0:
            waits += f", rank {rank} {format_duration(longest_ns)}"
        lines.append(GroupLine(use.name, use.kind, ranks, ", ".join(calls), use.phase or "?", waits, use.waited_ns))
    return lines


def group_rows(found: Mapping[str, Sequence[GroupUse]]) -> pd.DataFrame:
    """A row per job, group and what it is for."""
    columns = ["job", "group", "kind", "ranks", "size", "when", "calls", "bytes", "waited_ns", "imbalance"]
    rows = [
        (
            *(job, use.name, use.kind, use.ranks, use.size, use.phase),
            *({one.name: one.calls for one in use.operations}, {one.name: one.bytes for one in use.operations}),
            *(use.waited_ns, use.imbalance),
        )
        for job, uses in found.items()
        for use in uses
    ]
    return pd.DataFrame(rows, columns=columns)


def exposed_in(data: Path, verdict: Verdict) -> str:
    """In which group ranks waited longer in an iteration that was slow, and who kept them; empty: that is not clear.

    Raises DataError.
    """
    around = min(_LATELY_NS, _STEPS * max(verdict.baseline_ns, verdict.end_ns - verdict.start_ns))
    span = verdict.start_ns - around, verdict.end_ns + around
    rows = _rows(data, verdict.job, span)
    if not len(rows):
        return ""
    wanted = (ds.field("job") == verdict.job) & (ds.field("end_ns") >= span[0]) & (ds.field("end_ns") <= span[1])
    steps = read_rows(data, "iterations", ["rank", "end_ns", "iteration"], wanted, span)
    return group_waits(rows, dict(steps), verdict, _clock_error_ns(data, set(rows["host"])))


def _clock_error_ns(data: Path, hosts: set[str]) -> int:
    """Between any two of these hosts, at most."""
    sessions = read_rows(data, "sessions", ["host", "clock_error_ns"])
    of_hosts = sessions[sessions["host"].isin(hosts)].groupby("host")["clock_error_ns"].max().sort_values()
    return int(of_hosts.iloc[-2:].sum()) if len(of_hosts) > 1 else 0


def _rows(data: Path, job: str, span: tuple[int, int]) -> pd.DataFrame:
    """Of steps that end in a time (UTC)."""
    wanted = (ds.field("job") == job) & (ds.field("end_ns") >= span[0]) & (ds.field("end_ns") <= span[1])
    try:
        table = open_table(data, "collectives", (span[0] - _LATELY_NS, span[1]))
    except NoRowsError:
        return pd.DataFrame(columns=_COLUMNS)
    found = list(stream(table, _COLUMNS, wanted))
    if not found:
        return pd.DataFrame(columns=_COLUMNS)
    return _frame(pa.Table.from_batches(found))


def _frame(rows: pa.Table) -> pd.DataFrame:
    group = pc.fill_null(rows["group"], UNKNOWN)  # a hash: no float holds it
    frame: pd.DataFrame = rows.set_column(rows.schema.get_field_index("group"), "group", group).to_pandas()
    return frame.assign(rank=frame["rank"].astype("int64"))


# --- Jobs that hung, out of a dataset, and what was there before they did.


def read_hangs(data: Path, job: str | None = None) -> list[Hang]:
    """Newest first, each as it was known last. job: only those of this one, by its identity. Raises DataError."""
    try:
        table = open_table(data, "hangs")
    except NoRowsError:
        return []
    condition = None if job is None else ds.field("job") == job
    names = list(Hang.__dataclass_fields__)
    found = [_hang(row) for batch in stream(table, names, condition) for row in batch.to_pylist()]
    newest = {(one.job, one.since_ns, one.reported_ns): one for one in sorted(found, key=lambda one: one.until_ns)}
    return sorted(newest.values(), key=lambda one: -one.since_ns)


def _hang(row: dict[str, Any]) -> Hang:
    ranks = {name: tuple(row[name]) for name in ("missing", "waiting")}
    return Hang(**row | ranks | {"what": Hung[row["what"].upper()]})


# --- What was there before.

_BEFORE_NS = 10_000_000_000  # who sent something then
_STILL_NS = 2_000_000_000  # after a hang began, flows that stand still do
_TRICKLE_BPS = 1_000  # payload, bytes per second
_MOST_NS = 60_000_000_000  # of a hang, in a trace of it
_OPENED_NS = 3_600_000_000_000
_FLOW = ["session", "flow_id"]


@dataclass(frozen=True)
class Before:
    """The last that a job did. Times are UTC, ns."""

    step: int  # of the missing rank, or any; −1: not known
    step_end_ns: int
    through: str  # what the missing rank was through; empty: not known
    flows: int  # of the job, with traffic
    still: int  # of these, that do not any more
    still_ns: int  # since when

    def line(self, moment: Callable[[int], str]) -> str:
        """In words; empty: nothing is known. moment: of UTC."""
        parts = []
        if self.step >= 0:
            parts.append(f"step {self.step:,} ended at {moment(self.step_end_ns)}")
        if self.through:
            parts.append(f"the rank was through {self.through}")
        if self.still:
            all_of = "all" if self.still == self.flows else f"{self.still} of"
            parts.append(f"{all_of} {self.flows} flows of the job stopped from {moment(self.still_ns)} on")
        return f"before: {'; '.join(parts)}" if parts else ""


def around(hang: Hang) -> tuple[int, int]:
    """From before it until it was over, or reported: as much as a trace of it has, at most."""
    return hang.since_ns - _BEFORE_NS, min(hang.until_ns or hang.reported_ns, hang.since_ns + _MOST_NS) + _STILL_NS


def before(data: Path, hang: Hang) -> Before:
    """Raises DataError."""
    begin_ns, end_ns = hang.since_ns - _BEFORE_NS, hang.until_ns or hang.reported_ns
    span = begin_ns - _OPENED_NS, end_ns
    own = (ds.field("job") == hang.job) & ((ds.field("rank") == hang.rank) | (hang.rank < 0))
    over = own & (ds.field("end_ns") <= end_ns)
    steps = read_rows(data, "iterations", ["iteration", "end_ns"], over, span).sort_values("end_ns").tail(1)
    columns = ["operation", "sequence", "end_ns", "age_ns"]
    calls = read_rows(data, "waits", columns, over & (ds.field("pending") == OVER) & (ds.field("operation") >= 0), span)
    calls = calls.assign(begun_ns=calls["end_ns"] - calls["age_ns"]).sort_values("begun_ns").tail(1)
    through = (
        [_called(*row) for row in calls[["operation", "sequence"]].itertuples(index=False)] if hang.rank >= 0 else []
    )
    number, step_end_ns = next(steps.itertuples(index=False, name=None), (-1, 0))
    return Before(int(number), int(step_end_ns), "".join(through), *_flows(data, hang, begin_ns, end_ns))


def _called(operation: int, sequence: int) -> str:
    return operation_name(int(operation)) + (f" {int(sequence):,}" if sequence >= 0 else "")


def _flows(data: Path, hang: Hang, begin_ns: int, end_ns: int) -> tuple[int, int, int]:
    """How many had traffic before; how many have none any more; since when."""
    start = ds.field("bucket_start_ns")
    sent = (ds.field("job") == hang.job) & (ds.field("payload_bytes") > 0) & (start >= begin_ns) & (start < end_ns)
    columns = [*_FLOW, "bucket_start_ns", "payload_bytes"]
    rows = read_rows(data, "buckets", columns, sent, (begin_ns - _OPENED_NS, end_ns))
    earlier = rows[rows["bucket_start_ns"] < hang.since_ns + _STILL_NS]
    after = rows[rows["bucket_start_ns"] >= hang.since_ns + _STILL_NS].groupby(_FLOW)["payload_bytes"].sum()
    last = earlier.groupby(_FLOW)["bucket_start_ns"].max()
    later = after.reindex(last.index, fill_value=0)
    still = last[later <= _TRICKLE_BPS * max(0, end_ns - hang.since_ns - _STILL_NS) / 1e9]
    return len(last), len(still), int(still.max()) if len(still) else 0
