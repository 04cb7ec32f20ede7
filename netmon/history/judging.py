# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the iterations of a dataset: read in pieces, so that memory does not grow with it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.dl.account import JOB
from netmon.dl.verdict import (
    Link,
    LinkTotals,
    Steps,
    Whose,
    host_part,
    in_cells,
    judge_input,
    matrix,
    no_link_totals,
    rank_times,
    standing_out,
    verdict_on,
    wanted_times,
    worth_reporting,
)
from netmon.dl.verdict.connections import COLUMNS, SAID, no_tcp_rows
from netmon.dl.verdict.evidence import with_waits
from netmon.dl.verdict.host_part import COUNTED
from netmon.dl.verdict.incidents import LATELY_NS, incidents, line, renamed, worst_first
from netmon.dl.verdict.other_ends import NAMED, JobFlow, own_transfers, with_ends
from netmon.dl.verdict.verdict_text import from_columns
from netmon.errors import DataError, NoRowsError
from netmon.history.dataset import (
    Numbered,
    all_of,
    frame_of,
    known_columns,
    not_understood,
    open_table,
    read_rows,
    stream,
)
from netmon.history.files import has_ended, table_files
from netmon.history.transfers import transfers_of
from netmon.records import Direction
from netmon.units import format_duration, format_moment
from netmon.views import Incident, RankTimes, Verdict

# --- What a dataset holds alongside the bytes that verdicts rest on: what kept ranks from running, and what TCP said.

_UNKNOWN = -1


def read_waited(data: Path, job: str, begin_ns: int, end_ns: int) -> npt.NDArray[np.void] | None:
    """What kept a job's ranks from running in a time (UTC), dtype WAITED; None where nobody tells."""
    of_ranks = (ds.field("job") == job) & (ds.field("rank") >= 0)
    table = _begun(data, "host", [*host_part.COLUMNS], (begin_ns, end_ns), of_ranks)
    return host_part.waited_rows({name: table[name] for name in host_part.COLUMNS}, len(table)) if len(table) else None


def _counted(data: Path, span: tuple[int, int], host: str) -> npt.NDArray[np.void]:
    """What a host's NICs counted in a time (UTC), dtype COUNTED."""
    own = (ds.field("host") == host) & ds.field("rank").is_null()
    table = _begun(data, "host", list(COUNTED.names or ()), span, own)
    rows = np.empty(len(table), COUNTED)
    for name in COUNTED.names or ():
        rows[name] = table[name].fillna(_UNKNOWN) if name in table else _UNKNOWN
    return rows


def read_tcp_rows(
    data: Path, job: str, begin_ns: int, end_ns: int
) -> tuple[npt.NDArray[np.void], list[tuple[str, int]]]:
    """What TCP said in a time (UTC) of a job's connections, dtype SAID, and the flows (session, number) that its `of`
    counts."""
    flows = read_rows(data, "flows", ["session", "flow_id"], ds.field("job") == job)
    if flows.empty:  # all of them send by RDMA
        return no_tcp_rows(), []
    names = ["session", "flow_id", "start_ns", "end_ns", *COLUMNS.values()]
    own = ds.field("session").isin(sorted(set(flows["session"])))
    table = _begun(data, "transport", names, (begin_ns, end_ns), own)
    table = table.merge(flows.drop_duplicates(), on=["session", "flow_id"])
    if not len(table):
        return no_tcp_rows(), []
    said = np.empty(len(table), SAID)
    keys, said["of"] = _numbered(list(zip(table["session"].astype(str), table["flow_id"].astype(int), strict=True)))
    for name in ("start_ns", "end_ns"):
        said[name] = table[name]
    for name, column in COLUMNS.items():
        said[name] = table[column].fillna(_UNKNOWN) if column in table else _UNKNOWN
    return said, keys


def _begun(data: Path, table: str, names: list[str], span: tuple[int, int], condition: ds.Expression) -> pd.DataFrame:
    """Rows that begin in a time (UTC); none where there is no such table."""
    begin = ds.field("start_ns")
    return read_rows(data, table, names, condition & (begin >= span[0]) & (begin < span[1]), span)


# --- judging

