# SPDX-License-Identifier: Apache-2.0
"""What jobs and links did in a window of a dataset, as netmon.dl.sharing wants it."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.dl.sharing.advice import (
    Advice,
    Culprit,
    Iterations,
    Names,
    PairEnds,
    Passed,
    iterations,
    room,
    worth_advising,
)
from netmon.dl.verdict.incidents import worst_first
from netmon.errors import DataError, NoRowsError
from netmon.history.dataset import Numbered, Words, all_of, known_columns, open_table, read_rows, stream
from netmon.history.judging import incidents_of, process_name, read_verdicts
from netmon.history.past import WIDEST_NS, StoredRows
from netmon.records import CLASS_NAMES, Class, Columns
from netmon.views import HOUR_NS, Incident

_LINK = ("host", "interface", "direction")
_ROW = [*_LINK, "session", "flow_id", "bucket_start_ns", "bucket_ns", "wire_bytes", "class", "job", "iteration"]
_DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_STEP = ["job", "session", "host", "rank", "iteration", "start_ns", "end_ns", "error_ns"]
_FLOW = ["session", "flow_id", "host", "direction", "job", "rank", "peer_rank"]
_LONGEST_NS = 60_000_000_000  # of an iteration
_MOST_CULPRITS = 3
_BITS = 40  # of a flow's number within its session, or of two words

_Numbers = npt.NDArray[np.int64]


def advice(
    data: Path, seconds: float, until_ns: int | None = None, jobs: Collection[str] = (), most: int | None = None
) -> Advice:
    """On the last seconds of a dataset, or those before a time (UTC ns). jobs: only these, and who shares their links.

    most: jobs that are compared with each other, as netmon.dl.sharing.advice.advise has it.

    Raises DataError where there is nothing in that time.
    """
    try:
        end = until_ns if until_ns is not None else StoredRows(data).newest_ns()
    except NoRowsError:
        raise DataError("cannot advise: no iteration has ended yet") from None
    begin = end - int(seconds * 1e9)
    steps = read_rows(data, "iterations", _STEP, begins_ns=(begin - _LONGEST_NS, end))
    hosts = _hosts(steps, jobs)
    steps = steps[(steps["start_ns"] >= begin) & (steps["end_ns"] <= end)]
    if steps.empty:
        raise DataError(f"cannot advise: no iteration has ended in the {seconds:g} s before {pd.Timestamp(end)} UTC")
    when = ds.field("bucket_start_ns")
    conditions = [when >= begin, when < end, *([ds.field("host").isin(hosts)] if hosts else [])]
    passed, names = Passed(begin, end), _Names()
    flows = read_rows(data, "flows", _FLOW, ds.field("session").isin(sorted(set(steps["session"]))))
    pairs = _Pairs(flows, names.words)
    buckets = open_table(data, "buckets", (begin - WIDEST_NS, end))
    for batch in stream(buckets, known_columns(buckets, _ROW), all_of(conditions)):
        passed.add(_numbered(batch, names, pairs))
    if passed.empty:
        raise DataError("cannot advise: there is no row in that time")
    sessions = read_rows(data, "sessions", ["host", "interface", "session", "capacity_bps", "clock_error_ns"])
    clocks = sessions.groupby("session")["clock_error_ns"].max()
    by_job = {str(job): _iterations(own, clocks) for job, own in steps.groupby("job")}
    found = passed.advice(by_job, names.names(_capacities(sessions), pairs.names), frozenset(jobs), most)
    return replace(found, culprits=_culprits(data, found, jobs))


def _culprits(data: Path, advice: Advice, jobs: Collection[str]) -> tuple[Culprit, ...]:
    """Of the last hour's incidents, by verdicts that were stored: those that cost most, of each culprit the worst."""
    within = advice.end_ns - HOUR_NS, advice.end_ns
    found: dict[tuple[str, str, str], Incident] = {}
    for one in worst_first(incidents_of(data, read_verdicts(data, None, within) or [])):
        if worth_advising(one) and (not jobs or one.job in jobs):
            found.setdefault((one.job, one.culprit, one.sender), one)
    culprits = []
    for one in [*found.values()][:_MOST_CULPRITS]:
        name = f"{one.host} {one.interface} {one.direction.name.lower()}"
        link = advice.links.index(name) if name in advice.links else -1
        free = room(advice.jobs, link, advice.capacity_bps.get(link, 0.0)) if link >= 0 else 0.0
        culprits.append(Culprit(one, free, _ends(data, one)))
    return tuple(culprits)


def _ends(data: Path, incident: Incident) -> PairEnds:
    """Where the culprit's packets can be distinguished from others: where they leave, else where they enter."""
    columns = ["host", "interface", "direction", "src", "dst", "src_port", "dst_port", "protocol", "container"]
    columns += ["process", "class_source", "members"]
    when = (ds.field("first_ns") < incident.until_ns) & (ds.field("last_ns") >= incident.since_ns)
    for host, sends in ((incident.sender, True), (incident.receiver, False)):
        way = (ds.field("host") == host) & (ds.field("direction") == ("tx" if sends else "rx"))
        rows = read_rows(data, "flows", columns, when & way & (ds.field("job") == "")) if host else pd.DataFrame()
        if not len(rows):
            continue
        rows = rows[[process_name(row) == incident.culprit for row in rows.to_dict("records")]]
        rows = rows[~(rows["members"] > 0)]
        one = rows[["interface", "src", "dst", "protocol"]].drop_duplicates()
        ports = [(name, rows[name].unique()) for name in ("dst_port", "src_port")]
        common = next(((int(own[0]), name == "src_port") for name, own in ports if len(own) == 1), (0, False))
        if len(one) == 1:
            interface, source, target, protocol = one.iloc[0]
            unit = str(rows["container"].iloc[0] or "")
            return PairEnds(host, str(interface), sends, int(protocol), str(source), str(target), *common, unit)
    return PairEnds()


