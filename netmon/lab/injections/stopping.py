# SPDX-License-Identifier: Apache-2.0
"""Stops processes and lets them go on: python -I -S stopping.py SECONDS PID…. Standard library only.

SIGTERM, which the kernel sends when the lab has died, lets them go on at once. Prints both moments, in ns of
CLOCK_MONOTONIC: when all had been stopped, and when the first was let go on.
"""

import contextlib
import os
import signal
import sys
import time

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop(seconds: float, processes: list[int]) -> None:
    """Stop them for so long; blocks. Processes that are gone are left out."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        _send(signal.SIGSTOP, processes)
        print(f"begun {time.monotonic_ns()}", flush=True)
        signal.sigtimedwait(_ENDS, seconds)
    finally:
        ended = time.monotonic_ns()
        _send(signal.SIGCONT, processes)
    print(f"ended {ended}", flush=True)


def _send(number: int, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    stop(float(sys.argv[1]), [int(process) for process in sys.argv[2:]])
