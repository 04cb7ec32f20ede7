# SPDX-License-Identifier: Apache-2.0
"""When a rank may begin its next iteration: so that jobs which share a link keep out of each other's way.

A file holds two numbers: `BEGIN PERIOD`, CLOCK_MONOTONIC and a duration, ns. Iterations begin no earlier than BEGIN
and, where PERIOD is not 0, at BEGIN + k·PERIOD, each rank by itself. One that is late begins at once if it is not late
by much, else with the next period that it is not late for by much, as CASSINI's agents do (Rajasekaran et al.,
NSDI'24). The file may change at any time; where there is none, nothing is waited for.
"""

import time
from pathlib import Path

from netmon.lab.trainers.iteration_log import wait_until

_LATE = 0.25  # of a period
_LOOK_NS = 20_000_000  # at the file, while waiting


class Pace:
    """Of one rank."""

    def __init__(self, path: str) -> None:
        """path: of the file; empty: there is none."""
        self._path = Path(path) if path else None
        self._stamp = 0, 0
        self._due_ns = 0

    def wait(self) -> None:
        """Block until the next iteration may begin."""
        while self._path:
            if (text := _read(self._path)) != self._stamp:
                self._stamp, self._due_ns = text, text[0]
            period, now = self._stamp[1], time.monotonic_ns()
            late = int(now - self._due_ns - _LATE * period)
            if period and late > 0:  # by the clock alone: ranks that skipped as many as each likes would not meet again
                self._due_ns += -(-late // period) * period
            if self._due_ns - now > _LOOK_NS:
                wait_until(now + _LOOK_NS)
                continue
            wait_until(self._due_ns)
            self._due_ns += period
            return


def write_pace(path: Path, begin_ns: int, period_ns: int = 0) -> None:
    """Tell ranks that look at the file."""
    new = path.with_suffix(".new")
    new.write_text(f"{begin_ns} {period_ns}\n")
    new.replace(path)


def _read(path: Path) -> tuple[int, int]:
    try:
        begin, period = path.read_text().split()
        return int(begin), int(period)
    except (OSError, ValueError):
        return 0, 0