_ITERATION = [
    *("host", "session", "job", "rank", "size", "iteration", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns"),
    *("exposed_ns", "error_ns", "relative", "node_shared"),
    *("dl_rx_bytes", "dl_control_rx_bytes"),
]
_BUCKET = [
    *("host", "session", "interface", "direction", "flow_id", "bucket_start_ns", "bucket_ns"),
    *("wire_bytes", "payload_bytes"),
]
_FLOW = [
    *("session", "flow_id", "process", "container", "class_source", "job", "rank", "peer_rank", "traffic"),
    *("direction", "src", "dst", "src_port", "dst_port", "protocol", "members"),
]
ALWAYS = (0, 1 << 62)  # ns of the UTC epoch
_T = TypeVar("_T", Link, Whose, tuple[str, int])
_PIECE, _OVERLAP = 1_000, 200  # iterations that are looked at together
_ROWS = 500_000  # of a job that are read together
_LONG_NS = 3_600_000_000_000  # no iteration lasts longer
_MADE_NOW = 200
_TOGETHER = 20  # iterations whose rows are read together
_TIMES = ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "exposed_ns", "error_ns")


def verdicts(
    data: Path, job: str | None = None, iteration: int | None = None, within_ns: tuple[int, int] = ALWAYS
) -> Iterator[Verdict]:
    """Verdicts on every iteration that stands out, by job and time; on one that is named, whether it does or not.

    within_ns: only on iterations that overlap this time (UTC). Raises DataError where there is no such dataset, job or
    iteration.
    """
    found, ends = False, _Ends(data)
    unclear = not_understood(data)
    known = {} if unclear and not table_files(data, "iterations") else _jobs_by_file(data, within_ns)
    for name in understood_jobs(job, sorted(set().union(*known.values())), unclear):
        for span_ns, rows in _in_spans(data, name, known, within_ns):
            inside = max(span_ns[0], within_ns[0]), min(span_ns[1], within_ns[1])
            for run in _runs(rows):
                for judged in _of_run(data, name, run, iteration, inside):
                    if span_ns[0] <= judged.end_ns < span_ns[1]:  # else it is another piece's
                        found = True
                        yield ends.added(judged)
    if iteration is not None and not found:
        of = f" of job {job}" if job else ""
        raise DataError(f"cannot judge iteration {iteration}{of}: {data} holds no such iteration{_there(data, job)}")


def explained(data: Path, job: str | None, iteration: int) -> Iterator[tuple[Verdict, tuple[RankTimes, ...]]]:
    """The verdict on an iteration of each job that has it, and where each rank's time went. Raises DataError."""
    for verdict in verdicts(data, job, iteration):
        pieces = _in_spans(data, verdict.job, {}, (verdict.end_ns, verdict.end_ns + 1))
        own = (rows for span_ns, rows in pieces if span_ns[0] <= verdict.end_ns < span_ns[1])
        for run in (run for rows in own for run in _runs(rows)):
            meanwhile = (run["start_ns"] < verdict.end_ns) & (run["end_ns"] > verdict.start_ns)
            if (meanwhile & (run["iteration"] == iteration)).any():
                steps = _steps_with_waits(data, verdict.job, run)
                link_totals = with_evidence(data, verdict.job, run, wanted_times(matrix(steps), [iteration]))
                yield verdict, rank_times(verdict.job, steps, link_totals, verdict)


def stored_verdicts(data: Path, job: str | None = None, within_ns: tuple[int, int] = ALWAYS) -> list[Verdict]:
    """The verdicts that the collector stored; where it stored none, up to 200 that are made now.

    By job and time, of iterations that overlap this time (UTC). Raises DataError where there is no such dataset.
    """
    if (found := read_verdicts(data, job, within_ns)) is not None:
        return found
    try:
        return list(islice(verdicts(data, job, within_ns=within_ns), _MADE_NOW))
    except (DataError, pa.ArrowInvalid):  # no iteration, or a file that cannot be read: the report names it
        return []


def read_verdicts(data: Path, job: str | None, within_ns: tuple[int, int]) -> list[Verdict] | None:
    """The same without any that are made now, and without ranks; None where the dataset has none at all."""
    try:
        table = open_table(data, "verdicts", _around(within_ns))
    except NoRowsError:
        return None
    condition = (ds.field("end_ns") > within_ns[0]) & (ds.field("start_ns") < within_ns[1])
    if job is not None:
        condition &= ds.field("job") == job
    names = [name for name in table.schema.names if name not in ("ranks", "date")]
    found = [from_columns(row) for batch in stream(table, names, condition) for row in batch.to_pylist()]
    return sorted(found, key=lambda verdict: (verdict.job, verdict.start_ns))


