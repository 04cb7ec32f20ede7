# SPDX-License-Identifier: Apache-2.0
"""The class of all hosts' rows."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows
from collector.host.places import Places
from collector.settings import Settings
from netmon.columnar import Columns
from netmon.dl.classify import Rows, Windows, row_classes, share_windows
from netmon.dl.traffic import BULK
from netmon.records import Class

_Classes = npt.NDArray[np.uint8]


class Classifier:
    """Classifies rows by their flow's owner and what else its link carries meanwhile."""

    def __init__(self, flows: AllFlows, places: Places, settings: Settings) -> None:
        """flows, places: of all sessions."""
        self._flows, self._places, self._settings = flows, places, settings

    def classify(self, rows: Columns, link: npt.NDArray[np.int64]) -> tuple[Windows, _Classes]:
        """rows: of ARRIVED; link: of each, of all sessions' → windows, the class of each row."""
        class_, job, traffic = (self._flows.of_flows(name, rows["flow"]) for name in ("class", "job", "traffic"))
        gradient = (class_ == Class.DL_ONLY) & np.isin(traffic, BULK)
        asked = Rows(rows["start_ns"], link, class_, job, gradient, rows["wire_bytes"], rows["payload_bytes"])
        links = self._places.links
        windows = share_windows(asked, links["capacity_bps"], links["window_ns"], self._settings.share_threshold)
        return windows, row_classes(asked, windows)
