# SPDX-License-Identifier: Apache-2.0
"""The tables of all sessions that the stage works on, and what can be computed from them without changing them."""

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.dataset.manifest import Resume
from collector.host.flows import AllFlows, Links, unknown_flow
from collector.host.iteration_rows import Accounted, IterationRows
from collector.host.ledger import LedgerAccounts
from collector.host.rank import RankLog
from collector.host.rank_table import LONGEST_HISTORY_NS, NEVER, RankTable
from collector.host.rows import COLUMNS, Pending, PendingRows, merge
from collector.host.steps import AllSteps
from collector.host.unstored import Unstored, UnstoredIterations
from collector.settings import Settings
from netmon.dl.account import HostAccounts, TrafficQuery, row_keys
from netmon.dl.classify import BULK, Rows, Windows, row_classes, share_windows, window_width
from netmon.dl.grouped import starts
from netmon.dl.timemap import TimeMap
from netmon.evidence import EVIDENCE, UNKNOWN
from netmon.records import Class, Columns, Direction, Hello, Table, joined
from netmon.wire.batch_fields import ManyBatches
from netmon.wire.limits import MAX_UTC_NS
from netmon.wire.tables import WORDS_OF

# --- What is known of each session and each link, as columns over all of them.


LONGEST_NEED_NS = 30_000_000_000
"""An iteration that has been open for longer no longer holds back acknowledgements."""

_LONG_AGO = -(2**62)

SESSION = np.dtype(
    [
        ("used", "?"),
        ("trains", "?"),  # it has ranks
        ("horizon_ns", "<i8"),  # all times are mono
        ("before_ns", "<i8"),  # the horizon before the newest batch
        ("settled_ns", "<i8"),
        ("bucket_ns", "<i8"),  # of the newest rows
        ("full_ns", "<i8"),  # of the agent's buckets
        ("window_ns", "<i8"),  # of a share window
        ("first_link", "<i8"),
        ("onsets_ns", "<i8"),  # from when on a flow's first bucket is the flow's
        ("stored_complete", "<i8"),  # what the dataset holds of the session: see Resume
        ("stored_last", "<i8"),
        ("stored_settled_ns", "<i8"),
        # The last two knots of the map to UTC, and its slope from there on.
        *((name, "<i8") for name in ("earlier_knot_ns", "earlier_offset_ns", "knot_ns", "offset_ns")),
        ("slope", "<f8"),
        # What the agent itself used lately.
        ("cpu_fraction", "<f8"),
        *((name, "<i8") for name in ("rss_bytes", "spool_bytes", "warnings")),
    ]
)

LINK = np.dtype([("session", "<i8"), ("capacity_bps", "<i8"), ("window_ns", "<i8")])
"""A link: index of its session, −1: of none; width of its share windows."""


