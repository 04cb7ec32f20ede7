# SPDX-License-Identifier: Apache-2.0
"""What has settled and is not stored yet: the bucket rows of all sessions in one place, and the tables of a flush."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.dataset.manifest import SessionState
from collector.dataset.tables import (
    Origin,
    Origins,
    SessionMeta,
    bucket_table,
    column_of,
    evidence_table,
    flow_table,
    iteration_table,
    ledger_table,
    nic_table,
    session_table,
)
from collector.host.iteration_rows import Accounted, all_accounted
from netmon.dl.grouped import distinct, order_by, starts
from netmon.dl.iterations import Iteration
from netmon.records import Columns, Flow, NicSample, Table

_T = TypeVar("_T")


class Unstored:
    """Rows of SETTLED of all sessions, in the pieces in which they settled."""

    def __init__(self) -> None:
        self._pieces: list[Columns] = []
        self.take()

    def take(self) -> list[Columns]:
        """Hand all of it over."""
        pieces, self._pieces = self._pieces, []
        self.nbytes = 0
        self.sessions: set[int] = set()
        """Indices of those with rows."""
        return pieces

    def add(self, rows: Columns) -> None:
        if len(rows):
            self._pieces.append(rows)
            self.nbytes += rows.nbytes
            self.sessions.update(distinct(rows["session"]).tolist())

    def jobs(self) -> set[int]:
        return {job for rows in self._pieces for job in np.unique(rows["job"]).tolist()}

    def put_back(self, pieces: Sequence[Columns], session_indices: Container[int]) -> None:
        """What was handed over is not stored; session_indices: of the sessions that are still there."""
        for rows in (*pieces, *self.take()):
            gone = [index for index in distinct(rows["session"]).tolist() if index not in session_indices]
            self.add(rows[~np.isin(rows["session"], gone)] if gone else rows)

    def drop(self, session_index: int) -> None:
        if session_index in self.sessions:
            for rows in self.take():
                own = rows["session"] == session_index
                self.add(rows[~own] if own.any() else rows)


def by_session(pieces: Iterable[Columns]) -> dict[int, list[Columns]]:
    """The same rows, by the place of their session."""
    found: dict[int, list[Columns]] = {}
    for rows in pieces:
        ordered = rows.take(np.argsort(rows["session"], kind="stable"))
        session_indices = [*starts(ordered["session"]).tolist(), len(ordered)]
        for begin, end in pairwise(session_indices):
            found.setdefault(int(ordered["session"][begin]), []).append(ordered[begin:end])
    return found


@dataclass(frozen=True)
class FlowRows:
    """Flows that have changed, as they are now."""

    flows: Sequence[Flow]
    state: Table  # dtype STATE
    peers: Sequence[int]  # ranks at their other ends


@dataclass
class SessionFlush:
    """What one session has to be stored alongside its bucket rows, and what that settles."""

    session: int
    origin: Origin
    nic: Sequence[NicSample]
    flows: FlowRows | None
    meta: SessionMeta | None  # None: what the dataset has is good enough
    state: SessionState  # once it is stored
    acknowledge: int | None
    done: Callable[[], None]
    undone: Callable[[], None]


def flush_tables(
    sessions: Sequence[SessionFlush],
    buckets: Sequence[Columns],
    jobs: Sequence[str],
    iterations: Sequence[Accounted] = (),
    others: Mapping[str, Sequence[Columns]] = MappingProxyType({}),
) -> dict[str, pa.Table]:
    """All that these sessions have to be stored, by table; pure, may run in a thread.

    buckets: rows of SETTLED; those of other sessions are left out, as they are of the iterations and the others, which
    are those of the ledger and the evidence by table; jobs: by the rows' number.
    """
    if not sessions:
        return {}
    origins = Origins([session.origin for session in sessions])
    tables = {}
    rows, of = _own(sessions, buckets)
    if len(of):
        tables["buckets"] = bucket_table(origins, of, jobs, rows, _order(sessions, rows, of))
    flows = [(session_index, session.flows) for session_index, session in enumerate(sessions) if session.flows]
    if flows:
        of = np.repeat([session_index for session_index, _ in flows], [len(own.flows) for _, own in flows])
        state = np.concatenate([own.state for _, own in flows])
        peers = [peer for _, own in flows for peer in own.peers]
        tables["flows"] = flow_table(origins, of, [flow for _, own in flows for flow in own.flows], state, peers)
    if iterations:
        accounted = all_accounted(iterations)
        of = _numbers(sessions, accounted.rows.session)
        order = np.argsort(of, kind="stable")[int((of < 0).sum()) :]
        if len(order):
            tables["iterations"] = iteration_table(origins, of[order], accounted.take(order))
    whose, nic = _joined([session.nic for session in sessions])
    if nic:
        tables["nic"] = nic_table(origins, whose, nic)
    for name, pieces in others.items():
        rows, of = _own(sessions, pieces)
        if len(of):
            is_ledger = name == "ledger"
            tables[name] = (
                ledger_table(origins, of, rows) if is_ledger else evidence_table(name, origins, of, jobs, rows)
            )
    sessions_meta = {session_index: session.meta for session_index, session in enumerate(sessions) if session.meta}
    if sessions_meta:
        tables["sessions"] = session_table(origins, sessions_meta)
    return tables


def _joined(rows: Sequence[Sequence[_T]]) -> tuple[npt.NDArray[np.int64], list[_T]]:
    """The place of each row's session, and the rows."""
    return np.repeat(np.arange(len(rows)), [len(own) for own in rows]), list(chain.from_iterable(rows))


