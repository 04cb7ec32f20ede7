# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host: their marks, their iterations and whose bytes went by meanwhile."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable

from collector.host.flows import AllFlows, FlowTable
from collector.host.rank import NEVER, Rank, RankLog, Resumed, Scores, Steps, keep_newest
from collector.host.rank_table import RankTable
from collector.messages import About, Holder, StepEvents
from netmon.dl.account import HostAccount
from netmon.dl.iterations import Iteration, IterationTracker
from netmon.dl.numbering import Trust
from netmon.dl.understanding import Understanding
from netmon.mark_runs import MarkRun
from netmon.records import Mark, Moment, Source

# --- Marks that lead to nothing, or come too late: counted, kept where they may become of use, and said once.

_log = logging.getLogger(__name__)
_MOST_PENDING = 1_000  # marks kept per process that has not joined

REPEATED, GONE, STRANGER, DISTANT = (
    "repeated, out of order or out of any iteration",
    "of a process that is gone",
    "of a process that never joined",
    "from a distant past or future",
)
"""Why a mark is not used."""

Key = tuple[str, int, int]
"""Job as the process calls it, rank, pid."""


class RejectedMarks:
    """Those of one host, and what there is to say of its ranks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.unusable: Counter[str] = Counter()  # marks that led to nothing, by reason
        self._lines: dict[str, None] = {}  # an ordered set
        self._pending: dict[Key, list[Mark]] = {}

    @property
    def warnings(self) -> list[str]:
        """One line each; the last one counts the marks that were not used."""
        counts = ", ".join(f"{count} {reason}" for reason, count in self.unusable.items() if count)
        unused = [f"{self._host}: marks that were not used: {counts}"] if counts else []
        return [*self._lines, *unused]

    def warn(self, line: str) -> None:
        if line not in self._lines:
            self._lines[line] = None
            _log.warning(line)

    def set_pending(self, key: Key, mark: Mark) -> None:
        pending = self._pending.setdefault(key, [])
        self.unusable[STRANGER] += 1
        if not pending:
            self.warn(f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} are kept aside: it never joined")
        if len(pending) < _MOST_PENDING:
            pending.append(mark)

    def take_pending(self, key: Key) -> list[Mark]:
        return self._pending.pop(key, [])

    def late(self, mark: Mark, first: bool) -> None:
        """A mark has come after the rows around it had settled; first: its rank has not ended an iteration yet."""
        # Waits bound an iteration only where nothing follows; their lateness costs no other one. What the traffic
        # tells comes late by its nature, and is no finer than the account of what has settled.
        # The first step of a process is reported once the second one has shown what a step is.
        if mark.moment not in (Moment.FIRST_WAIT, Moment.LAST_WAIT) and mark.source != Source.INFERRED and not first:
            self.warn(
                f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} came after their rows had "
                "settled; near the iteration's edges rows carry its neighbour's number: raise --settle"
            )


# --- The ranks and their iterations.

LONGEST_NEED_NS = 30_000_000_000  # an older open iteration no longer holds back acknowledgements
LONGEST_HISTORY_NS = 3_600_000_000_000  # of a longer iteration, the account is that of its last hour

_RARE = frozenset((Moment.JOIN, Moment.LEAVE))


class Ranks:
    """All ranks of one host and session."""

    def __init__(
        self,
        session_index: int,
        holder: Holder,
        account: HostAccount,
        parameters: int,
        log: RankLog,
        rank_table: RankTable,
    ) -> None:
        """account: of the host's bytes. parameters: of models that do not report theirs.

        log: what the ranks of all hosts report to the job stage. steady: the ranks of all hosts that step regularly.
        """
        self._parameters = parameters
        self._ranks: dict[Key, Rank] = {}
        self._past: list[Rank] = []  # whose processes have joined as the same rank again; their rows have not settled
        self._gone: dict[Key, None] = {}
        self._left: dict[tuple[str, int], tuple[Resumed, Scores]] = {}  # of the last process that was it
        self._needed_ns = NEVER  # start of the earliest iteration that may still ask for the account
        self._table = rank_table
        self.account = account
        self.rejected = RejectedMarks(holder.host)
        self.renamed: dict[tuple[str, int], str] = {}  # (job, pid) → name, where they differ
        self.session, self._host = session_index, holder.host
        self._log, self._number = log, log.open(holder)
        self.unnamed = False  # whether a process steps and it is not known yet of which job
        self.offset_ns = 0  # from mono to UTC
        self._has_news, self._freezes = True, False  # the host, lately; a count stays as it is
        self._resumed: dict[tuple[str, int], Resumed] = {}
        self._fresh: list[tuple[Rank, Iteration]] = []
        self._stepped: dict[int, Rank] = {}  # by id: processes whose latest steps are not reported

    # --- what comes, and what becomes of it

    def resume(self, job: str, rank: int, stored: Resumed, trust: Trust, shift: int) -> None:
        """Take up a rank of which iterations are in the dataset, numbered with this shift."""
        self._resumed[job, rank] = stored
        self._log.resume(job, rank, trust, shift)

    def add_runs(self, runs: Iterable[MarkRun], settled_ns: int) -> None:
        """Take in marks. Rows before settled_ns have been added."""
        for run in runs:
            rank = self._table_row(run, settled_ns)
            if rank:
                self._step(rank, run)
            else:
                for mark in run.marks():
                    self._mark(mark, settled_ns)
        self._step_on()

    def _table_row(self, run: MarkRun, settled_ns: int) -> Rank | None:
        """The rank that a process reported by itself is, where these marks change nothing but its iterations."""
        rank = self._ranks.get((run.job, run.rank, run.pid)) if run.pid else None
        if rank:
            self._take_back(rank)
        if rank is None or rank.left or not rank.name or run.source == Source.INFERRED or run.size != rank.tracker.size:
            return None
        return rank if min(run.times_ns) >= settled_ns and _RARE.isdisjoint(run.moments) else None

    def _step(self, rank: Rank, run: MarkRun) -> None:
        """As _apply of each, to a rank in the table."""
        self._has_news = True
        unusable = rank.tracker.unusable
        ended, used_ns = rank.tracker.add_run(run)
        rank.add_run(run)
        self.account.cut_all(used_ns)
        rank.late.discard(run.source)
        self._stepped[id(rank)] = rank
        self._keep(rank, ended)
        if rank.tracker.unusable > unusable:
            self.rejected.unusable[REPEATED] += rank.tracker.unusable - unusable

    def _mark(self, mark: Mark, settled_ns: int) -> None:
        self._has_news |= mark.pid != 0
        key = self._key(mark)
        rank = self._ranks.get(key)
        if rank:
            self._take_back(rank)
        if mark.moment == Moment.JOIN:
            self._join(key, mark, settled_ns)
        elif key in self._gone:
            self.rejected.unusable[GONE] += mark.moment != Moment.LEAVE
        elif settled_ns - mark.time_ns > LONGEST_HISTORY_NS:
            self.rejected.unusable[DISTANT] += 1
        elif rank:
            self._apply(rank, mark, settled_ns)
        elif self._joins_by_stepping(mark):
            self._join(key, mark, settled_ns)
            self._apply(self._ranks[key], mark, settled_ns)
        else:
            self.rejected.set_pending(key, mark)

    def _joins_by_stepping(self, mark: Mark) -> bool:
        """Whether nobody will say that the process joins: its join was stored, or it is known by its traffic only."""
        return (mark.job, mark.rank) in self._resumed or mark.source == Source.INFERRED

    def ended(self) -> list[Iteration]:
        """Iterations that have ended since the last call; their account follows when their rows have settled."""
        fresh, self._fresh = self._fresh, []
        return [self._whole(rank, iteration) for rank, iteration in fresh]

    def _key(self, mark: Mark) -> Key:
        """Whose mark it is. The traffic knows no process: what it tells is about whoever steps as that rank."""
        if mark.pid == 0:
            steps = [key for key, rank in self._ranks.items() if rank.is_rank(mark.job, mark.rank)]
            if steps:
                return steps[-1]
        return mark.job, mark.rank, mark.pid

    def _join(self, key: Key, mark: Mark, settled_ns: int) -> None:
        self._gone.pop(key, None)
        rank = self._ranks.get(key)
        if rank and mark.source in rank.left and rank.claimed and not rank.leaving():
            self._log.append(About.REJOIN, rank)
        if rank is None or rank.leaving() or rank.resized(mark.size):
            lives = self._lives(key, mark)
            self._past += [rank] if rank else []
            rank = self._ranks[key] = Rank(IterationTracker(mark.job, mark.rank), key[2], lives=lives)
            self._log.add(self, rank)
            if all(life.name for life in lives):
                rank.find_earlier()
        rank.tracker.size = mark.size
        rank.tracker.observe_job(mark)
        rank.tracker.join(mark.source)
        rank.joined[mark.source] = mark.time_ns
        if mark.moment == Moment.JOIN and mark.source == Source.UPROBE:
            self._log.understand(rank, Understanding(min(max(mark.iteration, 0), Understanding.NOT_UNDERSTOOD)))
        rank.left.pop(mark.source, None)
        for early in self.rejected.take_pending(key):
            self._apply(rank, early, settled_ns)

    def _lives(self, key: Key, mark: Mark) -> list[Rank]:
        """What the process has been until now, if it was of the job: it is that no more."""
        job, _, pid = key
        lives = [rank for rank in self._all() if pid and rank.pid == pid and rank.tracker.job == job and rank.claimed]
        for rank in lives:
            self._take_back(rank)
            rank.later = True
            if not rank.leaving():
                rank.leave(mark.time_ns)
                if rank.name:
                    self._end(rank, leaving=True)
                self._release(rank)
        return lives

    def _apply(self, rank: Rank, mark: Mark, settled_ns: int) -> None:
        if not rank.pid and rank.lost:
            return  # a process is this rank now, somewhere, and tells more
        if mark.source == Source.INFERRED and rank.earlier and not rank.first_ns:
            return  # what it did when the job was set up anew
        unusable = rank.tracker.unusable
        if mark.moment == Moment.LEAVE:
            rank.left[mark.source] = mark.time_ns
            rank.tracker.leave(mark.source)
        else:
            if mark.size != rank.tracker.size:  # what it has stepped as until now was of the other size
                self._step_on()
            self._take(rank, mark, settled_ns)
        if rank.claimed:
            self._stepped[id(rank)] = rank
        self._go_on(rank)
        self.rejected.unusable[REPEATED] += rank.tracker.unusable - unusable

    def _take(self, rank: Rank, mark: Mark, settled_ns: int) -> None:
        unusable = rank.tracker.unusable
        rank.tracker.add(mark)
        rank.add(mark)
        # A mark that the tracker passes over has been heard before, as after a reconnection: no cut.
        repeated = rank.tracker.unusable > unusable
        if repeated:
            return
        on_time = self.account.cut(mark.time_ns, settled_ns)
        if on_time:
            rank.late.discard(mark.source)
        else:
            if mark.source != Source.INFERRED:
                rank.late.add(mark.source)
            self.rejected.late(mark, first=rank.tracker.finished_ns < 0)

    def _go_on(self, rank: Rank) -> None:
        """Ask for the rank's name, if it has none, and take what it has come to."""
        leaving = rank.leaving()
        if rank.unnamed() and (leaving or not rank.is_claiming):
            self._claim(rank, wait=not leaving)
        if rank.name:
            self._end(rank, leaving)
        if rank.claimed and leaving:
            self._release(rank)

    def _step_on(self) -> None:
        """Tell who has stepped: before somebody claims, and when all marks that have come are taken in."""
        stepped, self._stepped = self._stepped, {}
        for rank in stepped.values():
            self._log.step(rank, rank.step(self.offset_ns))

    def _release(self, rank: Rank) -> None:
        self._step_on()
        self._log.append(About.RELEASE, rank)

    def _end(self, rank: Rank, leaving: bool) -> None:
        self._keep(rank, rank.tracker.finished(leaving))

    def _keep(self, rank: Rank, ended: list[Iteration]) -> None:
        if ended:
            rank.ended += ended
            self._fresh += [(rank, iteration) for iteration in ended]

    def _claim(self, rank: Rank, wait: bool = True) -> None:
        self._step_on()
        self.unnamed = True
        self._log.claim(self._number, rank, rank.step(self.offset_ns), wait)

    def named(self, rank: Rank, name: str) -> None:
        """A process that steps is a rank of its job, or of another job of that name."""
        rank.name, tracker = name, rank.tracker
        self._log.young.add(name)
        rank.find_earlier()
        if rank.name != tracker.job:
            self.renamed[tracker.job, rank.pid] = rank.name
            self.rejected.warn(
                f"process {rank.pid} on {self._host} steps as rank {tracker.rank} of job {tracker.job!r} while "
                f"another process does: it is taken for another job, {rank.name!r}"
            )
        stored = self._resumed.pop((rank.name, tracker.rank), None)
        if (
            stored is None and rank.pid == 0
        ):  # known by its traffic, which is reported late: maybe of a process before it
            stored, _ = self._left.get((rank.name, tracker.rank), (None, []))
        if stored is None and rank.earlier:
            stored = rank.earlier.came_to
            self._log.append(About.GO_ON, rank, rank.earlier.trust, rank.earlier.shift)
        elif stored is None and rank.pid:
            self._log.append(About.FRESH, rank)
        if stored:
            tracker.size, tracker.parameters = tracker.size or stored.size, tracker.parameters or stored.parameters
            tracker.resume(stored.end_ns, stored.number)
        unusable = tracker.unusable
        self._end(rank, rank.leaving())
        self.rejected.unusable[REPEATED] += tracker.unusable - unusable

    def request_names(self) -> None:
        """Ask for the names of those that step and have none, with all that is known of them by now."""
        waiting = [rank for rank in self._all() if rank.unnamed()]
        for rank in waiting:
            self._claim(rank, wait=not rank.leaving())
            if rank.leaving():
                self._release(rank)
        self.unnamed = bool(waiting)

    def align(self, offset_ns: int, error_ns: int) -> None:
        """Ask for the common numbers of the ranks; offset_ns: what to add to mono times, right to error_ns."""
        self.offset_ns = offset_ns
        stepping = [rank for rank in self._loose() if rank.name]
        self._freezes = not self._has_news or any(rank.left or rank.settled_count for rank in stepping)
        for rank in stepping:
            if not rank.later and rank.check_due(rank.name in self._log.young):
                self._log.check(rank)
                events = rank.tracker.events(offset_ns)
                self._log.step_events([StepEvents(rank.serial, rank.tracker.trust, events, error_ns)])

    def aligned(self) -> None:
        """That has been answered: the count of who has left, or is not heard, stays as it is."""
        for rank in self._loose() if self._freezes else ():
            if not rank.name:
                continue
            rank.settled_count = rank.counted if rank.leaving() or not self._has_news else None

    def renumbered(self, rank: Rank, shift: int) -> None:
        """Numbers of a rank that were used have moved; shift: what is added to its own ones now."""
        self.rejected.warn(
            f"iterations of rank {rank.number} of job {rank.name!r} on {self._host} are numbered anew: "
            f"its own number {shift:+d}"
        )

    def _take_back(self, *ranks: Rank) -> None:
        for rank in ranks:
            if rank.row >= 0:
                self._table.remove(rank)

    def move_to_table(self, flows: FlowTable, everything: AllFlows) -> None:
        """Move ranks that step regularly into the table, once all that has settled is reported."""
        for rank in self._loose():
            if rank.marked_by and not self._fresh:
                job = flows.job(rank.name)
                rank_id = everything.rank_id(self.session, job, rank.number)
                self._table.adopt(self, rank, job, rank_id, self._about(rank))

    def recounted(self, rank: Rank) -> None:
        """Its job counts it in another way now."""
        if rank.row >= 0:
            self._table.recount(rank, self._about(rank))

    def settle(self, settled_ns: int, flows: FlowTable) -> list[Iteration]:
        """The iterations whose rows have all been added."""
        settled = []
        for rank in self._loose():
            if not (rank.name and rank.ended) or rank.ended[0].end_ns > settled_ns:  # they ascend
                continue
            due = [iteration for iteration in rank.ended if iteration.end_ns <= settled_ns]
            rank.ended = rank.ended[len(due) :]
            settled += [self._whole(rank, one) for one in due]
            flows.job(rank.name)
        self._forget(settled_ns)
        return settled

    def _forget(self, settled_ns: int) -> None:
        if self._past:
            for rank in self._past:
                if rank.gone(settled_ns):
                    self._log.forget(About.DROP, rank)
            self._past = [rank for rank in self._past if rank.serial in self._log.ranks]
        gone = [key for key, rank in self._ranks.items() if rank.left and rank.gone(settled_ns)]
        for key in gone:
            rank = self._ranks.pop(key)
            self._gone[key] = None
            if rank.name:
                _, marks = self._left.get((rank.name, rank.number), (None, []))
                self._left[rank.name, rank.number] = rank.stored(), rank.scores() if rank.pid else marks
            self._log.forget(About.FORGET, rank)
        if gone:
            keep_newest(self._gone)
            keep_newest(self._left)
        oldest = settled_ns
        loose = self._loose()
        for rank in loose:
            needed = rank.needed_since()
            before = settled_ns if needed is None else min(settled_ns, needed)
            rank.tracker.forget(before)
            oldest = min(oldest, before)
        self._needed_ns = max(oldest, settled_ns - LONGEST_HISTORY_NS) if loose else NEVER

    def request_last_names(self) -> None:
        """No more marks will come of those that step and have no name."""
        for rank in self._all():
            if rank.unnamed():
                self._claim(rank, wait=False)

    def end_of_stream(self) -> None:
        """No more marks will come: this may end iterations. See request_last_names for those without a name."""
        for rank in self._stepping():
            self._take_back(rank)
            self._end(rank, leaving=True)

    def release(self) -> None:
        """Nothing is heard of this host any more: its ranks may be taken by others, their numbers stay as they are."""
        self._has_news = False
        for rank in self._stepping():
            self._take_back(rank)
            rank.settled_count = rank.counted
        self._log.append_session(About.SILENT, self._number)

    def close(self) -> None:
        for rank in self._all():
            if rank.row >= 0:
                self._table.drop(rank)
        self._log.close(self._number, self._all())

    # --- as others ask for them

    def _all(self) -> Collection[Rank]:
        return [*self._past, *self._ranks.values()] if self._past else self._ranks.values()

    def _stepping(self) -> list[Rank]:
        return [rank for rank in self._all() if rank.name]

    def _loose(self) -> list[Rank]:
        return [rank for rank in self._all() if rank.row < 0]

    @property
    def loose(self) -> bool:
        return any(rank.row < 0 for rank in self._all())

    def stepping_jobs(self) -> set[str]:
        hidden = self._hidden()
        return {rank.name for rank in self._stepping() if not (rank.leaving() or rank.serial in hidden)}

    def _hidden(self) -> set[int]:
        """Serials of those whose process has left: their traffic is understood late."""
        traffic = [rank for rank in self._stepping() if not rank.pid]
        left = {(job, number) for job, number, pid in self._gone if pid} if traffic else set()
        return {rank.serial for rank in traffic if (rank.name, rank.number) in left}

    def names(self) -> list[tuple[str, int]]:
        """(job, rank) of each rank."""
        return [(rank.name, rank.number) for rank in self._stepping()]

    def steps(self) -> list[Steps]:
        """What rows have to know of each rank outside the rank table."""
        hidden = self._hidden()
        return [
            Steps(
                *(rank.name, rank.number, rank.pid != 0, rank.serial in hidden),
                *(*rank.present(), rank.counted.shift, rank.tracker.spans()),
            )
            for rank in self._loose()
            if rank.name
        ]

    def scores(self) -> tuple[Scores, Scores]:
        """(job, score) of each rank and source that does not decide; the last ones of ranks that have gone."""
        past = [score for _, scores in self._left.values() for score in scores]
        return [score for rank in self._stepping() for score in rank.scores()], past

    @property
    def busy(self) -> bool:
        """Whether there is a rank, or was one whose rows have not settled."""
        return bool(self._ranks or self._past)

    def waiting_ns(self) -> tuple[int, int]:
        """As Rank.due_ns of the first one, and since when the account may be requested (mono); NEVER: not at all."""
        return min((rank.due_ns() for rank in self._loose()), default=NEVER), self._needed_ns

    def states(self) -> dict[tuple[str, int], tuple[Trust, int]]:
        """By job and rank, what its count is taken up again by."""
        return {(rank.name, rank.number): (rank.count.trust, rank.count.shift) for rank in self._stepping()}

    def needed_since(self, horizon_ns: int) -> int | None:
        """Start of the earliest iteration that is still open, unless it is too old to wait for (mono ns).

        Of ranks outside the rank table; for the others see RankTable.needed_ns. What only the traffic shows holds
        nothing back: it comes late, by a guess, and of whoever looks like a rank.
        """
        ranks = [rank for rank in self._loose() if rank.pid and rank.tracker.source != Source.INFERRED]
        times = [time for time in (rank.needed_since() for rank in ranks) if time is not None]
        return min((time for time in times if time > horizon_ns - LONGEST_NEED_NS), default=None)

    # --- their iterations, under the numbers that all ranks of their job have in common

    def _about(self, rank: Rank) -> Iteration:
        """What all iterations of a rank have in common whose only source is what it is."""
        tracker = rank.tracker
        return Iteration(
            *(rank.name, rank.number, tracker.size, 0, 0, 0, Moment.STEP_START, Moment.STEP_END),
            *(tracker.source or Source.HOOK, 0, tracker.relative and rank.counted.relative),
            tracker.parameters or self._parameters,
            gradient_bytes=tracker.gradient_bytes,
            parameters_basis=tracker.parameters_basis or ("option" if self._parameters else ""),
            job_name=tracker.job_name,
        )

    def _whole(self, rank: Rank, iteration: Iteration) -> Iteration:
        """An iteration that has ended, as its job calls and counts it, with all that is known of it now.

        Another source may tell more of its communication until its rows have settled.
        """
        one = iteration
        _, shift, relative = rank.counted
        return Iteration(  # thousands a second: _replace would take twice as long
            *(rank.name, one.rank, one.size, one.number + shift, one.start_ns, one.end_ns),
            *(one.start_moment, one.end_moment, one.source, one.error_ns, one.relative and relative),
            *(one.parameters or self._parameters, *rank.tracker.communication(one.start_ns, one.end_ns)),
            one.gradient_bytes,
            one.parameters_basis or ("option" if self._parameters else ""),
            one.job_name,
        )
