# SPDX-License-Identifier: Apache-2.0
"""The ranks of all hosts and their iterations, in one table: what is new of them is worked on for all at once."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.flows import SessionKeys
from collector.host.iteration_rows import Common, IterationRows
from collector.host.rank import Owner, Rank, Resumed
from collector.messages import STEP_UPDATE, StepEvents
from netmon.dl.grouped import starts
from netmon.dl.history import PayloadHistory
from netmon.dl.iterations import Iteration
from netmon.dl.numbering import EVIDENCE, Trust
from netmon.dl.step_alignment import Events, StepMoment
from netmon.dl.understanding import Understanding
from netmon.records import Columns, Moment, Source, Table, joined
from netmon.wire.limits import FURTHEST_NS, MAX_ITERATION
from netmon.wire.tables import RANKS

_Numbers = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).max)
_FIRST = 64  # rows
_RECENT = 200  # events of a kind, for comparisons
_CHECKS_AT_FIRST = 10
_CHECK_EVERY_NS, _SELDOM_NS = 500_000_000, 2_000_000_000
_CHECK_EVERY = EVIDENCE // 4  # iterations
_NEAR_NS = 1_000_000  # how far the times of one clock, by way of UTC, may differ
_SILENT_AFTER = 3  # iterations that the traffic has shown since a process reported

_MOST_WORDS = 1 << 17

BY_TRAFFIC = 1 << 31
"""Agents give their ranks lower numbers."""

LONGEST_HISTORY_NS = 3_600_000_000_000
"""Of a longer iteration, the account is that of its last hour."""

DISTANT, UNKNOWN_RANK, CONTRADICTS = (
    "from a distant past or future",
    "of a process that is not known",
    "that contradict those before",
)
"""Why an iteration is not used."""

ROW = np.dtype(
    [
        ("used", "?"),
        ("named", "?"),  # its job is known
        ("by_process", "?"),  # else by its traffic only
        ("hidden", "?"),  # the process that was this rank has left, the traffic is understood late
        ("understood", "?"),  # its steps are, as far as anybody knows
        ("frozen", "?"),  # its count stays as it is
        ("released", "?"),  # it has left, and that is reported
        ("late", "?"),  # its latest iteration came after the rows around it had settled, or never was
        ("fresh", "?"),  # it has iterations that its number in the job has not been checked with
        ("compared", "?"),  # its numbers have been, with those of the job's other ranks
        ("trust", "u1"),
        ("source", "u1"),  # of its latest iteration; 0: there is none
        *((name, "<i8") for name in ("session", "agent_id", "serial", "job", "rank_id", "size")),
        ("since_ns", "<i8"),  # it was there from here…
        ("until_ns", "<i8"),  # …to here
        ("first_ns", "<i8"),  # its first step; 0: it has not stepped
        ("newest_ns", "<i8"),  # the latest time that is known of its steps
        ("settled_ns", "<i8"),  # end of its last iteration whose rows have settled, or are in the dataset
        ("finished_ns", "<i8"),  # end of the last one; −1: there is none
        ("last_number", "<i8"),  # of that one
        ("own_shift", "<i8"),  # what to add to its host's numbers, to have its own: they never go back
        ("shift", "<i8"),  # what to add to its own, to have its job's
        *((name, "<i8") for name in ("checked_ns", "checked_number", "checks")),
        ("offset_ns", "<i8"),  # from mono to UTC, by now
        ("events", "<i8", (len(StepMoment),)),  # of each kind that have been kept
    ]
)
"""A row of the rank table. Times are mono."""

_COMPARED_NS = 3_000_000_000  # for so long numbers wait to be compared: some batches of each of the others
_TIMES = ("start_ns", "end_ns", "error_ns", "comm_start_ns", "wait_start_ns", "comm_end_ns")
ITERATIONS = np.dtype(
    [(name, "<i8") for name in ("row", "number", "own", "source", "start_moment", "end_moment", *_TIMES)]
    + [("over", "?"), ("reported", "?")]
)
"""An iteration of one, as netmon.records.ITERATION has it. number: its host's; own: the rank's.

