# SPDX-License-Identifier: Apache-2.0
"""Calls that may never come back: on files of others, on a network file system whose server is gone, or a FUSE one.

They are made in a thread that is left to itself when it takes too long. A call that a process cannot be woken from
ends with the process, as the kernel lets fatal signals through in these waits.
"""

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

R = TypeVar("R")
_MOST_STALLED = 2  # calls for one key
_MOST_STALLED_OF_ALL = 16


class StalledError(OSError):
    """The call has not come back in time: it is under way; or earlier ones have not, and it was not made."""

    def __init__(self, reason: str, under_way: bool) -> None:
        """As str() shows it."""
        super().__init__(reason)
        self.under_way = under_way


class StallingCalls:
    """Thread-safe for one caller at a time. The threads do not keep the process from ending."""

    def __init__(self, limit_s: float, most: int = _MOST_STALLED) -> None:
        """limit_s: of each call. most: calls that may stall for one key; then no more are made for it."""
        self._limit_s, self._most = limit_s, most
        self._worker: _Worker | None = None
        self._stalled: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def call(
        self, key: Hashable, function: Callable[[], R], late: Callable[[R | None], object], limit_s: float | None = None
    ) -> R:
        """The function's result, or what it raises. Raises StalledError. key: whose file it is.

        late: done, in another thread, with a result that comes too late; None where it is an error. limit_s: of this
        call, if it is another one.
        """
        limit_s = self._limit_s if limit_s is None else limit_s
        with self._lock:
            if self._stalled[key] >= self._most or self._stalled.total() >= _MOST_STALLED_OF_ALL:
                raise StalledError("earlier files have not answered", under_way=False)
        worker = self._worker or _Worker()
        self._worker = None
        job = _Job(function)
        worker.jobs.put(job)
        if not job.done.wait(limit_s) and self._give_up(key, job, late):
            raise StalledError(f"it has not answered for {limit_s:g} s", under_way=True)
        self._worker = worker
        if job.error:
            raise job.error
        result: R = job.result
        return result

    def _give_up(self, key: Hashable, job: "_Job", late: Callable[[Any], object]) -> bool:
        """False where it has come back meanwhile."""

        def end() -> None:
            late(job.result)
            with self._lock:
                self._stalled[key] -= 1
                self._stalled += Counter()  # without those that are 0

        with job.lock:
            if job.done.is_set():
                return False
            with self._lock:
                self._stalled[key] += 1
            job.late = end
            return True


def close_late(opened: tuple[int, object] | None) -> None:
    """For calls whose result begins with a descriptor."""
    if opened:
        os.close(opened[0])


class _Job:
    """One call. late: done in its thread, where nobody waits any more."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Any = None
        self.error: Exception | None = None
        self.lock, self.done = threading.Lock(), threading.Event()
        self.late: Callable[[], None] | None = None

    def run(self) -> bool:
        """Whether somebody waited for it."""
        try:
            self.result = self.function()
        except Exception as error:
            self.error = error
        with self.lock:
            self.done.set()
        if self.late:
            self.late()
        return not self.late


class _Worker:
    """A thread for one call after the other, until one of them has come too late, or nobody calls any more."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self.jobs,), name="stalling", daemon=True).start()

    def __del__(self) -> None:
        self.jobs.put(None)


def _work(jobs: "queue.SimpleQueue[_Job | None]") -> None:
    while _run(jobs.get()):  # no name for the job here: what it knows would live as long as the thread
        pass


def _run(job: _Job | None) -> bool:
    return job is not None and job.run()
