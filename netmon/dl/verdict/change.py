# SPDX-License-Identifier: Apache-2.0
"""Where a job itself changes its pace: with another batch size, say, every rank computes longer from then on.

What comes before such a change is no measure of what follows. Traffic, a slow link, a late rank and a pause make
iterations longer, but not the computing of all ranks, for many iterations alike.
"""

import numpy as np
import numpy.typing as npt

LASTS = 5
"""Iterations by which a change is distinguished from a pause."""

CHANGED = 1.15
"""Times as long, or as short, as before: what a rank computes in an iteration, at least."""

_BEFORE = 10  # iterations that it is compared with, or FEWEST of them
_FEWEST = 5
_ALIKE, _ALIKE_SHARE = (
    1.25,
    0.6,
)  # times: the longest of LASTS iterations alongside the shortest; or a share of the change
_TAKES = 1.1  # times: the iterations as a whole

_Floats = npt.NDArray[np.float64]


def changes(computed: _Floats, took: _Floats) -> list[int]:
    """Rows that are the first ones after a change, ascending.

    computed: (iterations, ranks), ns beside waiting for gradients, nan: not known; took: (iterations,), ns, of the
    slowest rank. Iterations that are not known of all ranks are passed over.
    """
    known = np.flatnonzero(np.isfinite(computed).all(axis=1) & (computed > 0).all(axis=1))
    log, duration = np.log(computed[known]), np.log(took[known])
    found: list[int] = []
    begin = 0
    while (index := _first(log[begin:], duration[begin:])) is not None:
        begin += index
        found.append(int(known[begin]))
    return found


def _first(log: _Floats, duration: _Floats) -> int | None:
    count = len(log) - LASTS + 1
    if count <= _FEWEST:
        return None
    rows = np.arange(_FEWEST, count)
    # Most jobs never change: the whole and one rank tell, before all ranks are looked at.
    for values, least in ((duration, _TAKES), (log[:, 0], CHANGED)):
        column = values[:, None]
        later = np.median(_after(column, rows), axis=2) - _medians_before(column, rows)
        rows = rows[np.abs(later[:, 0]) >= np.log(least)]
    if not len(rows):
        return None
    before = _medians_before(np.column_stack([log, duration]), rows)
    more = _after(log, rows) - before[:, :-1, None]  # (rows, ranks, LASTS)
    of_ranks = np.median(more, axis=2)
    side = np.sign(of_ranks[:, 0])
    all_of_them = (side[:, None] * of_ranks >= np.log(CHANGED)).all(axis=1)
    each = np.median(more, axis=1)
    apart = np.maximum(np.log(_ALIKE), _ALIKE_SHARE * np.abs(np.median(each, axis=1)))
    alike = ((side[:, None] * each) >= np.log(CHANGED)).all(axis=1) & (np.ptp(each, axis=1) <= apart)
    takes = np.median(_after(duration[:, None], rows)[:, 0], axis=1) - before[:, -1]
    found = np.flatnonzero(all_of_them & alike & (side * takes >= np.log(_TAKES)))
    if not len(found):
        return None
    index, level, base = int(rows[found[0]]), of_ranks[found[0]], before[found[0], :-1]
    while index > _FEWEST and np.median((log[index - 1] - base) / level) > 0.5:  # changed, and not alike yet
        index -= 1
    return index


def _after(values: _Floats, rows: npt.NDArray[np.intp]) -> _Floats:
    """(rows, columns, LASTS): of each of these rows itself and those after it."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, LASTS, axis=0)[rows])


def _medians_before(values: _Floats, rows: npt.NDArray[np.intp]) -> _Floats:
    """(rows, columns): the median of each column over up to _BEFORE rows before each of these; none is the first."""
    index = rows[:, None] - np.arange(1, _BEFORE + 1)
    ordered = np.sort(np.where(index[..., None] >= 0, values[index], np.nan), axis=1)  # nan is last
    count, each = np.minimum(rows, _BEFORE), np.arange(len(rows))
    return np.asarray((ordered[each, (count - 1) // 2] + ordered[each, count // 2]) / 2)