def stored_incidents(data: Path, job: str | None = None, within_ns: tuple[int, int] = ALWAYS) -> list[Incident]:
    """incidents_of the stored verdicts. Raises DataError where there is no such dataset."""
    return incidents_of(data, stored_verdicts(data, job, within_ns))


def incidents_of(data: Path, found: Sequence[Verdict]) -> list[Incident]:
    """What verdicts have in common (netmon.dl.verdict.incidents), in the order of their beginnings.

    One that lasts until a job's last step goes on where that was in the last minute and somebody still writes.
    """
    now_ns = time.time_ns()
    newest = _newest_steps(data, now_ns - LATELY_NS) if found and not has_ended(data) else {}
    return incidents(found, newest, now_ns)


def worst_lines(
    found: Sequence[Incident], names: Mapping[str, str], most: int, moment: Callable[[int], str] = format_moment
) -> list[str]:
    """The lines of those that go on, then of those that lost most; and how many more there are.

    names: what people call jobs. moment: how a time (UTC ns) is shown.
    """
    ordered = worst_first(found)
    lines = [line(renamed(one, names), moment) for one in ordered[:most]]
    if more := ordered[most:]:
        lines.append(f"and {len(more):,} more, {format_duration(sum(one.lost_ns for one in more))} lost")
    return lines


def _there(data: Path, job: str | None) -> str:
    """Which iterations there are, of a job or of all."""
    own = ds.field("job") == job if job else None
    batches = stream(open_table(data, "iterations"), ["iteration"], own)
    spans = [pc.min_max(batch.column(0)).as_py() for batch in batches if len(batch)]
    if not spans:
        return ""
    return f"; it has {min(span['min'] for span in spans):,} to {max(span['max'] for span in spans):,}"


def _newest_steps(data: Path, since_ns: int) -> dict[str, tuple[int, int]]:
    """By job, the end (UTC ns) and the number of its last iteration, of jobs that have ended one since."""
    columns, newest = ["job", "end_ns", "iteration"], dict[str, tuple[int, int]]()
    try:
        table = open_table(data, "iterations", _around((since_ns, ALWAYS[1])))
    except NoRowsError:
        return {}
    for batch in stream(table, columns, ds.field("end_ns") >= since_ns):
        rows = pa.Table.from_batches([batch]).sort_by("end_ns").group_by("job", use_threads=False)
        last = rows.aggregate([("end_ns", "last"), ("iteration", "last")])
        for job, end_ns, number in zip(*(last[name].to_pylist() for name in last.column_names), strict=True):
            newest[job] = max(newest.get(job, (0, 0)), (end_ns, number))
    return newest


def _jobs_by_file(data: Path, within_ns: tuple[int, int]) -> dict[Path, set[str]]:
    """The jobs that have iterations in each file of this time. Raises DataError where there is no such dataset."""
    known = dict[Path, set[str]]()
    for file in open_table(data, "iterations", _around(within_ns)).get_fragments():
        path = Path(file.path)
        names = (batch.column(0).unique() for batch in stream(open_table(data, "iterations", paths=[path]), ["job"]))
        known[path] = {str(name) for column in names for name in column.drop_null().to_pylist()}
    return known


def understood_jobs(job: str | None, names: Sequence[str], unclear: Sequence[str]) -> list[str]:
    """Of the jobs that have iterations those that are to be judged. Raises DataError where there is none of this name.

    unclear: those whose steps are not understood.
    """
    if job in unclear:
        return []
    if job is None or job in names:
        return [name for name in names if name not in unclear] if job is None else [job]
    known = ", ".join(sorted({*names, *unclear}))
    raise DataError(f"cannot judge job {job}: the dataset has no iteration of it; it has jobs: {known}")


