# SPDX-License-Identifier: Apache-2.0
"""A dataset, or a part of it, into a trace file."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.dl.hangs import line
from netmon.dl.verdict.verdict_text import arithmetic, columns, renamed, sentence
from netmon.errors import DataError
from netmon.history.dataset import Window, all_of, open_table, plain_words, read_rows, stream
from netmon.history.groups import read_hangs
from netmon.history.judging import stored_verdicts
from netmon.history.transfers import read_transfers
from netmon.trace.writer import Detail, Instant, Slice, TraceWriter, draw
from netmon.units import format_bytes, format_endpoint, format_moment
from netmon.views import Hang, JobView, Selection, Snapshot, Verdict
from netmon.wire.questions import get_full
from netmon.wire.security import Security
from netmon.wire.watch import UnreachableError, split, watch_once

# --- Rows of buckets, added up to what a trace draws of them: rates per link and class, and transfers per flow.

COLUMNS = [
    *("host", "session", "interface", "direction", "flow_id", "bucket_start_ns", "bucket_ns"),
    *("wire_bytes", "payload_bytes", "class", "iteration"),
]
_LINK = ["host", "interface", "direction", "class"]
_FLOW_KEY = ["host", "session", "flow_id"]
_SILENCE_NS = 10_000_000
"""A flow that says nothing for longer begins anew, where it does not do so for an iteration's sake."""

_Times = npt.NDArray[np.int64]


class Traffic:
    """Adds batch by batch; what it holds grows with links and flows times the time, not with the rows."""

    def __init__(self, width_ns: int) -> None:
        """width_ns: of a point of a rate's curve."""
        self.width_ns = width_ns
        self._links: list[pd.DataFrame] = []
        self._flows: list[pd.DataFrame] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """batch: rows of buckets, with COLUMNS."""
        rows = batch.to_pandas()
        rows["bin"] = rows["bucket_start_ns"] // self.width_ns
        rows["end_ns"] = rows["bucket_start_ns"] + rows["bucket_ns"]
        self._links.append(plain_words(_added(rows, [*_LINK, "bin"])))
        rows["bin"] = rows["bucket_start_ns"] // max(self.width_ns, _SILENCE_NS)
        by = rows[rows["payload_bytes"] > 0].groupby([*_FLOW_KEY, "iteration", "bin"], observed=True, sort=False)
        ends = {"start_ns": ("bucket_start_ns", "min"), "end_ns": ("end_ns", "max")}
        sums = {name: (name, "sum") for name in ("wire_bytes", "payload_bytes")}
        self._flows.append(plain_words(by.agg(**ends, **sums).reset_index()))

    def rates(self) -> Iterator[tuple[tuple[str, str, str, str], _Times, npt.NDArray[np.float64]]]:
        """Of each (host, interface, direction, class): times (ns, UTC epoch) and bit/s from each on, by name."""
        if not self._links:
            return
        rows = _added(pd.concat(self._links), [*_LINK, "bin"])
        for link, own in rows.groupby(_LINK, sort=True):
            bins = own["bin"].to_numpy()
            order = np.argsort(bins)
            bins, bits = bins[order], own["wire_bytes"].to_numpy()[order] * 8e9 / self.width_ns
            # After a point with no successor the rate is zero.
            silent = np.flatnonzero(np.diff(bins, append=bins[-1] + 2) > 1)
            times = np.insert(bins, silent + 1, bins[silent] + 1) * self.width_ns
            host, interface, direction, class_ = link
            yield (str(host), str(interface), str(direction), str(class_)), times, np.insert(bits, silent + 1, 0.0)

    def transfers(self) -> pd.DataFrame:
        """Pieces of flows with payload: host, session, flow_id, iteration, start_ns, end_ns, wire_bytes, payload_bytes.

        What comes in one iteration is one piece; without one (−1), what comes with no silence of 10 ms. By flow, time.
        """
        if not self._flows:
            return pd.DataFrame(columns=[*_FLOW_KEY, "iteration", "start_ns", "end_ns", "wire_bytes", "payload_bytes"])
        rows = pd.concat(self._flows).sort_values([*_FLOW_KEY, "start_ns"], kind="stable", ignore_index=True)
        flow = rows.groupby(_FLOW_KEY, sort=False).ngroup()
        other = (flow.diff() != 0) | (rows["iteration"].diff() != 0)
        silent = (rows["iteration"] < 0) & (rows["start_ns"] - rows["end_ns"].shift(fill_value=0) > _SILENCE_NS)
        by = rows.groupby((other | silent).cumsum(), sort=False)
        first = by[[*_FLOW_KEY, "iteration", "start_ns"]].first()
        return first.assign(end_ns=by["end_ns"].max()).join(by[["wire_bytes", "payload_bytes"]].sum())


