# SPDX-License-Identifier: Apache-2.0
"""The class of all hosts' rows."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows
from collector.host.places import Places
from collector.settings import Settings
from netmon.dl.classify import Rows, Windows, row_classes, share_windows
from netmon.dl.traffic import Traffic
from netmon.records import Class, Table

_Classes = npt.NDArray[np.uint8]


class Classifier:
    """Classifies rows by their flow's owner and what else its link carries meanwhile."""

    def __init__(self, flows: AllFlows, places: Places, settings: Settings) -> None:
        """flows, places: of all sessions."""
        self._flows, self._places, self._settings = flows, places, settings

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
