# SPDX-License-Identifier: Apache-2.0
"""Hysteresis for what people look at, over all links and jobs at once. What is stored is never smoothed."""

import numpy as np
import numpy.typing as npt

from collector.view.groups import groups

_MOST_JOBS = 1 << 20  # numbers of jobs on a link
_EMPTY: npt.NDArray[np.int64] = np.empty(0, np.int64)


class ShareHysteresis:
    """Whether a job's traffic is shared on a link: it changes when `hold` windows in which it sends say so in a row."""

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._pairs = _EMPTY  # link and job, ascending
        self._state = np.zeros(0, np.bool_)
        self._run = _EMPTY  # windows in a row, up to the last one, that contradict the state
        self._next = _EMPTY  # number of the window after the last one

    def flags(
        self,
        link: npt.NDArray[np.integer],
        job: npt.NDArray[np.integer],
        window: npt.NDArray[np.int64],
        shared: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Per row of a DL flow, whether it is shown as shared; window: the number of its window on the link.

        shared: whether the window is, exactly. Windows up to the last one that came before are shown as the state is.
        """
        if not len(link):
            return np.zeros(0, np.bool_)
        distinct, of_row = groups(link.astype(np.int64) * _MOST_JOBS + job)
        pairs = self._positions(distinct)
        first = int(window.min())
        span = int(window.max()) - first + 1
        cells, of_cell = groups(of_row * span + (window - first))
        on = np.zeros(len(cells), np.bool_)
        on[of_cell[shared]] = True
        return self._walk(pairs[cells // span], cells % span + first, on)[of_cell]

    def copy(self) -> "ShareHysteresis":
        """Another one in the same state."""
        other = ShareHysteresis(self._hold)
        other._pairs, other._state = self._pairs.copy(), self._state.copy()
        other._run, other._next = self._run.copy(), self._next.copy()
        return other

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        """These links have gone."""
        keep = ~np.isin(self._pairs // _MOST_JOBS, links)
        for name in ("_pairs", "_state", "_run", "_next"):
            setattr(self, name, getattr(self, name)[keep])

    def _positions(self, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        new = pairs[~np.isin(pairs, self._pairs)]
        if len(new):
            at = np.searchsorted(self._pairs, new)
            self._pairs = np.insert(self._pairs, at, new)
            self._state = np.insert(self._state, at, False)
            self._run, self._next = np.insert(self._run, at, 0), np.insert(self._next, at, 0)
        return np.searchsorted(self._pairs, pairs)

    def _walk(
        self, pair: npt.NDArray[np.int64], window: npt.NDArray[np.int64], on: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """The state in each cell; cells ascend by pair, then by window. One step is one window of every pair."""
        flags = self._state[pair]
        fresh = np.flatnonzero(window >= self._next[pair])
        begins = np.flatnonzero(np.diff(pair[fresh], prepend=-1))
        length = np.diff(begins, append=len(fresh))
        for step in range(int(length.max(initial=0))):
            cell = fresh[begins[length > step] + step]
            own = pair[cell]
            run = np.where(on[cell] != self._state[own], self._run[own] + 1, 0)
            changes = run >= self._hold
            self._state[own] ^= changes
            self._run[own] = np.where(changes, 0, run)
            self._next[own] = window[cell] + 1
            flags[cell] = self._state[own]
        return flags