def _order(
    sessions: Sequence[SessionFlush], pieces: Sequence[Columns], of: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """The order in which rows are stored: by host, time and flow. of: the session of each."""
    hosts = {host: rank for rank, host in enumerate(sorted({session.origin.hello.host for session in sessions}))}
    rank = np.array([hosts[session.origin.hello.host] for session in sessions], np.int32)
    return order_by(rank.take(of), *(column_of(pieces, name) for name in ("bucket_start_ns", "flow_id")))


def _own(sessions: Sequence[SessionFlush], buckets: Sequence[Columns]) -> tuple[list[Columns], npt.NDArray[np.intp]]:
    """The rows of these sessions, in pieces, and the session of each."""
    if not buckets:
        return [], np.empty(0, np.intp)
    of = _numbers(sessions, column_of(buckets, "session"))
    if (of >= 0).all():
        return list(buckets), of
    return [rows[_numbers(sessions, rows["session"]) >= 0] for rows in buckets], of[of >= 0]


def _numbers(sessions: Sequence[SessionFlush], session_index: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Which of the sessions is at each session_index, −1: none of them."""
    number = np.full(
        max(max(session.session for session in sessions), int(session_index.max(initial=0))) + 1, -1, np.intp
    )
    number[[session.session for session in sessions]] = np.arange(len(sessions))
    found: npt.NDArray[np.intp] = number.take(session_index.astype(np.intp, copy=False))
    return found


# --- Iterations that have settled and are not stored yet, of all sessions.


class Latest(NamedTuple):
    """The last iteration of a rank: what all of them have in common, its number, when it ended (mono)."""

    about: Iteration
    number: int
    end_ns: int


class UnstoredIterations:
    """In the pieces in which they settled."""

    def __init__(self) -> None:
        self._pieces: list[Accounted] = []
        self._latest: dict[int, dict[tuple[str, int], Latest]] | None = None

    def add(self, piece: Accounted) -> None:
        """Iterations of any sessions, of each rank ascending."""
        if len(piece):
            self._pieces.append(piece)
            self._latest = None

    def take(self) -> list[Accounted]:
        pieces, self._pieces, self._latest = self._pieces, [], None
        return pieces

    def put_back(self, pieces: Sequence[Accounted], session_indices: Container[int]) -> None:
        """What was handed over is not stored; session_indices: of the sessions that are still there."""
        later = self.take()
        for piece in (*pieces, *later):
            there = np.array(
                [session_index in session_indices for session_index in piece.rows.session.tolist()], np.bool_
            )
            self.add(piece if there.all() else piece.take(there))

    def drop(self, session_index: int) -> None:
        for piece in self.take():
            own = piece.rows.session == session_index
            self.add(piece.take(~own) if own.any() else piece)

    def latest(self) -> Mapping[int, Mapping[tuple[str, int], Latest]]:
        """By place, job and rank."""
        if self._latest is None:
            self._latest = {}
            for piece in self._pieces:
                rows = piece.rows
                _, last = np.unique(rows.whose[::-1], return_index=True)
                newest = rows.take(len(rows) - 1 - last)
                for session_index, who, number, end_ns in zip(
                    *(column.tolist() for column in (newest.session, newest.whose, newest.number, newest.end_ns)),
                    strict=True,
                ):
                    about = rows.about[who]
                    self._latest.setdefault(session_index, {})[about.job, about.rank] = Latest(about, number, end_ns)
        return self._latest
