# SPDX-License-Identifier: Apache-2.0
"""Advice on jobs that share links, on the dataset's last seconds: when somebody asks, alongside the loop."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from collector.host.tables import Tables
from collector.judging.judging import Judging
from collector.view.job_views import Jobs
from netmon.dl.sharing.advice import Advice, renamed
from netmon.dl.sharing.advice_text import document, of_share
from netmon.errors import DataError
from netmon.wire.limits import MAX_TEXT

_log = logging.getLogger(__name__)
_SERVES_S = 5.0  # an answer, to whoever asks for the same
_MOST_ANSWERS = 16
_VIEWED_S = 10.0  # from one to the next, where it is only for viewers
_REST = 20  # times what it took: so long it is not done again for viewers


def sharing(tables: Tables) -> frozenset[str]:
    """The jobs with flows on a link on which another one has some, too: of all others there is nothing to compare."""
    state = tables.flows.state[tables.flows.state["job"] > 0]
    link = tables.sessions.table["first_link"][state["session"]] + state["link"]
    link, job = np.unique(np.stack([link, state["job"].astype(np.int64)]), axis=1)
    number, count = np.unique(link, return_counts=True)
    crowded = np.isin(link, number[count > 1])
    return frozenset(tables.flows.jobs[one] for one in np.unique(job[crowded]).tolist())


class Advising:
    """Of one worker; lives on the thread of its event loop, computes alongside it: one at a time."""

    def __init__(
        self, judging: Judging, tables: Tables, viewed: Jobs, advice: Callable[[Collection[str]], Advice]
    ) -> None:
        """viewed: get the jobs that share links, on the loop. advice: see collector.live.Dataset."""
        self._judging, self._tables, self._viewed, self._advice = judging, tables, viewed, advice
        self._answers: dict[str, tuple[float, bytes]] = {}  # by the job asked for: when, and what
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._rest_until = 0.0

    async def answer(self, job: str) -> bytes:
        """The advice as JSON, of all jobs or of one and those that share its links. Raises DataError."""
        async with self._turn:
            answered_s, answer = self._answers.get(job, (float("-inf"), b""))
            if time.monotonic() < answered_s + _SERVES_S:
                return answer
            names = self._viewed.names()
            requested = job if job in names else next((one for one, name in names.items() if name == job), "")
            if job and not requested:
                raise DataError(f"cannot advise on job {job!r}: the collector knows no such job")
            found = await asyncio.to_thread(self._advice, [requested] if requested else [])
            answer = json.dumps(document(found, names)).encode()
            self._answers.pop(job, None)
            self._answers[job] = time.monotonic(), answer
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return answer

    def refresh(self) -> None:
        """Somebody views the jobs: see to it that they hear of shared links, now and then."""
        now = time.monotonic()
        if now < self._rest_until or (self._looking and not self._looking.done()):
            return
        self._rest_until = now + _VIEWED_S
        if self._judging.jobs_with_steps > 1:
            with contextlib.suppress(RuntimeError):  # nothing runs alongside whoever calls
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        async with self._turn:
            lines, took_s = dict[str, tuple[str, ...]](), 0.0
            try:
                if jobs := sharing(self._tables):
                    lines, took_s = await asyncio.to_thread(self._lines, jobs, self._viewed.names())
            except DataError:
                pass
            except Exception:  # viewers do not need it
                _log.exception("cannot advise on the jobs")
                return
        self._viewed.sharing(lines)
        self._rest_until = max(self._rest_until, time.monotonic() + _REST * took_s)

    def _lines(self, jobs: frozenset[str], names: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], float]:
        """What is said of each of the jobs that share links, in people's names, and the CPU time that it took (s)."""
        began = time.thread_time()
        advice = self._advice(jobs)
        found: dict[str, tuple[str, ...]] = {}
        for share, shown in zip(advice.shares, renamed(advice, names).shares, strict=True):
            found[share.fit.job] = (*found.get(share.fit.job, ()), of_share(shown, advice.links)[:MAX_TEXT])
        return found, time.thread_time() - began
