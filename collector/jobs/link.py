# SPDX-License-Identifier: Apache-2.0
"""The way from the host stage to the job stage and back."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from collector.jobs.stage import JobStage
from collector.messages import HostNews, JobNews


class JobLink(Protocol):
    """One exchange at a time: who has more to tell meanwhile tells it, or what is left of it, in the next one."""

    @property
    def trouble(self) -> Sequence[str]:
        """What viewers are to be told of, a line each."""

    @property
    def alive(self) -> bool:
        """False: nobody will answer any more."""

    async def exchange(self, news: HostNews) -> JobNews:
        """Tell and be told."""

    def close(self) -> None:
        """The host stage ends."""


class JobsHere:
    """The job stage in this process, in a thread while it computes."""

    def __init__(self) -> None:
        """Begin without hosts."""
        self._stage = JobStage()
        self.trouble: Sequence[str] = ()
        self.alive = True

    async def exchange(self, news: HostNews) -> JobNews:
        """Tell and be told."""
        answer = await asyncio.to_thread(self._stage.hear, news)
        self.trouble = answer.trouble
        return answer

    def close(self) -> None:
        """Nothing is left behind."""
