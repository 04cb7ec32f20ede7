# SPDX-License-Identifier: Apache-2.0
"""Hysteresis for what people look at: a state has to last before it changes. What is stored is never smoothed."""

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import starts

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class Steady:
    """One on/off state per line over consecutive windows; it changes when `hold` windows in a row say so."""

    def __init__(self, hold: int) -> None:
        """Begin without lines; each begins in the off state, before any window."""
        self._hold = hold
        self._state: _Flags = np.zeros(0, np.bool_)
        self._run: _Numbers = np.zeros(0, np.int64)  # windows in a row, up to the last one, that contradict the state
        self._next: _Numbers = np.zeros(0, np.int64)  # number of the window after the last one; −1: none yet

    def flags(self, line: _Numbers, number: _Numbers, on: _Flags, keep: bool = True) -> _Flags:
        """The state of each line in each window, arrays of one length, ascending by line and number.

        A window that is left out is off. keep: go on from here at the next call; else this was only a look ahead.
        Windows before the last one that was kept are taken as they are.
        """
        self._grow(int(line.max(initial=-1)) + 1)
        flags = on.copy()
        due = np.flatnonzero(number >= self._next[line])
        if not len(due):
            return flags
        line, number, on = line[due], number[due], on[due]
        first = starts(line)
        lines, of_row = line[first], np.repeat(np.arange(len(first)), np.diff(np.append(first, len(line))))
        before = np.empty(len(line), np.int64)
        before[1:] = number[:-1] + 1
        before[first] = np.where(self._next[lines] < 0, number[first], self._next[lines])
        # Of each line: its state, the open run that contradicts it, then for each window the empty ones before and it.
        begin = 2 * first + 2 * np.arange(len(first))
        place = 2 * np.arange(len(line)) + 2 * of_row + 3
        value, length = (
            np.zeros(2 * len(line) + 2 * len(first), np.bool_),
            np.ones(2 * len(line) + 2 * len(first), np.int64),
        )
        value[begin], value[begin + 1], length[begin + 1] = self._state[lines], ~self._state[lines], self._run[lines]
        length[place - 1], value[place] = number - before, on
        states, lasted = self._states(value, length, begin)
        flags[due] = states[place]
        if keep:
            last = np.append(begin[1:], len(value)) - 1
            self._state[lines] = states[last]
            self._run[lines] = np.where(value[last] != states[last], lasted[last], 0)
            self._next[lines] = number[np.append(first[1:], len(line)) - 1] + 1
        return flags

    def _states(self, value: _Flags, length: _Numbers, begin: npt.NDArray[np.intp]) -> tuple[_Flags, _Numbers]:
        """The state after each piece of `length` windows of a value, and how long the value has lasted by then.

        begin: the places where lines begin, with what their state is.
        """
        there = np.flatnonzero(length > 0)
        value_there, length_there = value[there], length[there]
        begins = np.zeros(len(value), np.bool_)
        begins[begin] = True
        run = np.ones(len(there), np.bool_)
        run[1:] = value_there[1:] != value_there[:-1]
        run |= begins[there]
        run[1:] |= begins[there][:-1]  # what it is told is its state is not part of a run
        total = np.cumsum(length_there)
        run_first = np.maximum.accumulate(np.where(run, np.arange(len(there)), 0))
        lasted = total - total[run_first] + length_there[run_first]
        settled = (lasted >= self._hold) | begins[there]
        decided = np.maximum.accumulate(np.where(settled, np.arange(len(there)), 0))
        states, after = np.zeros(len(value), np.bool_), np.zeros(len(value), np.int64)
        states[there], after[there] = value_there[decided], lasted
        return states, after

    def _grow(self, lines: int) -> None:
        more = lines - len(self._state)
        if more > 0:
            self._state = np.append(self._state, np.zeros(more, np.bool_))
            self._run = np.append(self._run, np.zeros(more, np.int64))
            self._next = np.append(self._next, np.full(more, -1))
