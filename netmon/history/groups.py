# SPDX-License-Identifier: Apache-2.0
"""What the ranks of jobs called in their steps, out of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.dl.groups import GroupUse, group_uses, group_waits, ranks_in_words
from netmon.errors import NoRowsError
from netmon.evidence import GROUP_COLUMNS, UNKNOWN
from netmon.history.dataset import open_table, read_rows, stream
from netmon.past import RowQuery, Rows
from netmon.units import format_bytes, format_duration
from netmon.views import GroupLine, Verdict

_COLUMNS = ["host", "job", *GROUP_COLUMNS]
_LATELY_NS = 600_000_000_000  # of a job's last steps, which say what its groups are
_CLEARLY = 1.5  # times the mean: the longest wait of a rank that is named
_STEPS = 200  # on either side of one that is compared


def groups_of(data: Path, job: str | None = None) -> dict[str, tuple[list[GroupUse], pd.DataFrame]]:
    """By job, what its groups were used for in its last minutes, and the rows that say so (of the table `collectives`).

    job: only this one. Raises DataError where there is no dataset.
    """
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
            for one in use.operations
        ]
        ranks = ranks_in_words(use.ranks) if use.whole else f"{len(use.ranks)} of {use.size} known"
        waits, (rank, longest_ns) = format_duration(use.waited_ns), use.longest
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
    around = min(_LATELY_NS, _STEPS * max(verdict.usual_ns, verdict.end_ns - verdict.start_ns))
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
