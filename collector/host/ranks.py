# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host: who they are, and which of a job's ranks. Their iterations are in the table of all hosts."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from collector.host.flows import FlowTable
from collector.host.rank import NOWHERE, Earlier, Rank, RankLog, Rejected, Resumed, Scores, keep_newest
from collector.host.rank_table import BY_TRAFFIC, LONGEST_HISTORY_NS, RankTable
from collector.messages import About, Count, Holder, Step
from netmon.dl.iterations import PARAMETERS_BASES, Iteration, IterationTracker
from netmon.dl.numbering import Trust
from netmon.dl.step_alignment import Events, StepMoment, best_shifts, score
from netmon.dl.understanding import Understanding
from netmon.records import Mark, Moment, RankState, Source
from netmon.views import SourceScore

MOST_RANKS = 1_024
"""Of a host at a time."""

_MOST_WAITING = 1_000  # iterations that the traffic shows of a process that tells them itself


_Key = int | tuple[str, int]
"""The agent's id of a rank; job and number where only its traffic is known."""

_Row = tuple[int, ...]
"""Of netmon.records.ITERATION."""


class _Traffic:
    """What the traffic shows of one rank."""

    def __init__(self, job: str, number: int) -> None:
        self.tracker = IterationTracker(job, number)
        self.waiting: list[Iteration] = []  # that are not the rank's, as long as its process tells them


