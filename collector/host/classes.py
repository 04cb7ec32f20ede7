# SPDX-License-Identifier: Apache-2.0
"""The class of all hosts' rows: exact for the dataset, steady for those who look at it."""

import itertools

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows
from collector.host.places import Places
from collector.settings import Settings
from netmon.dl.classify import Rows, Windows, row_classes, share_windows
from netmon.dl.grouped import order_by, starts
from netmon.dl.steadiness import Steady
from netmon.dl.traffic import Traffic
from netmon.records import Class, Table

_Classes = npt.NDArray[np.uint8]


class Classifier:
    """Classifies rows by their flow's owner and what else its link carries meanwhile."""

    def __init__(self, flows: AllFlows, places: Places, settings: Settings) -> None:
        """flows, places: of all sessions."""
        self._flows, self._places, self._settings = flows, places, settings
        self._steady = Steady(settings.hold_windows)
        self._lines: dict[tuple[int, int], int] = {}  # by link and job
        self._count = itertools.count(1)

    def classify(self, rows: Table, link: npt.NDArray[np.int64]) -> tuple[Windows, _Classes]:
        """rows: dtype ARRIVED; link: of each, of all sessions' → windows, the class of each row."""
        state = self._flows.state
        flow = np.ascontiguousarray(rows["flow"])
        class_, job = state["class"][flow], state["job"][flow].astype(np.int64)
        gradient = (class_ == Class.DL_ONLY) & (state["traffic"][flow] == Traffic.GRADIENT)
        start, wire, payload = (np.ascontiguousarray(rows[n]) for n in ("start_ns", "wire_bytes", "payload_bytes"))
        asked = Rows(start, link, class_, job, gradient, wire, payload)
        links = self._places.links
        windows = share_windows(asked, links["capacity_bps"], links["window_ns"], self._settings.share_threshold)
        return windows, row_classes(asked, windows)

    def view(self, windows: Windows, classes: _Classes, keep: bool) -> _Classes:
        """The classes with hysteresis: DL-only and DL-shared change when several windows in a row say so.

        keep: these rows are final, the next ones follow them.
        """
        viewed = classes.copy()
        dl = np.flatnonzero((classes == Class.DL_ONLY) | (classes == Class.DL_SHARED))
        if not len(dl):
            return viewed
        # As each job sees every window of its links, those included in which it has no rows itself.
        link, job = windows.link[windows.pair_entry], windows.pair_job
        order = order_by(link, job)
        first = starts(link[order], job[order])
        of_pair = np.empty(len(link), np.int64)
        of_pair[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
        begin, end = (np.searchsorted(windows.link, link[order[first]], side) for side in ("left", "right"))
        offset = np.cumsum(end - begin) - (end - begin)
        entry = np.arange((end - begin).sum()) + np.repeat(begin - offset, end - begin)
        place = offset[of_pair] + windows.pair_entry - begin[of_pair]
        on = windows.shared_for_others[entry]
        on[place] = windows.pair_shared
        line = np.repeat(self._numbers(link[order[first]], job[order[first]]), end - begin)
        by_line = np.argsort(line, kind="stable")
        flags = np.empty(len(on), np.bool_)
        flags[by_line] = self._steady.flags(line[by_line], windows.number[entry][by_line], on[by_line], keep)
        shared = flags[place][windows.pair_of_row]
        viewed[dl] = np.where(shared, Class.DL_SHARED, Class.DL_ONLY)
        return viewed

    def _numbers(self, link: npt.NDArray[np.int64], job: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        keys = zip(link.tolist(), job.tolist(), strict=True)
        return np.array([self._lines.get(key) or self._begin(key) for key in keys], np.int64)

    def _begin(self, key: tuple[int, int]) -> int:
        number = self._lines[key] = next(self._count)
        return number

    def drop(self, links: range) -> None:
        """The links are gone."""
        for key in [key for key in self._lines if key[0] in links]:
            del self._lines[key]
