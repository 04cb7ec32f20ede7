# SPDX-License-Identifier: Apache-2.0
"""What hosts tell of simulated ranks: how long they waited for a CPU, and what TCP sent again."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.connections import SAID
from netmon.dl.verdict.host_part import WAITED

_LOOK_NS, _ASK_NS = 100_000_000, 600_000_000  # as the agent does
_SINCE = -5  # rows, before the first iteration that is told: the job has trained for long
_USUALLY = (0.02, 0.1)  # of the time, that a rank waits for a CPU
_BUSY = 0.3  # of the time, that something is unacknowledged


@dataclass
class Told:
    """May still grow; moments in ns."""

    waits: list[tuple[int, float, float, float]] = field(default_factory=list)  # rank, since, until, share of that
    again: list[tuple[int, float, float, int]] = field(default_factory=list)  # rank, lost when, sent when, bytes

    def waited(self, ranks: int, until_ns: float, random: np.random.Generator) -> npt.NDArray[np.void]:
        """Of all ranks until then; dtype WAITED."""
        start = np.arange(_SINCE * _LOOK_NS, until_ns, _LOOK_NS, dtype=np.float64)
        ns = random.uniform(*_USUALLY, (ranks, len(start))) * _LOOK_NS
        for rank, since, until, share in self.waits:
            ns[rank] += share * np.clip(np.minimum(start + _LOOK_NS, until) - np.maximum(start, since), 0, None)
        rows = np.zeros(ranks * len(start), WAITED)
        rows["rank"] = np.repeat(np.arange(ranks), len(start))
        rows["start_ns"] = np.tile(start, ranks)
        rows["end_ns"] = rows["start_ns"] + _LOOK_NS
        rows["waited_ns"] = np.minimum(ns, _LOOK_NS).ravel()
        return rows

    def said(self, ranks: int, until_ns: float, sent_bps: float) -> npt.NDArray[np.void]:
        """Of a connection of each rank until then; dtype SAID, `of`: the rank."""
        start = np.arange(_SINCE * _ASK_NS, until_ns, _ASK_NS, dtype=np.float64)
        rows = np.zeros(ranks * len(start), SAID)
        rows["of"] = np.repeat(np.arange(ranks), len(start))
        rows["start_ns"] = np.tile(start, ranks)
        rows["end_ns"] = rows["start_ns"] + _ASK_NS
        rows["sent_bytes"] = sent_bps / 8e9 * _ASK_NS
        rows["busy_ns"] = _BUSY * _ASK_NS
        for rank, lost, again, size in self.again:
            own = rows[rank * len(start) : (rank + 1) * len(start)]
            own["again_bytes"][int(again // _ASK_NS) - _SINCE] += size
            waited = np.clip(np.minimum(start + _ASK_NS, again) - np.maximum(start, lost), 0, None)
            own["busy_ns"] += ((1 - _BUSY) * waited).astype(np.int64)
        return rows
