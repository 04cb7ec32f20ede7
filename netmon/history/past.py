# SPDX-License-Identifier: Apache-2.0
"""The past as a dataset has it: the last hour's iterations, and frames of single moments; it reads little of it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.dl.classify import ring_bytes
from netmon.dl.past_frames import flows_of, links_of, step_times
from netmon.dl.verdict.incidents import incidents
from netmon.dl.verdict.verdict_text import from_columns
from netmon.errors import DataError
from netmon.history.dataset import (
    all_of,
    known_columns,
    leave_out,
    names_of,
    open_table,
    plain_words,
    requested_job,
    stream,
)
from netmon.history.files import has_ended, hour_of, open_file, table_files
from netmon.history.groups import groups_lately
from netmon.records import CLASS_NAMES, AgentCost, Class, Direction, Flow, Owner, Source
from netmon.units import format_duration
from netmon.views import (
    HOUR_NS,
    RECENT_INCIDENTS,
    RECENT_ITERATIONS,
    STEP_TIMES,
    Frame,
    GroupLine,
    HostView,
    Incident,
    JobView,
    LinkView,
    Page,
    PastSteps,
    RankSpan,
    RankTimes,
    RankView,
    RowQuery,
    Rows,
    Snapshot,
    Totals,
    Verdict,
)

MOST_FLOWS = 200
_MOST_LINKS = 64
_WIDEST_NS = 1_000_000_000  # of a row
_LATE_NS = 300_000_000_000  # rows that came later than others are looked for so far back
_STEP = [
    *("job", "job_name", "rank", "size", "iteration", "start_ns", "end_ns", "exposed_ns", "relative", "node_shared")
]
_ITERATION = [
    *("host", "job", "job_name", "rank", "size", "iteration", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns"),
    *("exposed_ns", "source", "error_ns", "relative", "parameters", "parameters_basis", "node_shared"),
    *("dl_tx_bytes", "cross_tx_bytes", "cross_rx_bytes"),
]
_BUCKET = [
    "host",
    "session",
    "interface",
    "direction",
    "flow_id",
    "bucket_start_ns",
    "bucket_ns",
    "wire_bytes",
    "class",
]
_FLOW = [
    *(
        "session",
        "flow_id",
        "interface",
        "direction",
        "src",
        "dst",
        "src_port",
        "dst_port",
        "protocol",
        "process",
        "pid",
    ),
    *("container", "user", "job", "rank", "first_ns", "class_source", "members", "prefix_bits"),
]
_SESSION = ["host", "session", "interface", "capacity_bps", "share_window_ns", "share_threshold", "clock_error_ns"]


class DatasetPast:
    """The hour before the newest iteration of a dataset; `steps` looks again at what has come since."""

    def __init__(self, rows: Rows) -> None:
        self._source = rows
        self._steps = pd.DataFrame(columns=_STEP)  # of the hour
        self._rows = pd.DataFrame(columns=_ITERATION)  # around the moment of the last frame
        self._read_ns = 0
        self._past = PastSteps({})
        self._incidents: dict[str, list[Incident]] | None = {}  # None: not computed yet

    def steps(self) -> PastSteps:
        """The iterations of the dataset's last hour; blocks. Raises NetmonError where there is no dataset, or none."""
        newest = self._source.newest_ns()
        since = newest - HOUR_NS
        fresh = self._read("iterations", _STEP, max(since, self._read_ns - _LATE_NS))
        fresh = fresh[fresh["end_ns"] > fresh["start_ns"]]
        known = self._steps[(self._steps["end_ns"] > since) & (self._steps["end_ns"] <= self._read_ns - _LATE_NS)]
        self._steps = pd.concat([known, fresh], ignore_index=True) if len(known) else fresh
        self._read_ns = newest
        self.__dict__.pop("_sessions", None)
        names = names_of(self._steps)
        self._past = PastSteps(step_times(self._steps), self._verdicts_since(since), names, self._source.written())
        self._incidents = None
        return self._past

    def frame(self, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        """The traffic of a job's hosts in [since, until), and what its ranks did; blocks. Raises NetmonError."""
        self._rows = self._around(job, number, since_ns, until_ns)
        if not (self._rows["job"] == job).any():
            raise DataError(f"cannot show that moment: {self._source.name} holds no iteration of {job} around it")
        own = self._rows[(self._rows["job"] == job) & (self._rows["iteration"] == number)]
        own = own[(own["end_ns"] > since_ns) & (own["start_ns"] < until_ns)].sort_values("rank")
        ranks = own if len(own) else self._rows[(self._rows["job"] == job)].drop_duplicates("rank")
        hosts = list(dict.fromkeys(map(str, ranks["host"])))
        gaps = [f"{len(hosts) - _MOST_LINKS // 2} more hosts of the job are not read"] if len(hosts) > 32 else []
        rows, basis = self._buckets(hosts[: _MOST_LINKS // 2], since_ns, until_ns)
        links = links_of(rows, since_ns, until_ns, self._capacities)
        flows = flows_of(rows, since_ns, until_ns, self._describe, MOST_FLOWS)
        jobs = tuple(self._job(name, job, number, until_ns) for name in self._jobs(job, since_ns, until_ns))
        return Frame(
            since_ns,
            until_ns,
            self._snapshot(until_ns, hosts, self._covered(links, since_ns, until_ns), jobs, flows),
            tuple(_span(row) for row in own.to_dict("records")),
            basis,
            tuple(gaps),
        )

    def _around(self, job: str, number: int, since_ns: int, until_ns: int) -> pd.DataFrame:
        """The iterations of all jobs in the span, and in that of the iteration itself."""
        same = self._past.jobs.get(job, np.zeros(0, STEP_TIMES))
        same = same[same["number"] == number]
        if len(same):
            nearest = same[np.abs(same["start_ns"] - since_ns).argmin()]
            since_ns, until_ns = min(since_ns, int(nearest["start_ns"])), max(until_ns, int(nearest["end_ns"]))
        rows = self._read("iterations", _ITERATION, since_ns, until_ns)
        return rows[rows["end_ns"] > rows["start_ns"]]

    def newest(self, job: str | None = None) -> Frame:
        """The frame of the newest iteration, of a job or of all of them; blocks. Raises DataError."""
        past = self.steps()
        found = requested_job(job, past.names)
        jobs = [found] if found else list(past.jobs)
        if found and found not in past.jobs:
            raise DataError(f"cannot show job {job}: {self._source.name} holds no iteration of it within its last hour")
        name = max(jobs, key=lambda one: int(past.jobs[one]["end_ns"][-1]))
        step = past.jobs[name][-1]
        return self.frame(name, *(int(step[key]) for key in ("number", "start_ns", "end_ns")))

    def times(self, job: str, number: int, end_ns: int) -> tuple[RankTimes, ...]:
        """Where the time of a slow iteration went: the others have no baseline. Blocks."""
        if not any(one.job == job and one.iteration == number for one in self._past.verdicts):
            return ()
        found = [pair for pair in self._source.explained(job, number) if abs(pair[0].end_ns - end_ns) < _WIDEST_NS]
        return tuple(found[0][1]) if found else ()

    def groups(self, job: str) -> Sequence[GroupLine]:
        return groups_lately(self._source, job, self._source.newest_ns() + 1)

    def _buckets(self, hosts: Sequence[str], since: int, until: int) -> tuple[pd.DataFrame, str]:
        """Rows of full resolution where all of these hosts have them, else those that were streamed."""
        for table, words in (("full", "kept at full resolution"), ("buckets", "as they were streamed")):
            rows = self._read(table, _BUCKET, since, until, {"host": hosts})
            rows = rows[rows["bucket_start_ns"] + rows["bucket_ns"] > since]
            if table == "full":
                rows = rows.drop_duplicates(["session", "flow_id", "bucket_start_ns"])
                within = rows.groupby("host")["bucket_start_ns"].agg(["min", "max"])
                margin = (until - since) // 10
                whole = (within["min"] <= since + margin) & (within["max"] >= until - margin)
                if not len(rows) or set(within.index[whole]) != set(hosts):
                    continue
            if len(rows):
                rows["class"] = rows["class"].astype(object).fillna(CLASS_NAMES[Class.UNCLASSIFIED])
                return rows, f"rows of {format_duration(int(rows['bucket_ns'].median()))}, {words}"
        return rows, "the dataset has no row of that time"

    def _verdicts_since(self, since: int) -> tuple[Verdict, ...]:
        found = [
            from_columns(row)
            for batch in self._source.batches(RowQuery("verdicts", since_ns=since))
            for row in batch.to_pylist()
        ]
        return tuple(sorted(found or self._source.judged(since), key=lambda verdict: verdict.end_ns))

    def _jobs(self, first: str, since: int, until: int) -> list[str]:
        inside = self._rows[(self._rows["end_ns"] > since) & (self._rows["start_ns"] < until)]
        return [first, *sorted((set(inside["job"].astype(str)) & self._past.jobs.keys()) - {first})]

    def _job(self, name: str, chosen: str, number: int, until: int) -> JobView:
        own = self._rows[self._rows["job"] == name]
        before = own[own["start_ns"] < until]
        at = number if name == chosen else int((before if len(before) else own)["iteration"].iloc[-1])
        ranks = own[own["iteration"] == at].sort_values("start_ns").drop_duplicates("rank", keep="last")
        steps = self._past.jobs.get(name, np.zeros(0, STEP_TIMES))
        lately = steps[steps["start_ns"] < until]
        durations = lately["longest_ns"].astype(np.int64)[-RECENT_ITERATIONS:]
        last = lately[lately["number"] == at][-1:]
        newest = (ranks if len(ranks) else own).iloc[-1]
        size, parameters = _whole(newest["size"]), _whole(newest["parameters"])
        verdicts = [one for one in self._past.verdicts if one.job == name and one.start_ns < until]
        verdicts.sort(key=lambda one: (one.iteration != at, -one.end_ns))
        return JobView(
            job=name,
            size=size,
            iteration=at,
            last_ns=int(last["longest_ns"].sum()),
            median_ns=int(np.median(durations)) if len(durations) else 0,
            p99_ns=int(np.percentile(durations, 99)) if len(durations) else 0,
            source=Source[str(newest["source"]).upper()],
            error_ns=_whole(newest["error_ns"]),
            relative=bool(newest["relative"]),
            parameters=parameters,
            measured_bytes=float(ranks["dl_tx_bytes"].median()) if len(ranks) else float("nan"),
            theory_bytes=ring_bytes(size, parameters) if size and parameters else float("nan"),
            durations_ns=durations,
            ranks=tuple(_rank(row) for row in ranks.sort_values("rank").to_dict("records")),
            verdicts=tuple(verdicts[:5]),
            incidents=tuple(
                [one for one in self._incidents_of(name) if one.since_ns < until][-1 : -RECENT_INCIDENTS - 1 : -1]
            ),
            known_ranks=len(ranks),
            shared_ranks=int(ranks["node_shared"].fillna(False).sum()),
            name=self._past.names.get(name, ""),
            parameters_basis=str(newest["parameters_basis"] or ""),
            baseline_ns=int(last["baseline_ns"].sum()),
        )

    def _incidents_of(self, job: str) -> list[Incident]:
        """In the order of their beginnings."""
        if self._incidents is None:
            self._incidents = {}
            for one in incidents(self._past.verdicts, self._past.go_on(), time.time_ns()):
                self._incidents.setdefault(one.job, []).append(one)
        return self._incidents.get(job, [])

    def _snapshot(
        self,
        until: int,
        hosts: Sequence[str],
        links: tuple[LinkView, ...],
        jobs: tuple[JobView, ...],
        flows: tuple[object, ...],
    ) -> Snapshot:
        sessions = self._sessions
        error = {str(row["host"]): _whole(row["clock_error_ns"]) for row in sessions.to_dict("records")}
        return Snapshot(
            time_ns=until,
            share_threshold=float(sessions["share_threshold"].max()) if len(sessions) else 0.01,
            share_window_ns=int(sessions["share_window_ns"].max()) if len(sessions) else 0,
            hosts=tuple(HostView(host, True, 0, error.get(host, 0), AgentCost()) for host in hosts),
            links=links,
            jobs=jobs,
            flows=flows,  # type: ignore[arg-type]
            totals=Totals(
                hosts=len(hosts),
                connected=len(hosts),
                links=len(links),
                nic_bytes=sum(link.nic_bytes for link in links),
                attributed_bytes=sum(link.attributed_bytes for link in links if link.nic_bytes),
                class_bps=tuple(sum(link.wire_bps.mean(axis=0) for link in links)) if links else (),
                jobs=len(jobs),
                ranks=sum(job.known_ranks for job in jobs),
                shared_ranks=sum(job.shared_ranks for job in jobs),
                flows=len(flows),
                clock_error_ns=max(error.values(), default=0),
            ),
            page=Page(len(hosts), len(links), 0, len(jobs), 0),
        )

    def _covered(self, links: Sequence[LinkView], since: int, until: int) -> tuple[LinkView, ...]:
        """With what the ledger says of the intervals around the span."""
        names = ["host", "interface", "direction", "nic_bytes", "attributed_bytes", "overflow_bytes"]
        names += ["lost_kernel_bytes", "lost_agent_bytes", "invisible_bytes", "hook"]
        rows = self._read("ledger", names, since, until, {"host": sorted({link.host for link in links})})
        sums = dict(list(rows.groupby(["host", "interface", "direction"]))) if len(rows) else {}
        covered = []
        for link in links:
            own = sums.get((link.host, link.interface, link.direction.name.lower()))
            if own is None:
                covered.append(link)
                continue
            totals: dict[str, Any] = {name: int(own[name].sum()) for name in names[3:-1]}
            part = totals["attributed_bytes"] / totals["nic_bytes"] if totals["nic_bytes"] else float("nan")
            covered.append(replace(link, **totals, coverage=part, hook=str(own["hook"].iloc[0])))
        return tuple(covered)

    @cached_property
    def _sessions(self) -> pd.DataFrame:
        return self._read("sessions", _SESSION)

    @property
    def _capacities(self) -> Mapping[tuple[str, str], int]:
        rows = self._sessions.to_dict("records")
        return {(str(row["host"]), str(row["interface"])): _whole(row["capacity_bps"]) for row in rows}

    def _describe(self, wanted: Sequence[tuple[str, int]]) -> list[Flow | None]:
        if not wanted:
            return []
        sessions, numbers = (sorted(set(column)) for column in zip(*wanted, strict=True))
        rows = self._read("flows", _FLOW, among={"session": sessions, "flow_id": numbers})
        known = {(str(row["session"]), int(row["flow_id"])): _flow(row) for row in rows.to_dict("records")}
        return [known.get(key) for key in wanted]

    def _read(
        self,
        table: str,
        names: list[str],
        since_ns: int = 0,
        until_ns: int = 1 << 62,
        among: Mapping[str, Sequence[str | int]] | None = None,
    ) -> pd.DataFrame:
        wanted = RowQuery(table, names, since_ns, until_ns, among or {})
        pieces = [plain_words(batch.to_pandas()) for batch in self._source.batches(wanted)]
        rows = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame(columns=names)
        return rows.reindex(columns=names)


def _span(row: dict[object, object]) -> RankSpan:
    known = row["comm_start_ns"] == row["comm_start_ns"] and row["comm_start_ns"] is not None
    communicated = (_whole(row["comm_start_ns"]), _whole(row["comm_end_ns"])) if known else (0, 0)
    return RankSpan(
        _whole(row["rank"]), str(row["host"]), _whole(row["start_ns"]), _whole(row["end_ns"]), *communicated
    )


def _rank(row: dict[object, object]) -> RankView:
    span = _span(row)
    exposed = row["exposed_ns"]
    dl_tx, cross_tx, cross_rx = (_whole(row[name]) for name in ("dl_tx_bytes", "cross_tx_bytes", "cross_rx_bytes"))
    return RankView(
        rank=span.rank,
        host=span.host,
        iteration=_whole(row["iteration"]),
        duration_ns=span.end_ns - span.start_ns,
        communication_ns=span.comm_end_ns - span.comm_start_ns,
        node_shared=bool(row["node_shared"]),
        dl_tx_bytes=dl_tx,
        cross_tx_bytes=cross_tx,
        cross_rx_bytes=cross_rx,
        exposed_ns=-1 if exposed is None or exposed != exposed else _whole(exposed),
    )


def _flow(row: dict[object, object]) -> Flow:
    who = Owner(
        *(_whole(row["pid"]), str(row["process"] or ""), str(row["container"] or ""), str(row["job"] or "")),
        *(_whole(row["rank"]), str(row["class_source"] or ""), user if isinstance(user := row["user"], str) else ""),
    )
    return Flow(
        flow_id=_whole(row["flow_id"]),
        interface=0,
        direction=Direction[str(row["direction"]).upper()],
        src=str(row["src"]),
        dst=str(row["dst"]),
        src_port=_whole(row["src_port"]),
        dst_port=_whole(row["dst_port"]),
        protocol=_whole(row["protocol"]),
        first_ns=_whole(row["first_ns"]),
        owner=who,
        members=_whole(row["members"]),
        prefix_bits=_whole(row["prefix_bits"]),
    )


def _whole(value: object) -> int:
    return int(value) if value is not None and value == value else 0  # type: ignore[call-overload]


# --- Rows of a time out of a dataset on this machine; little of it is read.

WIDEST_NS = 1_000_000_000
"""A row's bucket is not wider."""

_TIMES = {
    "iterations": ("start_ns", "end_ns", HOUR_NS),
    "verdicts": ("start_ns", "end_ns", HOUR_NS),
    "collectives": ("start_ns", "end_ns", HOUR_NS),
    "ledger": ("start_ns", "end_ns", HOUR_NS // 60),
    "buckets": ("bucket_start_ns", "", WIDEST_NS),
    "full": ("bucket_start_ns", "", WIDEST_NS),
}
"""Where a row begins and ends, and how long it is at most."""


class StoredRows:
    def __init__(self, data: Path) -> None:
        self.name = str(data)
        self._data = data
        self._judged: tuple[int, Sequence[Verdict]] = 0, ()  # up to which step

    def newest_ns(self) -> int:
        """See Rows; only the newest hour is looked at. Raises DataError."""
        open_table(self._data, "iterations")  # or says why there is none
        paths = table_files(self._data, "iterations")
        ends = [end for path in paths if hour_of(path) == hour_of(paths[-1]) and (end := _newest(path))]
        if ends:
            return max(ends)
        raise DataError(f"cannot go back in {self._data}: its newest files hold no iteration")

    def written(self) -> bool:
        return not has_ended(self._data)

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """See Rows. A file that is damaged is left out. Raises DataError where there is no dataset."""
        begin, end, longest = _TIMES.get(wanted.table, ("", "", 0))
        span = (wanted.since_ns - longest, wanted.until_ns) if begin else None
        if self._data.is_dir() and not table_files(self._data, wanted.table):
            return
        found = open_table(self._data, wanted.table, span)
        conditions = []
        for column, values in wanted.among.items():
            if column in found.schema.names:
                kind = found.schema.field(column).type
                plain = kind.value_type if pa.types.is_dictionary(kind) else kind
                conditions.append(ds.field(column).isin(pa.array(values, plain)))
        if begin:
            conditions.append(ds.field(begin) < wanted.until_ns)
            over = ds.field(end) > wanted.since_ns if end else ds.field(begin) >= wanted.since_ns - longest
            conditions.append(over)
        yield from stream(found, known_columns(found, wanted.columns) or None, all_of(conditions), leave_out)

    def judged(self, since_ns: int) -> Sequence[Verdict]:
        """See Rows. None while somebody writes: they would all be made anew again and again."""
        from netmon.dl.verdict.incidents import LATELY_NS
        from netmon.history.judging import ALWAYS, stored_verdicts  # as in explained

        newest_ns = self.newest_ns()
        if table_files(self._data, "verdicts") or (self.written() and time.time_ns() - newest_ns < LATELY_NS):
            return ()
        if self._judged[0] != newest_ns:
            self._judged = newest_ns, stored_verdicts(self._data, within_ns=(since_ns, ALWAYS[1]))
        return self._judged[1]

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        from netmon.history.judging import explained  # much, for those who only read rows

        try:
            return list(explained(self._data, job, iteration))
        except DataError:
            return ()


def _newest(path: Path) -> int | None:
    with suppress(OSError, pa.ArrowException), open_file(path) as file:  # or it is damaged
        return pc.max(pq.ParquetFile(file).read(["end_ns"])["end_ns"]).as_py()  # type: ignore[no-any-return]
    return None
