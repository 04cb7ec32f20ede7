# SPDX-License-Identifier: Apache-2.0
"""Moves a rank that steps regularly from a Rank into a row of the rank table, and back."""

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns
from netmon.dl.iterations import Iteration
from netmon.dl.source import IN_ORDER, RECENT, UnderWay
from netmon.dl.step_alignment import Events
from netmon.records import Moment, Source, Table

if TYPE_CHECKING:
    from collector.host.rank import Rank

_Numbers = npt.NDArray[np.int64]

ROW = np.dtype(
    [
        ("used", "?"),
        ("fresh", "?"),  # as in Rank, as the next ones
        ("checked_ns", "<i8"),
        ("checked_number", "<i8"),
        ("trust", "u1"),
        *((name, "<i8") for name in ("session", "serial", "job", "rank_id", "size", "since_ns")),
        ("shift", "<i8"),  # what to add to its own numbers
        ("own_shift", "<i8"),  # what to add to its source's, to have its own
        ("number", "<i8"),  # of the step that its last mark is of, as its source counts
        ("reached", "<i8"),  # what that mark is, by IN_ORDER
        *((name, "<i8") for name in ("newest_ns", "finished_ns", "last_number")),
        ("offset_ns", "<i8"),  # from mono to UTC, by now
        ("recent", "<i8", (len(IN_ORDER),)),  # marks of each kind that have been kept
    ]
)
"""A row of the rank table. Times are mono, where nothing else is said."""

ENDED = np.dtype(
    [(name, "<i8") for name in ("row", "number", "start_ns", "end_ns", "error_ns")]
    + [(name, "<i8") for name in ("comm_start_ns", "wait_start_ns", "comm_end_ns")]
)
"""An iteration of one, under its own number. The last three: 0 where it is not known."""

ORDER: npt.NDArray[np.int64] = np.full(max(Moment) + 1, -1)
"""Place of each moment among the marks of a step; −1: it is none of them."""
ORDER[list(IN_ORDER)] = np.arange(len(IN_ORDER))

_MARKS = (Source.HOOK, Source.UPROBE)


class State(NamedTuple):
    """All that there is of one rank."""

    row: Any  # of ROW
    under_way: _Numbers  # times and errors of the step that has begun, (2, marks); 0: not heard of
    recent: _Numbers  # numbers and times of the latest marks of each kind, (marks, 2, RECENT)
    ended: Columns  # of ENDED: iterations whose rows have not settled


def _alike(rank: "Rank") -> bool:
    """Whether its iterations that wait say what the next ones will."""
    tracker = rank.tracker
    now = tracker.size, tracker.source, tracker.relative, tracker.parameters, tracker.gradient_bytes
    names = tracker.parameters_basis, tracker.job_name
    return all(
        (one.size, one.source, one.relative, one.parameters, one.gradient_bytes) == now
        and (one.parameters_basis, one.job_name) == names
        and (one.start_moment, one.end_moment) == (Moment.STEP_START, Moment.STEP_END)
        for one in rank.ended
    )


def state_of(rank: "Rank") -> State | None:
    """The row of a rank that steps regularly; None: it does not."""
    tracker = rank.tracker
    marks = tracker.only_source()
    rejected = (
        not (rank.pid and rank.name and rank.first_ns) or rank.left or rank.late or rank.later or rank.settled_count
    )
    if rejected or rank.young or marks is None or tracker.source not in _MARKS:
        return None
    under_way = marks.under_way()
    if under_way is None or not _alike(rank) or marks.done + tracker.own_shift < tracker.last_number:
        return None
    row: Table = np.zeros(1, ROW)
    recent = np.zeros((len(IN_ORDER), 2, RECENT), np.int64)
    for kind, events in enumerate(marks.recent()):
        count = len(events.number)
        recent[kind, :, :count] = events
        row["recent"][0, kind] = count
    moments = [kind for kind, time_ns in enumerate(under_way.times_ns) if time_ns]
    for name, value in (
        *(("serial", rank.serial), ("size", tracker.size), ("since_ns", min(rank.joined.values(), default=0))),
        *(("fresh", rank.fresh), ("checked_ns", rank.checked_ns), ("checked_number", rank.checked_number)),
        *(("trust", tracker.trust), ("own_shift", tracker.own_shift), ("number", under_way.number)),
        ("reached", moments[-1] if moments else len(IN_ORDER) - 1),
        ("newest_ns", max(marks.newest_ns, tracker.finished_ns, rank.last_ns)),
        *(("finished_ns", tracker.finished_ns), ("last_number", tracker.last_number)),
    ):
        row[name] = value
    marks_now = np.array([under_way.times_ns, under_way.errors_ns], np.int64)
    return State(row[0], marks_now, recent, _ended(rank))


def _ended(rank: "Rank") -> Columns:
    rows = [
        (0, one.number, one.start_ns, one.end_ns, one.error_ns, first, wait, last)
        for one in rank.ended
        for first, last, wait in [rank.tracker.communication(one.start_ns, one.end_ns)]
    ]
    columns = np.array(rows, np.int64).reshape(-1, len(ENDED.names or ())).T
    return Columns({name: column.copy() for name, column in zip(ENDED.names or (), columns, strict=True)})


def restore(rank: "Rank", state: State) -> None:
    """The rank goes on from there by itself."""
    tracker, row = rank.tracker, state.row
    marks, source = tracker.only_source(), tracker.source
    assert marks
    assert source
    ended = [
        dict(zip(ENDED.names or (), one, strict=True))
        for one in zip(*(state.ended[name].tolist() for name in ENDED.names or ()), strict=True)
    ]
    own_shift, number, over = int(row["own_shift"]), int(row["number"]), int(row["reached"]) == len(IN_ORDER) - 1
    settling = {
        one["number"] - own_shift: [one[name] for name in ("start_ns", "comm_start_ns", "wait_start_ns")]
        + [one["comm_end_ns"], one["end_ns"]]
        for one in ended
    }
    times, errors = state.under_way.tolist()
    under_way = None if over else UnderWay(number, times, errors)
    recent = [_events(own, int(count)) for own, count in zip(state.recent, row["recent"], strict=True)]
    done = int(row["last_number"]) - own_shift
    marks.catch_up(done, int(row["newest_ns"]), under_way, settling, recent)
    spans = array("q", [one[name] for one in ended for name in ("start_ns", "end_ns", "number")])
    tracker.catch_up(int(row["finished_ns"]), int(row["last_number"]), spans)
    about = Iteration(
        *(tracker.job, tracker.rank, tracker.size, 0, 0, 0, Moment.STEP_START, Moment.STEP_END),
        *(source, 0, tracker.relative, tracker.parameters),
        gradient_bytes=tracker.gradient_bytes,
        parameters_basis=tracker.parameters_basis,
        job_name=tracker.job_name,
    )
    same = ("number", "start_ns", "end_ns", "error_ns")
    rank.ended = [about._replace(**{name: one[name] for name in same}) for one in ended]
    rank.last_ns, rank.fresh = max(rank.last_ns, int(row["newest_ns"])), bool(row["fresh"])
    rank.checked_ns, rank.checked_number = int(row["checked_ns"]), int(row["checked_number"])


def _events(own: _Numbers, count: int) -> Events:
    at = np.arange(max(0, count - RECENT), count) % RECENT
    return Events(*own[:, at])
