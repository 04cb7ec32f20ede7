# SPDX-License-Identifier: Apache-2.0
"""Advice on jobs that share links, by the dataset's last seconds: on request, alongside the event loop."""

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
_VALID_S = 5.0  # of an answer, for the same request
_MOST_ANSWERS = 16
_VIEWED_S = 10.0  # between two updates for viewers
_REST = 20  # times the CPU time of an update, until the next one for viewers


def sharing(tables: Tables) -> frozenset[str]:
    """The jobs that share a link with another job: others have nothing to compare."""
    state = tables.flows.state[tables.flows.state["job"] > 0]
    link = tables.sessions.table["first_link"][state["session"]] + state["link"]
    link, job = np.unique(np.stack([link, state["job"].astype(np.int64)]), axis=1)
    number, count = np.unique(link, return_counts=True)
    crowded = np.isin(link, number[count > 1])
    return frozenset(tables.flows.jobs[one] for one in np.unique(job[crowded]).tolist())


class Advising:
    """Advice of one worker. Runs on its event loop and computes on a thread, one request at a time."""

    def __init__(
        self, judging: Judging, tables: Tables, viewed: Jobs, advice: Callable[[Collection[str]], Advice]
    ) -> None:
        """viewed: receives the advice on jobs that share links, on the loop. advice: see collector.live.Dataset."""
        self._judging, self._tables, self._viewed, self._advice = judging, tables, viewed, advice
        self._answers: dict[str, tuple[float, bytes]] = {}  # by the requested job: when, and what
        self._turn = asyncio.Lock()
        self._advising: asyncio.Task[None] | None = None
        self._rest_until = 0.0

    async def answer(self, job: str) -> bytes:
        """The advice as JSON, of all jobs or of one and those that share its links. Raises DataError."""
        async with self._turn:
            answered_s, answer = self._answers.get(job, (float("-inf"), b""))
            if time.monotonic() < answered_s + _VALID_S:
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
        """Update the advice that viewers of the jobs see, now and then."""
        now = time.monotonic()
        if now < self._rest_until or (self._advising and not self._advising.done()):
            return
        self._rest_until = now + _VIEWED_S
        if self._judging.jobs_with_steps > 1:
            with contextlib.suppress(RuntimeError):  # the caller has no event loop
                self._advising = asyncio.get_running_loop().create_task(self._update_advice())

    async def _update_advice(self) -> None:
        async with self._turn:
            lines, took_s = dict[str, tuple[str, ...]](), 0.0
            try:
                if jobs := sharing(self._tables):
                    lines, took_s = await asyncio.to_thread(self._lines, jobs, self._viewed.names())
            except DataError:
                pass
            except Exception:  # viewers work without advice
                _log.exception("cannot advise on the jobs")
                return
        self._viewed.sharing(lines)
        self._rest_until = max(self._rest_until, time.monotonic() + _REST * took_s)

    def _lines(self, jobs: frozenset[str], names: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], float]:
        """The advice on each of the jobs that share links, with people's names, and the CPU time it took (s)."""
        began = time.thread_time()
        advice = self._advice(jobs)
        found: dict[str, tuple[str, ...]] = {}
        for share, shown in zip(advice.shares, renamed(advice, names).shares, strict=True):
            found[share.fit.job] = (*found.get(share.fit.job, ()), of_share(shown, advice.links)[:MAX_TEXT])
        return found, time.thread_time() - began