def _in_spans(
    data: Path, job: str, known: Mapping[Path, set[str]], within_ns: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], pd.DataFrame]]:
    """The rows of a job in pieces of bounded size, with the time in which each piece's own iterations end (UTC ns).

    Its other rows are of iterations around them, with which they are compared. within_ns: other pieces are left out.
    known: the jobs of files; those of others are looked for.
    """
    table = _open_iterations(data, job, known, _around(within_ns))
    batches = list(stream(table, ["start_ns", "rank"], ds.field("job") == job))
    starts = np.sort(np.concatenate([batch.column("start_ns").to_numpy() for batch in batches]))
    ranks = len(set().union(*(batch.column("rank").unique().to_pylist() for batch in batches)))
    del batches
    around = _OVERLAP * ranks
    edges = [ALWAYS[0], *starts[_ROWS::_ROWS].tolist(), ALWAYS[1]]
    for number, (begin_ns, end_ns) in enumerate(pairwise(edges)):
        if end_ns <= within_ns[0] or begin_ns - _LONG_NS >= within_ns[1]:
            continue
        first, over = number * _ROWS - around, (number + 1) * _ROWS + around
        read = int(starts[max(0, first)]), int(starts[min(len(starts), over) - 1])
        yield (begin_ns, end_ns), _iterations(data, job, known, read)


def _open_iterations(data: Path, job: str, known: Mapping[Path, set[str]], begins_ns: tuple[int, int]) -> ds.Dataset:
    """Of the files there are now, those that may hold iterations of the job."""
    files = [path for path in table_files(data, "iterations") if job in known.get(path, {job})]
    return open_table(data, "iterations", begins_ns, files)


def _around(within_ns: tuple[int, int]) -> tuple[int, int]:
    """In which the iterations begin that overlap this time, and many before them, with which they are compared."""
    return within_ns[0] - 2 * _LONG_NS, within_ns[1]


def _iterations(data: Path, job: str, known: Mapping[Path, set[str]], within_ns: tuple[int, int]) -> pd.DataFrame:
    """The rows of a job that begin in this time, both ends included."""
    start = ds.field("start_ns")
    condition = (ds.field("job") == job) & (start >= within_ns[0]) & (start <= within_ns[1])
    table = _open_iterations(data, job, known, (within_ns[0], within_ns[1] + 1))
    rows = frame_of(table, _ITERATION, condition)
    return rows[rows["end_ns"] > rows["start_ns"]]


