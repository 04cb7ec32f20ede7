# SPDX-License-Identifier: Apache-2.0
"""What one host contributes to the comparison of clocks: when its flows began to send after a rest."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import FlowTable
from netmon.dl.onsets import REST_NS, find_onsets
from netmon.records import Table, empty

_MOST_ONSETS = 2_000  # that wait to be told: the newest
_STARTING_NS = 1_000_000_000  # the first bucket that an agent sees of a flow is not the flow's

_Numbers = npt.NDArray[np.int64]
SEEN = np.dtype([("flow", "<i8"), ("time_ns", "<i8"), ("bucket_ns", "<i8")])
"""Dense index of the flow, start (mono) and width of its first bucket after a rest."""


class Onsets:
    """When the flows of one host began to send after a rest, since somebody asked."""

    def __init__(self, begin_ns: int) -> None:
        """begin_ns: when the agent began to look (mono)."""
        self._begin_ns = begin_ns + _STARTING_NS
        self._new = empty(SEEN)

    def add(self, flows: FlowTable, flow: _Numbers, start_ns: _Numbers, bucket_ns: int) -> None:
        """Take in rows of one width, by dense index of their flow, before `flows` knows of them."""
        state = flows.state[flow]
        before = np.where(state["wire_bytes"] > 0, state["last_ns"], -REST_NS)
        places = find_onsets(flow, start_ns, before)
        places = places[start_ns[places] >= self._begin_ns]
        if not len(places):
            return
        seen = np.empty(len(places), SEEN)
        seen["flow"], seen["time_ns"], seen["bucket_ns"] = flow[places], start_ns[places], bucket_ns
        seen = np.concatenate([self._new, seen])
        if len(seen) > _MOST_ONSETS:
            seen = seen[np.argsort(seen["time_ns"], kind="stable")][-_MOST_ONSETS:]
        self._new = seen

    def take(self) -> Table:
        """Those since the last call, dtype SEEN, at most the newest 2000."""
        taken, self._new = self._new, empty(SEEN)
        return taken