class Ranks:
    """All ranks of one host and session."""

    def __init__(
        self, session_index: int, holder: Holder, parameters: int, log: RankLog, table: RankTable, flows: FlowTable
    ) -> None:
        """parameters: of models that do not report theirs. log: what the ranks of all hosts report to the job stage.

        table: of the ranks of all hosts. flows: of this one.
        """
        self._parameters = parameters
        self._table, self._flows = table, flows
        self._ranks: dict[_Key, Rank] = {}
        self._traffic: dict[tuple[str, int], _Traffic] = {}
        self._gone: dict[tuple[str, int, bool], None] = {}  # job, number, whether by a process
        self._left: dict[tuple[str, int], tuple[Resumed, Scores]] = {}  # of the last process that was it
        self._resumed: dict[tuple[str, int], Resumed] = {}
        self._host_present = True  # the host, lately
        self.rejected = Rejected(holder.host)
        self.renamed: dict[tuple[str, int], str] = {}  # (job, pid) → name, where they differ
        self.session, self._host = session_index, holder.host
        self._log, self._number = log, log.open(holder)

    # --- what comes, and what becomes of it

    def resume(self, job: str, rank: int, stored: Resumed, trust: Trust, shift: int) -> None:
        """Take up a rank of which iterations are in the dataset, numbered with this shift."""
        self._resumed[job, rank] = stored
        self._log.resume(job, rank, trust, shift)

    def update(self, state: RankState) -> None:
        """A rank has joined, or its host knows more of it."""
        self.host_is_present()
        rank = self._ranks.get(state.rank_id)
        if rank is None:
            if len(self._ranks) >= MOST_RANKS:
                self.rejected.warn(f"{self._host} has {MOST_RANKS} ranks at a time: others are left out")
                return
            rank = self._begin(state.rank_id, state)
            self._hide(state.job, state.rank, hidden=False)
            self._log.understand(rank, Understanding.UNDERSTOOD)
        else:
            before, rank.state = rank.state, state
            if state.set_ups > before.set_ups and rank.claimed and not rank.left:
                self._log.append(About.REJOIN, rank)
            if state.understanding != before.understanding:
                self._log.understand(rank, Understanding(before.understanding))
            self._table.update(rank)
            if rank.name:
                self._describe(rank)

    def host_is_present(self) -> None:
        """The host sends again: counts that stayed as they were follow their jobs' again."""
        if not self._host_present:
            self._host_present = True
            for rank in self._ranks.values():
                if rank.frozen_count and not rank.left:
                    rank.frozen_count = None
                    self._table.unfreeze(rank)
                    self._describe(rank)

    def _begin(self, key: _Key, state: RankState) -> Rank:
        before = (rank for rank in self._ranks.values() if state.pid and rank.pid == state.pid)
        lives = [rank for rank in before if rank.state.job == state.job]
        rank = self._ranks[key] = Rank(state, -1, lives=lives)
        self._log.add(self, rank)
        self._table.add(self, rank, state.rank_id or BY_TRAFFIC + rank.serial % BY_TRAFFIC)
        return rank

    def _find_earlier(self, rank: Rank) -> None:
        """What its process has been before, if that has its name by now."""
        lives = [life for life in rank.lives if life.name]
        if lives:
            last = max(lives, key=lambda life: self._table.came_to(life).end_ns)
            rank.earlier = Earlier(last.name, self._table.came_to(last), last.count.trust, last.count.shift)

    def report(self, rank: Rank) -> None:
        """What has become of a rank, now that its iterations are known: it steps and has no name, or it has left."""
        self.claim(rank)
        if self._table.release(rank) and rank.claimed:
            self._log.append(About.RELEASE, rank)

    def claim(self, rank: Rank, wait: bool = True) -> None:
        """Request the name of a rank that steps and has none; wait: False where there is no later."""
        first_ns, last_ns = self._table.steps_since(rank)
        if rank.name or rank.is_claiming or not first_ns:
            return
        offset_ns = self._table.offset_ns(rank)
        step = Step(rank.number, rank.state.size, first_ns + offset_ns, last_ns + offset_ns)
        self._log.claim(self._number, rank, step, wait=wait and not rank.left)

    def named(self, rank: Rank, name: str) -> None:
        """A process that steps is a rank of its job, or of another job of that name."""
        rank.name, state = name, rank.state
        self._log.young.add(name)
        self._find_earlier(rank)
        rank.lives = []
        if name != state.job:
            self.renamed[state.job, rank.pid] = name
            self.rejected.warn(
                f"process {rank.pid} on {self._host} steps as rank {rank.number} of job {state.job!r} while "
                f"another process does: it is taken for another job, {name!r}"
            )
        stored = self._resumed.pop((name, rank.number), None)
        if stored is None and not rank.pid:  # it is known by its traffic, which is understood late
            stored, _ = self._left.get((name, rank.number), (None, []))
        if stored is None and rank.earlier:
            stored = rank.earlier.came_to
            self._log.append(About.GO_ON, rank, rank.earlier.trust, rank.earlier.shift)
        elif stored is None and rank.pid:
            self._log.append(About.FRESH, rank)
        job = self._flows.job(name)
        self._table.name(rank, job, self._flows.rank_id(job, rank.number), stored or NOWHERE)
        self._describe(rank)

    def _describe(self, rank: Rank) -> None:
        """What all its iterations have in common."""
        state, source = rank.state, rank.state.parameters_source
        basis = PARAMETERS_BASES.get(Source(source), "") if source else ""
        about = Iteration(
            *(rank.name, rank.number, state.size, 0, 0, 0, Moment.STEP_START, Moment.STEP_END, Source.HOOK, 0),
            *(state.trust == Trust.RELATIVE and rank.counted.relative, state.parameters or self._parameters),
            gradient_bytes=state.gradient_bytes,
            parameters_basis=basis or ("option" if self._parameters else ""),
            job_name=state.job_name,
        )
        self._table.describe(rank, about)

    def recounted(self, rank: Rank) -> None:
        """Its job counts it in another way now."""
        if rank.row >= 0 and rank.name and not rank.frozen_count:
            self._describe(rank)

    def renumbered(self, rank: Rank, shift: int) -> None:
        """Called where they have been stored. shift: what is added to its own ones now."""
        if rank.row >= 0 and self._table.has_settled(rank):
            self.rejected.warn(
                f"iterations of rank {rank.number} of job {rank.name!r} on {self._host} are numbered anew: "
                f"its own number {shift:+d}"
            )

    def freeze(self, rank: Rank) -> None:
        """Its count stays as it is, whatever the others' do."""
        rank.frozen_count = rank.counted
        self._table.freeze(rank)

    def add_scores(self, agent_id: int, scores: list[SourceScore]) -> None:
        """How the other sources of a rank do against the best one."""
        rank = self._ranks.get(agent_id)
        if rank:
            rank.scores = scores

    def forget(self, rank: Rank) -> None:
        """It has left, and all its rows have settled."""
        key = next((key for key, one in self._ranks.items() if one is rank), None)
        again = any(
            one is not rank and (one.pid, one.state.job, one.number) == (rank.pid, rank.state.job, rank.number)
            for one in self._ranks.values()
        )
        if rank.name:
            traffic = self._traffic.get((rank.name, rank.number))
            _, before = self._left.get((rank.name, rank.number), (None, []))
            scores = self._scores(rank, traffic) if rank.pid else before
            self._left[rank.name, rank.number] = self._table.came_to(rank), scores
            keep_newest(self._left)
        self._gone[rank.name or rank.state.job, rank.number, rank.pid != 0] = None
        keep_newest(self._gone)
        if key is not None:
            del self._ranks[key]
        self._log.forget(About.DROP if again and rank.pid else About.FORGET, rank)
        self._table.drop(rank)
        if rank.pid:
            self._hide(rank.name or rank.state.job, rank.number, hidden=True)
        else:
            self._traffic.pop((rank.name, rank.number), None)

    def _hide(self, job: str, number: int, hidden: bool) -> None:
        """hidden: a process that was this rank has left; its traffic is understood late."""
        if not hidden:
            self._gone.pop((job, number, True), None)
        shown = self._ranks.get((job, number))
        if shown:
            self._table.hide(shown, hidden)

    def processes(self) -> list[tuple[str, int]]:
        """Job and number of the ranks whose processes are there."""
        return [(one.name or one.state.job, one.number) for one in self._ranks.values() if one.pid and not one.left]

    def release(self) -> None:
        """This host is silent: its ranks may be taken by others, their numbers stay as they are."""
        self._host_present = False
        for rank in self._ranks.values():
            if rank.name:
                self.freeze(rank)
        self._log.append_session(About.SILENT, self._number)

    def close(self) -> None:
        for rank in self._ranks.values():
            self._table.drop(rank)
        self._log.close(self._number, self._ranks.values())

    # --- what the traffic shows

    def infer(self, marks: Iterable[Mark], settled_ns: int) -> list[_Row]:
        """Marks by the traffic, of no process → iterations, as rows of netmon.records.ITERATION."""
        rows = list[_Row]()
        for (job, number), own in groupby(marks, lambda mark: (mark.job, mark.rank)):
            some = [mark for mark in own if settled_ns - mark.time_ns <= LONGEST_HISTORY_NS]
            if some and (rank := self._shown(job, number, some[0])):
                rows += self._see(rank, job, number, some)
        return rows

    def _shown(self, job: str, number: int, first: Mark) -> Rank | None:
        """Which rank the traffic shows: whoever steps as it, or nobody that is known."""
        for one in self._ranks.values():
            if not one.name:
                self._find_earlier(one)
        known = [one for one in self._ranks.values() if one.is_rank(job, number)]
        rank = known[-1] if known else self._ranks.get((job, number))
        if rank:
            if rank.pid and rank.earlier and not self._table.steps_since(rank)[0]:
                return None  # what it did when the job was set up anew
            return None if not rank.pid and rank.lost else rank  # a process is this rank now, somewhere, and tells more
        if (job, number, False) in self._gone or first.moment is Moment.LEAVE:
            return None
        rank = self._begin((job, number), RankState(0, job, number, first.size, 0, first.time_ns))
        self._table.hide(rank, hidden=(job, number, True) in self._gone)
        return rank

    def _see(self, rank: Rank, job: str, number: int, marks: list[Mark]) -> list[_Row]:
        seen = self._traffic.setdefault((job, number), _Traffic(job, number))
        for mark in marks:
            if mark.moment is not Moment.LEAVE:
                seen.tracker.add(mark)
                continue
            seen.tracker.leave(Source.INFERRED)
            if not rank.pid:
                self._leave(rank, mark.time_ns)
        ended = [_whole(one, seen.tracker) for one in seen.tracker.finished()]
        seen.tracker.forget(seen.tracker.finished_ns)
        shift = 0
        if rank.pid:
            seen.waiting = [*seen.waiting, *ended][-_MOST_WAITING:]
            if not self._stands_in(rank, seen):
                return []
            shift = self._shift(rank, seen)
            ended, seen.waiting = seen.waiting, []
        agent_id = self._table.agent_id(rank)
        return [_row(agent_id, one, shift) for one in ended] + self._under_way(agent_id, rank, seen, shift)

    def _under_way(self, agent_id: int, rank: Rank, seen: _Traffic, shift: int) -> list[_Row]:
        start = None if rank.left else seen.tracker.under_way()
        if start is None:
            return []
        whose = agent_id, start.number + shift, int(Source.INFERRED), start.moment, 0
        return [(*whose, start.time_ns, 0, start.error_ns, 0, 0, 0)]

    def _leave(self, rank: Rank, time_ns: int) -> None:
        rank.state = replace(rank.state, left_ns=max(time_ns, 1))
        self._table.update(rank)

    def _stands_in(self, rank: Rank, seen: _Traffic) -> bool:
        """Whether the traffic tells of it now: its process is there, and tells nothing of its steps, or no more."""
        seen.waiting = [one for one in seen.waiting if one.start_ns >= self._table.finished_ns(rank)]
        first_ns, _ = self._table.steps_since(rank)
        return not rank.left and (not first_ns or self._table.is_silent(rank, seen.waiting))

    def _shift(self, rank: Rank, seen: _Traffic) -> int:
        """What to add to the numbers of the traffic, to have those of the process."""
        (found,) = best_shifts([self._table.events(rank)], [seen.tracker.events()])
        return found.shift - self._table.own_shift(rank) if found else 0

    # --- as others request them

    def stepping_jobs(self) -> set[str]:
        return {
            rank.name for rank in self._ranks.values() if rank.name and not (rank.left or self._table.is_hidden(rank))
        }

    def names(self) -> list[tuple[str, int]]:
        """(job, rank) of each rank."""
        return [(rank.name, rank.number) for rank in self._ranks.values() if rank.name]

    def _scores(self, rank: Rank, traffic: _Traffic | None) -> Scores:
        scores = [(rank.name, one) for one in rank.scores if one.iterations]
        if rank.pid and traffic and not rank.left and (shown := self._score(rank, traffic)):
            scores.append((rank.name, shown))
        return scores

    def _score(self, rank: Rank, traffic: _Traffic) -> SourceScore | None:
        """How the traffic does against what the process tells."""
        reference = self._table.source(rank)
        if reference in (None, Source.INFERRED):
            return None
        found = traffic.tracker.events() or dict.fromkeys(StepMoment, Events.none())
        one = score(Source.INFERRED, reference, found, self._table.events(rank))
        return one if one and one.iterations else None

    def scores(self) -> tuple[Scores, Scores]:
        """(job, score) of each rank and source that does not decide; the last ones of ranks that have gone."""
        past = [score for _, scores in self._left.values() for score in scores]
        there = [rank for rank in self._ranks.values() if rank.name]
        return [one for rank in there for one in self._scores(rank, self._traffic.get((rank.name, rank.number)))], past

    def states(self) -> Mapping[tuple[str, int], Count]:
        """By job and rank, what its count is taken up again by."""
        return {(rank.name, rank.number): rank.count for rank in self._ranks.values() if rank.name}


def _whole(one: Iteration, tracker: IterationTracker) -> Iteration:
    first, last, wait = tracker.communication(one.start_ns, one.end_ns)
    return one._replace(comm_start_ns=first, comm_end_ns=last, wait_start_ns=wait)


def _row(agent_id: int, one: Iteration, shift: int) -> _Row:
    whose = agent_id, one.number + shift, int(one.source), int(one.start_moment), int(one.end_moment)
    return *whose, one.start_ns, one.end_ns, one.error_ns, one.comm_start_ns, one.wait_start_ns, one.comm_end_ns
