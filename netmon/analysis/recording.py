# SPDX-License-Identifier: Apache-2.0
"""A dataset in Python: each call reads the files that hold what it asks for, and no others."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.analysis.explanation import Explanation, incident_rows, job_rows, listed, overview, pair_rows, verdict_rows
from netmon.errors import DataError, NoRowsError, UsageError
from netmon.history.dataset import (
    TIMED_TABLES,
    Tables,
    Window,
    job_names,
    known_columns,
    not_understood,
    open_rows,
    open_table,
    plain_words,
    requested_job,
    stream,
)
from netmon.history.judging import ALWAYS, explained, stored_incidents, stored_verdicts, worst_lines
from netmon.records import CLASS_NAMES
from netmon.top.options import called
from netmon.units import format_count, format_duration, format_moment, parse_duration, parse_time
from netmon.views import Incident, JobView, Selection, Snapshot
from netmon.wire.questions import get_full
from netmon.wire.security import Security
from netmon.wire.watch import split, watch_once

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOMENTS = (
    *("start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "wait_start_ns", "first_ns", "last_ns"),
    *("bucket_start_ns", "time_ns", "reported_ns", "queued_ns"),
    *("first_transfer_ns", "last_transfer_ns"),
)
"""Columns that hold ns of the UTC epoch; all others that end so are durations."""
_TIMESTAMP = pa.timestamp("ns", "UTC")

Moment = str | int | datetime
Iterations = int | range | slice | Sequence[int | None]


def frame(table: pa.Table) -> pd.DataFrame:
    """Rows as pandas has them: `start_ns` becomes `start` with a time zone, words are words. Durations stay in ns."""
    for index, name in enumerate(table.column_names):
        if name in MOMENTS:
            column = table.column(name)
            moments = pc.if_else(pc.equal(column, 0), None, column).cast(_TIMESTAMP)  # 0: not known
            table = table.set_column(index, name.removesuffix("_ns"), moments)
    return plain_words(table.drop_columns([name for name in ("date",) if name in table.column_names]).to_pandas())


def moment_ns(moment: Moment | None) -> int | None:
    """ISO 8601 (UTC unless it says else), a datetime, a Timestamp or ns → ns of the UTC epoch. Raises UsageError."""
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        return parse_time(moment)
    stamp = pd.Timestamp(moment)
    return int((stamp if stamp.tz else stamp.tz_localize("UTC")).as_unit("ns").value)


def window(
    job: str | None,
    host: str | Sequence[str] | None,
    since: Moment | None,
    until: Moment | None,
    iterations: Iterations | None,
) -> Window:
    """What a call selects. host: one or more. iterations: one, (first, one after the last), a range or a slice.

    Raises UsageError.
    """
    hosts = (host,) if isinstance(host, str) else tuple(host or ())
    return Window(moment_ns(since), moment_ns(until), job, hosts, _span(iterations))


def _span(iterations: Iterations | None) -> tuple[int | None, int | None]:
    if iterations is None:
        return None, None
    if isinstance(iterations, int):
        return iterations, iterations + 1
    ends: Any = (iterations.start, iterations.stop) if isinstance(iterations, range | slice) else tuple(iterations)
    step = getattr(iterations, "step", None)
    if step not in (None, 1) or len(ends) != 2:
        raise UsageError(f"cannot read {iterations!r} as iterations: give one, (10, 20) or range(10, 20)")
    return ends[0], ends[1]


# --- Rows of buckets, added up to coarser ones while they are read: memory grows with the result only.

SUMS = ("packets", "wire_bytes", "payload_bytes")
_COMPACT_ROWS = 1 << 21


def added_up(batches: Iterable[pa.RecordBatch], by: Sequence[str], width_ns: int, most_rows: int) -> pa.Table:
    """Sums of SUMS per combination of `by` and bin of width_ns; in the order of time.

    batches: rows of `buckets`. Columns: by, bucket_start_ns, bucket_ns, those of SUMS that the rows have. Raises
    UsageError for rows that are wider than the bins, DataError where more than most_rows would come.
    """
    key = [*by, "bucket_start_ns"]
    pieces: list[pa.Table] = []
    for batch in batches:
        widest = pc.max(batch["bucket_ns"]).as_py()
        if widest > width_ns:
            raise UsageError(
                f"cannot add up to {format_duration(width_ns)}: rows of {format_duration(widest)} lie there; give a "
                "larger width"
            )
        start = batch["bucket_start_ns"]
        begun = pc.multiply(pc.divide(start, width_ns), width_ns)  # both are positive
        words = {name: _plain(batch[name]) for name in by}
        sums = {name: batch[name] for name in SUMS if name in batch.schema.names}
        pieces.append(_sums(pa.table({**words, "bucket_start_ns": begun, **sums}), key))
        if sum(map(len, pieces)) > _COMPACT_ROWS:
            pieces = [_sums(pa.concat_tables(pieces), key)]
            if len(pieces[0]) > most_rows:
                raise DataError(
                    f"cannot hold more than {format_count(most_rows)} rows: select a time or hosts, or a larger width"
                )
    if not pieces:
        kinds = {**dict.fromkeys(by, pa.string()), **dict.fromkeys(("bucket_start_ns", "bucket_ns", *SUMS), pa.int64())}
        return pa.schema(list(kinds.items())).empty_table()
    whole = _sums(pa.concat_tables(pieces), key).sort_by([(name, "ascending") for name in ("bucket_start_ns", *by)])
    return whole.add_column(len(key), "bucket_ns", pa.repeat(width_ns, len(whole)))


def _sums(table: pa.Table, key: Sequence[str]) -> pa.Table:
    known = [name for name in SUMS if name in table.column_names]
    summed = table.group_by(list(key), use_threads=False).aggregate([(name, "sum") for name in known])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select([*key, *known])


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


# --- recording


def _within(window: Window) -> tuple[int, int]:
    return window.since_ns or ALWAYS[0], window.until_ns if window.until_ns is not None else ALWAYS[1]


_Hosts = str | Sequence[str] | None
_LINK_CLASS = ("host", "interface", "direction", "class")


class Recording:
    """What a collector, a lab or a replay wrote. Nothing is read before it is requested.

    All tables take the same selections, together: job (either of its names), host (one or more), since and until
    (ISO 8601, datetime, Timestamp or ns; UTC unless they say else), iterations (one, (10, 20) or range(10, 20)). Times
    are timestamps in UTC; what ends in `_ns` is a duration.
    """

    def __init__(self, path: Path) -> None:
        """path: the --data of a collector."""
        self.path = path

    MOST_ROWS = 20_000_000
    """That one call gives; about 2 GB."""

    def __repr__(self) -> str:
        """Its time, hosts, jobs and incidents; reads little."""
        since, until = Tables(self.path).span("iterations", "start_ns") or (0, 0)
        facts = {
            "time": f"{format_moment(since)} to {format_moment(until)}" if since else "",
            "hosts": listed(self.hosts),
            "jobs": listed(self.jobs),
        }
        return overview(f"netmon dataset {self.path}", facts, stored_incidents(self.path), self._names)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    @property
    def jobs(self) -> list[str]:
        """What people call the jobs, or what their ranks have in common where they have no name."""
        found = {*self._words("iterations", "job"), *not_understood(self.path)}
        return sorted(self._names.get(name, name) for name in found)

    @property
    def hosts(self) -> list[str]:
        return sorted({word for table in ("sessions", "iterations", "flows") for word in self._words(table, "host")})

    def _words(self, table: str, column: str) -> set[str]:
        try:
            files = open_table(self.path, table)
        except NoRowsError:
            return set()
        if column not in files.schema.names:
            return set()
        return {str(word) for batch in stream(files, [column]) for word in batch[column].unique().to_pylist() if word}

    def summary(self) -> pd.DataFrame:
        """A row per job: hosts, ranks, iterations, their time, what they lost to incidents, and the worst one."""
        return job_rows(self.iterations(), self.incidents(), self._names)

    def incidents(
        self, *, job: str | None = None, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """Who slowed whom: a row per incident, with `line`, which says it. Raises DataError."""
        window = self._window(job, None, since, until, None)
        return incident_rows(stored_incidents(self.path, window.job, _within(window)), self._names)

    @cached_property
    def _names(self) -> dict[str, str]:
        return job_names(self.path)

    def iterations(
        self,
        *,
        job: str | None = None,
        host: _Hosts = None,
        since: Moment | None = None,
        until: Moment | None = None,
        iterations: Iterations | None = None,
    ) -> pd.DataFrame:
        """A row per job, rank and iteration, by start; duration_ns alongside the table's own columns. Raises
        DataError."""
        rows = self.table("iterations", job=job, host=host, since=since, until=until, iterations=iterations)
        rows.insert(list(rows).index("end") + 1, "duration_ns", (rows["end"] - rows["start"]).astype("int64"))
        return rows.sort_values(["start", "rank"], kind="stable", ignore_index=True)

    def flows(
        self, *, job: str | None = None, host: _Hosts = None, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """A row per flow as it was known last, on (session, flow_id) joined to `buckets`. Raises DataError."""
        rows = self.table("flows", job=job, host=host, since=since, until=until)
        return rows.drop_duplicates(["session", "flow_id"], keep="last", ignore_index=True)

    def verdicts(
        self, *, job: str | None = None, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """A row per slow iteration, with `sentence`: as the collector published it, else up to 200 made now.

        Raises DataError.
        """
        window = self._window(job, None, since, until, None)
        return verdict_rows(stored_verdicts(self.path, window.job, _within(window)))

    def buckets(
        self,
        *,
        job: str | None = None,
        host: _Hosts = None,
        since: Moment | None = None,
        until: Moment | None = None,
        iterations: Iterations | None = None,
        width: str | None = None,
        by: Sequence[str] = _LINK_CLASS,
    ) -> pd.DataFrame:
        """Bytes and packets per flow and bucket; with width ("1ms"): added up per bin and combination of `by`.

        A job's are its DL flows'. Raises DataError where more than MOST_ROWS would come: select less, or give a width.
        """
        window = self._window(job, host, since, until, iterations)
        if width is None:
            return self._read("buckets", window, None)
        files, condition = open_rows(self.path, "buckets", window)
        known = known_columns(files, by)
        names = [*dict.fromkeys([*known, "bucket_start_ns", "bucket_ns", *SUMS])]
        table = added_up(
            stream(files, known_columns(files, names), condition), known, parse_duration(width), self.MOST_ROWS
        )
        return frame(table)

    def groups(self, *, job: str | None = None) -> pd.DataFrame:
        """A row per job, group of ranks and what it is for, with what they call and wait in a typical step, −1: not
        known, as where only traffic shows them. Raises DataError."""
        from netmon.history.groups import group_rows, groups_of

        found = groups_of(self.path, self._requested(job), by_traffic=True)
        return group_rows({name: uses for name, (uses, _) in found.items()})

    def transfers(
        self,
        *,
        job: str | None = None,
        host: _Hosts = None,
        since: Moment | None = None,
        until: Moment | None = None,
        iterations: Iterations | None = None,
    ) -> pd.DataFrame:
        """What ranks sent each other by NCCL, by start: the table's own columns, `iteration`, `peer_rank` (−1: not
        known), `transport`, `interface`, and `other_end`, the row that tells of the same from the other side. Raises
        DataError."""
        from netmon.history.transfers import read_transfers

        rows = read_transfers(self.path, self._window(job, host, since, until, iterations))
        return frame(pa.Table.from_pandas(rows, preserve_index=False))

    def nccl_steps(
        self, *, job: str | None = None, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """A row per job, rank and iteration: `comm_start`, `first_transfer`, `last_transfer` and `end`, by which
        `error_ns` they may be off, and `exposed_ns`; null: not known. Raises DataError."""
        from netmon.history.transfers import read_steps

        rows = read_steps(self.path, self._window(job, None, since, until, None))
        return frame(pa.Table.from_pandas(rows, preserve_index=False))

    def rank_pairs(
        self, *, job: str | None = None, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """A row per job and pair of ranks, of what NCCL transferred between them: `bps` while it sent. Raises
        DataError."""
        from netmon.history.transfers import pairs_of

        return pair_rows(pairs_of(self.path, self._window(job, None, since, until, None)))

    def table(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        job: str | None = None,
        host: _Hosts = None,
        since: Moment | None = None,
        until: Moment | None = None,
        iterations: Iterations | None = None,
    ) -> pd.DataFrame:
        """Any table of the dataset (`ledger`, `transport`, `nic`, `host`, …). columns: as the table calls them (all).

        Raises DataError where there is none, or more than MOST_ROWS; UsageError for a column that it lacks.
        """
        if name not in TIMED_TABLES:
            raise DataError(f"cannot read table {name}: there are {', '.join(TIMED_TABLES)}")
        return self._read(name, self._window(job, host, since, until, iterations), columns)

    def explain(self, iteration: int, job: str | None = None) -> Explanation:
        """Why this iteration took as long as it did, rank by rank. Raises DataError: unknown, or of two jobs."""
        found = list(explained(self.path, self._requested(job), iteration))
        if len(jobs := sorted({verdict.job for verdict, _ in found})) > 1:
            names = ", ".join(self._names.get(name, name) for name in jobs)
            raise DataError(f"iteration {iteration} is ambiguous: jobs {names} have one; give job=")
        return Explanation.of(*found[-1])

    def plot_iteration(self, iteration: int, job: str | None = None, width: str = "1ms") -> "Figure":
        """One iteration: where its ranks' time went, and the traffic of their links, by class. Raises DataError."""
        from netmon.analysis.plots import iteration_figure

        rows = self.iterations(job=job, iterations=iteration)
        if rows.empty:
            raise DataError(f"cannot draw iteration {iteration}: {self.path} holds no such iteration")
        if len(names := sorted(set(rows["job"]))) > 1:
            raise DataError(f"iteration {iteration} is ambiguous: jobs {', '.join(names)} have one; give job=")
        since, until = rows["start"].min(), rows["end"].max()
        buckets = self.buckets(host=sorted(set(rows["host"])), since=since, until=until, width=width)
        return iteration_figure(rows, buckets, self.explain(iteration, job))

    def plot_iterations(self, job: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """How long iterations took, over time, the slow ones marked by their cause. Raises DataError."""
        from netmon.analysis.plots import draw_iterations

        rows = self.iterations(job=job)
        return draw_iterations(rows, self.verdicts(job=job), ax)

    def plot_rates(
        self,
        host: str,
        direction: str = "tx",
        since: Moment | None = None,
        until: Moment | None = None,
        width: str = "10ms",
        ax: "Axes | None" = None,
    ) -> "Axes":
        """What left (tx) or entered (rx) a host, by class, over time. Raises DataError."""
        from netmon.analysis.plots import draw_rates

        rows = self.buckets(host=host, since=since, until=until, width=width)
        return draw_rates(rows[rows["direction"] == direction], ax)

    def exhibits(self) -> pd.DataFrame:
        """What `netmon report` shows, which repeats the studies' figures: name, title, the figure that it follows."""
        from netmon.analysis.plots import contents

        return contents()

    def exhibit(self, name: str, job: str | None = None) -> dict[str, pd.DataFrame]:
        """The tables of one exhibit. Reads the dataset once, however many are requested. Raises DataError."""
        from netmon.analysis.plots import tables

        return tables(self._study(job), name)

    def plot_exhibit(self, name: str, job: str | None = None) -> "Figure":
        """The figure of one exhibit. Raises DataError where the dataset does not have what it shows."""
        from netmon.analysis.plots import figure

        return figure(self._study(job), name)

    def _study(self, job: str | None) -> Any:
        from netmon.report.study import read_study

        requested = self._requested(job)
        if requested not in self._studies:
            self._studies[requested] = read_study(self.path, requested)
        return self._studies[requested]

    @cached_property
    def _studies(self) -> dict[str | None, Any]:
        return {}

    def _requested(self, job: str | None) -> str | None:
        """Raises DataError where there is no such job."""
        requested = requested_job(job, self._names)
        if requested is None or any(requested in self._words(table, "job") for table in ("iterations", "flows")):
            return requested
        raise DataError(f"no job {job} in {self.path}: it has {listed(self.jobs)}")

    def _window(self, job: str | None, *others: Any) -> Window:
        made = replace(window(job, *others), job=self._requested(job))
        if made.hosts and (unknown := {*made.hosts} - {*(known := self.hosts)}) and known:
            raise DataError(f"no host {', '.join(sorted(unknown))} in {self.path}: it has {listed(known)}")
        return made

    def _read(self, name: str, window: Window, columns: Sequence[str] | None) -> pd.DataFrame:
        files, condition = open_rows(self.path, name, window)
        if missing := sorted({*(columns or ())} - {*files.schema.names}):
            raise DataError(f"cannot read {', '.join(missing)} of table {name}: it has {', '.join(files.schema.names)}")
        batches = list(self._most(stream(files, columns, condition)))
        schema = pa.schema([field for field in files.schema if columns is None or field.name in columns])
        return frame(pa.Table.from_batches(batches) if batches else schema.empty_table())

    def _most(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            if rows > self.MOST_ROWS:
                raise DataError(
                    f"cannot hold more than {format_count(self.MOST_ROWS)} rows of {self.path}: select a time, hosts "
                    "or a job, or add buckets up with width="
                )
            yield batch


# --- A live collector in Python: what it shows at this moment. Each call asks for one snapshot.

_RANK = (
    *("rank", "host", "iteration", "duration_ns", "communication_ns", "exposed_ns", "node_shared", "dl_tx_bytes"),
    *("cross_tx_bytes", "cross_rx_bytes"),
)


class Live:
    """A collector, or multiple workers. Raises as netmon.wire.watch.watch_once does, of each call."""

    def __init__(self, address: str, tls: str | None = None) -> None:
        """address: HOST:PORT or unix:PATH, of workers with commas. tls: a folder with certificates; None: plaintext.

        Raises UnreachableError where nobody answers.
        """
        self.address = ",".join(split(address))
        self._security = Security(Path(tls) if tls else None)
        self.snapshot(Selection(most_links=1, most_jobs=1, most_hosts=1))

    def __repr__(self) -> str:
        """Its time, hosts, jobs and incidents."""
        shown = self.snapshot(Selection(most_links=1, most_ranks=1))
        facts = {
            "time": format_moment(shown.time_ns),
            "hosts": listed(sorted(host.host for host in shown.hosts)),
            "jobs": listed(sorted(job.job for job in shown.jobs)),
        }
        return overview(f"netmon collector {self.address}", facts, _incidents(shown.jobs), {})

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def snapshot(self, selection: Selection = Selection(flows=1000)) -> Snapshot:  # noqa: B008 (frozen)
        """Everything that it shows, or what of it is requested; jobs as people call them."""
        return called(watch_once(self.address, selection, self._security))

    @property
    def jobs(self) -> list[str]:
        return sorted(job.job for job in self._jobs(None))

    def iterations(self, *, job: str | None = None) -> pd.DataFrame:
        """The last finished iteration of each rank."""
        rows = [[view.job, *(getattr(rank, name) for name in _RANK)] for view in self._jobs(job) for rank in view.ranks]
        return pd.DataFrame(rows, columns=["job", *_RANK])

    def durations(self, *, job: str | None = None) -> pd.DataFrame:
        """How long the recent iterations of each job took (duration_ns), oldest first, by its slowest rank."""
        rows = [
            (view.job, view.iteration - len(view.durations_ns) + 1 + index, int(ns))
            for view in self._jobs(job)
            for index, ns in enumerate(view.durations_ns)
        ]
        return pd.DataFrame(rows, columns=["job", "iteration", "duration_ns"])

    def verdicts(self, *, job: str | None = None) -> pd.DataFrame:
        """On the last slow iterations, with `sentence`."""
        return verdict_rows([verdict for view in self._jobs(job) for verdict in reversed(view.verdicts)])

    def incidents(self, *, job: str | None = None) -> pd.DataFrame:
        """Who slowed whom lately: a row per incident, with `line`, which says it."""
        return incident_rows(sorted(_incidents(self._jobs(job)), key=lambda one: one.since_ns), {})

    def rank_pairs(self, *, job: str | None = None) -> pd.DataFrame:
        """A row per job and pair of ranks, of what NCCL transferred between them in the last seconds."""
        return pair_rows({view.job: view.pairs for view in self._jobs(job)})

    def summary(self) -> pd.DataFrame:
        """A row per job: hosts, ranks, iterations, their time, what they lost to incidents, and the worst one."""
        jobs = self._jobs(None)
        rows = [
            {
                **{"job": job.job, "hosts": len({rank.host for rank in job.ranks}), "ranks": job.size},
                **{"iteration": job.iteration, "median_ns": job.median_ns, "incidents": len(job.incidents)},
                **{"slow_steps": sum(one.steps for one in job.incidents)},
                **{"lost_ns": sum(one.lost_ns for one in job.incidents)},
                "worst": "".join(worst_lines(job.incidents, {}, 1)[:1]),
            }
            for job in jobs
        ]
        return pd.DataFrame(rows)

    def flows(self, *, job: str | None = None, most: int = 1000) -> pd.DataFrame:
        """The largest flows of the last second, by rate (bit/s)."""
        rows = [
            {
                **{"host": view.host, "interface": view.interface, "direction": view.flow.direction.name.lower()},
                **{name: getattr(view.flow, name) for name in ("src", "dst", "src_port", "dst_port", "protocol")},
                **{"process": view.flow.owner.process, "job": view.flow.owner.job, "rank": view.flow.owner.rank},
                **{"class": CLASS_NAMES[view.class_], "traffic": view.traffic},
                **{"wire_bps": view.wire_bps, "wire_bytes": view.wire_bytes, "rtt_ns": view.rtt_ns, "loss": view.loss},
            }
            for view in self.snapshot(Selection(jobs=_one(job), flows=most)).flows
        ]
        return pd.DataFrame(rows)

    def links(self) -> pd.DataFrame:
        """Each link over the last seconds: its mean rate by class (bit/s), capacity and coverage."""
        rows = [
            {
                **{"host": view.host, "interface": view.interface, "direction": view.direction.name.lower()},
                **{f"{name} bit/s": float(view.wire_bps[:, n].mean()) for n, name in enumerate(CLASS_NAMES)},
                **{"capacity_bps": view.capacity_bps, "coverage": view.coverage, "hook": view.hook},
            }
            for view in self.snapshot().links
        ]
        return pd.DataFrame(rows)

    def buckets(self, *, since: Moment, until: Moment, host: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Full resolution of a time that has passed, from the agents' recorders; `gap` says what is missing."""
        begin, end = moment_ns(since), moment_ns(until)
        if begin is None or end is None or end <= begin:
            raise UsageError("cannot get buckets of a live collector without a window: give since and a later until")
        hosts = (host,) if isinstance(host, str) else tuple(host or ())
        if hosts and (unknown := self.snapshot(Selection(hosts=hosts, most_links=1)).page.unknown):
            known = sorted(one.host for one in self.snapshot(Selection(most_links=1, most_jobs=1)).hosts)
            raise DataError(f"no host {', '.join(unknown)} at {self.address}: it has {listed(known)}")
        parts = list(get_full(self.address, hosts, begin, end, self._security))
        tables = [part.rows.append_column("gap", pa.repeat(part.gap, len(part.rows))) for part in parts]
        return pd.concat([frame(table) for table in tables], ignore_index=True) if tables else pd.DataFrame()

    def explain(self, iteration: int, job: str | None = None) -> Explanation:
        """Why, where the iteration is one of the last slow ones. Raises DataError where it is not."""
        views = self._jobs(job)
        found = [verdict for view in views for verdict in view.verdicts if verdict.iteration == iteration]
        if not found:
            raise DataError(
                f"cannot explain iteration {iteration}: a collector knows the last few slow ones only; open its dataset"
            )
        if len({verdict.job for verdict in found}) > 1:
            raise DataError(f"iteration {iteration} is ambiguous: more than one job has it; give job=")
        return Explanation.of(found[0], ())

    def _jobs(self, job: str | None) -> tuple[JobView, ...]:
        snapshot = self.snapshot(Selection(jobs=_one(job), most_links=1))
        if job is not None and job in snapshot.page.unknown:
            raise DataError(
                f"cannot show job {job}: the collector at {self.address} knows no such job; it has {listed(self.jobs)}"
            )
        return snapshot.jobs


def _incidents(jobs: Sequence[JobView]) -> list[Incident]:
    return [one for job in jobs for one in job.incidents]


def _one(job: str | None) -> tuple[str, ...]:
    return (job,) if job is not None else ()
