# SPDX-License-Identifier: Apache-2.0
"""What the ranks of all hosts have to tell the job stage, in the order in which it came to be."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from collector.host.rank import Owner, Rank
from collector.messages import RANK_UPDATE, STEP_UPDATE, About, Count, Holder, Step, StepEvents
from netmon.dl.numbering import Trust
from netmon.dl.understanding import Understanding
from netmon.records import Source, Table

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
        """Whether there is something to report."""
        return bool(self._opened or self._rows or self._steps or self._stepped or self._step_events)

    def open(self, holder: Holder) -> int:
        """A number for a session."""
        self._sessions += 1
        self._opened.append((self._sessions, holder))
        return self._sessions

    def add(self, whose: Owner, rank: Rank) -> None:
        """A rank that is new gets its serial."""
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
        """The rank has stepped on."""
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
        """It is no more."""
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
        """A session is over, with its ranks."""
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
