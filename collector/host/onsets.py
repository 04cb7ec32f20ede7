# SPDX-License-Identifier: Apache-2.0
"""What one host contributes to the comparison of clocks: when its flows began to send after a rest."""

import numpy as np

from netmon.columnar import Columns
from netmon.records import Table, empty

_MOST_ONSETS = 2_000  # that wait to be told: the newest
STARTING_NS = 1_000_000_000  # the first bucket that an agent sees of a flow is not the flow's

SEEN = np.dtype([("flow", "<i8"), ("time_ns", "<i8"), ("bucket_ns", "<i8")])
"""Index of the flow, start (mono) and width of its first bucket after a rest."""


class Onsets:
    """When the flows of one host began to send after a rest, since somebody asked."""

    def __init__(self) -> None:
        """Begin without any."""
        self._new = empty(SEEN)

    def add(self, rows: Columns) -> None:
        """Take in rows of ARRIVED that follow a rest."""
        seen = np.empty(len(rows), SEEN)
        seen["flow"], seen["time_ns"], seen["bucket_ns"] = rows["flow"], rows["start_ns"], rows["bucket_ns"]
        seen = np.concatenate([self._new, seen])
        if len(seen) > _MOST_ONSETS:
            seen = seen[np.argsort(seen["time_ns"], kind="stable")][-_MOST_ONSETS:]
        self._new = seen

    def take(self) -> Table:
        """Those since the last call, dtype SEEN, at most the newest 2000."""
        taken, self._new = self._new, empty(SEEN)
        return taken
