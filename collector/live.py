# SPDX-License-Identifier: Apache-2.0
"""What ticks make final, for all who look while it is new: viewers, verdicts, and whoever gets full resolution."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from collector.ending import end_tasks
from collector.flushing import Flushing
from collector.full_resolution import FullResolution, PullRequest, Triggers
from collector.host.iteration_rows import Accounted
from collector.host.session import Session
from collector.host.stage import Settled
from collector.host.tables import Tables
from collector.judging.advising import Advising
from collector.judging.hangs import Hangs
from collector.judging.judging import Judging
from collector.quarantine import Failures
from collector.settings import Settings
from collector.view.frozen import Frozen, page
from collector.view.job_views import Jobs
from collector.view.sessions import Sessions
from collector.view.view import RankPairs, View
from netmon.dl.sharing.advice import Advice
from netmon.errors import DataError
from netmon.views import Hang, RowQuery, Selection, Snapshot, Verdict

_log = logging.getLogger(__name__)


class Dataset(Protocol):
    """What the collector itself reads of what it has stored."""

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """As netmon.views.Rows has them. Blocks for each. Raises NetmonError."""

    def verdicts(self, job: str, since_ns: int, until_ns: int) -> Sequence[Verdict]:
        """Made now, on a job's iterations that stand out and overlap this time (UTC). Blocks. Raises DataError."""

    def advice(self, jobs: Collection[str]) -> Advice:
        """On the last seconds of these jobs and those on their links; none: of all. Blocks. Raises DataError."""


