# SPDX-License-Identifier: Apache-2.0
"""Ranks of all hosts that go on as they have, in one table: their marks make iterations in a few passes for all.

A rank is steady once its process alone reports it, step by step, each with its marks in order. As long as it goes on
so, nothing has to be decided about it. Anything else that is heard of it, and it is a Rank again, as if it had always
been: what is in here is given back to it.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import Common, IterationRows
from collector.host.rank import CHECK_EVERY, CHECK_EVERY_NS, SELDOM_NS, Owner, Rank
from collector.messages import STEP_UPDATE, StepEvents
from netmon.columnar import Columns, joined
from netmon.dl.grouped import starts
from netmon.dl.iterations import Iteration
from netmon.dl.numbering import EVIDENCE, Trust
from netmon.dl.source import IN_ORDER, RECENT, UnderWay
from netmon.dl.step_alignment import Events, StepMoment
from netmon.mark_runs import MarkTable, Whose
from netmon.records import Moment, Source, Table

# --- Moves a rank that steps regularly from a Rank into a row of the rank table, and back.

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

_PRECISE = (Source.HOOK, Source.UPROBE)


class State(NamedTuple):
    """All that there is of one rank."""

    row: Any  # of ROW
    under_way: _Numbers  # times and errors of the step that has begun, (2, marks); 0: not heard of
    recent: _Numbers  # numbers and times of the latest marks of each kind, (marks, 2, RECENT)
    ended: Columns  # of ENDED: iterations whose rows have not settled


def _alike(rank: Rank) -> bool:
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


def state_of(rank: Rank) -> State | None:
    """The row of a rank that steps regularly; None: it does not."""
    tracker = rank.tracker
    marks = tracker.only_source()
    rejected = (
        not (rank.pid and rank.name and rank.first_ns) or rank.left or rank.late or rank.later or rank.settled_count
    )
    if rejected or rank.young or marks is None or tracker.source not in _PRECISE:
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


def _ended(rank: Rank) -> Columns:
    rows = [
        (0, one.number, one.start_ns, one.end_ns, one.error_ns, first, wait, last)
        for one in rank.ended
        for first, last, wait in [rank.tracker.communication(one.start_ns, one.end_ns)]
    ]
    columns = np.array(rows, np.int64).reshape(-1, len(ENDED.names or ())).T
    return Columns({name: column.copy() for name, column in zip(ENDED.names or (), columns, strict=True)})


def restore(rank: Rank, state: State) -> None:
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


_FIRST = 64  # rows
_MARKS = len(IN_ORDER)
_BEGIN, _END = 0, _MARKS - 1  # of a step
_NEVER = np.iinfo(np.int64).max
_STEP_MOMENTS = {
    StepMoment.END: (3, 4),
    StepMoment.BEGIN: (1,),
    StepMoment.START: (0,),
}  # the marks that stand for each, best first


class RankSteps(NamedTuple):
    """What rows have to know of the ranks in the table: see collector.host.steps. The last four are of iterations."""

    session: _Numbers
    job: _Numbers
    rank_id: _Numbers
    shift: _Numbers
    since_ns: _Numbers
    of_rank: _Numbers
    begin_ns: _Numbers
    end_ns: _Numbers
    number: _Numbers


NO_STEPS = RankSteps(*(np.empty(0, np.int64) for _ in RankSteps._fields))


class RankTable:
    """Of all sessions. A rank in here knows its row."""

    def __init__(self) -> None:
        self._rows = np.zeros(_FIRST, ROW)
        self._open = np.zeros((_FIRST, 2, _MARKS), np.int64)  # times and errors of the step that has begun; 0: none
        self._recent = np.zeros((_FIRST, _MARKS, 2, RECENT), np.int64)  # numbers and times, in turn
        self._ranks: list[tuple[Owner, Rank] | None] = []
        self._each: list[Iteration] = []  # what all iterations of each row's rank have in common
        self._common: Common | None = None  # the same as it is now, once it has been asked for
        self._row_of: dict[tuple[int, Whose], int] = {}
        self._free: list[int] = []
        self._left: list[int] = []  # rows that are free once this tick has reported what has ended
        self._waiting = Columns.zeros(0, ENDED)  # iterations whose rows have not settled; of each rank ascending
        self._ended: list[Columns] = []  # not reported yet
        self._steps: list[Table] = []  # the same
        self.given_back: set[int] = set()
        """Indices of sessions with ranks that have left the table; the reader clears it."""

    def __len__(self) -> int:
        return len(self._row_of)

    def sessions(self) -> _Numbers:
        """Of the sessions of those."""
        return np.unique(self._rows["session"][: self.count][self._rows["used"][: self.count]])

    def numbers(self) -> tuple[set[int], set[int]]:
        """The numbers of their jobs and rank ids."""
        used = self._rows[: self.count][self._rows["used"][: self.count]]
        return set(used["job"].tolist()), set(used["rank_id"].tolist())

    @property
    def count(self) -> int:
        return len(self._ranks)

    # --- who is in here

    def adopt(self, ranks: Owner, rank: Rank, job: int, rank_id: int, about: Iteration) -> bool:
        """Add a rank, if it steps regularly. job, rank_id: as rows call it; about: what all its iterations have."""
        state = state_of(rank)
        if state is None or rank.marked_by is None:
            return False
        row = self._free.pop() if self._free else len(self._ranks)
        if row == len(self._ranks):
            self._ranks.append(None)
            self._each.append(about)
        if row == len(self._rows):
            grown = (np.concatenate([one, np.zeros_like(one)]) for one in (self._rows, self._open, self._recent))
            self._rows, self._open, self._recent = grown
        self._ranks[row] = ranks, rank
        self._row_of[ranks.session, rank.marked_by] = row
        self._rows[row], self._open[row], self._recent[row] = state.row, state.under_way, state.recent
        own = self._rows[row]
        own["used"], own["session"], own["job"], own["rank_id"] = True, ranks.session, job, rank_id
        own["shift"] = rank.count.shift
        self._each[row], self._common = about, None
        ended = state.ended
        ended["row"] = row
        self._waiting = joined([self._waiting, ended])
        rank.row = row
        return True

    @property
    def _about(self) -> Common:
        if self._common is None:
            self._common = Common(list(self._each))
        return self._common

    def remove(self, rank: Rank) -> None:
        row = rank.row
        ranks, _ = self._known(row)
        ranks.offset_ns = int(self._rows["offset_ns"][row])
        self.given_back.add(ranks.session)
        own = self._waiting["row"] == row
        restore(rank, State(self._rows[row], self._open[row], self._recent[row], self._waiting[own]))
        self._waiting = self._waiting[~own]
        self.drop(rank)

    def drop(self, rank: Rank) -> None:
        row, whose = rank.row, rank.marked_by
        assert whose is not None
        del self._row_of[int(self._rows["session"][row]), whose]
        self._waiting = self._waiting[self._waiting["row"] != row]
        self._rows["used"][row] = False
        self._ranks[row], rank.row = None, -1
        self._left.append(row)

    def recount(self, rank: Rank, about: Iteration) -> None:
        """Its job counts it in another way now."""
        self._rows["shift"][rank.row] = rank.count.shift
        self._each[rank.row], self._common = about, None

    # --- marks

    def find(self, marks: MarkTable, session_index: _Numbers) -> _Numbers:
        """The row of each mark's rank, −1: it is not in here; session_index: of each batch's session."""
        first = marks.starts()
        if not (self._row_of and len(first)):
            return np.full(len(marks), -1)
        session, who = session_index[marks.batch[first]], marks.whose[first]
        pairs, of_run = np.unique(session * len(marks.about) + who, return_inverse=True)
        known, about = self._row_of, marks.about
        sessions, whose = (column.tolist() for column in np.divmod(pairs, len(about)))
        rows = np.array([known.get((one, about[two]), -1) for one, two in zip(sessions, whose, strict=True)], np.int64)
        return np.repeat(rows[of_run], np.diff(np.append(first, len(marks))))

    def add_marks(
        self, marks: MarkTable, row: _Numbers, least_ns: _Numbers, most_ns: _Numbers
    ) -> npt.NDArray[np.bool_]:
        """Add marks of ranks in the table, rank after rank. row: of each. Returns which of them were added.

        least_ns, most_ns: between which times each counts. Ranks with irregular marks leave the table.
        """
        turn = np.argsort(row, kind="stable")
        turn_marks, row = marks.take(turn), row[turn]
        good = self._regular(
            turn_marks, row, (turn_marks.time_ns >= least_ns[turn]) & (turn_marks.time_ns <= most_ns[turn])
        )
        if not good.all():
            for rejected in np.unique(row[~good]).tolist():
                if (known := self._ranks[rejected]) is not None:
                    self.remove(known[1])
            turn_marks, row = turn_marks.take(good), row[good]
        if len(turn_marks):
            self._take(turn_marks, row)
        taken = np.zeros(len(marks), np.bool_)
        taken[turn] = good
        return taken

    def _regular(self, marks: MarkTable, row: _Numbers, on_time: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Of each mark whether its rank's marks are all in order: each step from its beginning to its end."""
        known, first = self._rows, starts(row)
        kind = ORDER[marks.moment]
        before_kind, before_number, before_ns = (np.empty(len(row), np.int64) for _ in range(3))
        for before, now, at_first in (
            (before_kind, kind, known["reached"]),
            (before_number, marks.iteration, known["number"]),
            (before_ns, marks.time_ns, known["newest_ns"]),
        ):
            before[1:] = now[:-1]
            before[first] = at_first[row[first]]
        same = marks.iteration == before_number
        goes_on = np.where(
            same, kind > before_kind, (kind == _BEGIN) & (before_kind == _END) & (marks.iteration > before_number)
        )
        good = on_time & (kind >= 0) & goes_on & (marks.time_ns > before_ns) & known["used"][row]
        of_rank = np.logical_and.reduceat(good, first) if len(first) else good
        return np.repeat(of_rank, np.diff(np.append(first, len(row))))

    def _take(self, run: MarkTable, row: _Numbers) -> None:
        known, kind = self._rows, ORDER[run.moment]
        first = starts(row, run.iteration)
        steps, of_step = row[first], np.repeat(np.arange(len(first)), np.diff(np.append(first, len(row))))
        marks = np.zeros((len(first), 2, _MARKS), np.int64)
        begins = starts(steps)  # of each rank the first step
        under_way = begins[known["number"][steps[begins]] == run.iteration[first[begins]]]
        marks[under_way] = self._open[steps[under_way]]
        marks[of_step, 0, kind], marks[of_step, 1, kind] = run.time_ns, run.error_ns
        self._end(steps, run.iteration[first], marks)
        last = np.append(begins[1:], len(steps)) - 1
        self._open[steps[last]] = marks[last]
        newest = np.append(starts(row)[1:], len(row)) - 1
        ranks = row[newest]
        known["number"][ranks], known["reached"][ranks] = run.iteration[newest], kind[newest]
        known["newest_ns"][ranks], known["fresh"][ranks] = run.time_ns[newest], True
        self._remember(row, kind, run)
        stepped = np.zeros(len(ranks), STEP_UPDATE)
        for name, source in (("serial", "serial"), ("size", "size"), ("last_ns", "newest_ns")):
            stepped[name] = known[source][ranks]
        stepped["last_ns"] += known["offset_ns"][ranks]
        self._steps.append(stepped)

    def _end(self, row: _Numbers, number: _Numbers, marks: _Numbers) -> None:
        """Steps of which all marks are known that have come; marks: (steps, 2, marks)."""
        over = np.flatnonzero(marks[:, 0, _END])
        if not len(over):
            return
        row, number, times, errors = row[over], number[over], marks[over, 0], marks[over, 1]
        own = number + self._rows["own_shift"][row]
        columns = {"row": row, "number": own, "start_ns": times[:, _BEGIN], "end_ns": times[:, _END]}
        columns |= {"error_ns": np.maximum(errors[:, _BEGIN], errors[:, _END])}
        columns |= {"comm_start_ns": times[:, 1], "wait_start_ns": times[:, 2], "comm_end_ns": times[:, 3]}
        ended = Columns({name: np.ascontiguousarray(columns[name]) for name in ENDED.names or ()})
        self._ended.append(ended)
        self._waiting = joined([self._waiting, ended])
        last = np.append(starts(row)[1:], len(row)) - 1
        self._rows["last_number"][row[last]], self._rows["finished_ns"][row[last]] = own[last], times[last, _END]

    def _remember(self, row: _Numbers, kind: _Numbers, marks: MarkTable) -> None:
        """The latest marks of each kind, for comparisons."""
        order = np.argsort(row * _MARKS + kind, kind="stable")
        row, kind = row[order], kind[order]
        first = starts(row, kind)
        count = np.diff(np.append(first, len(row)))
        turn = np.arange(len(row)) - np.repeat(first, count)
        at = (self._rows["recent"][row, kind] + turn) % RECENT
        self._recent[row, kind, 0, at], self._recent[row, kind, 1, at] = marks.iteration[order], marks.time_ns[order]
        self._rows["recent"][row[first], kind[first]] += count

    # --- what the job stage gets

    def use_offsets(self, offset_ns: _Numbers) -> None:
        """What the clock of each place's host is off by now, for those that are distinguished from here on."""
        rows = self._rows[: self.count]
        rows["offset_ns"] = offset_ns[rows["session"]]

    def take_steps(self) -> list[Table]:
        """Hand over which ranks have stepped, of STEP_UPDATE."""
        steps, self._steps = self._steps, []
        return steps

    def check(self, young: Collection[str], error_of: Callable[[Owner], int]) -> list[StepEvents]:
        """The latest events of ranks whose number in their job is to be checked, as Rank.check_due says.

        young: jobs whose ranks all are; error_of: to how many ns the clock of a host is right.
        """
        rows = self._rows[: self.count]
        fresh = rows["used"] & rows["fresh"]
        since_ns = rows["newest_ns"] - rows["checked_ns"]
        stepped = rows["last_number"] - rows["checked_number"] >= CHECK_EVERY
        due = fresh & (since_ns >= np.where(stepped, CHECK_EVERY_NS, SELDOM_NS))
        if young:
            names, of = self._about.jobs
            due |= fresh & np.array([name in young for name in names], np.bool_)[of]
        found = []
        for row in np.flatnonzero(due).tolist():
            ranks, rank = self._known(row)
            checked = rows[row]
            checked["fresh"], checked["checked_ns"] = False, checked["newest_ns"]
            checked["checked_number"] = checked["last_number"]
            events = {step_moment: self._events(row, kinds) for step_moment, kinds in _STEP_MOMENTS.items()}
            found.append(StepEvents(rank.serial, Trust(int(checked["trust"])), events, error_of(ranks)))
        return found

    def _known(self, row: int) -> tuple[Owner, Rank]:
        known = self._ranks[row]
        assert known is not None
        return known

    def _events(self, row: int, kinds: Sequence[int]) -> Events:
        own = self._rows[row]
        for kind in kinds:
            count = int(own["recent"][kind])
            if count:
                at = np.arange(max(0, count - EVIDENCE), count) % RECENT
                number, time_ns = self._recent[row, kind][:, at]
                return Events(number + own["own_shift"], time_ns + own["offset_ns"])
        return Events.none()

    # --- what rows and the dataset get

    def ended(self) -> IterationRows:
        """Iterations that have ended since the last call, as their jobs count them now."""
        ended, self._ended = self._ended, []
        found = self._iterations(joined([Columns.zeros(0, ENDED), *ended]))
        self._free += self._left
        self._left = []
        return found

    def settle(self, settled_ns: _Numbers) -> IterationRows:
        """The iterations that are over by the time that is settled, by index."""
        waiting = self._waiting
        session = self._rows["session"][waiting["row"]]
        over = waiting["end_ns"] <= settled_ns[session]
        due = waiting[over]
        if len(due):
            self._waiting = waiting[~over]
        return self._iterations(due)

    def _iterations(self, ended: Columns) -> IterationRows:
        row = ended["row"]
        number = ended["number"] + self._rows["shift"][row]
        times = (ended[name] for name in ("start_ns", "end_ns", "error_ns", "comm_start_ns", "comm_end_ns"))
        columns = self._rows["session"][row], row, number, *times, ended["wait_start_ns"]
        return IterationRows(self._about, *columns)

    def needed_ns(self, sessions: int, before_ns: _Numbers | None = None) -> _Numbers:
        """By place: start of the earliest iteration that is open or waits; NEVER: there is none.

        before_ns: by index too; those that began so long ago are passed over.
        """
        found, under_way = np.full(sessions, _NEVER), self._under_way()
        session = self._rows["session"][np.append(self._waiting["row"], under_way)]
        start_ns = np.append(self._waiting["start_ns"], self._open[under_way, 0, _BEGIN])
        if before_ns is not None:
            late = start_ns > before_ns[session]
            session, start_ns = session[late], start_ns[late]
        np.minimum.at(found, session, start_ns)
        return found

    def _under_way(self) -> _Numbers:
        rows = self._rows[: self.count]
        return np.flatnonzero(rows["used"] & (rows["reached"] != _END))

    def steps(self) -> RankSteps:
        """All of them and their iterations."""
        used = np.flatnonzero(self._rows["used"][: self.count])
        rows = self._rows[used]
        at = np.zeros(self.count, np.int64)
        at[used] = np.arange(len(used))
        under_way, waiting = self._under_way(), self._waiting
        known = self._rows[under_way]
        begins = np.append(waiting["start_ns"], self._open[under_way, 0, _BEGIN])
        ends = np.append(waiting["end_ns"], np.full(len(under_way), _NEVER))
        number = np.append(waiting["number"], known["number"] + known["own_shift"])
        of_rank = at[np.append(waiting["row"], under_way)]
        order = np.lexsort((begins, of_rank))
        columns = (np.ascontiguousarray(rows[name]) for name in ("session", "job", "rank_id", "shift", "since_ns"))
        return RankSteps(*columns, *(column[order] for column in (of_rank, begins, ends, number)))
