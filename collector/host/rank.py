# SPDX-License-Identifier: Apache-2.0
"""One process that trains, and what the ranks of all hosts report to the job stage."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from collector.messages import NO_NUMBERS, RANK_UPDATE, STEP_UPDATE, About, Count, Holder, Step, StepEvents
from netmon.dl.numbering import Trust
from netmon.dl.understanding import Understanding
from netmon.records import RankState, Table
from netmon.views import SourceScore

_log = logging.getLogger(__name__)

Scores = list[tuple[str, SourceScore]]
"""(job, how a source of a rank's iterations does against the best one)."""

_MOST_GONE = 1_000  # processes remembered as gone


class Resumed(NamedTuple):
    """How far a rank has come."""

    size: int
    parameters: int
    end_ns: int  # of its last iteration, mono
    number: int  # of that iteration, as the rank counts


NOWHERE = Resumed(0, 0, -1, -1)


class Earlier(NamedTuple):
    """What a process has been in the same job, before the job gave its ranks out anew."""

    name: str  # the job's
    came_to: Resumed
    trust: Trust
    shift: int  # of its numbers


class Rejected:
    """Iterations of one host that lead to nothing, and what else there is to say of its ranks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.unusable: Counter[str] = Counter()  # iterations, by reason
        self._lines: dict[str, None] = {}  # an ordered set

    def __bool__(self) -> bool:
        return bool(self._lines or self.unusable)

    @property
    def warnings(self) -> list[str]:
        """One line each; the last one counts the iterations that were not used."""
        counts = ", ".join(f"{count} {reason}" for reason, count in self.unusable.items() if count)
        unused = [f"{self._host}: iterations that were not used: {counts}"] if counts else []
        return [*self._lines, *unused]

    def warn(self, line: str) -> None:
        if line not in self._lines:
            self._lines[line] = None
            _log.warning(line)

    def late(self, rank: "Rank") -> None:
        """An iteration of it has come after the rows around it had settled."""
        self.warn(
            f"iterations of rank {rank.number} of job {rank.state.job!r} on {self._host} came after their rows had "
            "settled; near their edges rows carry the neighbour's number: raise --settle"
        )


class Owner(Protocol):
    """The ranks of a session, as who keeps ranks of all sessions knows them."""

    session: int  # of the session
    rejected: Rejected

    def host_is_present(self) -> None:
        """Its host sends again, after a silence."""

    def claim(self, rank: "Rank", wait: bool = True) -> None:
        """It steps and has no name; wait: False where there is no later."""

    def report(self, rank: "Rank") -> None:
        """What has become of it, now that its iterations are known."""

    def freeze(self, rank: "Rank") -> None:
        """Its count stays as it is."""

    def forget(self, rank: "Rank") -> None:
        """It has left, and all its rows have settled."""

    def named(self, rank: "Rank", name: str) -> None:
        """It is a rank of the job of this name."""

    def recounted(self, rank: "Rank") -> None:
        """Its job counts its iterations in another way now."""

    def renumbered(self, rank: "Rank", shift: int) -> None:
        """Numbers have moved, which may have been used; shift: what is added to its own ones now."""


@dataclass
class Rank:
    """A process that was seen to join; it is a rank of a job from its first step on, when it gets its name."""

    state: RankState  # as its host knows it; pid 0: only its traffic is known
    row: int  # in the rank table; −1: it is there no more
    name: str = ""  # the job's, as claimed; empty: it has not stepped
    earlier: Earlier | None = None
    serial: int = 0  # by which the job stage knows it
    is_claiming: bool = False  # it claims a name, and has not been answered
    lives: "list[Rank]" = field(default_factory=list)  # what its process has been before, where that has no name yet
    lost: bool = False  # only its traffic is known, and a process is this rank now
    count: Count = NO_NUMBERS  # what the job stage says of its numbers
    frozen_count: Count | None = None  # the same once it has left or its host is silent: the others go on
    came_to: Resumed = NOWHERE  # when it has left the table
    scores: list[SourceScore] = field(default_factory=list)  # of its sources that do not decide

    @property
    def number(self) -> int:
        return self.state.rank

    @property
    def pid(self) -> int:
        return self.state.pid

    @property
    def counted(self) -> Count:
        """How its job counts its iterations."""
        return self.frozen_count or self.count

    @property
    def left(self) -> bool:
        """Every source that saw it join has seen it leave."""
        return self.state.left_ns > 0

    @property
    def understanding(self) -> Understanding:
        return Understanding(self.state.understanding)

    @property
    def claimed(self) -> bool:
        """It has a name, or is about to get one."""
        return bool(self.name) or self.is_claiming

    def is_rank(self, job: str, number: int) -> bool:
        """Whether what the traffic reports of a rank is about it."""
        known_as = self.name or (self.earlier.name if self.earlier else "")
        return (known_as, self.number) == (job, number)


def keep_newest(gone: dict[Any, Any]) -> None:
    """Forget the oldest of those that are gone, of more than some."""
    while len(gone) > _MOST_GONE:
        del gone[next(iter(gone))]


# --- What the ranks of all hosts report to the job stage, in the order of the events.

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
        self._step_events: list[StepEvents] = []
        self._stepped: list[Table] = []  # of STEP_UPDATE, before anything else
        self._claiming: list[Rank] = []
        self.unclear: dict[int, Rank] = {}
        """Those whose steps are not understood, or may not be, by serial."""
        self.recovered: dict[str, None] = {}
        """Jobs whose steps were not understood and are now."""
        self.young: set[str] = set()
        """Jobs with ranks that have begun lately: the numbers of all are checked at every tick."""

    def __bool__(self) -> bool:
        return bool(self._opened or self._rows or self._stepped or self._step_events)

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
        job = self._job(rank.state.job)
        about = About.CLAIM if wait else About.LAST_CLAIM
        self._rows.append((about, session, rank.serial, job, step.rank, rank.pid, *step[1:], 0, 0))

    def stepped(self, steps: Sequence[Table]) -> None:
        """Many ranks have stepped on: before anything that is reported others in this tick. Of STEP_UPDATE."""
        self._stepped += steps

    def append(self, about: About, rank: Rank, trust: Trust = Trust.RELATIVE, shift: int = 0) -> None:
        """What has become of a rank that has claimed."""
        self._rows.append((about, 0, rank.serial, 0, 0, 0, 0, 0, 0, trust, shift))

    def step_events(self, updates: Iterable[StepEvents]) -> None:
        """Numbers of ranks in their jobs are to be found."""
        self._step_events += updates

    def checked(self, again: set[str]) -> None:
        """All numbers that are due at a tick have been checked; again: jobs whose ranks are young at the next, too."""
        self.young = again

    def understand(self, rank: Rank, before: Understanding) -> None:
        """How far its agent understands its steps has changed, or is not known from before."""
        name = rank.name or rank.state.job
        if rank.understanding is Understanding.NOT_UNDERSTOOD:
            self.recovered.pop(name, None)
        elif before is Understanding.NOT_UNDERSTOOD and len(self.recovered) < _MOST_RECOVERED:
            self.recovered[name] = None
        self.unclear.pop(rank.serial, None)
        if rank.understanding is not Understanding.UNDERSTOOD:
            self.unclear[rank.serial] = rank

    def unclear_jobs(self, least: Understanding = Understanding.NOT_UNDERSTOOD) -> dict[str, Rank]:
        """Jobs that are understood no better than that, each with a rank; what a training script says is a fact."""
        return {
            rank.name or rank.state.job: rank
            for rank in self.unclear.values()
            if rank.understanding >= least and not rank.state.hooked
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
        """A session is silent, or has ended."""
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
            "steps": np.concatenate([np.empty(0, STEP_UPDATE), *self._stepped]),
            "step_events": sorted(self._step_events, key=self._turn),
        }
        for rank in self._claiming:
            rank.is_claiming = False
        self._opened, self._jobs, self._rows, self._step_events, self._claiming = [], {}, [], [], []
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