def _hosts(steps: pd.DataFrame, jobs: Collection[str]) -> list[str]:
    """The hosts of these jobs and of those that have hosts in common with them; none: of all jobs."""
    near = set(jobs)
    for _ in range(2 if jobs else 0):
        hosts = set(steps["host"][steps["job"].isin(near)])
        near = set(steps["job"][steps["host"].isin(hosts)])
    return sorted(set(steps["host"][steps["job"].isin(near)]))


def _iterations(own: pd.DataFrame, clock_error_ns: "pd.Series[int]") -> Iterations:
    """Of the rows of a job. clock_error_ns: by session."""
    number, start, end = own[["iteration", "start_ns", "end_ns"]].to_numpy(np.int64).T
    sessions = own["session"].unique()
    clocks = clock_error_ns.reindex(sessions).max() if len(sessions) > 1 else 0
    return iterations(number, start, end, int(own["error_ns"].fillna(0).median() + np.nan_to_num(clocks)))


def _capacities(sessions: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By host and interface, as the newest session has it."""
    names = zip(sessions["host"], sessions["interface"], strict=True)
    return dict(zip(names, sessions["capacity_bps"].fillna(0), strict=True))


class _Names:
    """Numbers for words and for links. The empty word has 0."""

    def __init__(self) -> None:
        self.words, self.links = Words(), Numbered[int]()  # a link by its words' numbers
        self.words.number("")

    def names(self, capacity: dict[tuple[str, str], float], pairs: list[tuple[int, str, str]]) -> Names:
        words, low = self.words.values, (1 << _BITS // 2) - 1
        links = [(words[key >> _BITS], words[key >> _BITS // 2 & low], words[key & low]) for key in self.links.values]
        known = {number: bps for number, link in enumerate(links) if (bps := capacity.get(link[:2]))}
        return Names([" ".join(link) for link in links], words, pairs, known)


class _Pairs:
    """The pair of ranks that a flow leads from one to the other, as Names and ROW of netmon.dl.sharing.advice."""

    def __init__(self, flows: pd.DataFrame, words: Words) -> None:
        ranked = flows[(flows["job"] != "") & (flows["rank"] >= 0)].sort_values(["session", "flow_id"])
        host = dict(zip(zip(ranked["job"], ranked["rank"], strict=True), ranked["host"], strict=True))
        found: dict[tuple[int, str, str], int] = {}
        keys, pairs = list[int](), list[int]()
        for row in ranked[ranked["peer_rank"] >= 0].to_dict("records"):
            name, sends = row["job"], row["direction"] == "tx"
            ends = [f"rank {rank:.0f} ({host.get((name, rank), '?')})" for rank in (row["rank"], row["peer_rank"])]
            source, target = ends if sends else reversed(ends)
            job, session = (words.number(word) for word in (name, row["session"]))
            number = found.setdefault((job, source, target), len(found))
            keys.append(session << _BITS | row["flow_id"])
            pairs.append(number if sends else -2 - number)
        order = np.argsort(np.array(keys), kind="stable")
        self._keys, self._pairs = (np.array(values, np.int64)[order] for values in (keys, pairs))
        self.names = list(found)

    def of(self, flow: _Numbers) -> _Numbers:
        """By the flow's key; −1: it is not known, or of no pair."""
        if not len(self._keys):
            return np.full(len(flow), -1)
        index = np.minimum(np.searchsorted(self._keys, flow), len(self._keys) - 1)
        return np.where(self._keys[index] == flow, self._pairs[index], -1)


def _numbered(batch: pa.RecordBatch, names: _Names, pairs: _Pairs) -> Columns:
    """With the columns of netmon.dl.sharing.advice.ROW."""
    host, interface, direction, session, job = (
        names.words.encode(batch.column(name)) for name in (*_LINK, "session", "job")
    )
    keys, of = np.unique(host << _BITS | interface << _BITS // 2 | direction, return_inverse=True)
    links = np.array([names.links.number(key) for key in keys.tolist()], np.int64)
    if "class" in batch.schema.names:  # of others' bytes it is the job during whose iteration they passed
        job = np.where(pc.is_in(batch.column("class"), pa.array(_DL)).to_numpy(zero_copy_only=False), job, 0)
    flow = session << _BITS | batch.column("flow_id").to_numpy().astype(np.int64)
    iteration = batch.column("iteration").fill_null(-1).to_numpy().astype(np.int64)
    plain = zip(("start_ns", "width_ns", "wire_bytes"), ("bucket_start_ns", "bucket_ns", "wire_bytes"), strict=True)
    return Columns(
        {
            **{"link": links[of], "job": np.where(job > 0, job, -1), "flow": flow, "pair": pairs.of(flow)},
            **{"iteration": iteration},
            **{name: batch.column(stored).to_numpy().astype(np.int64) for name, stored in plain},
        }
    )
