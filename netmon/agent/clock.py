# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock against UTC, and what is known of UTC itself."""

import threading
import time

from netmon.kernel.timekeeping import ClockState, clock_state, kernel_state
from netmon.records import ClockSample

_TRIES = 5
_LOOK_S = 30.0


class Clock:
    """Samples both clocks; a thread of its own asks now and then who keeps UTC, which may take seconds."""

    def __init__(self) -> None:
        """Begin with what the kernel says; `start` asks the others."""
        self._state = kernel_state("")
        self._stop = threading.Event()
        self._looking = threading.Thread(target=self._look, name="timekeeping", daemon=True)

    def start(self) -> None:
        """To be called once, when threads may be started."""
        self._looking.start()

    def finish(self) -> None:
        """Ends the thread, without waiting for it."""
        self._stop.set()

    def sample(self) -> ClockSample:
        """Both clocks, read together: the closest of a few tries.

        error_ns bounds the reading, utc_error_ns how far the host's UTC may be off.
        """
        mono, utc, error = min((_read() for _ in range(_TRIES)), key=lambda reading: reading[2])
        state = self._current()
        if not state.synchronised:
            return ClockSample(mono, utc, error)
        return ClockSample(mono, utc, error, max(1, state.error_ns), state.discipline)

    def _current(self) -> ClockState:
        # The kernel's bound grows from second to second; chrony's is as old as the last look.
        state = self._state
        return state if state.source == "chrony" else kernel_state(state.discipline)

    def _look(self) -> None:
        while True:
            self._state = clock_state()
            if self._stop.wait(_LOOK_S):
                return


def _read() -> tuple[int, int, int]:
    """mono, UTC, and half of the time that the reading took, rounded up."""
    before = time.monotonic_ns()
    utc = time.time_ns()
    after = time.monotonic_ns()
    return (before + after) // 2, utc, (after - before + 1) // 2
