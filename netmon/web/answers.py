# SPDX-License-Identifier: Apache-2.0
"""What a page is answered: how each job is doing, who slows it, a job's steps with their causes, spans and tiles."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from netmon.dl.hangs import line as hang_line
from netmon.dl.verdict.baseline import MOST, Durations, baseline_durations
from netmon.dl.verdict.incidents import Incidents, line, remedy, who
from netmon.errors import UsageError
from netmon.history.dataset import plain_words
from netmon.views import NETWORK, Cause, Incident, RankPair, RowQuery, Rows, Verdict
from netmon.web.source import BLOCK, HOST, JOB, PHASES, SHOWN, Catalogue, Floats, Lane, Lanes, Source, density

_AGAIN_S = 0.5
_S = 1_000_000_000
_HOUR_NS = 3_600_000_000_000
_MOST_JOBS = 12  # that are shown one by one
_MOST_SHOWN = 300  # incidents
_MOST_PAIRS = 64  # of ranks
_MOST_BARS = 1_200
_MOST_GONE = 5_000  # verdicts that the source has no more, and that are known here
_MOST_FOUND = 20
_MARK = "\x1f"  # stands around times in a line


class _Step(NamedTuple):
    number: int
    end_ns: int
    duration_ns: int
    baseline_ns: int  # 0: not known


def _pair(pair: RankPair) -> dict[str, Any]:
    """What is not known is null."""
    return {name: value if value == value else None for name, value in asdict(pair).items()}


class Answers:
    """Of one source. Any thread may call; the source is read twice a second at most."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._incidents: dict[str, Incidents] = {}  # by what people call the job
        self._verdicts: dict[tuple[str, int], list[Verdict]] = {}  # by job and step: one may begin anew
        self._known = 0  # verdicts
        self._count = -1
        self._found: list[Incident] = []  # oldest first
        self._version = 0
        self._jobs: dict[str, Any] = {}
        self._requested_s = -_AGAIN_S
        self._lock = threading.Lock()

    def jobs(self) -> dict[str, Any]:
        """The jobs that are worst off, how many there are, and the version of what `incidents` tells."""
        with self._lock:
            if time.monotonic() - self._requested_s >= _AGAIN_S:
                self._update()
                self._requested_s = time.monotonic()
            return self._jobs

    def incidents(self, shown: Callable[[Incident], Incident]) -> dict[str, Any]:
        """The newest, newest first. shown: what of one the viewer may see."""
        with self._lock:
            found, version = self._found, self._version
        newest = found[: -_MOST_SHOWN - 1 : -1]
        return {"version": version, "all": len(found), "incidents": [_document(shown(one)) for one in newest]}

    def _update(self) -> None:
        state, catalogue = self._source.state(), self._source.catalogue()
        if state.verdicts != self._count:
            self._count = state.verdicts
            self._take(self._source.verdicts())
        steps, _ = self._source.steps(state.end_ns - _HOUR_NS, state.end_ns + 1)
        newest = {name: self._newest(steps, name, at, catalogue) for name, at in job_lanes(catalogue).items()}
        found: list[Incident] = []
        rows = []
        for name in {**newest, **self._incidents}:
            step = newest.get(name)
            own = self._incidents.get(name, Incidents())
            own_found = own.found(step.end_ns, step.number, state.end_ns) if step and state.live else own.found()
            found += own_found
            if step is not None:
                rows.append(self._row(name, step, own_found, state.end_ns if state.live else 0))
        found.sort(key=lambda one: one.since_ns)
        if found != self._found:
            self._found, self._version = found, self._version + 1
        unclear = set(catalogue.not_understood)
        rows = [{**row, "not_understood": row["name"] in unclear} for row in rows]
        rows.sort(key=lambda row: (row["incident"] is None, not row["ongoing"], -row["lost_ns"]))
        slow = sum(row["ongoing"] for row in rows)
        self._jobs = {"jobs": rows[:_MOST_JOBS], "all": len(rows), "slow": slow, "incidents": self._version}
        self._jobs["pairs"] = [
            {"job": job, "pairs": [_pair(pair) for pair in pairs[:_MOST_PAIRS]], "all": len(pairs)}
            for job, pairs in sorted(state.pairs.items())[:_MOST_JOBS]
        ]
        for name, reported in (("hangs", True), ("waits", False)):
            told = [hang for hang in state.hangs if bool(hang.reported_ns) is reported]
            self._jobs[name] = [_pieces(hang_line(hang, _marked)) for hang in told[:_MOST_JOBS]]

    def _row(self, name: str, step: _Step, found: Sequence[Incident], now_ns: int) -> dict[str, Any]:
        """now_ns: 0 where nothing goes on."""
        worst = max(found, key=lambda one: (one.ongoing, one.lost_ns), default=None)
        return {
            "name": name,
            "number": step.number,
            "last_ns": step.duration_ns,
            "baseline_ns": step.baseline_ns,
            "end_ns": str(step.end_ns),
            "silent_ns": max(0, now_ns - step.end_ns - 10 * max(step.baseline_ns, 3_000_000_000)),
            "lost_ns": sum(one.lost_ns for one in found),
            "incidents": len(found),
            "ongoing": worst is not None and worst.ongoing,
            "incident": None if worst is None else _key(worst),
        }

    def _take(self, verdicts: Sequence[Verdict]) -> None:
        """Those that are new; all anew where many have gone."""
        if len(verdicts) < self._known // 2 or len(verdicts) < self._known - _MOST_GONE:
            self._incidents, self._verdicts, self._known = {}, {}, 0
        for verdict in verdicts:
            same = self._verdicts.setdefault((verdict.job, verdict.iteration), [])
            if all(one.start_ns != verdict.start_ns for one in same):
                same.append(verdict)
                self._known += 1
                self._incidents.setdefault(verdict.job, Incidents()).add(verdict)

    def steps(self, number: int) -> list[dict[str, Any]]:
        """Those of this number that are known of each job, newest first."""
        state = self._source.state()
        known, _ = self._source.steps(state.end_ns - _HOUR_NS, state.end_ns + 1)
        found = [
            (int(one.end_ns[row]), int(one.bounds[row, 0]), job)
            for job, at in job_lanes(self._source.catalogue()).items()
            for one in known
            for row in (
                int(one.first[at]) + np.flatnonzero(one.number[one.first[at] : one.last[at]] == number)
            ).tolist()
        ]
        found.sort(reverse=True)
        return [
            {"job": job, "iteration": number, "start_ns": str(start), "end_ns": str(end)}
            for end, start, job in found[:_MOST_FOUND]
        ]

    def bars(self, job: str, begin_ns: int, end_ns: int) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """The steps of a job that touch a time: head and columns. Of too many, the slowest of each piece of time.

        job: what people call it.
        """
        self.jobs()
        catalogue = self._source.catalogue()
        at = job_lanes(catalogue).get(job, -1)
        steps, pending = self._source.steps(begin_ns, end_ns)
        own = _JobSteps.of(steps if at >= 0 else (), at, begin_ns, end_ns)
        drawn = _slowest(own, begin_ns, end_ns)
        said = _said(catalogue, at)
        baseline_ns = np.full(len(drawn), said) if said else own.baseline_ns(drawn, self._changes(job))
        cause = np.full(len(drawn), 255, np.uint8)
        for row, (start_ns, number) in enumerate(zip(own.start_ns[drawn], own.number[drawn].tolist(), strict=True)):
            for verdict in self._verdicts.get((job, number), ()):
                if abs(verdict.start_ns - start_ns) < verdict.duration_ns:
                    cause[row], baseline_ns[row] = verdict.cause, verdict.baseline_ns or baseline_ns[row]
        return {"job": job, "pending": pending}, {
            "start_ns": (own.start_ns[drawn] - begin_ns).astype(np.float64),
            "took_ns": own.took_ns[drawn].astype(np.float64),
            "number": own.number[drawn].astype(np.float64),
            "cause": cause,
            "baseline_ns": np.where(baseline_ns > 0, baseline_ns, np.nan),
        }

    def _changes(self, job: str) -> list[int]:
        """When the job has changed its pace."""
        known = (one for (name, _), same in self._verdicts.items() if name == job for one in same)
        return sorted(one.start_ns for one in known if one.cause == Cause.CHANGE)

    def _newest(self, steps: Sequence[Lanes], job: str, lane: int, catalogue: Catalogue) -> _Step | None:
        """The last step of a job; None: there is none."""
        ends = (int(one.end_ns[one.last[lane] - 1]) for one in steps if one.last[lane] > one.first[lane])
        newest_ns = max(ends, default=0)
        own = _JobSteps.of(steps, lane, newest_ns - 1, newest_ns)
        if not len(own.number):
            return None
        last = int(own.end_ns.argmax())
        baseline_ns = _said(catalogue, lane) or int(own.baseline_ns(np.array([last]), self._changes(job))[0])
        return _Step(int(own.number[last]), int(own.end_ns[last]), int(own.took_ns[last]), baseline_ns)


