# SPDX-License-Identifier: Apache-2.0
"""The way to a job stage in a process of its own."""

import asyncio
import logging
import pickle
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from collector.messages import HostNews, JobNews
from netmon.own_module import own_module

_log = logging.getLogger(__name__)
_PATIENCE_S = 60.0  # for one answer; a process that takes longer hangs
_BEHIND_S = 3.0
_RARELY_S = 600.0  # a process that dies so seldom is started again each time
_END_S = 2.0


class JobStageProcess:
    """Starts the process when there is something to report; when it dies, it is started again, once.

    It ends with this process, however that ends. One that keeps dying is done without: hosts go on by themselves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the connection
        self._worker: _Worker | None = None
        self._died_s = -_RARELY_S
        self._requested_s = 0.0  # when the request was sent that has no answer yet; 0: there is none
        self._said: Sequence[str] = ()
        self._closed = False
        self.alive = True

    @property
    def trouble(self) -> Sequence[str]:
        """What viewers are to be reported, a line each."""
        if not self.alive:
            return ("the process that compares hosts has died twice: nothing is inferred from traffic any more",)
        requested_s = self._requested_s
        behind_s = time.monotonic() - requested_s if requested_s else 0.0
        late = [f"the comparison of hosts is behind by {behind_s:.0f} s"] if behind_s > _BEHIND_S else []
        return [*self._said, *late]

    async def exchange(self, news: HostNews) -> JobNews:
        """Send the news, and return the answer; begins_anew where the process has died and knows nothing."""
        return await asyncio.to_thread(self._request, news)

    def close(self) -> None:
        """End the process; an exchange that is under way ends, too."""
        self._closed = True
        worker = self._worker
        if worker:
            worker.end()

    @property
    def pid(self) -> int:
        """Of the process; 0: none runs."""
        return self._worker.process.pid if self._worker else 0

    def _request(self, news: HostNews) -> JobNews:
        with self._lock:
            if self._closed or not self.alive:
                return JobNews()
            self._requested_s = time.monotonic()
            try:
                self._worker = self._worker or _Worker()
                if self._closed:  # meanwhile
                    self._worker.end()
                    return JobNews()
                answer = self._worker.request(news)
            except (EOFError, OSError) as error:
                self._died(error)
                return JobNews(begins_anew=True)
            finally:
                self._requested_s = 0.0
            self._said = answer.trouble
            return answer

    def _died(self, error: Exception) -> None:
        worker, self._worker = self._worker, None
        status = worker.end() if worker else None
        if self._closed:
            return
        now = time.monotonic()
        self.alive = now - self._died_s >= _RARELY_S
        self._died_s = now
        then = "it is started again" if self.alive else "the collector goes on without it"
        _log.warning(f"the process that compares hosts has ended (status {status}, {error!r}); {then}")


class _Worker:
    """The process, and this end of its connection."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = own_module("collector.jobs.worker", theirs.fileno())
            self.process = subprocess.Popen(**program, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._connection: Connection[bytes, bytes] = Connection(ours.detach())

    def request(self, news: HostNews) -> JobNews:
        """Raises EOFError or OSError where it does not answer."""
        self._connection.send_bytes(pickle.dumps(news, protocol=5))
        if not self._connection.poll(_PATIENCE_S):
            raise TimeoutError(f"no answer in {_PATIENCE_S:.0f} s")
        answer: JobNews = pickle.loads(self._connection.recv_bytes())
        return answer

    def end(self) -> int | None:
        """Its exit status."""
        self.process.kill()
        return self.process.wait(_END_S)
