# SPDX-License-Identifier: Apache-2.0
"""Whose bytes went over a host's links during each iteration of a rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S, Windows
from netmon.dl.history import HostBlocks, PayloadHistory
from netmon.dl.traffic import Traffic
from netmon.records import Class, Direction, Owner

_Numbers = npt.NDArray[np.int64]

_NUMBER_BITS = 44  # of a window's number, where link and number are one key
_CLASSES, _TRAFFIC, _DIRECTIONS = len(Class), len(Traffic), len(Direction)


JOB = "job "
"""What the names of other jobs begin with among the parties."""


class Party(NamedTuple):
    """Whose traffic it is, as people ask for it: not which of a program's processes."""

    job: str  # empty: not a rank's
    rank: int
    name: str  # the program, with its container; what is known instead where no process owns the socket


def party(owner: Owner) -> Party:
    """The party that an owner belongs to."""
    if owner.job:
        return Party(owner.job, owner.rank, JOB + owner.job)
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


class HostAccounts:
    """Payload of every host by party, class and direction, and the share windows of its links."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.payload = PayloadHistory()
        self.windows = WindowHistory()

    def drop(self, host: int) -> None:
        """The host is gone."""
        self.payload.drop(host)
        self.windows.drop(host)


class HostAccount:
    """One host's part of it."""

    def __init__(self, accounts: HostAccounts, host: int, window_ns: int) -> None:
        """host: its place; window_ns: width of its share windows."""
        self._accounts, self._host, self._window_ns = accounts, host, window_ns

    def cut(self, time_ns: int, added_until_ns: int) -> bool:
        """As PayloadHistory.cut."""
        return self._accounts.payload.cut(self._host, time_ns, added_until_ns)

    def tally(self, rank: Party, job: int, parties: Sequence[Party], start_ns: int, end_ns: int, alone: bool) -> Tally:
        """The account of a rank's [start, end); job: its number in the windows; alone: nobody to send gradients to."""
        sums = self._accounts.payload.between(self._host, start_ns, end_ns)
        own, shared, control, cross, other, unknown = ([0, 0] for _ in range(6))
        by_name: dict[str, list[int]] = {}
        for key, payload in zip(sums.key.tolist(), sums.payload_bytes.tolist(), strict=True):
            rest, way = divmod(key, _DIRECTIONS)
            rest, class_ = divmod(rest, _CLASSES)
            whose, traffic = divmod(rest, _TRAFFIC)
            owner = parties[whose]
            dl = class_ in (Class.DL_ONLY, Class.DL_SHARED)
            if dl and owner[:2] == rank[:2]:
                own[way] += payload
                shared[way] += payload * (class_ == Class.DL_SHARED)
                control[way] += payload * (traffic == Traffic.CONTROL)
            if dl and owner.job != rank.job:
                other[way] += payload
            if class_ == Class.CROSS or (dl and owner.job != rank.job):
                cross[way] += payload
                by_name.setdefault(owner.name, [0, 0])[way] += payload
            unknown[way] += payload * (class_ == Class.UNCLASSIFIED)
        top = max(by_name, key=lambda name: (sum(by_name[name]), name), default="")
        top_rx, top_tx = by_name.get(top, (0, 0))
        first, last = start_ns // self._window_ns, (end_ns - 1) // self._window_ns
        peak, node_shared = self._accounts.windows.between(self._host, job, first, last, first * self._window_ns)
        return Tally(
            *(own[1], own[0], shared[1], shared[0], control[1], control[0], cross[1], cross[0]),
            *(other[1], other[0], unknown[1], unknown[0]),
            cross_top=top,
            cross_top_tx_bytes=top_tx,
            cross_top_rx_bytes=top_rx,
            peak_bps=peak * 8 * NS_PER_S // self._window_ns,
            node_shared=not alone and node_shared,
        )


class WindowHistory:
    """The share windows of all hosts' links while an iteration may still ask for them."""

    def __init__(self) -> None:
        """Begin without windows."""
        self._blocks = HostBlocks()

    def add(self, windows: Windows, host_of_link: _Numbers, wanted: npt.NDArray[np.bool_], until_ns: _Numbers) -> None:
        """Add the windows of settled rows, of hosts that are wanted. until_ns: by host, as HostBlocks.add."""
        entry = np.flatnonzero(wanted[host_of_link[windows.link]])
        if not len(entry):
            return
        pair = np.flatnonzero(wanted[host_of_link[windows.link[windows.pair_entry]]])
        # An entry as a job sees it that has no rows in it, job −1; and as each sees it that has.
        whole = np.concatenate([entry, windows.pair_entry[pair]])
        host = host_of_link[windows.link[whole]]
        order = np.argsort(host, kind="stable")
        columns = {
            "host": host,
            "number": windows.number[whole],
            "entry": windows.link[whole] << _NUMBER_BITS | windows.number[whole],
            "job": np.concatenate([np.full(len(entry), -1), windows.pair_job[pair]]),
            "wire_bytes": windows.wire_bytes[whole],
            "shared": np.concatenate([windows.shared_for_others[entry], windows.pair_shared[pair]]),
        }
        self._blocks.add({name: column[order] for name, column in columns.items()}, until_ns)

    def between(self, host: int, job: int, first: int, last: int, first_ns: int) -> tuple[int, bool]:
        """Of the host's windows first…last: the most wire bytes of one, and whether the job sees one as shared."""
        most, shared = 0, False
        for block, rows in self._blocks.of(host, first_ns):
            number = block.columns["number"][rows]
            inside = np.flatnonzero((number >= first) & (number <= last))
            if len(inside):
                most = max(most, int(block.columns["wire_bytes"][rows][inside].max()))
                shared = shared or _sees_shared(
                    job, *(block.columns[n][rows][inside] for n in ("job", "entry", "shared"))
                )
        return most, shared

    def forget(self, before_ns: _Numbers, window_ns: _Numbers) -> None:
        """Drop of each host the windows that end before before_ns; window_ns: their width, by host too."""
        if self._blocks.forget(before_ns):
            block = self._blocks.take_aside()
            if block is not None:
                host = block.columns["host"]
                stay = np.flatnonzero((block.columns["number"] + 1) * window_ns[host] > before_ns[host])
                order = stay[np.argsort(host[stay], kind="stable")]
                self._blocks.put_aside({name: c[order] for name, c in block.columns.items()}, block.until_ns)

    def drop(self, host: int) -> None:
        """The host is gone."""
        self._blocks.drop(host)


def _sees_shared(job: int, jobs: _Numbers, entry: _Numbers, shared: npt.NDArray[np.bool_]) -> bool:
    if not shared.any():
        return False
    own = jobs == job
    if shared[own].any():
        return True
    others = entry[shared & (jobs == -1)]
    return len(others) > 0 and not set(others.tolist()) <= set(entry[own].tolist())
