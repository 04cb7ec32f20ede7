# SPDX-License-Identifier: Apache-2.0
"""The job stage in a process of its own: reads pickled HostNews from a connection, answers JobNews, ends with it.

Signals that end the collector do not end it: the collector may have a last word to tell. Where there are fewer cores
than work, the collector goes first: what is compared later is only reported later.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue

from collector.allocator import give_back
from collector.jobs.clocks import Clocks
from collector.jobs.inferring import Inferring
from collector.messages import ClockUpdate, HostNews, JobNews

_log = logging.getLogger(__name__)

# --- The job stage as the host stage knows it: news in, news out.


class JobStage:
    """Inference and the comparison of clocks over all hosts of a worker. Used by one thread at a time."""

    def __init__(self) -> None:
        self._inferring = Inferring()
        self._clocks: Clocks | None = Clocks()
        self._trouble = ""  # why clocks are compared no more

    def answer(self, news: HostNews) -> JobNews:
        """Take in what the hosts tell; computes for some milliseconds."""
        began_s = time.thread_time()
        inferred = self._inferring.add_news(news)
        clocks = self._compare(news)
        trouble = [line for line in (self._inferring.trouble, self._trouble) if line]
        cpu_s = time.thread_time() - began_s
        return JobNews(inferred.marks, inferred.owners, clocks, inferred.patterns, trouble, cpu_s)

    def _compare(self, news: HostNews) -> Sequence[ClockUpdate]:
        if self._clocks is None:
            return ()
        try:
            self._clocks.add_news(news)
            return self._clocks.compare(news.clocks) if self._clocks.due(time.monotonic_ns()) else ()
        except Exception as error:  # every clock is still known by its own exchange
            _log.exception("the comparison of clocks has stopped")
            self._clocks, self._trouble = None, f"clocks are not compared by traffic any more: {error!r}"
            return ()


# --- worker


_NICE = 5


def main(descriptor: int) -> None:
    """Serve the collector that holds the other end of this socket; returns never."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # whoever runs us may have forbidden it
        os.nice(_NICE)
    give_back()
    connection: Connection[bytes, bytes] = Connection(descriptor)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    stage = JobStage()
    while True:
        answer = stage.answer(pickle.loads(inbox.get()))
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=5))
        except OSError:
            os._exit(0)


def _receive(connection: "Connection[bytes, bytes]", inbox: "SimpleQueue[bytes]") -> None:
    """Until the collector closes its end, or is gone: then this process ends, whatever it computes."""
    while True:
        try:
            inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
