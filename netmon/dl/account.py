# SPDX-License-Identifier: Apache-2.0
"""Whose bytes went over a host's links during each iteration of a rank."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S, Windows
from netmon.dl.history import PayloadHistory, Sums
from netmon.dl.traffic import Traffic
from netmon.records import Class, Direction, Owner

_CLASSES, _TRAFFIC, _DIRECTIONS = len(Class), len(Traffic), len(Direction)


class Party(NamedTuple):
    """Whose traffic it is, as people ask for it: not which of a program's processes."""

    job: str  # empty: not a rank's
    rank: int
    name: str  # the program, with its container; what is known instead where no process owns the socket


def party(owner: Owner) -> Party:
    """The party that an owner belongs to."""
    if owner.job:
        return Party(owner.job, owner.rank, f"job {owner.job}")
    name = owner.process or owner.source
    return Party("", -1, f"{name} ({owner.container})" if owner.container else name)


def row_keys(
    party_: npt.NDArray[np.int64],
    classes: npt.NDArray[np.uint8],
    traffic: npt.NDArray[np.uint8],
    direction: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """One key per row for a PayloadHistory; arrays (rows,), party_: index of the row's Party."""
    return ((party_.astype(np.int64) * _TRAFFIC + traffic) * _CLASSES + classes) * _DIRECTIONS + direction


@dataclass(frozen=True)
class Tally:
    """Payload bytes of one iteration by class and direction, and what its windows saw."""

    dl_tx_bytes: int  # the rank's own flows, shared or not
    dl_rx_bytes: int
    dl_shared_tx_bytes: int  # the part of them in shared windows
    dl_shared_rx_bytes: int
    dl_control_tx_bytes: int  # the part of them that is control traffic
    dl_control_rx_bytes: int
    cross_tx_bytes: int  # on all links of the host, other jobs' training traffic included
    cross_rx_bytes: int
    other_job_tx_bytes: int  # the part of it that is other jobs' training traffic
    other_job_rx_bytes: int
    unclassified_tx_bytes: int
    unclassified_rx_bytes: int
    cross_top: str  # who moved the most of the cross traffic; empty: there was none
    cross_top_tx_bytes: int
    cross_top_rx_bytes: int
    peak_bps: int  # largest wire rate of all classes on any link in any share window
    node_shared: bool  # some link carried a shared window


class _Rows(NamedTuple):
    """Sums by key, the keys taken apart; all arrays (keys,)."""

    payload_bytes: npt.NDArray[np.int64]
    direction: npt.NDArray[np.int64]
    class_: npt.NDArray[np.int64]
    traffic: npt.NDArray[np.int64]
    party: npt.NDArray[np.int64]

    def by_direction(self, chosen: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Payload sent and received of the chosen ones."""
        sums = np.bincount(self.direction[chosen], weights=self.payload_bytes[chosen], minlength=_DIRECTIONS)
        return int(sums[Direction.TX]), int(sums[Direction.RX])


def _apart(sums: Sums) -> _Rows:
    rest, direction = np.divmod(sums.key, _DIRECTIONS)
    rest, class_ = np.divmod(rest, _CLASSES)
    party_, traffic = np.divmod(rest, _TRAFFIC)
    return _Rows(sums.payload_bytes, direction, class_, traffic, party_)


class HostAccount:
    """Payload of one host by party, class and direction, and the share windows of its links."""

    def __init__(self, window_ns: int) -> None:
        """Begin with nothing counted; window_ns: width of a share window."""
        self.payload = PayloadHistory()
        self.windows = WindowHistory(window_ns)

    def tally(self, rank: Party, job: int, parties: Sequence[Party], start_ns: int, end_ns: int, alone: bool) -> Tally:
        """The account of a rank's [start, end); job: its number in the windows; alone: nobody to send gradients to."""
        rows = _apart(self.payload.between(start_ns, end_ns))
        owners = [parties[place] for place in rows.party.tolist()]
        dl = (rows.class_ == Class.DL_ONLY) | (rows.class_ == Class.DL_SHARED)
        own = dl & _true(owner[:2] == rank[:2] for owner in owners)
        other_job = dl & _true(owner.job != rank.job for owner in owners)
        cross = (rows.class_ == Class.CROSS) | other_job
        top, top_tx, top_rx = _largest(rows, cross, owners)
        return Tally(
            *rows.by_direction(own),
            *rows.by_direction(own & (rows.class_ == Class.DL_SHARED)),
            *rows.by_direction(own & (rows.traffic == Traffic.CONTROL)),
            *rows.by_direction(cross),
            *rows.by_direction(other_job),
            *rows.by_direction(rows.class_ == Class.UNCLASSIFIED),
            cross_top=top,
            cross_top_tx_bytes=top_tx,
            cross_top_rx_bytes=top_rx,
            peak_bps=self.windows.peak_bps(start_ns, end_ns),
            node_shared=not alone and self.windows.any_shared(job, start_ns, end_ns),
        )


def _true(values: object) -> npt.NDArray[np.bool_]:
    return np.array(list(values), np.bool_)  # type: ignore[call-overload]


def _largest(rows: _Rows, cross: npt.NDArray[np.bool_], owners: Sequence[Party]) -> tuple[str, int, int]:
    """The name of whoever moved the most of the chosen rows, and what it sent and received."""
    names = np.array([owner.name for owner in owners], dtype=object)
    per_name = {name: rows.by_direction(cross & (names == name)) for name in set(names[cross])}
    most = max(per_name, key=lambda name: (sum(per_name[name]), name), default="")
    return most, *per_name.get(most, (0, 0))


class WindowHistory:
    """The share windows of one host's links while an iteration may still ask for them."""

    def __init__(self, window_ns: int) -> None:
        """Begin without windows."""
        self._width = window_ns
        self._settled: deque[Windows] = deque()

    def add(self, windows: Windows) -> None:
        """Add the windows of settled rows."""
        if len(windows.number):
            self._settled.append(replace(windows, of_row=np.empty(0, np.intp)))

    def peak_bps(self, start_ns: int, end_ns: int) -> int:
        """Largest wire rate of any link in any window that overlaps [start, end)."""
        first, last = start_ns // self._width, (end_ns - 1) // self._width
        rates = (w.wire_bytes[_within(w, first, last)].max(initial=0) for w in self._overlapping(first, last))
        return int(max(rates, default=0)) * 8 * NS_PER_S // self._width

    def any_shared(self, job: int, start_ns: int, end_ns: int) -> bool:
        """Whether any window that overlaps [start, end) is shared on any link, as the job sees it."""
        first, last = start_ns // self._width, (end_ns - 1) // self._width
        return any(w.shared(job)[_within(w, first, last)].any() for w in self._overlapping(first, last))

    def forget(self, before_ns: int) -> None:
        """Drop the windows that end at or before before_ns, as far as they came together."""
        while self._settled and (int(self._settled[0].number[-1]) + 1) * self._width <= before_ns:
            self._settled.popleft()

    def _overlapping(self, first: int, last: int) -> list[Windows]:
        return [windows for windows in self._settled if windows.number[-1] >= first and windows.number[0] <= last]


def _within(windows: Windows, first: int, last: int) -> npt.NDArray[np.bool_]:
    return (windows.number >= first) & (windows.number <= last)
