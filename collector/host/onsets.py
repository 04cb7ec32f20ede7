# SPDX-License-Identifier: Apache-2.0
"""What one host contributes to the comparison of clocks: when its flows began to send after a rest."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.host.align import Alignment
from collector.host.exchanges import WINDOW_NS
from collector.host.flows import FlowTable
from netmon.dl.onsets import REST_NS, find_onsets
from netmon.records import Flow, Table, empty

_MOST_ONSETS = 2_000  # per host: the newest
_STARTING_NS = 1_000_000_000  # the first bucket that an agent sees of a flow is not the flow's

_Numbers = npt.NDArray[np.int64]
_SEEN = np.dtype([("flow", "<i8"), ("time_ns", "<i8")])


class Onsets:
    """When the flows of one host began to send after a rest, lately."""

    def __init__(self, begin_ns: int) -> None:
        """begin_ns: when the agent began to look (mono)."""
        self._begin_ns = begin_ns + _STARTING_NS
        self._recent: deque[tuple[Table, int]] = deque()

    def add(self, flows: FlowTable, flow: _Numbers, start_ns: _Numbers, bucket_ns: int) -> None:
        """Take in rows of one width, by dense index of their flow, before `flows` knows of them."""
        state = flows.state[flow]
        before = np.where(state["wire_bytes"] > 0, state["last_ns"], -REST_NS)
        places = find_onsets(flow, start_ns, before)
        places = places[start_ns[places] >= self._begin_ns]
        seen = np.empty(len(places), _SEEN)
        seen["flow"], seen["time_ns"] = flow[places], start_ns[places]
        self._recent.append((seen, bucket_ns))
        oldest = int(start_ns.max(initial=0)) - WINDOW_NS
        while self._recent and not (self._recent[0][0]["time_ns"] >= oldest).any() and len(start_ns):
            self._recent.popleft()

    @property
    def bucket_ns(self) -> int:
        """What a time may be off: the width of the widest rows among the recent ones; 0: there are none."""
        return max((width for seen, width in self._recent if len(seen)), default=0)

    def table(self) -> Table:
        """Dense index of the flow and time (mono), by time; at most the newest 2000."""
        seen = np.concatenate([empty(_SEEN), *(seen for seen, _ in self._recent)])
        return seen[np.argsort(seen["time_ns"], kind="stable")][-_MOST_ONSETS:]


@dataclass(frozen=True)
class HostOnsets:
    """What a comparison needs of one host."""

    alignment: Alignment
    bucket_ns: int
    flows: Sequence[Flow]
    onsets: Table  # of Onsets.table
