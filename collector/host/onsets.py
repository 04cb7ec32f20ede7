# SPDX-License-Identifier: Apache-2.0
"""What one host contributes to the comparison of clocks: when its flows began to send after a rest."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collector.host.align import Alignment
from collector.host.exchanges import WINDOW_NS
from netmon.records import Flow, Table, empty

_MOST_ONSETS = 2_000  # per host: the newest
STARTING_NS = 1_000_000_000  # the first bucket that an agent sees of a flow is not the flow's

_SEEN = np.dtype([("flow", "<i8"), ("time_ns", "<i8")])


class Onsets:
    """When the flows of one host began to send after a rest, lately."""

    def __init__(self) -> None:
        """Begin without any."""
        self._recent: deque[tuple[Table, int, int]] = deque()

    def add(self, rows: Table, newest_ns: int) -> None:
        """Take in rows of ARRIVED that follow a rest; newest_ns: of all rows that came with them."""
        seen = np.empty(len(rows), _SEEN)
        seen["flow"], seen["time_ns"] = rows["flow"], rows["start_ns"]
        self._recent.append((seen, int(rows["bucket_ns"].max(initial=0)), int(rows["start_ns"].max(initial=0))))
        while self._recent and self._recent[0][2] < newest_ns - WINDOW_NS:
            self._recent.popleft()

    @property
    def bucket_ns(self) -> int:
        """What a time may be off: the width of the widest rows among the recent ones; 0: there are none."""
        return max((width for seen, width, _ in self._recent if len(seen)), default=0)

    def table(self) -> Table:
        """Dense index of the flow and time (mono), by time; at most the newest 2000."""
        seen = np.concatenate([empty(_SEEN), *(seen for seen, _, _ in self._recent)])
        return seen[np.argsort(seen["time_ns"], kind="stable")][-_MOST_ONSETS:]


@dataclass(frozen=True)
class HostOnsets:
    """What a comparison needs of one host."""

    alignment: Alignment
    bucket_ns: int
    flows: Sequence[Flow]
    onsets: Table  # of Onsets.table
