# SPDX-License-Identifier: Apache-2.0
"""Iterations on their way to all who look at them while they are new."""

import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from collector.host.batches import Settled
from collector.host.iteration_rows import Accounted
from collector.host.session import Session
from collector.judging.judging import Judging
from collector.triggers import PullRequest, Triggers
from collector.view.job_views import Jobs

_log = logging.getLogger(__name__)


class IterationUpdates:
    """Those of the newest session of each host: viewers see the present."""

    def __init__(self, jobs: Jobs, triggers: Triggers) -> None:
        """jobs: as viewers see them."""
        self._jobs, self._triggers = jobs, triggers
        self.on_accounted: Callable[[Session, Accounted], None] | None = None
        """Called with the iterations of each session whose rows have settled."""

    def publish(
        self, settled: Settled, sessions: Mapping[int, Session], newest: Iterable[int], judging: Judging
    ) -> list[PullRequest]:
        """What a tick has brought; returns of what full resolution is worth storing.

        sessions: by index; newest: the indices of those that count.
        """
        counts = np.zeros(max(sessions, default=0) + 1, np.bool_)
        counts[list(newest)] = True
        hosts = {session_index: session.hello.host for session_index, session in sessions.items()}
        wanted = list[PullRequest]()
        for line in self._jobs.are_unclear(settled.unclear):
            _log.warning(line)
        for rows in settled.ended:
            own = rows if counts[rows.session].all() else rows.take(counts[rows.session])
            self._jobs.add_ended(hosts, own)
            judging.add_ended(sessions, own)
        for accounted in settled.accounted:
            mine = accounted if counts[accounted.rows.session].all() else accounted.take(counts[accounted.rows.session])
            self._jobs.add_accounts(mine)
            judging.add_accounts(mine)
            wanted += self._triggers.slow(sessions, mine.rows, self._jobs)
            if self.on_accounted:
                for session_index in np.unique(mine.rows.session).tolist():
                    self.on_accounted(sessions[session_index], mine.take(mine.rows.session == session_index))
        return wanted
