# SPDX-License-Identifier: Apache-2.0
"""Which link gave less than it usually does, with nobody else on it, or lost packets.

A link that is shaped, or slow, carries gradients all the time, evenly, at a pace below the one that it usually
reaches. A rank that is slow itself leaves gaps, between which its bytes go as fast as ever.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.held import Cells, Held
from netmon.dl.verdict.window import Window
from netmon.records import Direction

_WINDOW = 20_000_000 // CELL_NS  # cells over which a pace is taken
_PART = _WINDOW // 10
_FAST = 0.85  # of the usual pace
_SLOWER = 0.75  # of the usual pace
_EVEN = 0.35  # the middle 80 % of the paces lie within so much of their median
_BUSY = 0.8  # of the slow windows
_FEWEST = 3  # windows
_DROPPED = 0.001  # of the bytes

_Floats = npt.NDArray[np.float64]


def slow_link(seen: Window, cells: Cells, references: Mapping[int, Window]) -> int | None:
    """The link (of seen.links) that held the transfer up by itself, None where none shows it."""
    if not references:
        return None
    begin, count = cells.begin, len(cells.kind)
    plain = (cells.kind == Held.SLOW) | (cells.kind == Held.LOST)
    whole = count // _WINDOW
    if whole < _FEWEST:
        return None
    shape = whole, _WINDOW
    used = slice(begin, begin + whole * _WINDOW)
    quiet = plain[: whole * _WINDOW].reshape(shape).mean(axis=1) > 0.9
    held = cells.lost_ns[: whole * _WINDOW].reshape(shape).sum(axis=1) > 0.2 * _WINDOW * CELL_NS
    looked = quiet & held
    if looked.sum() < _FEWEST:
        return None
    found: list[tuple[float, int]] = []
    for link in range(len(seen.links)):
        if seen.links[link].direction != Direction.RX:
            continue
        usual = _usual_pace(seen.links[link], references)
        paces = seen.own[link, used].reshape(shape).sum(axis=1)[looked] / _WINDOW
        parts = seen.own[link, used].reshape(whole, -1, _PART).sum(axis=2)[looked] / _PART
        busy = (parts > 0).mean(axis=1)
        pace = float(np.median(paces))
        if not usual or pace <= 0 or pace > _SLOWER * usual or (busy > 0.9).mean() < _BUSY:
            continue
        if np.quantile(parts, 0.9) > _FAST * usual:  # it goes as fast as ever, now and then
            continue
        low, high = np.quantile(paces, (0.1, 0.9))
        if high - low <= _EVEN * pace:
            found.append((pace / usual, link))
    return _slow_end(seen, min(found)[1]) if found else None


def _slow_end(seen: Window, link: int) -> int:
    """Of the way that ends with a link, the slow part: the sender's own link where nothing was dropped on the way.

    A host queues what its own link cannot take, and TCP waits for that queue; what a switch cannot take, it drops.
    """
    other = _sender(seen, link)
    if other is None:
        return link
    lost = seen.own[other].sum() - seen.own[link].sum()
    return other if lost <= _DROPPED * seen.own[link].sum() else link


def lossy_link(seen: Window) -> int | None:
    """The link (of seen.links) that the most bytes left without arriving; None where both ends are seen of none."""
    found = []
    for link, one in enumerate(seen.links):
        if one.direction == Direction.RX and (other := _sender(seen, link)) is not None:
            found.append((float(seen.own[other].sum() - seen.own[link].sum()), other))
    lost, sender = max(found, default=(0.0, -1))
    return sender if lost > 0 else None


def _sender(seen: Window, link: int) -> int | None:
    """The link at the other end of one that receives."""
    rank, peer = seen.ends[link]
    for other, ends in enumerate(seen.ends):
        if seen.links[other].direction == Direction.TX and peer >= 0 and ends == (peer, rank):
            return other
    return None


def _usual_pace(link: Link, references: Mapping[int, Window]) -> float:
    """The most that the link carries of the job's bytes over one such window in usual iterations (median)."""
    most = []
    for window in references.values():
        if link in window.links and window.cells >= _WINDOW:
            sums = np.cumsum(np.concatenate([[0.0], window.own[window.links.index(link)]]))
            most.append(float((sums[_WINDOW:] - sums[:-_WINDOW]).max()) / _WINDOW)
    return float(np.median(most)) if most else 0.0
