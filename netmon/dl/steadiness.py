# SPDX-License-Identifier: Apache-2.0
"""Hysteresis for what people look at: a state has to last before it changes. What is stored is never smoothed."""

import numpy as np
import numpy.typing as npt

_LONG_QUIET = 10_000  # windows without traffic that need not be counted one by one


class Steady:
    """One on/off state over consecutive windows; it changes when `hold` windows in a row say so."""

    def __init__(self, hold: int) -> None:
        """Begin in the off state, before any window."""
        self._hold = hold
        self._state = False
        self._run = 0  # windows in a row, up to the last one, that contradict the state
        self._next: int | None = None  # number of the window after the last one

    def flags(
        self, number: npt.NDArray[np.int64], on: npt.NDArray[np.bool_], keep: bool = True
    ) -> npt.NDArray[np.bool_]:
        """The state in each window; number: ascending, (windows,). A window that is left out is off.

        keep: go on from here at the next call; else this was only a look ahead. Windows before the last one that was
        kept are taken as they are.
        """
        late = number < self._next if self._next is not None else np.zeros(len(number), np.bool_)
        flags = on.copy()
        if late.all():
            return flags
        first = int(number[~late][0]) if self._next is None else self._next
        if int(number[~late][0]) - first > _LONG_QUIET:
            self._state, self._run, first = False, 0, int(number[~late][0])
        dense = np.zeros(int(number[-1]) - first + 1, np.bool_)
        dense[number[~late] - first] = on[~late]
        states, run = self._states(dense)
        flags[~late] = states[number[~late] - first]
        if keep:
            self._state, self._run, self._next = bool(states[-1]), run, int(number[-1]) + 1
        return flags

    def _states(self, on: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], int]:
        """State per window, and how many of the last ones contradict it."""
        # The run that is still open is put in front, so that it counts on.
        carried = np.full(self._run + 1, not self._state)
        carried[0] = self._state
        values = np.concatenate([carried, on])
        place = np.arange(len(values))
        begins = np.concatenate([[True], values[1:] != values[:-1]])
        lasted = place - np.maximum.accumulate(np.where(begins, place, 0)) + 1
        settled = lasted >= self._hold
        settled[0] = True
        last_settled = np.maximum.accumulate(np.where(settled, place, 0))
        states = values[last_settled]
        run = int(lasted[-1]) if values[-1] != states[-1] else 0
        return states[len(carried) :], run