class Live:
    """Of one collector. Viewers see the newest session of each host."""

    def __init__(
        self,
        settings: Settings,
        flushing: Flushing,
        failures: Failures,
        newest: Callable[[], Sequence[Session]],
        recording: Callable[[Collection[str]], Sequence[Session]],
        silent_s: Callable[[float], float],
    ) -> None:
        """newest: the session of each host that viewers see. recording: of each of these hosts, the session that is
        connected. silent_s: see Intake. Nothing is shown before `begin`.
        """
        self._settings, self._flushing, self._failures, self._recording = settings, flushing, failures, recording
        self._newest, self._shows_newest, self._silent_s = newest, False, silent_s
        self.jobs = Jobs(settings.parameters)
        self.full, self._triggers = FullResolution(), Triggers(settings)
        self.stored: Dataset | None = None  # of the dataset that the sink writes, where somebody can read them
        self.on_accounted: Callable[[Session, Accounted], None] | None = None
        """Called with the iterations of each session whose rows have settled."""
        self.ticks = 0  # how often what viewers see has changed
        self.watched: list[Selection] = []
        """What is looked at once a second or more often, by each viewer."""
        self._pulling: set[asyncio.Task[None]] = set()

    def begin(self, tables: Tables, sessions: Mapping[int, Session]) -> None:
        """The host stage has these tables from now on, and in future these sessions, by index."""
        self._by_index, self._sessions, self._shows_newest = sessions, Sessions(tables), False
        self._view = View(self._sessions, self.jobs, self._settings)
        self.judging = Judging(tables, sessions, self.jobs, self._store_verdict, self._from_dataset)
        self.hangs = Hangs(tables, sessions, self.jobs.hung, self._store_hang, self._silent_s)
        self.advising = Advising(self.judging, tables, self.jobs, self._advice)
        self._rank_pairs = RankPairs(tables, sessions)

    def _store_verdict(self, verdict: Verdict) -> None:
        self._flushing.verdicts.append(verdict)

    def _store_hang(self, hang: Hang) -> None:
        self._flushing.hangs.append(hang)
        if not hang.until_ns:
            self._store_full(self._triggers.hang(hang, self._recording(self.jobs.hosts(hang.job))))

    def _from_dataset(self, job: str, since_ns: int, until_ns: int) -> Sequence[Verdict]:
        return self.stored.verdicts(job, since_ns, until_ns) if self.stored else ()

    def _advice(self, jobs: Collection[str]) -> Advice:
        if not self.stored:
            raise DataError("cannot advise: this collector does not serve its dataset")
        return self.stored.advice(jobs)

    def watches(self, host: str) -> bool:
        """Whether somebody looks at this host; whoever looks at jobs may look at any."""
        return any(not one.hosts or one.jobs or host in one.hosts for one in self.watched)

    def sessions_changed(self) -> None:
        """Viewers see other sessions from now on."""
        self._shows_newest = False

    def _show(self) -> None:
        """Before the view gets rows or is read."""
        if not self._shows_newest:
            self._shows_newest = True
            self._sessions.show(self._newest())

    def forget(self, session: Session) -> None:
        self._view.forget_links(self._sessions.links_of(session))
        self.judging.forget(session.index)
        self._triggers.forget(session.hello.session)

    def publish(self, settled: Settled) -> None:
        """What a tick has brought, for those who watch."""
        self.ticks += 1
        self._show()
        self._view.publish(settled)

    def add(self, settled: Settled, newest: Collection[Session]) -> None:
        """The same, as iterations; and full resolution of what is worth storing."""
        self._store_full(self._add_iterations(settled))
        for session in newest if self._triggers.watches_rows else ():
            for rows in settled.outputs(session.index):
                try:
                    self._store_full(self._triggers.check_rows(session, rows))
                except Exception as error:
                    self._failures.at_session(session, "what has settled", error)
        self.judging.tick(settled)
        try:
            self.hangs.tick(newest)
        except Exception as error:  # neither rows nor verdicts need it
            self._failures.notice(f"hangs are incomplete: {type(error).__name__}: {error}", error)

    def _add_iterations(self, settled: Settled) -> list[PullRequest]:
        sessions = self._by_index
        wanted = list[PullRequest]()
        for line in self.jobs.are_unclear(settled.unclear):
            _log.warning(line)
        for rows in settled.ended:
            shown = self._sessions.are_shown(rows.session)
            own = rows if shown.all() else rows.take(shown)
            self.jobs.add_ended({index: sessions[index].hello.host for index in set(own.session.tolist())}, own)
            self.judging.add_ended(own)
        for accounted in settled.accounted:
            shown = self._sessions.are_shown(accounted.rows.session)
            mine = accounted if shown.all() else accounted.take(shown)
            self.jobs.add_accounts(mine)
            self.judging.add_accounts(mine)
            wanted += self._triggers.slow(sessions, mine.rows, self.jobs)
            if self.on_accounted:
                for session_index in np.unique(mine.rows.session).tolist():
                    self.on_accounted(sessions[session_index], mine.take(mine.rows.session == session_index))
        return wanted

    def _store_full(self, wanted: Iterable[PullRequest]) -> None:
        for one in wanted:
            task = asyncio.get_running_loop().create_task(self._pull(one))
            self._pulling.add(task)
            task.add_done_callback(self._pulling.discard)

    async def _pull(self, wanted: PullRequest) -> None:
        """Full resolution of what a trigger wants, into the table `full`."""
        for session in self._recording(wanted.hosts):
            try:
                pulled = await self.full.pull(session, wanted.since_ns, wanted.until_ns)
            except DataError as error:
                _log.warning(error)
                continue
            self._triggers.stored(len(pulled.rows))
            gap = f"; {pulled.gap}" if pulled.gap else ""
            _log.info(f"{wanted.reason}: {len(pulled.rows)} rows of {session.hello.host}{gap}")
            if len(pulled.rows):
                self._flushing.full_rows.append(session.full(pulled.rows, wanted.reason, pulled.gap))

    def freeze(self, notices: Iterable[str]) -> Frozen:
        """What viewers can be shown now. notices: lines for them."""
        self._show()
        self.advising.refresh()
        self.jobs.rank_pairs(self._rank_pairs.due(self.jobs.sizes()))
        return self._view.freeze(time.time_ns(), [line for line in notices if line])

    def page(self, frozen: Frozen, selection: Selection) -> Snapshot:
        return page(frozen, selection, self._sessions, self.jobs)

    async def close(self) -> None:
        await end_tasks(self._pulling)
