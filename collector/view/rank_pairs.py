# SPDX-License-Identifier: Apache-2.0
"""What the ranks of jobs have sent each other by NCCL in the last seconds, and by which way."""

import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from collector.host.session import Session
from collector.host.tables import Tables
from netmon.columnar import Columns
from netmon.dl.transfers import COLUMNS, NOTHING, Carried, pair_views, partners, process_numbers, rank_pairs, ways
from netmon.evidence import UNKNOWN
from netmon.records import Direction
from netmon.views import RankPair

_EVERY_S = 1.0
_LATELY_NS = 10_000_000_000
_MOST_PAIRS = 256  # of a job that viewers are shown
_POSTED = ("write", "send")  # what a read brings is the other end's


class RankPairs:
    """Of one worker."""

    def __init__(self, tables: Tables, sessions: Mapping[int, Session]) -> None:
        """tables: of all sessions, which are known by index."""
        self._tables, self._sessions = tables, sessions
        self._looked_s = 0.0

    def due(self, sizes: Mapping[str, int]) -> dict[str, tuple[RankPair, ...]] | None:
        """By job; None: it has been looked at a moment ago. sizes: how many ranks jobs have."""
        now = time.monotonic()
        if now < self._looked_s + _EVERY_S:
            return None
        self._looked_s = now
        rows = self._tables.evidence.lately["transfers"].all(("session", "job", "pid", *COLUMNS))
        if rows is None:
            return {}
        until = time.time_ns()
        since = until - _LATELY_NS
        found = self._lately(rows, since)
        if not len(found["rank"]):
            return {}
        numbers = {job: number for number, job in enumerate(self._tables.flows.jobs)}
        known = {numbers[job]: size for job, size in sizes.items() if job in numbers}
        pairs = rank_pairs(found, partners(found, known).rank)
        sending = {name: column[found["sends"] == 1] for name, column in found.items()}
        carried = self._posted(since), self._by_tcp(since, sending)
        views = pair_views(pairs, ways(sending["process"], sending["bytes"], *carried))
        return {self._tables.flows.jobs[job]: own[:_MOST_PAIRS] for job, own in views.items() if job >= 0}

    def _lately(self, rows: Columns, since_ns: int) -> dict[str, npt.NDArray[np.int64]]:
        session = rows["session"]
        end_ns = self._tables.sessions.utc(session, rows["end_ns"])
        there = np.isin(session, list(self._sessions))
        own = np.flatnonzero(there & (end_ns > since_ns) & (rows["rank"] >= 0))
        found = {name: rows[name][own].astype(np.int64) for name in ("job", *COLUMNS)}
        found["start_ns"], found["end_ns"] = self._tables.sessions.utc(session[own], rows["start_ns"][own]), end_ns[own]
        found["process"] = process_numbers(session[own], rows["pid"][own])
        return found

    def _posted(self, since_ns: int) -> Carried:
        """What processes have handed to RDMA devices."""
        rows = self._tables.evidence.lately["rdma"].all(("session", "pid", "end_ns", "rdma_device", "verb", "bytes"))
        if rows is None:
            return NOTHING
        end_ns = self._tables.sessions.utc(rows["session"], rows["end_ns"])
        rows = rows.take(np.flatnonzero((end_ns > since_ns) & np.isin(rows["verb"].astype(str), _POSTED)))
        return Carried(process_numbers(rows["session"], rows["pid"]), rows["rdma_device"], rows["bytes"])

    def _by_tcp(self, since_ns: int, sent: Mapping[str, npt.NDArray[np.int64]]) -> Carried:
        """What the ranks' connections have sent, by interface."""
        names = ("session", "flow_id", "end_ns", "sent_bytes", "retransmitted_bytes")
        rows = self._tables.evidence.lately["transport"].all(names)
        if rows is None:
            return NOTHING
        flows, sessions = self._tables.flows, self._tables.sessions
        flow = flows.keys.find(rows["session"], rows["flow_id"])
        good = (flow >= 0) & (sessions.utc(rows["session"], rows["end_ns"]) > since_ns) & (rows["sent_bytes"] > 0)
        good &= (flows.state["rank"][flow] >= 0) & (flows.state["link"][flow] % 2 == Direction.TX)
        rows, state = rows.take(np.flatnonzero(good)), flows.state[flow[good]]
        ranks = zip((sent["process"] >> 32).tolist(), sent["job"].tolist(), sent["rank"].tolist(), strict=True)
        process_of = dict(zip(ranks, sent["process"].tolist(), strict=True))
        whose = zip(rows["session"].tolist(), state["job"].tolist(), state["rank"].tolist(), strict=True)
        process = np.array([process_of.get(who, UNKNOWN) for who in whose], np.int64)
        links = zip(rows["session"].tolist(), state["link"].tolist(), strict=True)
        name = np.array([self._sessions[n].window.links.interface(link).name for n, link in links], object)
        return Carried(process, name, rows["sent_bytes"] - np.maximum(0, rows["retransmitted_bytes"]))
