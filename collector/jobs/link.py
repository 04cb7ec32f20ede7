# SPDX-License-Identifier: Apache-2.0
"""The way from the host stage to the job stage and back."""

from collections.abc import Sequence
from typing import Protocol

from collector.messages import HostNews, JobNews


class JobLink(Protocol):
    """One exchange at a time: who has more to tell meanwhile tells it, or what is left of it, in the next one."""

    @property
    def trouble(self) -> Sequence[str]:
        """What viewers are to be reported, a line each."""

    @property
    def alive(self) -> bool:
        """False: nobody will answer any more."""

    async def exchange(self, news: HostNews) -> JobNews:
        """Send the news, and return the answer."""

    def close(self) -> None:
        """The host stage ends."""
