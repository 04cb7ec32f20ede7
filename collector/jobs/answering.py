# SPDX-License-Identifier: Apache-2.0
"""What the job stage answers within a tick: who is which rank, common numbers, remote ends."""

from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import partial

from collector.jobs.common_numbers import Numbers
from collector.jobs.rank_claims import Claims
from collector.jobs.remote_ends import RemoteEnds
from collector.messages import Holder, Step
from collector.tick_messages import UNTOLD, About, BeatsTold, Count, TickAnswer, TickNews
from netmon.dl.numbering import RankEvents, Trust
from netmon.records import Table

_Row = tuple[int, int, int, int, int, int, int, int, int, int, int]  # of RANKS_TOLD


@dataclass
class _Rank:
    """What is known of a rank that has claimed."""

    session: int
    holder: Holder
    number: int
    name: str = ""  # of its job, as given
    lost: bool = False  # as told
    count: Count = UNTOLD  # as told


class Answering:
    """The ranks and flows of all hosts, as far as they have to do with each other."""

    def __init__(self) -> None:
        """Begin without hosts."""
        self._numbers, self._claims, self._ends = Numbers(), Claims(), RemoteEnds()
        self._sessions: dict[int, tuple[Holder, set[int]]] = {}  # and the serials of its ranks
        self._ranks: dict[int, _Rank] = {}  # by serial
        self._named: dict[str, set[int]] = {}  # serials by job
        self._alike: Counter[tuple[str, int]] = Counter()  # serials, by job and rank
        self._by_traffic: set[int] = set()  # serials that were named, of no process
        self._versions: dict[str, int] = {}  # of the numbers of jobs, as told
        self._touched: set[str] = set()  # jobs whose numbers may have changed
        self._names: dict[int, str] = {}  # given now

    def __len__(self) -> int:
        """How much is known: sessions, ranks, jobs and flows."""
        ranks: tuple[Sized, ...] = self._sessions, self._ranks, self._named, self._alike, self._by_traffic
        return sum(map(len, (*ranks, self._versions, self._ends, self._numbers, self._claims)))

    def hear(self, news: TickNews) -> TickAnswer:
        """Take in what is new on the hosts."""
        self._names, self._touched = {}, set()
        for session, holder in news.opened:
            self._sessions[session] = holder, set()
        self._hear_ranks(news)
        moved = self._hear_beats(news.beats)
        return TickAnswer(
            names=list(self._names.items()),
            lost=list(self._lost()),
            counts=self._counts(),
            moved=moved,
            peers=self._ends.hear(news.flows_over.tolist(), news.flows),
        )

    def _hear_ranks(self, news: TickNews) -> None:
        steps = news.steps["after"].tolist()
        first = 0
        for place, row in enumerate(news.ranks.tolist()):
            end = first
            while end < len(steps) and steps[end] <= place:
                end += 1
            if end > first:
                self._step(news.steps[first:end])
                first = end
            self._take(row, news.jobs)
        self._step(news.steps[first:])

    def _step(self, steps: Table) -> None:
        for _, serial, size, last_ns in steps.tolist():
            rank = self._ranks.get(serial)
            if rank and rank.name:
                self._claims.hold(rank.name, Step(rank.number, size, last_ns, last_ns), rank.holder)

    def _take(self, row: _Row, jobs: Sequence[str]) -> None:
        about, session, serial, job, number, pid, size, since_ns, last_ns, trust, shift = row
        if about in (About.CLAIM, About.LAST_CLAIM):
            if session in self._sessions:
                whose = self._rank(serial, session, number, pid)
                step = Step(number, size, since_ns, last_ns)
                self._claim(serial, whose, jobs[job], step, wait=about == About.CLAIM)
        elif about == About.RESUME:
            name = jobs[job]
            self._touched.add(name)
            self._numbers.resume(name, number, Trust(trust), shift)
        elif about == About.SILENT:
            if session in self._sessions:
                self._claims.release_session(self._sessions[session][0].session)
        elif about == About.OVER:
            self._end_session(session)
        elif serial in self._ranks:
            self._change(serial, about, Trust(trust), shift)

    def _rank(self, serial: int, session: int, number: int, pid: int) -> _Rank:
        if serial not in self._ranks:
            holder, serials = self._sessions[session]
            serials.add(serial)
            self._ranks[serial] = _Rank(session, holder._replace(pid=pid), number)
        return self._ranks[serial]

    def _claim(self, serial: int, rank: _Rank, job: str, step: Step, wait: bool) -> None:
        if rank.name:
            return  # asked twice in one message
        rank.name = self._claims.claim(job, step, rank.holder, wait)
        if rank.name:
            self._names[serial] = rank.name
            self._named.setdefault(rank.name, set()).add(serial)
            self._alike[rank.name, rank.number] += 1
            self._touched.add(rank.name)
            self._versions.pop(rank.name, None)  # it has not been told its count
            if not rank.holder.pid:
                self._by_traffic.add(serial)

    def _change(self, serial: int, about: int, trust: Trust, shift: int) -> None:
        rank = self._ranks[serial]
        if about in (About.FORGET, About.DROP):
            self._forget(serial, numbers=about == About.FORGET)
        elif rank.name:
            self._touched.add(rank.name)
            if about == About.RELEASE:
                self._claims.release(rank.name, rank.number, rank.holder)
            elif about == About.FRESH:
                self._numbers.forget(rank.name, rank.number)
            elif about == About.GO_ON:
                self._numbers.go_on(rank.name, rank.number, trust, shift)
            elif about == About.REJOIN:
                self._numbers.go_on(rank.name, rank.number, *self._numbers.state(rank.name, rank.number))

    def _forget(self, serial: int, numbers: bool) -> None:
        """Let go of a rank; numbers: and of its count, unless somebody else is that rank."""
        rank = self._ranks.pop(serial)
        self._sessions[rank.session][1].discard(serial)
        self._by_traffic.discard(serial)
        if not rank.name:
            return
        whose, serials = (rank.name, rank.number), self._named[rank.name]
        serials.discard(serial)
        self._alike[whose] -= 1
        if not self._alike[whose]:
            del self._alike[whose]
            if numbers and not self._claims.held(*whose):
                self._numbers.forget(*whose)
                self._touched.add(rank.name)
        if not serials:
            del self._named[rank.name]
            self._versions.pop(rank.name, None)

    def _end_session(self, session: int) -> None:
        if session not in self._sessions:
            return
        holder, serials = self._sessions[session]
        self._claims.release_session(holder.session)
        whose = {(self._ranks[serial].name, self._ranks[serial].number) for serial in serials}
        for serial in list(serials):
            self._forget(serial, numbers=False)
        for name, number in whose:
            if name and not self._claims.held(name, number):  # by a later session
                self._numbers.forget(name, number)
                self._touched.add(name)
        del self._sessions[session]

    def _hear_beats(self, beats: Iterable[BeatsTold]) -> list[tuple[int, int]]:
        moved: list[tuple[int, int]] = []

        def moves(serial: int, shift: int) -> None:
            moved.append((serial, shift))

        for serial, trust, events, error_ns in beats:
            rank = self._ranks.get(serial)
            if rank and rank.name:
                self._touched.add(rank.name)
                told = RankEvents(rank.number, trust, events, error_ns)
                self._numbers.tell(rank.name, told, partial(moves, serial))
        self._numbers.decide()
        return moved

    def _counts(self) -> list[tuple[int, Count]]:
        changed = []
        for name in self._touched:
            version = self._numbers.version(name)
            if name not in self._named or self._versions.get(name) == version:
                continue
            self._versions[name] = version
            for serial in self._named[name]:
                rank = self._ranks[serial]
                state = self._numbers.state(name, rank.number)
                count = Count(*state, self._numbers.relative(name, rank.number))
                if count != rank.count:
                    rank.count = count
                    changed.append((serial, count))
        return changed

    def _lost(self) -> Iterable[tuple[int, bool]]:
        for serial in self._by_traffic:
            rank = self._ranks[serial]
            lost = self._claims.holder(rank.name, rank.number) not in (None, rank.holder)
            if lost != rank.lost:
                rank.lost = lost
                yield serial, lost
