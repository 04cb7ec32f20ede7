# SPDX-License-Identifier: Apache-2.0
"""The class of one host's rows: exact for the dataset, steady for those who look at it."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import FlowTable, Links
from collector.settings import Settings
from netmon.dl.classify import Rows, Windows, row_classes, share_windows
from netmon.dl.steadiness import Steady
from netmon.dl.traffic import Traffic
from netmon.records import Class, Table

_Classes = npt.NDArray[np.uint8]


class Classifier:
    """Classifies rows of one session, by their flow's owner and what else its link carries meanwhile."""

    def __init__(self, flows: FlowTable, links: Links, settings: Settings, window_ns: int) -> None:
        """window_ns: width of a share window."""
        self._flows, self._links, self._settings, self._window_ns = flows, links, settings, window_ns
        self._steady: dict[tuple[int, int], Steady] = {}  # by link and job

    def classify(self, rows: Table) -> tuple[Windows, _Classes]:
        """rows: columns flow (dense index), start_ns, wire_bytes, payload_bytes → windows, the class of each row."""
        state = self._flows.state[rows["flow"]]
        gradient = (state["class"] == Class.DL_ONLY) & (state["traffic"] == Traffic.GRADIENT)
        asked = Rows(
            *(rows["start_ns"], state["link"], state["class"], state["job"].astype(np.int64), gradient),
            *(rows["wire_bytes"], rows["payload_bytes"]),
        )
        threshold = self._settings.share_threshold
        windows = share_windows(asked, self._links.capacity_bps, self._window_ns, threshold)
        return windows, row_classes(asked, windows)

    def view(self, rows: Table, windows: Windows, classes: _Classes, keep: bool) -> _Classes:
        """The classes with hysteresis: DL-only and DL-shared change when several windows in a row say so.

        keep: these rows are final, the next ones follow them.
        """
        state = self._flows.state[rows["flow"]]
        dl = state["class"] == Class.DL_ONLY
        viewed = classes.copy()
        number = rows["start_ns"] // self._window_ns
        for link, job in self._pairs(rows["flow"][dl]):
            own = dl & (state["link"] == link) & (state["job"] == job)
            here = windows.link == link
            steady = self._steady.setdefault((link, job), Steady(self._settings.hold_windows))
            flags = steady.flags(windows.number[here], windows.shared(job)[here], keep)
            shared = flags[np.searchsorted(windows.number[here], number[own])]
            viewed[own] = np.where(shared, Class.DL_SHARED, Class.DL_ONLY)
        return viewed

    def _pairs(self, flows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """The links and jobs of these flows, each pair once."""
        present = np.zeros(len(self._flows.state), np.bool_)
        present[flows] = True
        of_flow = self._flows.state[present]
        return sorted(set(zip(of_flow["link"].tolist(), of_flow["job"].tolist(), strict=True)))