class SessionIndex:
    """Sessions by index, and links by a number over all sessions: those of a session follow each other."""

    def __init__(self) -> None:
        self._table = np.zeros(16, SESSION)
        self._links = np.zeros(32, LINK)
        self._count = self._link_count = 0
        self._free: list[int] = []
        self._free_links: dict[int, list[int]] = {}  # first links by how many

    @property
    def table(self) -> Table:
        """A view, dtype SESSION, one row per place."""
        return self._table[: self._count]

    @property
    def links(self) -> Table:
        """A view, dtype LINK, one row per link."""
        return self._links[: self._link_count]

    def each(self, name: str, session: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """A column, of the session of each row: `take` and indices of 64 bits take a tenth of the time of brackets."""
        return self.table[name].take(session.astype(np.intp, copy=False))

    def add(self, hello: Hello, links: Links, settings: Settings, resume: Resume) -> int:
        """Give a session a place, and its links their numbers."""
        session_index = self._free.pop() if self._free else self._count
        self._count = max(self._count, session_index + 1)
        if session_index == len(self._table):
            self._table = np.concatenate([self._table, np.zeros(session_index, SESSION)])
        self._table[session_index] = 0
        row = self._table[session_index]
        width = window_width(settings.share_window_ns, hello.streamed_ns)
        begin_ns = hello.clock.mono_ns
        for name, value in (
            *(("used", True), ("horizon_ns", begin_ns), ("settled_ns", -1), ("onsets_ns", begin_ns)),
            *(("bucket_ns", hello.streamed_ns), ("full_ns", hello.bucket_ns), ("window_ns", width)),
            ("first_link", self._first_link(session_index, links, width)),
            *(("stored_complete", resume.complete_sequence), ("stored_last", resume.last_sequence)),
            ("stored_settled_ns", resume.settled_ns),
        ):
            row[name] = value
        return session_index

    def _first_link(self, session_index: int, links: Links, width_ns: int) -> int:
        free = self._free_links.get(len(links))
        first = free.pop() if free else self._link_count
        end = first + len(links)
        self._link_count = max(self._link_count, end)
        while end > len(self._links):
            self._links = np.concatenate([self._links, np.zeros(len(self._links), LINK)])
        own = self._links[first:end]
        own["session"], own["capacity_bps"], own["window_ns"] = session_index, links.capacity_bps, width_ns
        return first

    def remove(self, session_index: int, links: int) -> None:
        """The session is gone; links: how many it had."""
        first = int(self._table[session_index]["first_link"])
        self._links[first : first + links] = 0
        self._links["session"][first : first + links] = -1
        self._free_links.setdefault(links, []).append(first)
        self._table[session_index] = 0
        self._free.append(session_index)

    def use_map(self, session_index: int, clock: TimeMap) -> None:
        """From now on the session's clock is mapped so."""
        row, has_earlier = self._table[session_index], len(clock.knots_ns) > 1
        row["knot_ns"], row["offset_ns"], row["slope"] = clock.knots_ns[-1], clock.offsets_ns[-1], clock.slope
        row["earlier_knot_ns"] = clock.knots_ns[-2] if has_earlier else _LONG_AGO
        row["earlier_offset_ns"] = clock.offsets_ns[-2] if has_earlier else clock.offsets_ns[-1]

    def utc(self, session: npt.NDArray[np.signedinteger], mono_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Mono times of sessions in UTC; of times before the last two knots of a map see `older`."""
        session = session.astype(np.intp, copy=False)
        own = {name: self.each(name, session) for name in ("knot_ns", "offset_ns", "slope")}
        since = mono_ns - own["knot_ns"]
        offsets = own["offset_ns"] + _whole(np.maximum(since, 0) * own["slope"])
        inside = np.flatnonzero((since < 0) & (self.each("earlier_offset_ns", session) != own["offset_ns"]))
        if len(inside):
            first, base = (self.table[n][session[inside]] for n in ("earlier_knot_ns", "earlier_offset_ns"))
            rise, span = own["offset_ns"][inside] - base, np.maximum(own["knot_ns"][inside] - first, 1)
            offsets[inside] = base + _whole((mono_ns[inside] - first) * (rise / span))
        found: npt.NDArray[np.int64] = mono_ns + offsets
        return found

    def older(self, session: npt.NDArray[np.signedinteger], mono_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Which of the times lie before what `utc` knows of the sessions' maps."""
        return np.flatnonzero(mono_ns < self.each("earlier_knot_ns", session))


def _whole(ns: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Rounded; of a clock that nobody could have, no further than a time may be."""
    return np.clip(np.round(ns), -MAX_UTC_NS, MAX_UTC_NS).astype(np.int64)


# --- What agents report of connections and of their hosts' part, on its way to the dataset: all hosts in one table.

LATEST = np.dtype(
    [("session", "<i4"), ("flow_id", "<u4")]
    + [(name, "<i8") for name in ("end_ns", "sent_bytes", "retransmitted_bytes", "rtt_ns", "rtt_min_ns")]
)
"""The latest sample of a flow's connection, whichever way the flow goes. flow_id 0: nothing."""


_JOINED, _LATELY_TABLES = 16, 16
_MOST_WAITS = 256  # tables that nobody has taken

LATELY_NS = 3_000_000_000
"""What was said longer ago is not the present."""

_Indices = npt.NDArray[np.int64]


class Lately:
    """The tables that came last, oldest first; most of them joined, so that whoever looks at all of them has few."""

    def __init__(self) -> None:
        self._joined: deque[Columns] = deque(maxlen=_LATELY_TABLES)
        self._single: list[Columns] = []

    def append(self, rows: Columns) -> None:
        """Keep a table; the oldest ones go."""
        self._single.append(rows)
        if len(self._single) == _JOINED:
            self._joined.append(joined(self._single))
            self._single = []

    def copy(self) -> "Lately":
        """The same tables: it does not change with this one."""
        found = Lately()
        found._joined.extend(self._joined)
        found._single.extend(self._single)
        return found

    def all(self, names: Sequence[str], where: tuple[str, int] | None = None) -> Columns | None:
        """These columns of all that are kept; None where there are none. where: only rows that have this value in this
        column."""
        kept = [*self._joined, *self._single]
        if where:
            own = ((rows, np.flatnonzero(rows[where[0]] == where[1])) for rows in kept)
            found = [(rows, at) for rows, at in own if len(at)]
            columns = {name: [rows[name][at] for rows, at in found] for name in names}
        else:
            columns = {name: [rows[name] for rows in kept] for name in names}
        return Columns({name: np.concatenate(each) for name, each in columns.items()}) if columns[names[0]] else None


class Evidence:
    """The tables of netmon.evidence: all that is not stored yet, and the latest of each flow.

    A row on its way has the index of its session, too, and where it is of a flow the link as the session counts them;
    times are mono, `job` is an index into the jobs of all hosts, other words are strings.
    """

    def __init__(self, flows: AllFlows, sessions: SessionIndex) -> None:
        """flows, sessions: of all sessions."""
        self._flows, self._sessions = flows, sessions
        self.unstored = {name: Unstored() for name in EVIDENCE}
        self.lately = {name: Lately() for name in EVIDENCE}
        """The rows that came last, oldest first."""
        self._waits: deque[Columns] = deque(maxlen=_MOST_WAITS)
        self._latest = np.zeros(0, LATEST)  # by flow
        self._found: dict[str, _Indices] = {}  # flows of the rows that have just been checked
        self.renamed: dict[int, Mapping[tuple[str, int], str]] = {}
        """Of a session: names of jobs by job and pid, where they are others than the agent's."""

    def check(self, many: ManyBatches, session_index: _Indices) -> dict[int, str]:
        """Why batches are to be refused: they name flows that nobody knows. session_index: the session of each.

        To be called when their flows are described.
        """
        faults: dict[int, str] = {}
        for name, rows in many.evidence.items():
            if "flow_id" not in rows.names or not len(rows):
                continue
            flow = self._found[name] = self._flows.keys.find(session_index[rows["batch"]], rows["flow_id"])
            for row in np.flatnonzero(flow < 0).tolist():
                faults[int(rows["batch"][row])] = str(unknown_flow(int(rows["flow_id"][row])))
        return faults

    def add(self, many: ManyBatches, session_index: _Indices, good: npt.NDArray[np.bool_]) -> None:
        """Add the rows of good batches, which have just been checked. session_index: of each batch."""
        for name, rows in many.evidence.items():
            if not len(rows):
                continue
            kept = np.flatnonzero(good[rows["batch"]])
            whole = len(kept) == len(rows)
            rows = rows if whole else rows.take(kept)
            session = session_index[rows["batch"]]
            columns = {"session": session.astype("<i4")} | {column: rows[column] for column in rows.names[1:]}
            if "flow_id" in columns:
                flow = self._found[name] if whole else self._found[name][kept]
                columns["link"] = self._flows.state["link"][flow].astype("<i4")
                self._note(session, flow, rows)
            for column in WORDS_OF[name]:
                columns[column] = np.array([*many.words, ""], object)[rows[column]]
            if "job" in columns:
                columns["job"] = self._jobs(session, rows, many.words)
            found = Columns(columns)
            self.lately[name].append(found)
            if name == "waits":
                self._waits.append(found)
            self._keep(self.unstored[name], many, rows["batch"], found)

    def _note(self, session: _Indices, flow: _Indices, rows: Columns) -> None:
        """What TCP says of both flows of each connection."""
        self._note_flows(session, flow, rows, rows["flow_id"])
        other = self._flows.keys.find(session, rows["reverse_flow_id"])
        known = np.flatnonzero(other >= 0)
        self._note_flows(session[known], other[known], rows.take(known), rows["reverse_flow_id"][known])

    def _note_flows(self, session: _Indices, flow: _Indices, columns: Columns, flow_id: _Indices) -> None:
        if len(self._latest) < len(self._flows.flows):
            grown = np.zeros(2 * len(self._flows.flows), LATEST)
            grown[: len(self._latest)] = self._latest
            self._latest = grown
        rows = np.empty(len(columns), LATEST)
        rows["session"], rows["flow_id"] = session, flow_id
        for name in (LATEST.names or ())[2:]:
            rows[name] = columns[name]
        self._latest[flow] = rows  # in the batches' order: the last one wins

    def _jobs(self, session: _Indices, rows: Columns, words: Sequence[str]) -> _Indices:
        job: _Indices = rows["job"].copy()
        of_rank = np.flatnonzero(job != UNKNOWN)
        whose = np.stack([session[of_rank], job[of_rank], rows["pid"][of_rank]])
        each, place = np.unique(whose, axis=1, return_inverse=True)
        found = np.zeros(each.shape[1], np.int64)
        for row, (session_index, word, pid) in enumerate(each.T.tolist()):
            renamed = self.renamed.get(session_index, {})
            found[row] = self._flows.job(renamed.get((words[word], pid), words[word]))
        job[of_rank] = found[place.reshape(-1)]
        return job

    def _keep(self, unstored: Unstored, many: ManyBatches, batch: npt.NDArray[np.int32], rows: Columns) -> None:
        """Those that the dataset does not have."""
        sequence = many.heads["sequence"][batch]
        new = sequence > self._sessions.table["stored_last"][rows["session"]]
        fresh = rows if new.all() else rows[new]
        unstored.add(fresh)

    def take_waits(self) -> list[Columns]:
        """Rows of netmon.evidence.WAIT that have come since the last call."""
        found, self._waits = list(self._waits), deque(maxlen=_MOST_WAITS)
        return found

    def latest_tcp(self, flow: int, direction: Direction) -> tuple[float, float, float]:
        """What TCP said last of a flow's connection: RTT and its minimum in ns, and the share of what was sent that was
        sent again; nan: nothing, or not lately.

        flow: its index among the flows of all sessions. What comes in is sent again elsewhere.
        """
        nothing = math.nan, math.nan, math.nan
        if flow >= len(self._latest):
            return nothing
        row, state = self._latest[flow], self._flows.state[flow]
        if not row["flow_id"] or row["flow_id"] != state["flow_id"] or row["session"] != state["session"]:
            return nothing
        if row["end_ns"] < self._sessions.table["horizon_ns"][row["session"]] - LATELY_NS:
            return nothing
        rtt_ns, least_ns = (float(row[name]) if row[name] > 0 else math.nan for name in ("rtt_ns", "rtt_min_ns"))
        known = direction == Direction.TX and row["sent_bytes"] > 0 and row["retransmitted_bytes"] >= 0
        return rtt_ns, least_ns, float(row["retransmitted_bytes"] / row["sent_bytes"]) if known else math.nan

    def drop(self, session_index: int) -> None:
        self.renamed.pop(session_index, None)


# --- The last iterations of all hosts, as they were stored: what rows that are requested later can be part of.

MOST = 1_000
"""Iterations of a host that are kept, at least: there may be thousands of hosts, and four a second on each."""

_SPARE = 1.25  # × as many, before the oldest go
_MOST_PIECES = 256


class Over(NamedTuple):
    """An iteration that is over; times in its host's mono, job: its number."""

    start_ns: int
    end_ns: int
    job: int
    rank: int
    number: int


class RecentIterations:
    """By place of the session, in the order in which they settled."""

    def __init__(self) -> None:
        self._pieces: list[Columns] = []
        self._count, self._limit = 0, 0

    def add(self, session_index: npt.NDArray[np.int64], **columns: npt.NDArray[np.int64]) -> None:
        """Iterations of any sessions; columns: the fields of Over."""
        if not len(session_index):
            return
        self._pieces.append(Columns({"session": session_index.astype(np.int32)} | columns))
        self._count += len(session_index)
        if self._count > self._limit or len(self._pieces) > _MOST_PIECES:
            self._tidy()

    def _tidy(self) -> None:
        rows = joined(self._pieces)
        order = np.argsort(rows["session"], kind="stable")
        first = starts(rows["session"][order])
        count = np.diff(np.append(first, len(order)))
        kept = np.arange(len(order)) - np.repeat(first + count, count) >= -MOST
        self._pieces = [rows.take(np.sort(order[kept]))]
        self._count, self._limit = int(kept.sum()), int(_SPARE * MOST * len(first))

    def within(self, session_index: int, first_ns: int, last_ns: int) -> Iterator[Over]:
        """Those of a session that share a moment with [first, last]."""
        for rows in self._pieces:
            own = (rows["session"] == session_index) & (rows["start_ns"] <= last_ns) & (rows["end_ns"] > first_ns)
            found = rows[own]
            yield from map(Over, *(found[name].tolist() for name in Over._fields))

    def drop(self, session_index: int) -> None:
        kept = (rows[rows["session"] != session_index] for rows in self._pieces)
        self._pieces = [rows for rows in kept if len(rows)]
        self._count = sum(map(len, self._pieces))


# --- Everything that is one table for all sessions.

_NUMBERS_REST_S = 3600.0
_NAME_JOBS = tuple(name for name, columns in EVIDENCE.items() if "job" in (columns.names or ()))


@dataclass(frozen=True)
class Classified:
    """Rows with their class."""

    rows: Columns  # of ARRIVED
    link: npt.NDArray[np.int64]  # of each row, among all sessions' links
    windows: Windows
    classes: npt.NDArray[np.uint8]


class Tables:
    """Everything that is one table for all sessions."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sessions = SessionIndex()
        self.flows = AllFlows()
        self.pending = Pending()
        self.unstored = Unstored()
        self.payload, self.onsets = PendingRows(), PendingRows()
        self.evidence = Evidence(self.flows, self.sessions)
        self.accounts = HostAccounts()
        self.rank_log, self.rank_table = RankLog(), RankTable(self.accounts.payload)
        self.ledger = LedgerAccounts()
        self.unstored_of = {"ledger": Unstored()} | self.evidence.unstored
        """What settles by itself alongside the bucket rows, by table."""
        self.iterations, self.over = UnstoredIterations(), RecentIterations()
        self._needed: list[int | None] | None = None
        self._numbers_s = time.monotonic()  # when numbers were let go last

    @property
    def unstored_bytes(self) -> int:
        """Of rows that have settled and are not stored."""
        return self.unstored.nbytes + sum(rows.nbytes for rows in self.unstored_of.values())

    def has_unstored(self, session_index: int) -> bool:
        """Whether rows of the session are not stored, nor on their way to the disk."""
        pieces = self.unstored, *self.unstored_of.values()
        return any(session_index in rows.sessions for rows in pieces)

    def drop(self, session_index: int) -> None:
        """The session is gone, and with it its rows."""
        for rows in (self.pending, self.unstored, self.iterations, self.over, self.payload, self.onsets):
            rows.drop(session_index)
        for others in self.unstored_of.values():
            others.drop(session_index)
        self.evidence.drop(session_index)
        self.accounts.drop(session_index)

    def link(self, rows: Columns) -> npt.NDArray[np.int64]:
        """The link of each row, of ARRIVED, among all sessions' links."""
        found: npt.NDArray[np.int64] = self.sessions.each("first_link", rows["session"])
        found += self.flows.of_flows("link", rows["flow"])
        return found

    def classified(self, rows: Columns) -> Classified:
        """Rows of ARRIVED with their classes, by their flow's owner and what else its link carries meanwhile."""
        link, links = self.link(rows), self.sessions.links
        class_, job, traffic = (self.flows.of_flows(name, rows["flow"]) for name in ("class", "job", "traffic"))
        gradient = (class_ == Class.DL_ONLY) & np.isin(traffic, BULK)
        query = Rows(rows["start_ns"], link, class_, job, gradient, rows["wire_bytes"], rows["payload_bytes"])
        windows = share_windows(query, links["capacity_bps"], links["window_ns"], self.settings.share_threshold)
        return Classified(rows, link, windows, row_classes(query, windows))

    def merged(self, rows: Columns) -> Columns:
        """One row per flow and bucket, by session and time."""
        return merge(rows, self.sessions.table["full_ns"])

    def steps(self) -> AllSteps:
        """The ranks as they are now."""
        return AllSteps(self.rank_table.steps(), self.flows, len(self.sessions.table))

    def reclassify_traffic(self) -> None:
        recovered = [self.flows.job(name) for name in self.rank_log.recovered]
        self.flows.reclassify_traffic(self._unexplained(), recovered)

    def _unexplained(self) -> list[int]:
        """Numbers of the jobs whose steps are not understood."""
        return [self.flows.job(name) for name in self.rank_log.unclear_jobs()]

    def understood(self, rows: IterationRows) -> IterationRows:
        """Without those of jobs whose steps are not understood: they are no facts."""
        unclear = self.rank_log.unclear_jobs()
        if not (unclear and len(rows)):
            return rows
        names, of = rows.about.jobs
        return rows.take(np.array([name not in unclear for name in names])[of[rows.whose]])

    def stamped(self, rows: Columns, classes: npt.NDArray[np.uint8], steps: AllSteps) -> Columns:
        """Settled rows as the dataset has them, of SETTLED; but for the times of long ago (see SessionIndex.older)."""
        session, flow, start = rows["session"], rows["flow"], rows["start_ns"]
        job, iteration = steps.stamp(session, flow, start)
        flow_id, link = (self.flows.of_flows(name, flow) for name in ("flow_id", "link"))
        if unexplained := self._unexplained():
            iteration = np.where(np.isin(job, unexplained), -1, iteration)
        columns = {"session": session, "flow_id": flow_id, "link": link, "class": classes}
        columns |= {"job": job, "iteration": iteration, "bucket_start_ns": self._utc(session, start)}
        return Columns(columns | {name: rows[name] for name in COLUMNS})

    def _utc(self, session: npt.NDArray[np.int32], start_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Mono times of sessions in UTC, converted once where equal ones follow each other."""
        first = starts(session, start_ns)
        return np.repeat(self.sessions.utc(session[first], start_ns[first]), np.diff(np.append(first, len(session))))

    def accounted(self, rows: IterationRows) -> Accounted:
        window_ns, alone = self.sessions.table["window_ns"][rows.session], rows.each_of("size") == 1
        job = rows.numbers(self.flows.job)
        query = TrafficQuery(rows.session, window_ns, job, rows.each_of("rank"), rows.start_ns, rows.end_ns, alone)
        return Accounted(rows, self.accounts.tally(query, self.flows.traffic_owners, self.flows.jobs))

    def add_iterations(self, accounted: Accounted) -> None:
        rows = accounted.rows
        self.iterations.add(accounted)
        columns = {"start_ns": rows.start_ns, "end_ns": rows.end_ns, "number": rows.number}
        self.over.add(rows.session, **columns, job=rows.numbers(self.flows.job), rank=rows.each_of("rank"))

    def account(self, found: Classified) -> None:
        """Count settled rows wherever sums of them are needed later."""
        rows, state = found.rows, self.flows.state
        flow, start, session, payload = (rows[name] for name in ("flow", "start_ns", "session", "payload_bytes"))
        shared = flow[found.classes == Class.DL_SHARED]
        state["changed"][shared[~state["shared"][shared]]] = True
        state["shared"][shared] = True
        sessions = self.sessions.table
        traffic_owner, traffic, link = (
            self.flows.of_flows(name, flow) for name in ("traffic_owner", "traffic", "link")
        )
        self._add_to_ledger(found, link)
        keys = row_keys(traffic_owner, found.classes, traffic, link % 2)
        settled_ns = np.ascontiguousarray(sessions["settled_ns"])
        self.accounts.payload.add(session.astype(np.int64), start, keys, payload, settled_ns)
        self.accounts.windows.add(found.windows, self.sessions.links["session"], sessions["trains"], settled_ns)

    def _add_to_ledger(self, found: Classified, link: npt.NDArray[np.int64]) -> None:
        """link: as sessions count theirs. What one link carries at one time is requested once."""
        session, start, wire = (found.rows[name] for name in ("session", "start_ns", "wire_bytes"))
        if found.rows["stored"].any():
            wire = np.where(found.rows["stored"] & self.ledger.resumed[found.link], 0, wire)
        first = starts(session, start)
        links = int(link.max(initial=0)) + 1
        if len(first) * links > len(start):
            self.ledger.add(start, found.link, wire)
            return
        cell = np.repeat(np.arange(len(first)) * links, np.diff(np.append(first, len(start)))) + link
        sums = np.bincount(cell, weights=wire, minlength=len(first) * links)
        there = np.flatnonzero(sums)
        at = first[there // links]
        number = self.sessions.table["first_link"][session[at]] + there % links
        self.ledger.add(start[at], number, sums[there].astype(np.int64))

    def forget(self) -> None:
        """Drop what no iteration needs any more."""
        sessions = self.sessions.table
        settled_ns = np.ascontiguousarray(sessions["settled_ns"])
        needed = np.maximum(self.rank_table.needed_ns(len(sessions)), settled_ns - LONGEST_HISTORY_NS)
        needed = np.minimum(needed, settled_ns)
        self.accounts.payload.forget(needed, settled_ns)
        self.accounts.windows.forget(needed, np.maximum(sessions["window_ns"], 1))
        self._needed = None
        if time.monotonic() > self._numbers_s + _NUMBERS_REST_S:
            self._numbers_s = time.monotonic()
            jobs, rank_ids = self.rank_table.numbers()
            named = (self.evidence.unstored[name].jobs() for name in _NAME_JOBS)
            self.flows.release_numbers(self.unstored.jobs().union(jobs, *named), rank_ids)

    def needed_since(self, session_index: int) -> int | None:
        """Start of the earliest iteration of a session that is still open, unless it is too old to wait for (mono)."""
        if self._needed is None or session_index >= len(self._needed):  # it is new
            sessions = self.sessions.table
            needed_ns = self.rank_table.needed_ns(len(sessions), sessions["horizon_ns"] - LONGEST_NEED_NS)
            self._needed = [one if one < NEVER else None for one in needed_ns.tolist()]
        return self._needed[session_index]
