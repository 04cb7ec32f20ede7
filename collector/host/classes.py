# SPDX-License-Identifier: Apache-2.0
"""The class of one host's rows."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import FlowTable, Links
from collector.settings import Settings
from netmon.dl.classify import Rows, Windows, row_classes, share_windows
from netmon.dl.traffic import Traffic
from netmon.records import Class, Table

_Classes = npt.NDArray[np.uint8]


class Classifier:
    """Classifies rows of one session, by their flow's owner and what else its link carries meanwhile."""

    def __init__(self, flows: FlowTable, links: Links, settings: Settings, window_ns: int) -> None:
        """window_ns: width of a share window."""
        self._flows, self._links, self._settings, self._window_ns = flows, links, settings, window_ns

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
