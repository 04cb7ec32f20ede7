# SPDX-License-Identifier: Apache-2.0
"""Bucket rows between their arrival and the dataset, of all hosts in one table."""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon import records
from netmon.dl.grouped import order_by, starts
from netmon.records import COARSE, COUNTED, Batch, Columns, Table, joined
from netmon.wire.batch_fields import HEADS, ROWS, ManyBatches, Runs, decode_many
from netmon.wire.tables import LEDGER

_Numbers = npt.NDArray[np.int64]

COUNTS = tuple(records.COUNTS)

ARRIVED = np.dtype(
    [("session", "<i4")] + [(name, "<i8") for name in ("flow", "start_ns", "bucket_ns", *COUNTS)] + [("stored", "?")]
)
"""A row on its way: index of its session, index of its flow, mono time, width, counts; stored: the dataset has it, it
is for the state. The counts are in 32 bits without a sign until rows are added up."""

COLUMNS = ("bucket_ns", *COUNTS)
"""What a row keeps on its way."""

SETTLED = np.dtype(
    [("session", "<i4"), ("flow_id", "<u4"), ("link", "<i4"), ("class", "u1"), ("job", "<i4"), ("iteration", "<i8")]
    + [(name, "<i8") for name in ("bucket_start_ns", *COLUMNS)]
)
"""A row of the dataset: index of its session, bucket_start_ns in UTC, job an index into the jobs of all hosts."""

_ADDED = tuple(name for name in COUNTS if name != "peak_bytes")
_FEW_PARTS = 64  # of tables, that are put together one by one
_NONE = Columns.zeros(0, ARRIVED)


def arrived(buckets: Table, flow: _Numbers, width_ns: int, session: int = 0) -> Columns:
    """Rows of BUCKET or COARSE, width_ns wide, and the indices of their flows → rows of ARRIVED, not stored."""
    rows = Columns.zeros(len(buckets), ARRIVED)
    rows["session"], rows["flow"] = session, flow
    rows["start_ns"], rows["bucket_ns"] = buckets["bucket_start_ns"], width_ns
    fill_counts(rows, buckets)
    return rows


def fill_counts(rows: Columns, buckets: Table) -> None:
    """COUNTS of rows of BUCKET or COARSE into as many `rows`: one of BUCKET is its own peak."""
    for name in COUNTS if buckets.dtype == COARSE else COUNTED:
        rows[name] = buckets[name]
    if buckets.dtype != COARSE:
        rows["peak_bytes"], rows["busy_buckets"] = buckets["wire_bytes"], 1


def rows_of(many: ManyBatches, session_index: _Numbers, flow: _Numbers, sessions: Table) -> Columns:
    """The rows of batches, of ARRIVED. session_index: of each batch; flow: of each run; sessions: dtype SESSION."""
    rows, heads = many.rows, many.heads
    batch, start_ns = rows["batch"].astype(np.intp), rows["start_ns"]
    width = np.where(heads["bucket_ns"] > 0, heads["bucket_ns"], sessions["full_ns"][session_index])
    columns: dict[str, npt.NDArray[Any]] = {
        "session": session_index.astype(np.int32).take(batch),
        "flow": np.repeat(flow, many.runs.rows),
    }
    columns |= {"start_ns": start_ns, "bucket_ns": width.take(batch)} | {name: rows[name] for name in COUNTS}
    complete, begun = (
        heads["sequence"] <= sessions[name][session_index] for name in ("stored_complete", "stored_last")
    )
    if begun.any() or complete.any():
        settled_ns = sessions["stored_settled_ns"][session_index]
        columns["stored"] = complete[batch] | (begun[batch] & (start_ns < settled_ns[batch]))
    else:
        columns["stored"] = np.zeros(len(rows), np.bool_)
    return Columns(columns)


def in_order(rows: Columns) -> Columns:
    """By session, time, flow, width and whether it is stored."""
    return rows.take(_order(rows)) if _disordered(rows) else rows


def merge(rows: Columns, full_ns: _Numbers | int) -> Columns:
    """One row per (flow, bucket), sorted by session and time, counts added up; rows of ARRIVED in and out.

    Rows of different widths stay separate. full_ns: the agent's bucket, of each session or of all; the parts of one of
    those are its peak together. Of the parts of a wider one, which stragglers make, the larger peak is taken, and their
    busy buckets add up.
    """
    if not len(rows):
        return rows
    rows = in_order(rows)
    if _repeated(rows):
        first = starts(*(rows[name] for name in ("session", "start_ns", "flow", "bucket_ns", "stored")))
        sums = {name: np.add.reduceat(rows[name], first, dtype=np.int64) for name in _ADDED}
        peak = np.maximum.reduceat(rows["peak_bytes"], first)
        rows = rows.take(first).replaced(**sums, peak_bytes=peak)
    width = rows["bucket_ns"]
    if int(width.min()) > np.max(full_ns):
        return rows
    full = width == (full_ns if isinstance(full_ns, int) else full_ns[rows["session"]])
    peak = np.where(full, rows["wire_bytes"], rows["peak_bytes"])
    return rows.replaced(peak_bytes=peak, busy_buckets=np.where(full, 1, rows["busy_buckets"]))


