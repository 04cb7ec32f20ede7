# SPDX-License-Identifier: Apache-2.0
"""One process that trains: its marks, and what of its iterations still waits."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from collector.messages import NO_NUMBERS, RANK_UPDATE, STEP_UPDATE, About, Count, Holder, Step, StepEvents
from netmon.dl.iterations import Iteration, IterationTracker
from netmon.dl.numbering import EVIDENCE, Trust
from netmon.dl.understanding import Understanding
from netmon.mark_runs import MarkRun, Whose
from netmon.records import Mark, Moment, Source, Table
from netmon.views import SourceScore

NEVER = int(np.iinfo(np.int64).max)
_STEPPING = (Moment.STEP_START, Moment.FIRST_ENQUEUE)
_CHECKS_AT_FIRST = 10
Scores = list[tuple[str, SourceScore]]
"""(job, how a source of a rank's iterations does against the best one)."""

_MOST_GONE = 1_000  # processes remembered as gone
CHECK_EVERY_NS, SELDOM_NS = 500_000_000, 2_000_000_000
CHECK_EVERY = EVIDENCE // 4  # iterations


class Resumed(NamedTuple):
    """How far a rank has come."""

    size: int
    parameters: int
    end_ns: int  # of its last iteration, mono
    number: int  # of that iteration, as the rank counts


class Earlier(NamedTuple):
    """What a process has been in the same job, before the job gave its ranks out anew."""

    name: str  # the job's
    came_to: Resumed
    trust: Trust
    shift: int  # of its numbers


class Steps(NamedTuple):
    """What rows have to know of a rank."""

    job: str
    rank: int
    by_process: bool  # by a process; False: only its traffic is known
    hidden: bool  # its process has left, the traffic is understood late
    since_ns: int  # it was there from here…
    until_ns: int  # …to here
    shift: int  # what to add to its own numbers
    spans: "array[int]"  # as IterationTracker.spans has them


class Owner(Protocol):
    """The ranks of a session, as who keeps ranks of all sessions knows them."""

    session: int  # of the session
    offset_ns: int  # from mono to UTC

    def named(self, rank: "Rank", name: str) -> None:
        """It is a rank of the job of this name."""

    def recounted(self, rank: "Rank") -> None:
        """Its job counts its iterations in another way now."""

    def renumbered(self, rank: "Rank", shift: int) -> None:
        """Numbers that were used have moved; shift: what is added to its own ones now."""


@dataclass
class Rank:
    """A process that was seen to join; it is a rank of a job from its first step on, when it gets its name."""

    tracker: IterationTracker  # of the job as the process calls it
    pid: int
    name: str = ""  # the job's, as claimed; empty: it has not stepped
    ended: list[Iteration] = field(default_factory=list)  # wait until their rows have settled; ascending
    joined: dict[Source, int] = field(default_factory=dict)  # when, mono
    left: dict[Source, int] = field(default_factory=dict)
    fresh: bool = False  # it has marks that its number in the job has not been checked with
    checks: int = 0  # how often that was done
    late: set[Source] = field(default_factory=set)  # whose latest mark came after the rows around it had settled
    checked_ns: int = 0  # by its last mark then
    checked_number: int = 0  # by its last iteration then
    first_ns: int = 0  # its first step, mono; 0: it has not stepped
    last_ns: int = 0  # its latest mark of a step
    earlier: Earlier | None = None
    later: bool = False  # the process is another rank now, or this one anew
    serial: int = 0  # by which the job stage knows it
    is_claiming: bool = False  # it claims a name, and has not been answered
    lives: "list[Rank]" = field(default_factory=list)  # what its process has been before, where that has no name yet
    lost: bool = False  # only its traffic is known, and a process is this rank now
    count: Count = NO_NUMBERS  # what the job stage says of its numbers
    row: int = -1  # in RankTable, while that is where its marks go; −1: they come here
    understanding: Understanding = Understanding.UNDERSTOOD
    marked_by: Whose | None = None  # what its latest marks had in common
    settled_count: Count | None = None  # the same once it has left or its host is heard no more: the others go on

    @property
    def number(self) -> int:
        return self.tracker.rank

    @property
    def counted(self) -> Count:
        """How its job counts its iterations."""
        return self.settled_count or self.count

    def due_ns(self) -> int:
        """When it has something to settle, or is to be forgotten (mono ns); NEVER: it waits for marks."""
        ended_ns = self.ended[0].end_ns if self.ended else NEVER
        return min(ended_ns, max(self.left.values()) + 1) if self.left and self.leaving() else ended_ns

    def leaving(self) -> bool:
        """Every source that saw it join has seen it leave."""
        return bool(self.left) and self.left.keys() >= self.joined.keys()

    def add(self, mark: Mark) -> None:
        self.fresh = True
        if mark.source == Source.INFERRED and self.pid:
            return
        self.last_ns = max(self.last_ns, mark.time_ns)
        if not self.first_ns and mark.moment in _STEPPING:
            self.first_ns = mark.time_ns

    def add_run(self, run: MarkRun) -> None:
        """As `add` of marks that its process has made."""
        self.fresh, self.marked_by = True, run.whose
        self.last_ns = max(self.last_ns, *run.times_ns)
        if not self.first_ns:
            marks = zip(run.moments, run.times_ns, strict=True)
            self.first_ns = next((time for moment, time in marks if moment in _STEPPING and time), 0)

    def step(self, offset_ns: int) -> Step:
        """What it steps as; offset_ns: from mono to UTC."""
        return Step(self.number, self.tracker.size, self.first_ns + offset_ns, self.last_ns + offset_ns)

    def leave(self, time_ns: int) -> None:
        """No source will tell more of it as this rank."""
        self.left = dict.fromkeys(self.joined, time_ns) | self.left
        for source in self.left:
            self.tracker.leave(source)

    @property
    def young(self) -> bool:
        """Whether its number in the job has been checked a few times only."""
        return self.checks < _CHECKS_AT_FIRST

    def check_due(self, often: bool) -> bool:
        """Whether its number in the job is to be checked: always at first and at the end, then seldom.

        often: its job has others whose numbers are to be found, which are compared with its latest marks.
        """
        if not self.fresh or often or self.young or self.leaving():
            return self.fresh
        since_ns = self.last_ns - self.checked_ns
        stepped = self.tracker.last_number - self.checked_number >= CHECK_EVERY
        return since_ns >= (CHECK_EVERY_NS if stepped else SELDOM_NS)

    def checked(self) -> None:
        """Its number in the job is checked with all its marks."""
        self.fresh, self.checks, self.checked_ns = False, self.checks + 1, self.last_ns
        self.checked_number = self.tracker.last_number

    @property
    def claimed(self) -> bool:
        """It has a name, or is about to get one."""
        return bool(self.name) or self.is_claiming

    def find_earlier(self) -> None:
        """What its process has been before, now that this has its name, if it gets one."""
        lives, self.lives = [life for life in self.lives if life.name], []
        if lives:
            last = max(lives, key=lambda life: life.tracker.finished_ns)
            self.earlier = Earlier(last.name, last.stored(), last.count.trust, last.count.shift)

    def resized(self, size: int) -> bool:
        """Its job has another size by now: it has been set up anew."""
        return self.claimed and bool(size) and self.tracker.size not in (0, size)

    def unnamed(self) -> bool:
        """It steps, and it is not known yet of which job."""
        return not self.name and self.tracker.source is not None

    def gone(self, settled_ns: int) -> bool:
        """It has left, and all its rows are accounted for."""
        waits = bool(self.ended) or self.unnamed()
        return self.leaving() and not waits and max(self.left.values()) < settled_ns

    def present(self) -> tuple[int, int]:
        """From when on, and until when, it was seen to be there (mono)."""
        until = max(self.left.values()) if self.leaving() else NEVER
        return min(self.joined.values(), default=0), until

    def stored(self) -> Resumed:
        tracker = self.tracker
        end_ns = max(tracker.finished_ns, *self.left.values()) if self.left else tracker.finished_ns
        return Resumed(tracker.size, tracker.parameters, end_ns, tracker.last_number)

    def scores(self) -> Scores:
        """Of its sources that do not decide."""
        return [(self.name, score) for score in self.tracker.scores()]

    def is_rank(self, job: str, number: int) -> bool:
        """Whether what the traffic reports a rank is about it."""
        known_as = self.name or (self.earlier.name if self.earlier else "")
        return (known_as, self.number) == (job, number)

    def needed_since(self) -> int | None:
        """Start of the earliest iteration that is open or waits for its rows (mono ns); before the first one, its join.

        A collector that takes the session up knows of ranks with stored iterations only.
        """
        if self.ended:  # before any that is open
            return self.ended[0].start_ns
        if self.understanding is Understanding.NOT_UNDERSTOOD:
            return None
        open_since = self.tracker.open_since()
        if open_since is not None or self.leaving():
            return open_since
        if self.tracker.finished_ns < 0:
            return min(self.joined.values(), default=None)
        return self.tracker.finished_ns if self.late else None  # the next one may have begun, and nobody has said so


def keep_newest(gone: dict[Any, Any]) -> None:
    """Forget the oldest of those that are gone, of more than some."""
    while len(gone) > _MOST_GONE:
        del gone[next(iter(gone))]


# --- What the ranks of all hosts have to tell the job stage, in the order in which it came to be.

_FAR = 1 << 62  # beyond any time that is one
_MOST_RECOVERED = 1_000  # jobs


class RankLog:
    """One for all sessions. It knows the ranks by their serials until they are forgotten."""

    def __init__(self) -> None:
        self.ranks: dict[int, tuple[Owner, Rank]] = {}
        self._serials = self._sessions = 0
        self._opened: list[tuple[int, Holder]] = []
        self._jobs: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._steps: list[tuple[int, int, int, int]] = []
        self._step_events: list[StepEvents] = []
        self._stepped: list[Table] = []  # of STEP_UPDATE, before anything else
        self._claiming: list[Rank] = []
        self._again: set[str] = set()  # `young` after this tick
        self.unclear: dict[int, Rank] = {}
        """Those whose steps are not understood, or may not be, by serial."""
        self.recovered: dict[str, None] = {}
        """Jobs whose steps were not understood and are now."""
        self.young: set[str] = set()
        """Jobs with ranks that have begun lately: the numbers of all are checked at every tick."""

    def __bool__(self) -> bool:
        return bool(self._opened or self._rows or self._steps or self._stepped or self._step_events)

    def open(self, holder: Holder) -> int:
        self._sessions += 1
        self._opened.append((self._sessions, holder))
        return self._sessions

    def add(self, whose: Owner, rank: Rank) -> None:
        self._serials += 1
        rank.serial = self._serials
        self.ranks[rank.serial] = whose, rank

    def claim(self, session: int, rank: Rank, step: Step, wait: bool) -> None:
        """The rank steps; wait: False where there is no later."""
        rank.is_claiming = True
        self._claiming.append(rank)
        job = self._job(rank.tracker.job)
        about = About.CLAIM if wait else About.LAST_CLAIM
        self._rows.append((about, session, rank.serial, job, step.rank, rank.pid, *step[1:], 0, 0))

    def stepped(self, steps: Sequence[Table]) -> None:
        """Many ranks have stepped on: before anything that is reported others in this tick. Of STEP_UPDATE."""
        self._stepped += steps

    def step(self, rank: Rank, step: Step) -> None:
        self._steps.append((len(self._rows), rank.serial, step.size, step.last_ns))

    def append(self, about: About, rank: Rank, trust: Trust = Trust.RELATIVE, shift: int = 0) -> None:
        """What has become of a rank that has claimed."""
        self._rows.append((about, 0, rank.serial, 0, 0, 0, 0, 0, 0, trust, shift))

    def step_events(self, updates: Iterable[StepEvents]) -> None:
        """Numbers of ranks in their jobs are to be found."""
        self._step_events += updates

    def check(self, rank: Rank) -> None:
        """A rank's number is checked now; its job is young at the next tick, too, while the rank is."""
        rank.checked()
        if rank.young:
            self._again.add(rank.name)

    def checked(self) -> None:
        """All numbers that are due at a tick have been checked."""
        self.young, self._again = self._again, set()

    def understand(self, rank: Rank, understanding: Understanding) -> None:
        """How far its agent understands its steps."""
        before, rank.understanding = rank.understanding, understanding
        name = rank.name or rank.tracker.job
        if understanding is Understanding.NOT_UNDERSTOOD:
            self.recovered.pop(name, None)
        elif before is Understanding.NOT_UNDERSTOOD and len(self.recovered) < _MOST_RECOVERED:
            self.recovered[name] = None
        self.unclear.pop(rank.serial, None)
        if understanding is not Understanding.UNDERSTOOD:
            self.unclear[rank.serial] = rank

    def unclear_jobs(self, least: Understanding = Understanding.NOT_UNDERSTOOD) -> dict[str, Rank]:
        """Jobs that are understood no better than that, each with a rank; what a training script says is a fact."""
        return {
            rank.name or rank.tracker.job: rank
            for rank in self.unclear.values()
            if rank.understanding >= least and Source.HOOK not in rank.joined
        }

    def calls(self) -> dict[str, bool]:
        known = self.unclear_jobs()
        return {name: name in known for name in self.unclear_jobs(Understanding.UNDECIDED)}

    def forget(self, about: About, rank: Rank) -> None:
        self.unclear.pop(rank.serial, None)
        if self.ranks.pop(rank.serial, None):
            self.append(about, rank)

    def resume(self, job: str, number: int, trust: Trust, shift: int) -> None:
        """The dataset has iterations of this rank of the job."""
        self._rows.append((About.RESUME, 0, 0, self._job(job), number, 0, 0, 0, 0, trust, shift))

    def append_session(self, about: About, session: int) -> None:
        """Nothing is heard of a session, or it is over."""
        self._rows.append((about, session, *(0,) * 9))

    def close(self, session: int, ranks: Iterable[Rank]) -> None:
        for rank in ranks:
            self.ranks.pop(rank.serial, None)
            self.unclear.pop(rank.serial, None)
        self.append_session(About.OVER, session)

    def _turn(self, update: StepEvents) -> tuple[int, int]:
        """Ranks of one host after the other, and each after those that came before it."""
        known = self.ranks.get(update.serial)
        return (known[0].session if known else -1), update.serial

    def _job(self, name: str) -> int:
        return self._jobs.setdefault(name, len(self._jobs))

    def take(self) -> dict[str, Any]:
        """All of it, as the fields of TickNews."""
        fields = {
            "opened": self._opened,
            "jobs": list(self._jobs),
            "ranks": _table(self._rows, RANK_UPDATE),
            "steps": np.concatenate([*self._stepped, _table(self._steps, STEP_UPDATE)]),
            "step_events": sorted(self._step_events, key=self._turn),
        }
        for rank in self._claiming:
            rank.is_claiming = False
        self._opened, self._jobs, self._rows, self._steps, self._step_events, self._claiming = [], {}, [], [], [], []
        self._stepped = []
        return fields

    def apply_answer(self, counts: Iterable[tuple[int, Count]], lost: Iterable[tuple[int, bool]]) -> None:
        """How jobs count the iterations of some ranks, and whether processes are now what the traffic showed of
        some."""
        for serial, count in counts:
            if serial in self.ranks:
                ranks, rank = self.ranks[serial]
                rank.count = count
                ranks.recounted(rank)
        for serial, is_lost in lost:
            if serial in self.ranks:
                self.ranks[serial][1].lost = is_lost


def _table(rows: list[Any], dtype: "np.dtype[Any]") -> Table:
    try:
        return np.array(rows, dtype)
    except OverflowError:  # a time that is none
        return np.array([tuple(max(-_FAR, min(_FAR, value)) for value in row) for row in rows], dtype)
