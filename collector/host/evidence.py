# SPDX-License-Identifier: Apache-2.0
"""What agents report of connections and of their hosts' part, on its way to the dataset: all hosts in one table."""

import math
from collections import deque
from collections.abc import Container, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows, unknown_flow
from collector.host.session_index import SessionIndex
from collector.host.unstored import EvidencePieces, Unstored
from netmon.columnar import Columns, joined
from netmon.dl.grouped import distinct
from netmon.evidence import HOST_PART, TRANSPORT, UNKNOWN
from netmon.records import Direction
from netmon.wire.batch_fields import ManyBatches

STORED_TRANSPORT = np.dtype([("session", "<i4"), ("link", "<i4"), *((name, "<i8") for name in TRANSPORT.names or ())])
"""A row on its way: index of its session, link as the session counts them; times are mono."""

STORED_HOST_PART = np.dtype([("session", "<i4"), *((name, "<i8") for name in HOST_PART.names or ())])
"""The same of the host's part; job: an index into the jobs of all hosts, UNKNOWN in the host's own row."""

LATEST = np.dtype(
    [("session", "<i4"), ("flow_id", "<u4")]
    + [(name, "<i8") for name in ("end_ns", "sent_bytes", "retransmitted_bytes", "rtt_ns", "rtt_min_ns")]
)
"""The latest sample of a flow's connection, whichever way the flow goes. flow_id 0: nothing."""


_JOINED, _LATELY_TABLES = 16, 16

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

    def all(self, names: Sequence[str]) -> Columns | None:
        """These columns of all that are kept; None where there are none."""
        kept = [*self._joined, *self._single]
        return Columns({name: np.concatenate([rows[name] for rows in kept]) for name in names}) if kept else None


class Evidence:
    """All that is not stored yet, and the latest of each flow."""

    def __init__(self, flows: AllFlows, sessions: SessionIndex) -> None:
        """flows, sessions: of all sessions."""
        self._flows, self._sessions = flows, sessions
        self._transport, self._host = Unstored(), Unstored()
        self._latest = np.zeros(0, LATEST)  # by flow
        self._found = np.zeros(0, np.int64)  # flows of the rows of TRANSPORT that have just been checked
        self.lately = Lately()
        """The latest samples of the hosts' part, columns of STORED_HOST_PART, oldest first."""
        self.said_lately = Lately()
        """What TCP said last, columns of STORED_TRANSPORT, oldest first."""
        self.waiting: set[int] = set()
        """Sessions with rows that are not stored."""
        self.renamed: dict[int, Mapping[tuple[str, int], str]] = {}
        """Of a session: names of jobs by job and pid, where they are others than the agent's."""

    def jobs(self) -> set[int]:
        """The numbers of the jobs of all rows that are not stored."""
        return self._host.jobs()

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self._transport.nbytes + self._host.nbytes

    def check(self, many: ManyBatches, session_index: _Indices) -> dict[int, str]:
        """Why batches are to be refused: they name flows that nobody knows. session_index: the session of each.

        To be called when their flows are described.
        """
        rows = many.transport
        if not len(rows):
            return {}
        self._found = self._flows.keys.find(session_index[rows["batch"]], rows["flow_id"])
        unknown = np.flatnonzero(self._found < 0)
        return {int(rows["batch"][row]): str(unknown_flow(int(rows["flow_id"][row]))) for row in unknown.tolist()}

    def add(self, many: ManyBatches, session_index: _Indices, good: npt.NDArray[np.bool_]) -> None:
        """Add the rows of good batches, which have just been checked. session_index: of each batch."""
        if len(many.transport):
            self._add_transport(many, session_index, np.flatnonzero(good[many.transport["batch"]]))
        if len(many.host):
            self._add_host_part(many, session_index, np.flatnonzero(good[many.host["batch"]]))

    def _add_transport(self, many: ManyBatches, session_index: _Indices, good: _Indices) -> None:
        transport, flow = many.transport, self._found
        if len(good) < len(transport):
            transport, flow = transport.take(good), flow[good]
        session = session_index[transport["batch"]]
        columns = {name: transport[name] for name in TRANSPORT.names or ()}
        link = self._flows.state["link"][flow]
        rows = Columns({"session": session.astype("<i4"), "link": link.astype("<i4"), **columns})
        self.said_lately.append(rows)
        self._keep(self._transport, many, transport["batch"], rows)
        self._note(session, flow, transport, transport["flow_id"])
        other = self._flows.keys.find(session, transport["reverse_flow_id"])
        known = np.flatnonzero(other >= 0)
        self._note(session[known], other[known], transport.take(known), transport["reverse_flow_id"][known])

    def _note(self, session: _Indices, flow: _Indices, columns: Columns, flow_id: _Indices) -> None:
        if len(self._latest) < len(self._flows.flows):
            grown = np.zeros(2 * len(self._flows.flows), LATEST)
            grown[: len(self._latest)] = self._latest
            self._latest = grown
        rows = np.empty(len(columns), LATEST)
        rows["session"], rows["flow_id"] = session, flow_id
        for name in (LATEST.names or ())[2:]:
            rows[name] = columns[name]
        self._latest[flow] = rows  # in the batches' order: of several the last

    def _add_host_part(self, many: ManyBatches, session_index: _Indices, good: _Indices) -> None:
        host_rows = many.host if len(good) == len(many.host) else many.host.take(good)
        columns = {name: host_rows[name] for name in HOST_PART.names or ()}
        rows = Columns({"session": session_index[host_rows["batch"]].astype("<i4"), **columns})
        of_rank = np.flatnonzero(host_rows["job"] != UNKNOWN)
        whose = (host_rows["batch"], rows["session"], host_rows["job"], host_rows["pid"])
        jobs = []
        for batch, session, job, pid in zip(*(column[of_rank].tolist() for column in whose), strict=True):
            name = many.host_jobs[batch][job]
            jobs.append(self._flows.job(self.renamed.get(session, {}).get((name, pid), name)))
        rows = rows.replaced(job=host_rows["job"].copy())
        rows["job"][of_rank] = jobs
        self.lately.append(rows)
        self._keep(self._host, many, host_rows["batch"], rows)

    def _keep(self, unstored: Unstored, many: ManyBatches, batch: npt.NDArray[np.int32], rows: Columns) -> None:
        """Those that the dataset does not have."""
        sequence = many.heads["sequence"][batch]
        new = sequence > self._sessions.table["stored_last"][rows["session"]]
        fresh = rows if new.all() else rows[new]
        unstored.add(fresh)
        self.waiting |= set(distinct(fresh["session"]).tolist())

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

    def take(self) -> EvidencePieces:
        """Hand all of it over."""
        self.waiting = set()
        return EvidencePieces(self._transport.take(), self._host.take())

    def put_back(self, pieces: EvidencePieces, session_indices: Container[int]) -> None:
        """What was handed over is not stored; session_indices: of the sessions that are still there."""
        self._transport.put_back(pieces.transport, session_indices)
        self._host.put_back(pieces.host, session_indices)
        for rows in (*pieces.transport, *pieces.host):
            self.waiting |= {
                session_index
                for session_index in np.unique(rows["session"]).tolist()
                if session_index in session_indices
            }

    def drop(self, session_index: int) -> None:
        """The session is gone."""
        self._transport.drop(session_index)
        self._host.drop(session_index)
        self.waiting.discard(session_index)
        self.renamed.pop(session_index, None)
