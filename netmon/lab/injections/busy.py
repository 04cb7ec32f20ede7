# SPDX-License-Identifier: Apache-2.0
"""Busy loops that share one CPU with a process: python -I -S busy.py LOOPS SECONDS PID [OTHER…]. Standard library only.

All of the process's threads are left one CPU, on which the loops run, too. The others stand for what runs on other
hosts, whose CPUs the loops do not take: they are kept off that CPU, if there is another one. Afterwards, also at
SIGTERM, all get back those that they had. Prints both moments, in ns of CLOCK_MONOTONIC.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def disturb(loops: int, seconds: float, process: int, others: Sequence[int] = ()) -> None:
    """Run the loops for so long; blocks. process, others: process ids."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    before = os.sched_getaffinity(process)
    shared = {max(before)}
    children = []
    try:
        _leave(process, shared)
        for other in others:
            _leave(other, before - shared or before)
        for _ in range(loops):
            children.append(os.fork())
            if not children[-1]:
                _loop(shared, time.monotonic() + seconds)
        print(f"begun {time.monotonic_ns()}", flush=True)
        signal.sigtimedwait(_ENDS, seconds)
    finally:
        ended = time.monotonic_ns()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for one in (process, *others):
            _leave(one, before)
    print(f"ended {ended}", flush=True)


def _loop(cpus: set[int], until: float) -> None:
    os.sched_setaffinity(0, cpus)
    os.setsid()  # where the kernel shares CPU time out by session (autogroup), each loop gets a share of its own
    while time.monotonic() < until:  # also where nobody is left to end it
        for _ in range(10_000):
            pass
    os._exit(0)


def _leave(process: int, cpus: set[int]) -> None:
    """All threads of a process run on these CPUs only."""
    with contextlib.suppress(FileNotFoundError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cpus)


if __name__ == "__main__":
    disturb(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), [int(pid) for pid in sys.argv[4:]])
