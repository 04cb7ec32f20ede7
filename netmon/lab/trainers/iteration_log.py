# SPDX-License-Identifier: Apache-2.0
"""The truth about a rank's iterations; standard library only, for Horovod's environment imports it too."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

COLUMNS = "rank,iteration,step_start_ns,first_enqueue_ns,last_wait_ns,step_end_ns,interrupted"


class IterationLog:
    """One CSV line per iteration, times in CLOCK_MONOTONIC ns. Kept in memory, written when the context is left.

    SIGTERM leaves the context, too. One line per iteration also goes to standard output, as trainers do.
    """

    def __init__(self, path: str, rank: int, after: Callable[[int], None] = lambda _: None) -> None:
        """Log of one rank. after: is reported every iteration how many have finished."""
        self._path = Path(path)
        self._rank = rank
        self._after = after
        self._lines = [COLUMNS]

    def add(
        self, iteration: int, step_start: int, first_enqueue: int, last_wait: int, step_end: int, interrupted: int = 0
    ) -> None:
        """One finished iteration. interrupted: not 0 where the scheduler came between a moment and its noting."""
        moments = (self._rank, iteration, step_start, first_enqueue, last_wait, step_end, int(bool(interrupted)))
        self._lines.append(",".join(map(str, moments)))
        print(f"iteration {iteration} took {(step_end - step_start) / 1e9:.3f} s", flush=True)
        self._after(iteration + 1)

    def __enter__(self) -> "IterationLog":
        """Begin to listen for SIGTERM."""
        signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, *exception: object) -> None:
        """Write the file."""
        self._path.write_text("\n".join(self._lines) + "\n")


def wait_until(deadline_ns: int) -> None:
    """Sleep until a moment of CLOCK_MONOTONIC: what an accelerator's work looks like to the host."""
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