def _order(rows: Columns) -> npt.NDArray[np.intp]:
    """By session, time, flow, width and whether it is stored. Each host has a clock of its own."""
    session, start = rows["session"], rows["start_ns"]
    if session.min() == session.max():
        since = start - start.min()
    else:
        base = np.full(int(session.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(base, session, start)
        since = start - base[session]
    width = rows["bucket_ns"]
    unit = int(np.gcd(int(width.min()), int(width.max())))
    if unit > 1 and not (since % unit).any():  # as far as they start on their grid
        since //= unit
    return order_by(session, since, rows["flow"], width, rows["stored"].view(np.uint8))


def _disordered(rows: Columns) -> bool:
    """Whether a row has to change its place."""
    session, start, flow = rows["session"], rows["start_ns"], rows["flow"]
    later = np.flatnonzero(start[1:] <= start[:-1])  # than the next one, or as late
    later = later[session[later] >= session[later + 1]]
    if not len(later):
        return False
    after = later + 1
    tie = session[later] == session[after]
    if not tie.all() or (start[later] > start[after]).any() or (flow[later] > flow[after]).any():
        return True
    same = later[flow[later] == flow[after]]
    if not len(same):
        return False
    width, stored = rows["bucket_ns"], rows["stored"]
    wider = width[same] > width[same + 1]
    return bool((wider | ((width[same] == width[same + 1]) & (stored[same] > stored[same + 1]))).any())


def _repeated(rows: Columns) -> bool:
    """Whether two rows in order are of one flow and time."""
    flow, start = rows["flow"], rows["start_ns"]
    same = np.flatnonzero(flow[1:] == flow[:-1])
    return bool((start[same] == start[same + 1]).any())


@dataclass
class _Piece:
    """Rows in order, and of each of their sessions where they begin, and the times of the first and the last."""

    rows: Columns
    session: npt.NDArray[np.int32]
    begin: npt.NDArray[np.intp]
    first_ns: _Numbers
    last_ns: _Numbers


def _piece(rows: Columns) -> _Piece:
    session, start = rows["session"], rows["start_ns"]
    begin = starts(session)
    end = np.append(begin[1:], len(rows))
    return _Piece(rows, session[begin], begin, start[begin], start[end - 1])


class Pending:
    """Rows that have not settled, in the pieces in which they came."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    @property
    def count(self) -> int:
        return sum(len(piece.rows) for piece in self._pieces)

    def add(self, rows: Columns) -> None:
        """Add rows of ARRIVED."""
        if len(rows):
            self._pieces.append(_piece(in_order(rows)))

    def take(self, until_ns: _Numbers) -> Columns:
        """Hand over the rows that begin before until_ns of their session."""
        due: list[Columns] = []
        kept = []
        for piece in self._pieces:
            until = until_ns[piece.session]
            if (piece.first_ns >= until).all():
                kept.append(piece)
            elif (piece.last_ns < until).all():
                due.append(piece.rows)
            else:
                now, later = _cut(piece, until)
                due.append(now)
                kept.append(_piece(later))
        self._pieces = kept
        return _in_turn(due)

    def drop(self, session: int) -> None:
        left = (piece.rows[piece.rows["session"] != session] for piece in self._pieces)
        self._pieces = [_piece(rows) for rows in left if len(rows)]

    def all(self) -> Columns:
        return joined([_NONE, *(piece.rows for piece in self._pieces)])


def _cut(piece: _Piece, until_ns: _Numbers) -> tuple[Columns, Columns]:
    """The rows before until_ns, of each of the piece's sessions, and those from there on."""
    rows, start = piece.rows, piece.rows["start_ns"]
    if len(piece.session) > _FEW_PARTS:
        before = start < np.repeat(until_ns, np.diff(np.append(piece.begin, len(rows))))
        return rows[before], rows[~before]
    ends = [*piece.begin[1:].tolist(), len(rows)]
    spans = list(zip(piece.begin.tolist(), ends, until_ns.tolist(), strict=True))
    cuts = [begin + int(np.searchsorted(start[begin:end], until)) for begin, end, until in spans]
    now = [rows[begin:cut] for (begin, _, _), cut in zip(spans, cuts, strict=True) if cut > begin]
    later = [rows[cut:end] for (_, end, _), cut in zip(spans, cuts, strict=True) if end > cut]
    return joined(now), joined(later)


def _in_turn(tables: list[Columns]) -> Columns:
    """Tables in order as one; where they are of few sessions, the rows of each session follow each other."""
    if len(tables) < 2:
        return tables[0] if tables else _NONE
    parts: list[tuple[int, Columns]] = []
    for rows in tables:
        begin = starts(rows["session"])
        if len(parts) + len(begin) > _FEW_PARTS:
            return joined(tables)
        ends = [*begin.tolist(), len(rows)]
        parts += [(int(rows["session"][at]), rows[at:end]) for at, end in pairwise(ends)]
    return joined([rows for _, rows in sorted(parts, key=itemgetter(0))])


# --- What has arrived on all hosts and the job stage has not been reported yet: payload, and beginnings after a rest.

STARTING_NS = 1_000_000_000
"""The first bucket that an agent sees of a flow within it is not the flow's."""

PENDING = "session", "flow", "time_ns", "amount"
"""Place of its session, index of its flow, start (mono); amount: bytes of payload, or the width of its bucket."""

_MOST_PIECES = 300  # ticks whose rows wait to be reported
_MOST_ONSETS = 2_000  # of a session, reported at one time: the newest


class PendingRows:
    """Rows of PENDING, in the pieces in which they came."""

    def __init__(self) -> None:
        self._pieces: deque[Columns] = deque()
        self._lost: dict[int, int] = {}  # rows that nobody took in time, by session

    def add(self, session: _Numbers, flow: _Numbers, time_ns: _Numbers, amount: _Numbers) -> None:
        """Rows have come; arrays of one length."""
        if not len(flow):
            return
        values = (np.asarray(column, np.int64) for column in (session, flow, time_ns, amount))
        self._pieces.append(Columns(dict(zip(PENDING, values, strict=True))))
        if len(self._pieces) > _MOST_PIECES:
            for index, count in zip(*np.unique(self._pieces.popleft()["session"], return_counts=True), strict=True):
                self._lost[int(index)] = self._lost.get(int(index), 0) + int(count)

    def take(self, session_indices: _Numbers, sessions: int) -> Columns:
        """Remove and return the rows of these sessions, as they came. sessions: one more than the largest index."""
        wanted = np.zeros(sessions, np.bool_)
        wanted[session_indices] = True
        taken, pieces, self._pieces = [no_rows()], self._pieces, deque()
        for rows in pieces:
            there = wanted[rows["session"]]
            if there.all():
                taken.append(rows)
            else:
                taken.append(rows[there])
                self._pieces.append(rows[~there])
        return joined(taken)

    def lost(self, session_indices: _Numbers) -> int:
        """Rows of these sessions that nobody took in time, since the last call."""
        return sum(self._lost.pop(session_index, 0) for session_index in session_indices.tolist()) if self._lost else 0

    def drop(self, session_index: int) -> None:
        self._lost.pop(session_index, None)
        self._pieces = deque(rows[rows["session"] != session_index] for rows in self._pieces)


def no_rows() -> Columns:
    """Of PENDING."""
    return Columns({name: np.zeros(0, np.int64) for name in PENDING})


def newest_onsets(rows: Columns) -> Columns:
    """Rows of PENDING; of a session that has too many the newest."""
    session, time_ns = rows["session"], rows["time_ns"]
    many = np.flatnonzero(np.bincount(session) > _MOST_ONSETS)
    if not len(many):
        return rows
    kept = np.ones(len(session), np.bool_)
    order = order_by(session)
    begin, end = (np.searchsorted(session[order], many, side) for side in ("left", "right"))
    for first, over in zip(begin.tolist(), end.tolist(), strict=True):
        own = order[first:over]
        older = len(own) - _MOST_ONSETS
        kept[own[np.argpartition(time_ns[own], older)[:older]]] = False
    return rows[kept]


def gather(batch: Batch) -> ManyBatches:
    """What the replay of a capture has at hand, as decoding one message gives it; times need not fit a message."""
    head, clock = np.zeros(1, HEADS), batch.clock
    for name in ("sequence", "horizon_ns", "bucket_ns"):
        head[name] = getattr(batch, name)
    for name in ("mono_ns", "utc_ns", "error_ns", "utc_error_ns"):
        head[name] = getattr(clock, name)
    samples = [(0, *vars(sample).values()) for sample in batch.ledger]
    ledger = np.array(samples, np.int64).reshape(-1, 1 + len(LEDGER.columns)).T
    rows, buckets = Columns.zeros(len(batch.buckets), ROWS), batch.buckets
    rows["bucket_ns"] = batch.bucket_ns
    rows["flow_id"], rows["start_ns"] = buckets["flow_id"], buckets["bucket_start_ns"]
    fill_counts(rows, buckets)
    first = starts(rows["batch"], rows["flow_id"])
    of_runs = rows["batch"][first].astype(np.int64), rows["flow_id"][first], np.diff(np.append(first, len(rows)))
    return replace(
        decode_many([]),
        rows=rows,
        runs=Runs(*of_runs),
        ledger=Columns(dict(zip(("batch", *LEDGER.columns), ledger.copy(), strict=True))),
        heads=head,
        flows=[(0, flow) for flow in batch.flows],
    )