def _added(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    added: pd.DataFrame = rows.groupby(by, observed=True, sort=False)["wire_bytes"].sum().reset_index()
    return added


# --- dataset


_WIDTHS_NS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_MOST_POINTS = 1_000_000
_MOST_FLOWS = 500
_MOST_TRANSFERS = 200_000
_COLLECTIVES = dict(
    enumerate(("broadcast", "reduce", "all-gather", "reduce-scatter", "all-reduce", "send", "receive", "send"), 1)
) | {9: "all-to-all", 10: "scatter", 11: "gather", 12: "all-gather"}
"""As the table `transfers` numbers them."""
_TO_OPEN_NS = 3_600_000_000_000
_ITERATION = [
    *("host", "job", "rank", "iteration", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "exposed_ns", "source"),
    *("error_ns", "relative", "dl_tx_bytes", "dl_rx_bytes", "cross_tx_bytes", "cross_rx_bytes", "cross_top"),
]
_FLOW = ["host", "session", "interface", "direction", "flow_id", "src", "dst", "src_port", "dst_port", "protocol"]
_FLOW_WORDS = ["process", "job", "rank", "peer_rank", "class"]


@dataclass(frozen=True)
class Content:
    """What was found in the window."""

    iterations: pd.DataFrame
    verdicts: list[Verdict]
    hangs: list[Hang]
    hosts: list[str]
    begin_ns: int
    end_ns: int
    width_ns: int  # of the rates' points
    rows: int  # of the table `buckets`
    names: Mapping[str, str]  # what people call jobs, where it is something else

    @property
    def jobs(self) -> list[str]:
        """By what their ranks have in common."""
        return sorted(set(self.iterations["job"]) - {""})

    def called(self, job: object) -> str:
        """What people call it."""
        return self.names.get(str(job), str(job))


def look(data: Path, window: Window, width_ns: int | None, names: Mapping[str, str]) -> Content:
    """What there is to be drawn. Raises DataError where there is nothing.

    width_ns: of the rates' points, and not finer than the rows; None: the finest of 10 µs … 1 s that keeps their
    curves below a million points. names: what people call jobs.
    """
    iterations = read_rows(data, "iterations", _ITERATION, _within(window, "start_ns", "end_ns"), whole=True)
    if window.job is not None:
        if window.job not in set(iterations["job"]):
            known = sorted({str(name) for name in read_rows(data, "iterations", ["job"])["job"]} - {""})
            raise DataError(
                f"cannot trace job {window.job}: {data} has no iteration of it there; it has jobs: "
                f"{', '.join(known) or 'none'}"
            )
        iterations = iterations[iterations["job"] == window.job]
    first, last = window.iterations
    if first is not None or last is not None:
        number = iterations["iteration"]
        iterations = iterations[(number >= (first or 0)) & (number < (last if last is not None else 1 << 62))]
        if iterations.empty:
            raise DataError(f"cannot trace these iterations: {data} holds none of them")
    begin_ns, end_ns, hosts, finest, rows = _span(data, window, iterations)
    overlaps = (iterations["end_ns"] > begin_ns) & (iterations["start_ns"] < end_ns)
    hosts = sorted({*hosts, *iterations.loc[overlaps, "host"].astype(str)})  # also where the rows are missing
    links = 8 * len(hosts)
    if width_ns is None:
        fits = [width for width in _WIDTHS_NS if links * (end_ns - begin_ns) / width <= _MOST_POINTS]
        width_ns = fits[0] if fits else 0
        if not fits:
            raise DataError(
                f"cannot trace {(end_ns - begin_ns) / 3.6e12:.0f} h of {len(hosts)} hosts in one file that a viewer can"
                " open: give --since and --until, --job, --host or --width"
            )
    width_ns = max(width_ns, finest)  # a row's bytes are not known any finer
    verdicts = stored_verdicts(data, window.job, (begin_ns, end_ns))
    hangs = [
        one for one in read_hangs(data, window.job) if one.since_ns < end_ns and (one.until_ns or end_ns) > begin_ns
    ]
    return Content(iterations, verdicts, hangs, hosts, begin_ns, end_ns, width_ns, rows, names)


def clocks(data: Path) -> pd.DataFrame:
    """How hosts' clocks went: host, time_ns, clock_offset_ns (its own UTC minus the dataset's), clock_error_ns."""
    rows = read_rows(data, "ledger", ["host", "end_ns", "clock_offset_ns", "clock_error_ns"], whole=True)
    return rows.rename(columns={"end_ns": "time_ns"})


def write(
    data: Path, content: Content, out: TraceWriter, progress: Callable[[float], None] = lambda _: None
) -> dict[str, int]:
    """Hosts with their ranks, flows and rates, and jobs with their verdicts → the numbers of the hosts' processes.

    progress: called with the part that is done.
    """
    _write_jobs(content, out)
    traffic = _traffic(data, content, progress)
    arrows = _Arrows()
    transfers = traffic.transfers()
    flows = read_rows(data, "flows", [*_FLOW, *_FLOW_WORDS], whole=True)
    flows["job"] = flows["job"].map(lambda job: content.names.get(job, job))
    most = transfers.groupby(["session", "flow_id"])["wire_bytes"].sum().nlargest(_MOST_FLOWS).index
    drawn = transfers.set_index(["session", "flow_id"]).loc[list(most)].reset_index()
    described = drawn.merge(
        flows.drop(columns="host").drop_duplicates(["session", "flow_id"]), on=["session", "flow_id"]
    )
    described["arrow"] = arrows.number(described)
    over_nccl = _over_nccl(data, content, len(described) + 1)
    rates = defaultdict(list)
    for link, times, values in traffic.rates():
        rates[link[0]].append((link[1:], times, values))
    processes = {}
    for host in content.hosts:
        process = processes[host] = out.process(f"host {host}")
        _write_ranks(content, host, process, out)
        for (interface, direction, class_), times, values in rates[host]:
            name = f"{interface} {direction} {class_}"
            out.values(out.counter(process, name, "bit/s"), times.tolist(), values.tolist())
        _write_flows(described[described["host"] == host], process, arrows, out)
        _write_nccl(over_nccl[over_nccl["host"] == host], process, out)
    return processes


class _Arrows:
    """Numbers that lead from what was sent to where it was received."""

    def __init__(self) -> None:
        self.both: set[int] = set()

    def number(self, pieces: pd.DataFrame) -> "pd.Series[int]":
        """The same number for a piece that left one host and reached another: same flow, same iteration."""
        key = [*("src", "dst", "src_port", "dst_port", "protocol"), "iteration"]
        number = pieces.groupby(key, sort=False).ngroup() + 1
        # Without an iteration the two ends are cut at different points.
        number[pieces["iteration"] < 0] = 0
        sent, received = (set(number[pieces["direction"] == way]) for way in ("tx", "rx"))
        self.both = (sent & received) - {0}
        return number


def _over_nccl(data: Path, content: Content, first: int) -> pd.DataFrame:
    """What ranks sent each other by NCCL, as much as a viewer can open, with the numbers of arrows, from `first` on."""
    rows = read_transfers(data, Window(content.begin_ns, content.end_ns, hosts=tuple(content.hosts)))
    if set(content.jobs):
        rows = rows[rows["job"].isin(content.jobs)]
    rows = rows[(rows["operations"] <= 1) & (rows["end_ns"] > rows["start_ns"])]
    drawn = rows.nlargest(_MOST_TRANSFERS, "bytes") if len(rows) > _MOST_TRANSFERS else rows
    both = np.where(drawn["other_end"].isin(drawn.index), np.minimum(drawn.index, drawn["other_end"].clip(lower=0)), -1)
    return drawn.assign(job=drawn["job"].map(content.called), arrow=np.where(both >= 0, both + first, 0))


def _write_nccl(rows: pd.DataFrame, process: int, out: TraceWriter) -> None:
    for (job, rank, sends, peer, group, channel), own in rows.sort_values("start_ns").groupby(
        ["job", "rank", "sends", "peer_rank", "peer", "channel"]
    ):
        other = str(peer) if int(str(peer)) >= 0 else f"{group} of its group"
        lane = out.lane(process, f"{job}/{rank} NCCL {'→' if sends else '←'} {other}, channel {channel}")
        draw(out, lane, _one_after_another(_transfer(row) for row in own.to_dict("records")))


def _transfer(row: Mapping[Hashable, object]) -> Slice:
    start, end, moved = (_whole(row[name]) or 0 for name in ("start_ns", "end_ns", "bytes"))
    names = ("bytes", "transfers", "missed", "number", "transport", "interface", "iteration")
    details = {name: value for name in names if (value := _plain(row[name])) not in (None, "", -1)}
    details["bit/s"] = round(8e9 * max(0, moved) / max(1, end - start))
    arrow = (number,) if (number := _whole(row["arrow"])) else ()
    leaves = row["sends"] == 1
    name = _COLLECTIVES.get(_whole(row["collective"]) or 0, "transfer")
    size = format_bytes(moved) if moved >= 0 else "unknown size"
    return Slice(start, end, f"{name} {size}", details, (), arrow if leaves else (), () if leaves else arrow)


def _write_jobs(content: Content, out: TraceWriter) -> None:
    verdicts = defaultdict(list)
    for verdict in content.verdicts:
        verdicts[verdict.job].append(verdict)
    hangs = defaultdict(list)
    for hang in content.hangs:
        hangs[hang.job].append(hang)
    for job in sorted({*content.jobs, *verdicts, *hangs}):
        process = out.process(f"job {content.called(job)}")
        own = content.iterations[content.iterations["job"] == job]
        if len(own):
            ends = own.groupby("iteration").agg(start=("start_ns", "min"), end=("end_ns", "max")).sort_values("start")
            rows = zip(ends.index.tolist(), ends["start"].tolist(), ends["end"].tolist(), strict=True)
            lane = out.lane(process, "iterations, all ranks")
            each_one = (Slice(start, end, f"iteration {number}") for number, start, end in rows)
            draw(out, lane, _one_after_another(each_one))
        if hangs[job]:
            times = [(hang, min(hang.until_ns or content.end_ns, content.end_ns)) for hang in reversed(hangs[job])]
            slices = (Slice(max(hang.since_ns, content.begin_ns), end, _in_words(hang, content)) for hang, end in times)
            draw(out, out.lane(process, "stands still"), _one_after_another(slices))
        if verdicts[job]:
            found = sorted(verdicts[job], key=lambda verdict: verdict.end_ns)
            flags = (_flag(renamed(verdict, content.names)) for verdict in found)
            out.instants(out.lane(process, "verdicts"), flags)


def _in_words(hang: Hang, content: Content) -> str:
    return line(replace(hang, job=content.called(hang.job)), format_moment)


def _flag(verdict: Verdict) -> Instant:
    details: dict[str, Detail] = {"arithmetic": "\n".join(arithmetic(verdict))}
    for name, value in columns(verdict).items():
        if isinstance(value, str | int | float):
            details[name] = value
    return Instant(verdict.end_ns, sentence(verdict), details)


def _write_ranks(content: Content, host: str, process: int, out: TraceWriter) -> None:
    rows = content.iterations[content.iterations["host"] == host].sort_values("start_ns")
    for (job, rank), own in rows.groupby(["job", "rank"], sort=True):
        name = content.called(job)
        lane = out.lane(process, f"{name}/{rank}" if int(str(rank)) >= 0 else f"{name}, rank not known")
        draw(out, lane, _one_after_another(_iteration(row) for row in own.to_dict("records")))


def _iteration(row: Mapping[Hashable, object]) -> Slice:
    """An iteration with its phases: before the first gradient, communicating, after the last."""
    start, end, begun, done = (_whole(row[name]) for name in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns"))
    assert start is not None
    assert end is not None
    inner = []
    if begun is not None and done is not None and start <= begun <= done <= end:
        exposed = _whole(row["exposed_ns"])
        known: dict[str, Detail] = {"exposed_ns": exposed} if exposed is not None else {}
        phases = [Slice(start, begun, "before the first gradient"), Slice(begun, done, "communicating", known)]
        inner = [phase for phase in (*phases, Slice(done, end, "after the last")) if phase.end_ns > phase.start_ns]
    names = ("source", "error_ns", "dl_tx_bytes", "dl_rx_bytes", "cross_tx_bytes", "cross_rx_bytes", "cross_top")
    details = {name: value for name in names if (value := _plain(row[name])) not in (None, "")}
    number = f"~{row['iteration']}" if row["relative"] else f"{row['iteration']}"
    return Slice(start, end, f"iteration {number}", details, tuple(inner))


def _write_flows(pieces: pd.DataFrame, process: int, arrows: _Arrows, out: TraceWriter) -> None:
    names = Counter[str]()
    by_bytes = pieces.groupby(["session", "flow_id"], sort=False)["wire_bytes"].transform("sum")
    ordered = pieces.assign(all_bytes=by_bytes).sort_values(
        ["direction", "all_bytes", "start_ns"], ascending=[True, False, True]
    )
    for _, own in ordered.groupby(["session", "flow_id"], sort=False):
        row = own.iloc[0]
        ends = f"{format_endpoint(row['src'], row['src_port'])} → {format_endpoint(row['dst'], row['dst_port'])}"
        name = f"{row['interface']} {row['direction']} {ends} {row['process'] or row['class']}"
        names[name] += 1
        lane = out.lane(process, name if names[name] == 1 else f"{name} ({names[name]})")
        draw(out, lane, _one_after_another(_piece(each, arrows) for each in own.to_dict("records")))


def _piece(row: Mapping[Hashable, object], arrows: _Arrows) -> Slice:
    start, end, sent = (_whole(row[name]) or 0 for name in ("start_ns", "end_ns", "wire_bytes"))
    names = ("class", "job", "rank", "peer_rank", "process", "wire_bytes", "payload_bytes")
    details = {name: value for name in names if (value := _plain(row[name])) not in (None, "")}
    details["bit/s"] = round(8e9 * sent / max(1, end - start))
    arrow = (number,) if (number := _whole(row["arrow"])) in arrows.both and number else ()
    leaves = row["direction"] == "tx"
    of = f", iteration {row['iteration']}" if (_whole(row["iteration"]) or 0) >= 0 and row["job"] else ""
    return Slice(start, end, f"{format_bytes(sent)}{of}", details, (), arrow if leaves else (), () if leaves else arrow)


def _one_after_another(slices: Iterator[Slice]) -> Iterator[Slice]:
    """Slices in order of their starts, cut where they overlap by what clocks and buckets leave open."""
    last = 0
    for each in slices:
        if each.end_ns <= last:
            continue
        start = max(each.start_ns, last)
        inner = tuple(one for one in each.inner if one.start_ns >= start)
        yield Slice(start, each.end_ns, each.name, each.details, inner, each.arrows_out, each.arrows_in)
        last = each.end_ns


def _traffic(data: Path, content: Content, progress: Callable[[float], None]) -> Traffic:
    buckets = open_table(data, "buckets", (content.begin_ns - _TO_OPEN_NS, content.end_ns))
    start = ds.field("bucket_start_ns")
    condition = (start >= content.begin_ns) & (start < content.end_ns)
    if content.hosts:
        condition &= ds.field("host").isin(content.hosts)
    traffic, done = Traffic(content.width_ns), 0
    for batch in stream(buckets, COLUMNS, condition):
        traffic.add(batch)
        done += batch.num_rows
        progress(min(1.0, done / content.rows))
    return traffic


def _span(data: Path, window: Window, iterations: pd.DataFrame) -> tuple[int, int, list[str], int, int]:
    """Begin and end (UTC epoch), the hosts with rows, the width (ns) of the widest row, and how many rows there are."""
    named = window.job is not None or window.iterations != (None, None)
    since, until = window.since_ns, window.until_ns
    if named and len(iterations):
        since = max(since or 0, int(iterations["start_ns"].min()))
        until = min(until or 1 << 62, int(iterations["end_ns"].max()))
    buckets = open_table(data, "buckets", (since or 0, until or 1 << 62))
    field = ds.field("bucket_start_ns")
    condition = (field >= (since or 0)) & (field < (until or 1 << 62))
    hosts = list(window.hosts)
    if window.job is not None:
        hosts = [host for host in sorted(set(iterations["host"])) if not hosts or host in hosts]
    if hosts:
        condition &= ds.field("host").isin(hosts)
    found: set[str] = set()
    begin, end, widest, rows = 1 << 62, 0, 0, 0
    for batch in stream(buckets, ["host", "bucket_start_ns", "bucket_ns"], condition):
        low_high = pc.min_max(batch["bucket_start_ns"])
        begin, end = min(begin, low_high["min"].as_py()), max(end, low_high["max"].as_py())
        widest = max(widest, pc.max(batch["bucket_ns"]).as_py())
        found |= {str(name) for name in batch["host"].unique().to_pylist()}
        rows += batch.num_rows
    if not found:
        raise DataError(f"cannot trace this part of {data}: it holds no traffic there")
    begin, end = (begin if since is None else since), (end + widest if until is None else until)
    return begin, end, sorted(found), widest, rows


def _within(window: Window, start: str, end: str) -> ds.Expression | None:
    return all_of(
        [
            *([ds.field(start) < window.until_ns] if window.until_ns is not None else []),
            *([ds.field(end) > window.since_ns] if window.since_ns is not None else []),
            *([ds.field("host").isin(window.hosts)] if window.hosts else []),
        ]
    )


def _whole(value: object) -> int | None:
    return None if value is None or value != value else int(value)  # type: ignore[call-overload]


def _plain(value: object) -> Detail:
    if value is None or value != value:
        return None
    if isinstance(value, str | bool):
        return value
    return int(value)  # type: ignore[call-overload, no-any-return]


# --- The last seconds of a live collector as a small dataset: iterations and verdicts that it reports, and rows at
# full resolution, from the agents' recorders.

_FOLDER = Path("date=2000-01-01/hour=all")  # of one part, whenever it was
_KNOWN = ("process", "job", "class")
_SETTLED_NS = 1_000_000_000
MOST_NS = 60_000_000_000
_LIVE_ITERATION = pa.schema(
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

    address: of a collector, or of multiple workers with commas. job: only its hosts, by either of its names; None: all.
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
                    parts.append(_texts(part.rows))
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
    return pa.Table.from_pylist(rows, _LIVE_ITERATION)


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


def _texts(rows: pa.Table) -> pa.Table:
    """Words as they are: each part numbers them in its own way."""
    kinds = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(kinds)).replace_schema_metadata(None)


def _renamed(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """With jobs called what people call them."""
    index = rows.column_names.index("job")
    known = rows["job"].unique()
    words = pa.array([names.get(word, word) for word in known.to_pylist()], pa.string())
    return rows.set_column(index, "job", words.take(pc.index_in(rows["job"], known)))
