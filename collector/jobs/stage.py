# SPDX-License-Identifier: Apache-2.0
"""The job stage as the host stage knows it: news in, news out."""

import logging
import time
from collections.abc import Sequence

from collector.jobs.clocks import Clocks
from collector.jobs.inferring import Inferring
from collector.messages import ClockTold, HostNews, JobNews

_log = logging.getLogger(__name__)


class JobStage:
    """Inference and the comparison of clocks over all hosts of a worker. Used by one thread at a time."""

    def __init__(self) -> None:
        """Begin without hosts."""
        self._inferring = Inferring()
        self._clocks: Clocks | None = Clocks()
        self._trouble = ""  # why clocks are compared no more

    def hear(self, news: HostNews) -> JobNews:
        """Take in what the hosts tell; computes for some milliseconds."""
        began_s = time.thread_time()
        inferred = self._inferring.hear(news)
        clocks = self._compare(news)
        trouble = [line for line in (self._inferring.trouble, self._trouble) if line]
        cpu_s = time.thread_time() - began_s
        return JobNews(inferred.marks, inferred.owners, clocks, inferred.patterns, trouble, cpu_s)

    def _compare(self, news: HostNews) -> Sequence[ClockTold]:
        if self._clocks is None:
            return ()
        try:
            self._clocks.hear(news)
            return self._clocks.compare(news.clocks) if self._clocks.due(time.monotonic_ns()) else ()
        except Exception as error:  # every clock is still known by its own exchange
            _log.exception("the comparison of clocks has stopped")
            self._clocks, self._trouble = None, f"clocks are not compared by traffic any more: {error!r}"
            return ()
