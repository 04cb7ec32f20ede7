# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock against UTC."""

import time

from netmon.records import ClockSample

_TRIES = 5


def sample() -> ClockSample:
    """Both clocks, read together: the closest of a few tries. error_ns bounds the reading, not UTC's own error."""
    best = ClockSample(0, 0, 1 << 62)
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        utc = time.time_ns()
        after = time.monotonic_ns()
        error = (after - before + 1) // 2
        if error < best.error_ns:
            best = ClockSample((before + after) // 2, utc, error)
    return best