def _runs(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of one job in pieces in which numbers do not repeat: a job of the same name counts anew, after a while.

    A rank that goes on at once is numbered as the others are from then on.
    """
    rows = rows.sort_values(["rank", "start_ns"], kind="stable")
    of_rank = rows.groupby("rank")
    pause = rows["start_ns"] - of_rank["end_ns"].shift()
    again = (of_rank["iteration"].diff() <= 0) & (pause > rows["end_ns"] - rows["start_ns"])
    run = again.groupby(rows["rank"]).cumsum()
    for _, own in rows.groupby(run):
        yield own


def _of_run(
    data: Path, job: str, rows: pd.DataFrame, iteration: int | None, within_ns: tuple[int, int]
) -> Iterator[Verdict]:
    numbers = np.unique(rows["iteration"].to_numpy(np.int64))
    inside = (rows["end_ns"] > within_ns[0]) & (rows["start_ns"] < within_ns[1])
    wanted = set(rows.loc[inside, "iteration"].tolist())
    if iteration is not None:
        if iteration not in numbers:
            return
        index = int(np.searchsorted(numbers, iteration))
        pieces = [(max(0, index - _OVERLAP), index + _OVERLAP + 1, {iteration})]
    else:
        pieces = [
            (max(0, begin - _OVERLAP), begin + _PIECE + _OVERLAP, set(numbers[begin : begin + _PIECE].tolist()))
            for begin in range(0, len(numbers), _PIECE)
        ]
    for begin, end, own in pieces:
        if own.isdisjoint(wanted):
            continue
        inside = rows["iteration"].isin(numbers[begin:end])
        steps = _steps_with_waits(data, job, rows[inside])
        table = matrix(steps)
        due = sorted(own) if iteration is not None else [n for n in standing_out(steps) if n in own and n in wanted]
        for first in range(0, len(due), _TOGETHER):
            some = due[first : first + _TOGETHER]
            link_totals = with_evidence(data, job, rows[inside], wanted_times(table, some))
            span = int(steps.start_ns.min()) - _AROUND_NS, int(steps.end_ns.max()) + _AROUND_NS
            sent = cache(partial(transfers_of, data, job, rows[inside], link_totals.clock_error_ns))
            counted = cache(partial(_counted, data, span))
            for number in some:
                one = judge_input(job, table, link_totals, number, sent, counted)
                verdict = verdict_on(one, steps)
                if iteration is not None or worth_reporting(one, verdict):
                    yield verdict


def steps_of(rows: pd.DataFrame) -> Steps:
    """Rows of the table `iterations`, of one job and run; what they do not report is unknown."""
    hosts, host = np.unique(rows["host"].to_numpy(str), return_inverse=True)
    times = {name: rows[name].fillna(-1 if name == "exposed_ns" else 0).to_numpy(np.int64) for name in _TIMES}
    return Steps(
        number=rows["iteration"].to_numpy(np.int64),
        rank=rows["rank"].to_numpy(np.int64),
        **times,
        shared=rows["node_shared"].fillna(False).to_numpy(np.bool_),
        host=host.astype(np.int64),
        hosts=hosts.tolist(),
        size=_job_of(rows)[1],
        relative=bool(rows["relative"].fillna(False).all()),
        received_bytes=_received(rows),
    )


def _received(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Bytes of gradients and the like; −1: not known."""
    received: npt.NDArray[np.int64] = (rows["dl_rx_bytes"] - rows["dl_control_rx_bytes"]).fillna(-1).to_numpy(np.int64)
    return received


def _steps_with_waits(data: Path, job: str, rows: pd.DataFrame) -> Steps:
    """The same, with what ranks waited in their calls where the iterations do not show it."""
    steps = steps_of(rows)
    if (steps.exposed_ns >= 0).all():
        return steps
    span = int(steps.end_ns.min()), int(steps.end_ns.max()) + _AROUND_NS
    end = ds.field("end_ns")
    wanted = (ds.field("job") == job) & (end >= span[0] - _AROUND_NS) & (end < span[1])
    names = ["rank", "end_ns", "waited_ns"]
    calls = read_rows(data, "collectives", names, wanted, (span[0] - _LONG_NS, span[1]))
    return with_waits(steps, {name: calls[name].to_numpy() for name in names})


def _job_of(rows: pd.DataFrame) -> tuple[str, int]:
    """Whose rows of the table `iterations` these are, and how many ranks it has; 0: unknown."""
    return str(rows["job"].iloc[0]), int(rows["size"].max()) if rows["size"].notna().any() else 0


def read_link_totals(data: Path, rows: pd.DataFrame, times: Sequence[tuple[int, int]]) -> LinkTotals:
    """The traffic of the hosts of these iterations in some times (UTC ns); nothing where the dataset has no buckets."""
    if not times:
        return no_link_totals()
    hosts = sorted(rows["host"].unique())
    begin, end = min(t[0] for t in times), max(t[1] for t in times)
    try:
        table = open_table(data, "buckets", (begin - _AROUND_NS, end))
    except NoRowsError:
        return no_link_totals()
    when = ds.field("bucket_start_ns")
    condition = ds.field("host").isin(hosts) & (when >= begin - _AROUND_NS) & (when < end)
    links, flows = Numbered[tuple[Any, ...]](), Numbered[tuple[Any, ...]]()
    cells, widest = [], 0
    for batch in stream(table, _BUCKET, condition):
        start = batch.column("bucket_start_ns").to_numpy()
        inside = np.zeros(len(start), np.bool_)
        for since, until in times:
            inside |= (start >= since - _AROUND_NS) & (start < until)
        kept = pa.Table.from_batches([batch]).filter(pa.array(inside))
        if not len(kept):
            continue
        of = _numbers(kept, _LINK, links), _numbers(kept, _OF_FLOW, flows)
        counts = [kept.column(name).to_numpy().astype(np.int64, copy=False) for name in _COUNTS]
        cells.append(in_cells(*of, *counts))
        widest = max(widest, int(counts[1].max()))
    return (
        _link_totals(data, np.concatenate(cells), links.values, flows.values, widest, rows)
        if cells
        else no_link_totals()
    )


def with_evidence(data: Path, job: str, rows: pd.DataFrame, times: Sequence[tuple[int, int]]) -> LinkTotals:
    """The same with what hosts reported of the job's ranks, and TCP of their connections, while these iterations
    lasted."""
    link_totals = read_link_totals(data, rows, times)
    begin, end = int(rows["start_ns"].min()), int(rows["end_ns"].max())
    said, flows = read_tcp_rows(data, job, begin - _AROUND_NS, end)
    whose = _flows(data, flows, rows)
    said["of"] += len(link_totals.whose)
    waited = read_waited(data, job, begin - _AROUND_NS, end)
    return replace(link_totals, waited=waited, said=said, whose=(*link_totals.whose, *whose))


_LINK = ("session", "host", "interface", "direction")
_OF_FLOW = ("session", "flow_id")
_COUNTS = ("bucket_start_ns", "bucket_ns", "wire_bytes", "payload_bytes")
_AROUND_NS = 1_000_000_000  # a row's bucket is not wider


def _link_totals(
    data: Path,
    cells: npt.NDArray[np.void],
    links: Sequence[tuple[Any, ...]],
    flows: Sequence[tuple[Any, ...]],
    widest_ns: int,
    iterations: pd.DataFrame,
) -> LinkTotals:
    """cells: of which `link` and `of` count links (_LINK) and flows (_OF_FLOW); they get the indices of these here."""
    capacity, clock_error = _sessions(data, {session for session, *_ in links})
    by_name, by_number = (
        sorted(range(len(links)), key=links.__getitem__),
        sorted(range(len(flows)), key=flows.__getitem__),
    )
    # A host that was restarted has the same links in two sessions.
    names, same = _numbered(
        [
            Link(h, name, Direction[way.upper()], capacity.get((session, name), 0))
            for session, h, name, way in (links[at] for at in by_name)
        ]
    )
    whose, one = _numbered(_flows(data, [flows[at] for at in by_number], iterations))
    for column, order, positions in (("link", by_name, same), ("of", by_number, one)):
        place = np.empty(len(order), np.int64)
        place[order] = positions
        cells[column] = place[cells[column]]
    return LinkTotals(names, whose, cells, clock_error, width_ns=widest_ns)


def _numbers(rows: pa.Table, columns: Sequence[str], known: Numbered[tuple[Any, ...]]) -> npt.NDArray[np.int64]:
    """Of each row the number of its values in these columns."""
    key = np.zeros(len(rows), np.int64)
    for name in columns:
        values = rows.column(name).combine_chunks()
        values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        key = key * (len(values.dictionary) + 1) + values.indices.to_numpy()
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    found = rows.select(columns).take(first).to_pylist()
    return np.array([known.number(tuple(row.values())) for row in found], np.int64)[of]


def _numbered(values: Sequence[_T]) -> tuple[list[_T], npt.NDArray[np.int64]]:
    """Each value once, and the place of each of them there."""
    found = Numbered[_T]()
    numbers = np.array([found.number(value) for value in values], np.int64)
    return found.values, numbers


def _sessions(data: Path, sessions: set[str]) -> tuple[dict[tuple[str, str], int], int]:
    """Capacity by session and interface; the largest bound of their clocks."""
    rows = read_rows(data, "sessions", ["session", "interface", "capacity_bps", "clock_error_ns"])
    own = rows[rows["session"].isin(sessions)].fillna({"capacity_bps": 0, "clock_error_ns": 0})
    names = zip(own["session"], own["interface"], strict=True)
    return dict(zip(names, own["capacity_bps"].astype(int), strict=True)), int(own["clock_error_ns"].max()) if len(
        own
    ) else 0


def _flows(data: Path, wanted: Sequence[tuple[str, int]], iterations: pd.DataFrame) -> list[Whose]:
    """Whose each flow (session, number) is, as it was known at last. iterations: of the job that is judged."""
    if not wanted:
        return []
    whose: dict[tuple[str, int], Whose] = {}
    missing, (job, size) = set(wanted), _job_of(iterations)
    of_job: dict[tuple[str, int], JobFlow] = {}
    try:
        table = open_table(data, "flows")
    except NoRowsError:
        table = None
    condition = ds.field("session").isin(sorted({session for session, _ in wanted} | set(iterations["session"])))
    for batch in stream(table, known_columns(table, _FLOW), condition) if table is not None else ():
        for row in batch.to_pylist():
            key = row["session"], row["flow_id"]
            if key in missing:
                whose[key] = _whose(row)
            if row["job"] == job:
                of_job[key] = _job_flow(row)
    for key, transfer in zip(of_job, own_transfers([*of_job.values()], size), strict=True):
        if transfer and key in whose:
            whose[key] = whose[key]._replace(name=transfer.name, far=transfer.far)
    return [whose.get(key, Whose("", -1, -1, False, "")) for key in wanted]


_KEY = ["session", "flow_id"]


class _Ends:
    """Whose process a culprit is, and between whom its bytes went."""

    _COLUMNS = (
        *("session", "flow_id", "src", "dst", "process", "container", "class_source", "job", "user"),
        *("first_ns", "last_ns", "members"),
    )

    def __init__(self, data: Path) -> None:
        self._data = data
        self._flows: dict[tuple[str, str, str], pd.DataFrame] = {}  # of others, by link
        self._host_at: dict[str, str] = {}

    def added(self, verdict: Verdict) -> Verdict:
        """With what is known of that."""
        if verdict.cause not in NAMED:
            return verdict
        sends = verdict.direction == Direction.TX
        link = verdict.host, verdict.interface, "tx" if sends else "rx"
        if link not in self._flows:
            others = all_of([_on(link), ds.field("job") != verdict.job])
            rows = read_rows(self._data, "flows", self._COLUMNS, others)
            names = [JOB + row["job"] if row["job"] else process_name(row) for row in rows.to_dict("records")]
            self._flows[link] = rows.assign(named=names)
        rows = self._flows[link]
        there = (rows["first_ns"] < verdict.end_ns) & (rows["last_ns"] + _AROUND_NS > verdict.start_ns)
        rows = rows[(rows["named"] == verdict.culprit) & ~(rows["members"] > 0) & there].drop_duplicates(_KEY)

        far = "dst" if sends else "src"

        def described(index: int) -> tuple[str, str]:
            row = rows.iloc[index]
            user = row["user"] if isinstance(row["user"], str) else ""
            return user, self._host(str(row[far]))

        alike = len(rows[[far, "user"]].drop_duplicates()) <= 1  # then it need not be read which had most traffic
        bytes_sent = np.ones(len(rows)) if alike else self._bytes_sent(rows, link, verdict)
        return with_ends(verdict, bytes_sent, described)

    def _bytes_sent(self, flows: pd.DataFrame, link: tuple[str, str, str], verdict: Verdict) -> npt.NDArray[np.int64]:
        """Payload bytes of each of these flows in the time of a verdict's iteration."""
        within = verdict.start_ns - _AROUND_NS, verdict.end_ns
        start = ds.field("bucket_start_ns")
        own = [_on(link), ds.field("flow_id").isin(flows["flow_id"].tolist()), start >= within[0], start < within[1]]
        names = [*_KEY, "bucket_start_ns", "bucket_ns", "payload_bytes"]
        rows = read_rows(self._data, "buckets", names, all_of(own), within)
        rows = rows[rows["bucket_start_ns"] + rows["bucket_ns"] > verdict.start_ns]
        bytes_sent = rows.astype({"session": str}).groupby(_KEY)["payload_bytes"].sum()
        keys = pd.MultiIndex.from_frame(flows[_KEY].astype({"session": str}))
        return bytes_sent.reindex(keys, fill_value=0).to_numpy(np.int64)

    def _host(self, address: str) -> str:
        """The host that sends from there; the address itself, where none is known to."""
        if address not in self._host_at:
            own = (ds.field("src") == address) & (ds.field("direction") == "tx")
            hosts = read_rows(self._data, "flows", ["host"], own)["host"]
            self._host_at[address] = str(hosts.iloc[-1]) if len(hosts) else address
        return self._host_at[address]


def _on(link: tuple[str, str, str]) -> ds.Expression:
    return all_of([ds.field(name) == word for name, word in zip(("host", "interface", "direction"), link, strict=True)])


def _job_flow(row: dict[str, Any]) -> JobFlow:
    whose = _whose(row)
    ends = (row["src"], row["dst"], row["src_port"], row["dst_port"], row["protocol"])
    way = Direction[row["direction"].upper()]
    return JobFlow(whose.rank, whose.peer, whose.name if row["process"] else "", way, *ends, row.get("members") or 0)


def _whose(row: dict[str, object]) -> Whose:
    job = str(row["job"] or "")
    rank, peer = (int(str(row[key])) if row[key] is not None else -1 for key in ("rank", "peer_rank"))
    return Whose(job, rank, peer, row["traffic"] == "control", process_name(row))


def process_name(row: Mapping[Any, object]) -> str:
    """What verdicts call a flow's process, with its container. row: of the table `flows`."""
    name = str(row["process"] or row["class_source"] or "")
    return f"{name} ({row['container']})" if row["container"] else name