over: it stays as it is, but for its communication; reported: `ended` has returned it.
"""


class RankSteps(NamedTuple):
    """What rows have to know of the ranks: see collector.host.steps. The last four are of iterations."""

    session: _Numbers
    job: _Numbers
    rank_id: _Numbers
    shift: _Numbers
    since_ns: _Numbers
    until_ns: _Numbers
    by_process: _Bools
    hidden: _Bools
    of_rank: _Numbers
    begin_ns: _Numbers
    end_ns: _Numbers
    number: _Numbers


class Refused(NamedTuple):
    """What is to be said of iterations that were not, or not well, taken in."""

    unusable: dict[int, Counter[str]]  # by session: how many, by reason
    late: list[tuple[Owner, Rank]]  # ranks whose iterations came after their rows had settled


class RankTable:
    """Of all sessions. A rank knows its row."""

    def __init__(self, payload: PayloadHistory) -> None:
        """payload: of all hosts, which is separated where iterations begin and end."""
        self._payload = payload
        self._rows = np.zeros(_FIRST, ROW)
        self._events = np.zeros((_FIRST, len(StepMoment), 2, _RECENT), np.int64)  # numbers and times, in turn
        self._ranks: list[tuple[Owner, Rank] | None] = []
        self._each: list[Iteration] = []  # what all iterations of each row's rank have in common
        self._common: Common | None = None  # the same as it is now, once it has been requested
        self._keys = SessionKeys()  # by session and its agent's id
        self._reported = np.zeros((_FIRST, len(RANKS.columns)), np.int64)  # as agents have reported ranks last
        self._words: dict[str, int] = {}  # numbers for the words in there
        self._free: list[int] = []
        self._left: list[int] = []  # rows that are free once this tick has reported what has ended
        self._waiting = Columns.zeros(0, ITERATIONS)  # those whose rows have not settled; by row, ascending
        self._stepped: list[Table] = []  # of STEP_UPDATE, not reported yet
        self._offset_ns: _Numbers = np.empty(0, np.int64)  # by session

    def __len__(self) -> int:
        return int(self._rows["used"].sum())

    @property
    def _known(self) -> Table:
        rows: Table = self._rows[: len(self._ranks)]
        return rows

    def sessions(self) -> _Numbers:
        """That have ranks."""
        return np.unique(self._known["session"][self._known["used"]])

    def numbers(self) -> tuple[set[int], set[int]]:
        """The numbers of their jobs and rank ids."""
        used = self._known[self._known["used"]]
        return set(used["job"].tolist()), set(used["rank_id"].tolist())

    # --- who is in here

    def add(self, owner: Owner, rank: Rank, agent_id: int) -> None:
        """A rank begins; agent_id: by which its host calls it; from BY_TRAFFIC on: only its traffic is known."""
        row = self._free.pop() if self._free else len(self._ranks)
        if row == len(self._ranks):
            self._ranks.append(None)
            self._each.append(_NOBODY)
        if row == len(self._rows):
            tables = self._rows, self._events, self._reported
            self._rows, self._events, self._reported = (np.concatenate([one, np.zeros_like(one)]) for one in tables)
        self._ranks[row], rank.row = (owner, rank), row
        self._rows[row] = 0
        own = self._rows[row]
        own["used"], own["session"], own["agent_id"] = True, owner.session, agent_id
        own["by_process"] = agent_id < BY_TRAFFIC
        own["offset_ns"] = self._offset_ns[owner.session] if owner.session < len(self._offset_ns) else 0
        own["finished_ns"] = own["last_number"] = own["settled_ns"] = -1
        self._reported[row] = -2
        self._keys.add(owner.session, agent_id, row, 0)
        self.update(rank)

    def update(self, rank: Rank) -> None:
        """Its host knows more of it."""
        own, state = self._rows[rank.row], rank.state
        own["serial"], own["size"], own["trust"] = rank.serial, state.size, state.trust
        own["since_ns"], own["until_ns"] = state.joined_ns, state.left_ns if rank.left else NEVER
        own["understood"] = rank.understanding is not Understanding.NOT_UNDERSTOOD

    def name(self, rank: Rank, job: int, rank_id: int, stored: Resumed) -> None:
        """Its job is known. job, rank_id: as rows call it; stored: it counts on from there, what was before is left
        out."""
        own = self._rows[rank.row]
        own["named"], own["job"], own["rank_id"] = True, job, rank_id
        self._resume(rank, stored)

    def _resume(self, rank: Rank, stored: Resumed) -> None:
        own = self._rows[rank.row]
        own["settled_ns"], own["last_number"] = stored.end_ns, stored.number
        own["finished_ns"], own["events"] = stored.end_ns, 0
        waiting = self._waiting
        mine = waiting["row"] == rank.row
        kept = ~mine | _follow(waiting, np.full(len(waiting), stored.end_ns))
        self._waiting = waiting = waiting[kept]
        mine = mine[kept]
        if mine.any():
            numbers = waiting["number"][mine]
            own["own_shift"] = max(0, stored.number + 1 - int(numbers[0]))
            waiting["own"] = np.where(mine, waiting["number"] + own["own_shift"], waiting["own"])
            self._finish(waiting[mine])

    def describe(self, rank: Rank, about: Iteration) -> None:
        """What all its iterations have in common, and how its job counts them now."""
        own = self._rows[rank.row]
        own["shift"], own["compared"] = rank.counted.shift, rank.counted.compared
        self._each[rank.row], self._common = about, None

    def has_settled(self, rank: Rank) -> bool:
        """Whether an iteration of it has been stored under its number."""
        return bool(self._rows["settled_ns"][rank.row] >= 0)

    def freeze(self, rank: Rank) -> None:
        self._rows["frozen"][rank.row] = True

    def unfreeze(self, rank: Rank) -> None:
        self._rows["frozen"][rank.row] = False

    def hide(self, rank: Rank, hidden: bool) -> None:
        self._rows["hidden"][rank.row] = hidden

    def is_hidden(self, rank: Rank) -> bool:
        return bool(self._rows["hidden"][rank.row])

    def agent_id(self, rank: Rank) -> int:
        """By which iterations name it."""
        return int(self._rows["agent_id"][rank.row])

    def source(self, rank: Rank) -> Source | None:
        """Of its latest iteration."""
        source = int(self._rows["source"][rank.row])
        return Source(source) if source else None

    def steps_since(self, rank: Rank) -> tuple[int, int]:
        """Its first step, 0: it has not stepped, and the latest time that is known of its steps (mono)."""
        own = self._rows[rank.row]
        return int(own["first_ns"]), int(own["newest_ns"])

    def came_to(self, rank: Rank) -> Resumed:
        """How far it has come."""
        if rank.row < 0:
            return rank.came_to
        own = self._rows[rank.row]
        end_ns = max(int(own["finished_ns"]), rank.state.left_ns)
        return Resumed(rank.state.size, rank.state.parameters, end_ns, int(own["last_number"]))

    def drop(self, rank: Rank) -> None:
        row = rank.row
        rank.came_to = self.came_to(rank)
        own = self._rows[row]
        self._keys.remove(int(own["session"]), [int(own["agent_id"])])
        self._waiting = self._waiting[self._waiting["row"] != row]
        own["used"] = False
        self._ranks[row], rank.row = None, -1
        self._left.append(row)

    def gone(self, settled_ns: _Numbers) -> list[tuple[Owner, Rank]]:
        """Ranks that have left, and all of whose rows have settled. settled_ns: by session."""
        rows = self._known
        over = np.flatnonzero(rows["used"] & (rows["until_ns"] < settled_ns[rows["session"]]))
        if not len(over):
            return []
        waits = np.isin(over, self._waiting["row"][self._waiting["end_ns"] > 0])
        return [self._at(row) for row in over[~waits].tolist()]

    def release(self, rank: Rank) -> bool:
        """Whether it has left, and that was not reported until now."""
        own = self._rows[rank.row]
        first = rank.left and not own["released"]
        own["released"] |= rank.left
        return first

    def unreported(self) -> list[tuple[Owner, Rank]]:
        """Ranks that step, and it is not known of which job, and those that have left; host after host."""
        rows = self._known
        found = (~rows["named"] & (rows["first_ns"] > 0)) | ((rows["until_ns"] < NEVER) & ~rows["released"])
        some = np.flatnonzero(rows["used"] & found)
        return [self._at(row) for row in some[np.lexsort((rows["serial"][some], rows["session"][some]))].tolist()]

    def _at(self, row: int) -> tuple[Owner, Rank]:
        known = self._ranks[row]
        assert known is not None
        return known

    # --- what agents report of ranks
    #
    # They name them with each batch that has iterations of them; mostly it is what they have reported before.

    def news(self, ranks: Columns, session: _Numbers, words: Sequence[str]) -> _Numbers:
        """Which rows of a table of RANKS differ from the rank's last report. session: of each; words: as JoinedTables
        has them."""
        if not len(ranks):
            return np.empty(0, np.int64)
        row = self._keys.find(session, ranks["rank_id"])
        new = (row < 0) | (self._reported[row] != self._matrix(ranks, words)).any(axis=1)
        key = session << 32 | ranks["rank_id"]
        found: _Numbers = np.flatnonzero(np.isin(key, key[new])) if new.any() else np.empty(0, np.int64)
        return found

    def learn(self, ranks: Columns, session: _Numbers, words: Sequence[str]) -> None:
        """These have been taken in."""
        if len(ranks):
            row = self._keys.find(session, ranks["rank_id"])
            self._reported[row[row >= 0]] = self._matrix(ranks, words)[row >= 0]

    def _matrix(self, ranks: Columns, words: Sequence[str]) -> _Numbers:
        """The rows with numbers for words that stay from tick to tick."""
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
            self._reported[:] = -2
        matrix = np.stack([ranks[name] for name in RANKS.columns], axis=1)
        for column in RANKS.words:
            distinct, of = np.unique(matrix[:, column], return_inverse=True)
            numbers = [
                self._words.setdefault(words[place], len(self._words)) if place >= 0 else -1 for place in distinct
            ]
            matrix[:, column] = np.array(numbers, np.int64)[of]
        return matrix

    # --- iterations

    def take(self, iterations: Columns, settled_ns: _Numbers, horizon_ns: _Numbers) -> Refused:
        """Iterations as hosts know them by now, of netmon.records.ITERATION with `session`, in the order in which they
        came. settled_ns, horizon_ns: by session.
        """
        refused = Refused({}, [])
        row = self._keys.find(iterations["session"], iterations["rank_id"])
        start_ns, end_ns = iterations["start_ns"], iterations["end_ns"]
        settled, horizon = settled_ns[iterations["session"]], horizon_ns[iterations["session"]]
        latest = np.maximum(start_ns, end_ns)
        near = (latest <= horizon + FURTHEST_NS) & (latest >= settled - LONGEST_HISTORY_NS)
        self._refuse(refused, iterations["session"][row < 0], UNKNOWN_RANK)
        self._refuse(refused, iterations["session"][(row >= 0) & ~near], DISTANT)
        some = np.flatnonzero((row >= 0) & near)
        if not len(some):
            return refused
        taken, row, settled = iterations.take(some), row[some], settled[some]
        self._separate(taken, row, settled, refused)
        real = np.flatnonzero(taken["number"] >= 0)
        self._put(taken.take(real), row[real], refused)
        return refused

    @staticmethod
    def _refuse(refused: Refused, sessions: _Numbers, reason: str) -> None:
        for session, count in zip(
            *(column.tolist() for column in np.unique(sessions, return_counts=True)), strict=True
        ):
            refused.unusable.setdefault(session, Counter())[reason] += count

    def _separate(self, taken: Columns, row: _Numbers, settled_ns: _Numbers, refused: Refused) -> None:
        """What was sent before each begins or ends from what was sent after it, as far as it has not settled."""
        known, start_ns, end_ns = self._rows, taken["start_ns"], taken["end_ns"]
        time_ns, of = np.append(start_ns, end_ns), np.tile(np.arange(len(row)), 2)
        on_time = np.flatnonzero(time_ns >= settled_ns[of])
        session = known["session"][row[of[on_time]]]
        order = np.lexsort((time_ns[on_time], session))
        self._payload.cut_in_order(session[order], time_ns[on_time][order])
        ended = end_ns > 0
        bound_ns = np.where(ended, end_ns, start_ns)
        fresh = (taken["number"] >= 0) & (taken["source"] != Source.INFERRED)
        fresh &= ended | ~np.isin(_pairs(row, start_ns), _pairs(self._waiting["row"], self._waiting["start_ns"]))
        late = bound_ns < settled_ns
        # After one that never was, the next one may have begun long ago.
        known["late"][row[fresh]] = (late | (end_ns == start_ns))[fresh]
        # A wait bounds an iteration only where nothing follows. The first step of a process is reported once the second
        # one has shown what a step is. What is in the dataset comes again where batches do.
        moment = np.where(ended, taken["end_moment"], taken["start_moment"])
        too_late = fresh & late & (moment != Moment.LAST_WAIT) & (end_ns != start_ns)
        too_late &= (known["finished_ns"][row] >= 0) & (start_ns > known["settled_ns"][row])
        refused.late.extend(self._at(one) for one in np.unique(row[too_late]).tolist())

    def _put(self, taken: Columns, row: _Numbers, refused: Refused) -> None:
        if not len(row):
            return
        known = self._rows
        new = Columns({name: taken[name] for name in taken.names if name in (ITERATIONS.names or ())})
        no = np.zeros(len(row), np.bool_)
        new = new.replaced(row=row, own=np.full(len(row), -1), over=no, reported=no)
        new = Columns({name: new[name] for name in ITERATIONS.names or ()})
        new = new[_follow(new, known["settled_ns"][row])]  # else those are known from before
        self._waiting = self._merged(joined([self._waiting, new]), refused)
        first = starts(row) if (np.diff(row) >= 0).all() else np.sort(np.unique(row, return_index=True)[1])
        begun = row[first]
        newest = np.maximum(taken["start_ns"], np.maximum(taken["end_ns"], taken["comm_start_ns"]))
        np.maximum.at(known["newest_ns"], row, newest)
        unstepped = known["first_ns"][begun] == 0
        known["first_ns"][begun[unstepped]] = np.maximum(taken["start_ns"][first[unstepped]], 1)
        known["fresh"][begun] = True
        for one in begun[known["frozen"][begun] & (known["until_ns"][begun] == NEVER)].tolist():
            self._at(one)[0].host_is_present()
        known["source"][row] = taken["source"]
        named = begun[known["named"][begun]]
        stepped = np.zeros(len(named), STEP_UPDATE)
        for name, column in (("serial", "serial"), ("size", "size"), ("last_ns", "newest_ns")):
            stepped[name] = known[column][named]
        stepped["last_ns"] += known["offset_ns"][named]
        self._stepped.append(stepped)

    def _merged(self, rows: Columns, refused: Refused) -> Columns:
        """Of each iteration what is known of it last; by row, ascending, without those that contradict others."""
        if not len(rows):
            return rows
        rows = rows.take(np.lexsort((np.arange(len(rows)), rows["number"], rows["row"])))
        first = starts(rows["row"], rows["number"])
        last = np.append(first[1:], len(rows)) - 1
        over, reported = (np.logical_or.reduceat(rows[name], first) for name in ("over", "reported"))
        # Of an iteration that has been reported to have ended, more may become known of its communication only.
        newest = {name: rows[name][last] for name in ("comm_start_ns", "wait_start_ns", "comm_end_ns")}
        newest |= {"over": over, "reported": reported, "own": rows["own"][first]}
        rows = rows.take(np.where(over, first, last)).replaced(**newest)
        rows = self._in_order(rows, refused)
        self._number(rows)
        return rows

    def _in_order(self, rows: Columns, refused: Refused) -> Columns:
        """Without what never was, what has begun and not ended although others follow, and what lies in others."""
        row, start_ns, end_ns = rows["row"], rows["start_ns"], rows["end_ns"]
        ended = end_ns > 0
        follows = np.append(row[1:] == row[:-1], False) if len(row) else np.zeros(0, np.bool_)
        good = (ended & (end_ns > start_ns) & (rows["end_moment"] > 0)) | (~ended & ~follows)
        first = starts(row)
        over = np.maximum.reduceat(np.where(rows["over"], rows["number"], -1), first)
        good &= rows["over"] | (rows["number"] > np.repeat(over, np.diff(np.append(first, len(row)))))
        rows = rows[good]
        while len(rows):
            row, source = rows["row"], rows["source"]
            before_ns, before = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
            before_ns[1:], before[1:] = rows["end_ns"][:-1], source[:-1]
            first = starts(row)
            before_ns[first], before[first] = self._rows["settled_ns"][row[first]], 0
            within = (rows["start_ns"] < before_ns) & ~rows["over"]
            if not within.any():
                break
            clipped = within & (source != before) & _follow(rows, before_ns)
            rows["start_ns"] = np.where(clipped, before_ns, rows["start_ns"])
            out = within & ~clipped
            if out.any():
                self._refuse(refused, self._rows["session"][row[out]], CONTRADICTS)
                rows = rows[~out]
        return rows

    def _number(self, rows: Columns) -> None:
        """Give new ones their own numbers, and note how far their ranks have come."""
        known, row = self._rows, rows["row"]
        new = np.flatnonzero(rows["own"] < 0)
        if len(new):
            first = new[starts(row[new])]
            of = row[first]
            behind = rows["number"][first] + known["own_shift"][of] <= known["last_number"][of]
            some = of[behind]
            known["own_shift"][some] = known["last_number"][some] + 1 - rows["number"][first[behind]]
            own = rows["own"].copy()
            own[new] = rows["number"][new] + known["own_shift"][row[new]]
            rows["own"] = own
        self._finish(rows)

    def _finish(self, rows: Columns) -> None:
        """Those that have ended and were not known as ended: how far their ranks have come, and when their beats
        were."""
        known = self._rows
        over = rows[(rows["end_ns"] > known["finished_ns"][rows["row"]]) & (rows["end_ns"] > 0)]
        if not len(over):
            return
        row = over["row"]
        np.maximum.at(known["finished_ns"], row, over["end_ns"])
        np.maximum.at(known["last_number"], row, over["own"])
        step_end = over["end_moment"] == Moment.STEP_END
        beats = (
            np.where(over["comm_end_ns"] > 0, over["comm_end_ns"], np.where(step_end, over["end_ns"], 0)),
            over["comm_start_ns"],
            np.where(over["start_moment"] == Moment.STEP_START, over["start_ns"], 0),
        )
        for kind, time_ns in enumerate(beats):
            there = np.flatnonzero(time_ns)
            of, first = row[there], starts(row[there])
            count = np.diff(np.append(first, len(there)))
            turn = np.arange(len(there)) - np.repeat(first, count)
            at = (known["events"][of, kind] + turn) % _RECENT
            self._events[of, kind, 0, at], self._events[of, kind, 1, at] = over["own"][there], time_ns[there]
            known["events"][of[first], kind] += count

    # --- what the traffic shows of ranks whose process tells nothing

    def is_silent(self, rank: Rank, shown: Sequence[Iteration]) -> bool:
        """Whether it has been silent for so many iterations as the traffic has shown. What is much shorter than its
        own is none: within a step the traffic may pause, too."""
        newest_ns = self._rows["newest_ns"][rank.row]
        later = [one.end_ns - one.start_ns for one in shown if one.start_ns > int(newest_ns)]
        if len(later) < _SILENT_AFTER:
            return False
        own = np.diff(next(iter(self.events(rank).values())).time_ns)
        least = float(np.median(own)) / 2 if len(own) else 0.0
        return sum(length >= least for length in later) >= _SILENT_AFTER

    def own_shift(self, rank: Rank) -> int:
        return int(self._rows["own_shift"][rank.row])

    def finished_ns(self, rank: Rank) -> int:
        """The end of its last iteration; −1: there is none."""
        return int(self._rows["finished_ns"][rank.row])

    def events(self, rank: Rank, most: int = _RECENT) -> dict[StepMoment, Events]:
        """Its latest beats by its own numbers; mono times."""
        return self._events_of(np.array([rank.row]), most, np.zeros(1, np.int64))[0]

    def _events_of(self, row: _Numbers, most: int, offset_ns: _Numbers) -> list[dict[StepMoment, Events]]:
        """The same of many. offset_ns: of each, what to add to mono times."""
        counts = self._rows["events"][row]
        at = (counts[:, :, None] + np.arange(-most, 0)) % _RECENT  # the last ones are there
        of, kinds = row[:, None, None], np.arange(len(StepMoment))[None, :, None]
        number, time_ns = self._events[of, kinds, 0, at], self._events[of, kinds, 1, at] + offset_ns[:, None, None]
        return [
            {
                moment: Events(number[rank, kind, most - count :], time_ns[rank, kind, most - count :])
                if count
                else Events.none()
                for kind, (moment, count) in enumerate(zip(StepMoment, own, strict=True))
            }
            for rank, own in enumerate(np.minimum(counts, most).tolist())
        ]

    # --- what the job stage gets

    def use_offsets(self, offset_ns: _Numbers) -> None:
        """What the clock of each session's host is off by now."""
        self._offset_ns, rows = offset_ns, self._known
        rows["offset_ns"] = offset_ns[rows["session"]]

    def offset_ns(self, rank: Rank) -> int:
        return int(self._rows["offset_ns"][rank.row])

    def take_steps(self) -> list[Table]:
        """Hand over which ranks have stepped, of STEP_UPDATE."""
        stepped, self._stepped = self._stepped, []
        return stepped

    def check(self, young: Collection[str], error_of: Callable[[Owner], int]) -> tuple[list[StepEvents], set[str]]:
        """The latest beats of ranks whose number in their job is to be checked: at first and at the end always, then
        seldom; and the jobs whose ranks were all of that kind lately.

        young: jobs whose ranks all are to be; error_of: to how many ns the clock of a host is right.
        """
        rows = self._known
        fresh = rows["used"] & rows["named"] & rows["fresh"]
        since_ns = rows["newest_ns"] - rows["checked_ns"]
        stepped = rows["last_number"] - rows["checked_number"] >= _CHECK_EVERY
        due = since_ns >= np.where(stepped, _CHECK_EVERY_NS, _SELDOM_NS)
        due |= (rows["checks"] < _CHECKS_AT_FIRST) | (rows["until_ns"] < NEVER)
        if young:
            due |= np.isin(rows["job"], [rows["job"][rank.row] for _, rank in self._named() if rank.name in young])
        row = np.flatnonzero(fresh & due)
        rows["fresh"][row] = False
        rows["checked_ns"][row], rows["checked_number"][row] = rows["newest_ns"][row], rows["last_number"][row]
        rows["checks"][row] += 1
        again = {self._at(young)[1].name for young in row[rows["checks"][row] < _CHECKS_AT_FIRST].tolist()}
        row = row[~rows["frozen"][row]]
        found = []
        latest = self._events_of(row, EVIDENCE, rows["offset_ns"][row])
        for at, trust, events in zip(row.tolist(), rows["trust"][row].tolist(), latest, strict=True):
            owner, rank = self._at(at)
            found.append(StepEvents(rank.serial, Trust(trust), events, error_of(owner)))
        return found, again

    def _named(self) -> list[tuple[Owner, Rank]]:
        return [known for known in self._ranks if known and known[1].name]

    def leaving(self) -> list[tuple[Owner, Rank]]:
        """Those that have left and whose count may still change."""
        rows = self._known
        left = rows["used"] & rows["named"] & (rows["until_ns"] < NEVER) & ~rows["frozen"]
        return [self._at(row) for row in np.flatnonzero(left).tolist()]

    # --- what rows and the dataset get

    def ended(self, horizon_ns: _Numbers, settled_ns: _Numbers) -> IterationRows:
        """Iterations that have ended since the last call, as their jobs count them now; both times by session.

        Those that wait for their number come later: who judged them would hold one step against another.
        """
        waiting = self._waiting
        over = (waiting["end_ns"] > 0) & self._rows["named"][waiting["row"]]
        waiting["over"] = waiting["over"] | over
        settles = waiting["end_ns"] <= settled_ns[self._rows["session"][waiting["row"]]]
        fresh = over & ~waiting["reported"] & (settles | ~self._uncompared(horizon_ns))
        found = self._iterations(waiting[fresh])
        waiting["reported"] = waiting["reported"] | fresh
        self._free += self._left
        self._left = []
        return found

    def settle(self, settled_ns: _Numbers) -> IterationRows:
        """The iterations that are over by the time that is settled, by session."""
        waiting = self._waiting
        row = waiting["row"]
        over = (waiting["end_ns"] > 0) & (waiting["end_ns"] <= settled_ns[self._rows["session"][row]])
        over &= self._rows["named"][row]
        due = waiting[over]
        if len(due):
            self._waiting = waiting[~over]
            np.maximum.at(self._rows["settled_ns"], due["row"], due["end_ns"])
        return self._iterations(due)

    @property
    def _about(self) -> Common:
        if self._common is None:
            self._common = Common(list(self._each))
        return self._common

    def _iterations(self, found: Columns) -> IterationRows:
        row = found["row"]
        number = np.clip(found["own"] + self._rows["shift"][row], -1, MAX_ITERATION)
        times = (found[name] for name in ("start_ns", "end_ns", "error_ns", "comm_start_ns", "comm_end_ns"))
        known = (found[name] for name in ("wait_start_ns", "source", "start_moment", "end_moment"))
        return IterationRows(self._about, self._rows["session"][row], row, number, *times, *known)

    def needed_ns(self, sessions: int, before_ns: _Numbers | None = None) -> _Numbers:
        """By session: start of the earliest iteration that is open or waits; NEVER: there is none.

        before_ns: by session too; those that began so long ago are passed over. What only the traffic shows holds
        nothing back: it comes late, by a guess, and of whoever looks like a rank.
        """
        found, rows, waiting = np.full(sessions, NEVER), self._known, self._waiting
        of = rows[waiting["row"]]
        holds = of["by_process"] & (of["understood"] | (waiting["end_ns"] > 0)) & (waiting["source"] != Source.INFERRED)
        # Who has not stepped yet, and who comes late: its next one may have begun, and nobody has said so.
        there = np.flatnonzero(rows["used"] & rows["by_process"] & rows["understood"] & (rows["until_ns"] == NEVER))
        there = there[(rows["finished_ns"][there] < 0) | rows["late"][there]]
        since_ns = np.where(rows["finished_ns"][there] < 0, rows["since_ns"][there], rows["finished_ns"][there])
        session = np.append(of["session"][holds], rows["session"][there])
        start_ns = np.append(waiting["start_ns"][holds], since_ns)
        if before_ns is not None:
            recent = start_ns > before_ns[session]
            session, start_ns = session[recent], start_ns[recent]
        np.minimum.at(found, session, start_ns)
        return found

    def uncompared_ns(self, horizon_ns: _Numbers) -> _Numbers:
        """By session: start of the earliest iteration that waits for its number; NEVER: none does."""
        found, waiting = np.full(len(horizon_ns), NEVER), self._waiting[self._uncompared(horizon_ns)]
        np.minimum.at(found, self._rows["session"][waiting["row"]], waiting["start_ns"])
        return found

    def _uncompared(self, horizon_ns: _Numbers) -> _Bools:
        """Of the iterations that wait: which do so for their number, for _COMPARED_NS at most.

        Its rank has joined others: what would be stored of it now may have another number than theirs.
        """
        rows, waiting = self._known, self._waiting
        joined = rows["used"] & rows["by_process"] & ~rows["compared"] & (rows["until_ns"] == NEVER)
        joined &= rows["settled_ns"] < 0
        if not joined.any():
            return np.zeros(len(waiting), np.bool_)
        recent_ns = horizon_ns[rows["session"][waiting["row"]]] - _COMPARED_NS
        recent: _Bools = joined[waiting["row"]] & (np.maximum(waiting["start_ns"], waiting["end_ns"]) > recent_ns)
        return recent

    def steps(self) -> RankSteps:
        """All of them that have a name, and their iterations."""
        used = np.flatnonzero(self._known["used"] & self._known["named"])
        rows = self._rows[used]
        at = np.full(len(self._ranks) + 1, -1, np.int64)
        at[used] = np.arange(len(used))
        waiting = self._waiting
        of_rank = at[waiting["row"]]
        some = np.flatnonzero(of_rank >= 0)
        ends = np.where(waiting["end_ns"] > 0, waiting["end_ns"], NEVER)
        columns = (np.ascontiguousarray(rows[name]) for name in RankSteps._fields[:8])
        return RankSteps(*columns, *(column[some] for column in (of_rank, waiting["start_ns"], ends, waiting["own"])))


def _pairs(one: _Numbers, other: _Numbers) -> npt.NDArray[np.void]:
    return np.stack([one, other], axis=1).astype(np.int64).view("V16").ravel()


def _follow(rows: Columns, after_ns: _Numbers) -> _Bools:
    """Whether most of each iteration does: what another source has seen, or another clock has timed, may begin before.

    What the traffic shows begins when it says, or later.
    """
    start_ns, end_ns = rows["start_ns"], rows["end_ns"]
    begins = np.where(end_ns > 0, start_ns + (end_ns - start_ns) // 2, start_ns + _NEAR_NS)
    found: _Bools = np.where(rows["source"] == Source.INFERRED, start_ns, begins) >= after_ns
    return found


_NOBODY = Iteration("", 0, 0, 0, 0, 0, Moment.STEP_START, Moment.STEP_END, Source.HOOK, 0, True, 0)