class _JobSteps(NamedTuple):
    """Of one job: the steps that touch a time, and those around them that they may be compared with."""

    start_ns: npt.NDArray[np.int64]  # ascending
    end_ns: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_]
    shared: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, steps: Sequence[Lanes], lane: int, begin_ns: int, end_ns: int) -> "_JobSteps":
        pieces = [np.zeros((5, 0), np.int64)]
        for one in steps:
            rows = one.of(lane, begin_ns, end_ns)
            around = slice(max(int(one.first[lane]), rows.start - MOST), min(int(one.last[lane]), rows.stop + MOST))
            columns = one.bounds[around, 0], *(c[around] for c in (one.end_ns, one.number, one.whole, one.shared))
            pieces.append(np.stack([column.astype(np.int64) for column in columns]))
        found = np.concatenate(pieces, axis=1)
        start, end, number, whole, shared = found[:, np.argsort(found[0], kind="stable")]
        return cls(start, end, number, whole > 0, shared > 0)

    @property
    def took_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns

    def baseline_ns(self, rows: npt.NDArray[np.intp], changes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Baselines of some of them, ns; 0: not known. changes: when the job has changed its pace."""
        pace, found = np.searchsorted(changes, self.start_ns, "right"), np.zeros(len(rows), np.int64)
        anew = (np.flatnonzero(np.diff(self.number) < -1) + 1).tolist()
        for first, last in pairwise([0, *anew, len(self.number)]):
            run, own = slice(first, last), np.flatnonzero((rows >= first) & (rows < last))
            took = self.took_ns[run].astype(np.float64)
            durations = Durations(took, self.whole[run], self.shared[run], pace[run])
            found[own] = baseline_durations(durations, rows[own] - first)
        return found


def _said(catalogue: Catalogue, lane: int) -> int:
    """Baseline of a job's last step, ns, as its collector reports it; 0: it reports none."""
    return catalogue.baseline_ns.get(catalogue.lanes[lane].job, 0) if lane >= 0 else 0


def job_lanes(catalogue: Catalogue) -> dict[str, int]:
    """The lane of each job, by what people call it."""
    names = catalogue.job_names
    return {names.get(lane.job, lane.job): at for at, lane in enumerate(catalogue.lanes) if lane.kind == JOB}


def _slowest(own: _JobSteps, begin_ns: int, end_ns: int) -> npt.NDArray[np.intp]:
    """The rows of those that touch a time; of more than can be drawn, the slowest of each piece of it."""
    rows = np.flatnonzero((own.end_ns > begin_ns) & (own.start_ns < end_ns))
    if len(rows) <= _MOST_BARS:
        return rows
    piece = (own.start_ns[rows] - begin_ns) // max(1, -(-(end_ns - begin_ns) // _MOST_BARS))
    order = np.lexsort((own.took_ns[rows], piece))
    last = np.diff(piece[order], append=-(1 << 62)) != 0
    slowest: npt.NDArray[np.intp] = rows[order[last]]
    return slowest


def _key(incident: Incident) -> str:
    """By which a page knows one again, also when it has grown."""
    return f"{incident.since_ns}-{incident.first}-{_plain(incident.job)}"


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _marked(utc_ns: int) -> str:
    return f"{_MARK}{utc_ns // _S * _S}{_MARK}"


def _pieces(text: str) -> list[str]:
    """Every second one is a time."""
    return [_plain(piece) for piece in text.split(_MARK)]


def _document(incident: Incident) -> dict[str, Any]:
    one = replace(
        incident,
        job=_plain(incident.job),
        culprit=_plain(incident.culprit),
        culprit_user=_plain(incident.culprit_user),
        sender=_plain(incident.sender),
        receiver=_plain(incident.receiver),
    )
    return {
        "key": _key(one),
        "job": one.job,
        "since_ns": str(one.since_ns),
        "until_ns": str(one.until_ns),
        "line": _pieces(line(one, _marked)),
        "who": who(one),
        "do": remedy(one),
        "cause": one.cause.name.lower(),
        "network": one.cause in NETWORK,
        "changed": one.cause == Cause.CHANGE,
        "sender": one.sender,
        "receiver": one.receiver or one.host,
        "rank": one.rank,
        "steps": one.steps,
        "worst": one.worst,
        "lost_ns": one.lost_ns,
        "ratio": one.ratio,
        "confidence": one.confidence,
        "ongoing": one.ongoing,
    }


# --- Traffic in a span of time, by class, process and flow, and in the span before; and which processes ran.
#
# All rows of a time are added up where they are no more than MOST_ROWS. Of more, a part is read: of SAMPLES pieces of
# the time the first rows of each, which stand for the piece. What is found is an estimate then, and says so.

MOST_ROWS = 12_000_000
SAMPLES = 60
_FIRST_SAMPLE = 0.01  # of a piece, before it is known how many rows there are
_LEAST_NS = 1_000_000  # of a piece, that is read
_MOST_TOGETHER = 1_000_000  # sums, before those of one flow are added up
_MOST_FLOWS = 500  # that are listed one by one
_MOST_PROCESSES = 50
_MOST_LANES = 8  # processes below a host
_FLOW = ["session", "host", "direction", "flow_id", "class"]
_NAMES = ["src", "src_port", "dst", "dst_port", "protocol", "process", "container", "user", "job", "rank"]
_SUMS = ["now", "before"]


def of_span(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Wire bytes; hosts: none for all. `read_ns`: of how much of the time rows were read. Blocks."""
    found = _by_flow(rows, hosts, 2 * begin_ns - end_ns, end_ns, 2, list(SHOWN))
    flows = _now_and_before(found.sums)
    if not len(flows):
        return {"classes": [], "processes": [], "flows": [], "all": 0, "read_ns": found.read_ns // 2}
    flows = flows.merge(_described(rows, flows), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    flows["user"] = flows["user"].fillna("")
    largest = flows.nlargest(_MOST_FLOWS, "now").drop(columns=["session", "name"])
    return {
        "classes": _both_ways(flows, ["class"]),
        "processes": _both_ways(flows, ["name", "user", "host"])[:_MOST_PROCESSES],
        "flows": _records(largest),
        "all": len(flows),
        "read_ns": found.read_ns // 2,
    }


def by_process(
    rows: Rows, host: str, begin_ns: int, end_ns: int, bins: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """The processes of a host with the most traffic: their names, and (process, rx and tx, bin) bit/s.

    At most so many bins. Blocks.
    """
    found = _by_flow(rows, [host], begin_ns, end_ns, bins, ["wire_bytes"])
    head: dict[str, Any] = {"names": [], "bins": found.bins, "width_ns": found.width_ns, "read_ns": found.read_ns}
    if not len(found.sums):
        return head, {"rate_bps": np.zeros(0, np.float32)}
    flows = found.sums.merge(_described(rows, found.sums), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    names = flows.groupby("name")["wire_bytes"].sum().nlargest(_MOST_LANES).index.tolist()
    flows = flows[flows["name"].isin(names)]
    values = np.zeros((len(names), 2, found.bins))
    place = flows["name"].map({name: at for at, name in enumerate(names)}).to_numpy(np.int64)
    sent = (flows["direction"] == "tx").to_numpy(np.int64)
    np.add.at(values, (place, sent, flows["bin"].to_numpy(np.int64)), flows["wire_bytes"])
    return {**head, "names": names}, {"rate_bps": (values * (8e9 / found.width_ns)).astype(np.float32).ravel()}


class _Found(NamedTuple):
    sums: pd.DataFrame  # by flow and bin
    bins: int
    width_ns: int  # of a bin
    read_ns: int  # how much of the time was read


def _by_flow(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int, bins: int, counts: Sequence[str]) -> _Found:
    """Sums of counts; in fewer bins where there are too many rows."""
    width = -(-(end_ns - begin_ns) // bins)
    sums = _FlowSums(rows, hosts, begin_ns, width, counts)
    if sums.add(begin_ns, end_ns, 1.0, MOST_ROWS):
        return _Found(sums.frame(), bins, width, end_ns - begin_ns)
    bins = min(bins, SAMPLES)
    width = -(-(end_ns - begin_ns) // bins)
    sums = _FlowSums(rows, hosts, begin_ns, width, counts)
    piece = -(-(end_ns - begin_ns) // SAMPLES)
    length, read_ns = max(_LEAST_NS, int(piece * _FIRST_SAMPLE)), 0
    for since in range(begin_ns, end_ns, piece):
        until = min(since + length, end_ns)
        sums.add(since, until, min(piece, end_ns - since) / (until - since))
        read_ns += until - since
        length = max(_LEAST_NS, min(piece, int(MOST_ROWS / SAMPLES * read_ns / max(sums.read, 1))))
    return _Found(sums.frame(), bins, width, read_ns)


class _FlowSums:
    """Sums by flow and bin of rows that are read."""

    def __init__(self, rows: Rows, hosts: Sequence[str], begin_ns: int, width_ns: int, counts: Sequence[str]) -> None:
        self.read = 0  # rows
        self._rows, self._among, self._counts = rows, _among(host=hosts), counts
        self._begin_ns, self._width_ns = begin_ns, width_ns
        self._pieces: list[pd.DataFrame] = []

    def add(self, since_ns: int, until_ns: int, factor: float, most: float = np.inf) -> bool:
        """The rows that begin in a time, times a factor. False: they are more than `most`, and not all are added."""
        wanted = RowQuery("buckets", [*_FLOW, "bucket_start_ns", *self._counts], since_ns, until_ns, self._among)
        begun = self.read
        for batch in self._rows.batches(wanted):
            self.read += batch.num_rows
            if self.read - begun > most:
                return False
            start = batch.column("bucket_start_ns").to_numpy(zero_copy_only=False)
            names = [name for name in self._counts if name in batch.schema.names]
            table = pa.Table.from_batches([batch]).select([*_FLOW, *names])
            table = table.append_column("bin", pa.array((start - self._begin_ns) // self._width_ns))
            table = table.filter(pa.array((start >= since_ns) & (start < until_ns)))
            found = table.group_by([*_FLOW, "bin"]).aggregate([(name, "sum") for name in names])
            piece = plain_words(found.to_pandas()).rename(columns={f"{name}_sum": name for name in names})
            piece[names] = piece[names] * factor
            self._pieces.append(piece)
            if len(self._pieces) > 1 and sum(map(len, self._pieces)) > _MOST_TOGETHER:
                self._pieces = [self.frame()]
        return True

    def frame(self) -> pd.DataFrame:
        if not sum(map(len, self._pieces)):
            return pd.DataFrame()
        known = [name for name in self._counts if any(name in piece for piece in self._pieces)]
        return pd.concat(self._pieces).groupby([*_FLOW, "bin"], as_index=False)[known].sum()


def _now_and_before(sums: pd.DataFrame) -> pd.DataFrame:
    """sums: by flow and bin, of which the second one is now. By flow; counts but bytes are those of now."""
    if not len(sums):
        return sums
    others = [str(name) for name in sums if name not in (*_FLOW, "bin", "wire_bytes")]
    now = sums["bin"] == 1
    parts = {"now": sums["wire_bytes"].where(now, 0), "before": sums["wire_bytes"].where(~now, 0)}
    parts |= {name: sums[name].where(now, 0) for name in others}
    found = sums[_FLOW].assign(**parts).groupby(_FLOW, as_index=False)[list(parts)].sum()
    found = found.astype(dict.fromkeys(parts, np.int64))
    return found[found[_SUMS].sum(axis=1) > 0]


def _described(rows: Rows, sums: pd.DataFrame) -> pd.DataFrame:
    among = _among(session=sorted(set(sums["session"])), flow_id=sorted({int(one) for one in sums["flow_id"]}))
    batches = list(rows.batches(RowQuery("flows", ["session", "flow_id", *_NAMES], among=among)))
    found = plain_words(pa.Table.from_batches(batches).to_pandas()) if batches else pd.DataFrame()
    found = found.reindex(columns=["session", "flow_id", *_NAMES])
    return found.drop_duplicates(["session", "flow_id"], keep="last")


def _among(**values: Sequence[str | int]) -> dict[str, Sequence[str | int]]:
    return {name: own for name, own in values.items() if own}


def _who(flows: pd.DataFrame) -> pd.Series:
    """A rank of a job, or a process."""
    process = flows["process"].fillna("").astype(str).where(flows["process"].notna(), "not known")
    rank = flows["job"].fillna("").astype(str) + "/" + flows["rank"].fillna(-1).astype(int).astype(str)
    named: pd.Series = process.where(flows["job"].fillna("") == "", rank)
    return named.where(named != "", "not known")


def _both_ways(flows: pd.DataFrame, by: list[str]) -> list[dict[str, Any]]:
    """The most first."""
    sent = flows["direction"] == "tx"
    split = flows.assign(sent=flows["now"].where(sent, 0), received=flows["now"].where(~sent, 0))
    found = split.groupby(by, as_index=False)[["sent", "received", *_SUMS]].sum()
    return _records(found.sort_values("now", ascending=False))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def processes(rows: Rows) -> list[tuple[str, str, str]]:
    """Each process that had a flow, its user and its host. Blocks."""
    found: dict[tuple[str, str, str], None] = {}
    columns = ["process", "user", "host"]
    for batch in rows.batches(RowQuery("flows", columns)):
        known = [name for name in columns if name in batch.schema.names]
        for row in pa.Table.from_batches([batch]).group_by(known).aggregate([]).to_pylist():
            if row.get("process"):
                found[str(row["process"]), str(row.get("user") or ""), str(row.get("host") or "")] = None
    return sorted(found)


# --- Tiles of the timeline for a browser, and columns of numbers as it reads them.

_ALIGNED = 8
_TYPES = {"<f4": "f32", "<f8": "f64", "|u1": "u8", "<u2": "u16", "<u4": "u32", "<i4": "i32"}


def encode(head: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The message. Raises ValueError for a type that browsers have no array of."""
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    offset, indices = 0, {}
    for name, array in arrays.items():
        if array.dtype.str not in _TYPES:
            raise ValueError(f"column {name} is of {array.dtype.str}, which no typed array holds")
        indices[name] = [_TYPES[array.dtype.str], offset, array.size]
        offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
    text = json.dumps({**head, "columns": indices}, allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % _ALIGNED)
    parts = [len(text).to_bytes(4, "little"), text]
    for array in arrays.values():
        parts += [array.tobytes(), b"\0" * (-array.nbytes % _ALIGNED)]
    return b"".join(parts)


# --- Pieces of the timeline: so many bins of time of so many lanes, at a level of detail, as columns.

BINS = 512
FINEST_NS = 10_000
MOST_LEVEL = 20
"""At level L a bin is FINEST_NS · 2^L wide: 10 µs to 10.5 s."""

ALIGNED_NS = BINS * FINEST_NS << 24
"""Tiles of all levels begin at multiples of it."""

_MOST_INDEX = 1 << 40
_MOST_SLICES = 2_000  # that are reported one by one
_UNSETTLED_NS = 5_000_000_000  # rows may come so late


def origin(catalogue: Catalogue) -> int:
    """The time (UTC ns) that browsers count from."""
    return catalogue.begin_ns // ALIGNED_NS * ALIGNED_NS


def tile(source: Source, catalogue: Catalogue, position: tuple[int, int, int], full: bool) -> tuple[bytes, bool]:
    """The message for (level, index, block), and whether nothing more can come. Blocks. Raises UsageError."""
    level, index, block = position
    lanes = catalogue.lanes[block * BLOCK : (block + 1) * BLOCK]
    if not 0 <= level <= MOST_LEVEL or abs(index) > _MOST_INDEX or block < 0:
        raise UsageError("there is no such part of the timeline")
    width = FINEST_NS << level
    begin = origin(catalogue) + index * BINS * width
    end = begin + BINS * width
    state = source.state()
    hosts = list(dict.fromkeys(lane.host for lane in lanes if lane.kind == HOST))
    outside = end <= catalogue.begin_ns or begin >= state.end_ns + _UNSETTLED_NS
    columns: dict[str, npt.NDArray[Any]] = {}
    head: dict[str, Any] = {"level": level, "index": index, "block": block, "resolution_ns": width}
    pending = False
    if not outside:
        if hosts:
            found = source.rates(hosts, begin, width, BINS, full)
            pending, head["resolution_ns"] = found.pending, max(width, found.resolution_ns)
            columns |= _rates(lanes, hosts, found.wire_bytes * (8e9 / width))
        steps, more = source.steps(begin, end)
        pending |= more
        columns |= _phases(lanes, block * BLOCK, steps, begin, width)
        columns |= _slices(lanes, block * BLOCK, steps, begin, end)
    head["final"] = not pending and (not state.live or end <= state.end_ns - _UNSETTLED_NS)
    return encode(head, columns), bool(head["final"])


def _rates(lanes: Sequence[Lane], hosts: Sequence[str], rates: Floats) -> dict[str, npt.NDArray[Any]]:
    """Only of the series that are not silent."""
    index = {host: number for number, host in enumerate(hosts)}
    of = [(at, index[lane.host]) for at, lane in enumerate(lanes) if lane.kind == HOST]
    spoken = rates.max(axis=2, initial=0.0) > 0
    rows = [(at, number, series) for at, number in of for series in np.flatnonzero(spoken[number]).tolist()]
    picked = np.array(rows, np.int64).reshape(-1, 3)
    return {
        "rate_lane": picked[:, 0].astype(np.uint16),
        "rate_series": picked[:, 2].astype(np.uint8),
        "rate_bps": rates[picked[:, 1], picked[:, 2]].astype(np.float32).ravel(),
    }


def _phases(
    lanes: Sequence[Lane], first: int, steps: Sequence[Lanes], begin_ns: int, width_ns: int
) -> dict[str, npt.NDArray[Any]]:
    rows, shares = [], [np.zeros((0, len(PHASES), BINS), np.uint8)]
    for at, lane in enumerate(lanes):
        if lane.kind == HOST:
            continue
        parts = [density(one, first + at, begin_ns, width_ns, BINS) for one in steps]
        share = np.minimum(np.sum(parts, axis=0, dtype=np.uint16), 255).astype(np.uint8) if parts else None
        if share is not None and share.any():
            rows.append(at)
            shares.append(share[None])
    return {"phase_lane": np.array(rows, np.uint16), "phases": np.concatenate(shares).ravel()}


def _slices(
    lanes: Sequence[Lane], first: int, steps: Sequence[Lanes], begin_ns: int, end_ns: int
) -> dict[str, npt.NDArray[Any]]:
    """Iterations one by one, where there are few; times in ns from the begin of the tile."""
    rows = [
        (at, one, one.of(first + at, begin_ns, end_ns))
        for one in steps
        for at, lane in enumerate(lanes)
        if lane.kind != HOST
    ]
    if sum(part.stop - part.start for _, _, part in rows) > _MOST_SLICES:
        return {}
    rows = [row for row in rows if row[2].stop > row[2].start]
    none = np.empty(0)
    lane = [np.full(part.stop - part.start, at) for at, _, part in rows]
    bounds = [np.column_stack([one.bounds[part], one.end_ns[part]]) - begin_ns for _, one, part in rows]
    return {
        "slice_lane": np.concatenate([none, *lane]).astype(np.uint16),
        "slice_number": np.concatenate([none, *(one.number[part] for _, one, part in rows)]).astype(np.float64),
        "slice_known": np.concatenate([none, *(one.known[part] for _, one, part in rows)]).astype(np.uint8),
        "slice_ns": np.concatenate([np.empty((0, 6)), *bounds]).astype(np.float64).ravel(),
    }
