# SPDX-License-Identifier: Apache-2.0
"""What ranks send each other by NCCL: rows of netmon.evidence.TRANSFERS, as the kernel tells them.

What it tells is read from the memory of processes, which may write there what they like. And a batch has few rows:
where there are more, those of the same kind become one, and no byte is lost.
"""

import logging
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.evidence import TRANSFERS, UNKNOWN
from netmon.kernel.loader import TRANSFER_RING_BYTES
from netmon.kernel.meter.memory import RingBuffer, mapped_array
from netmon.marks import MOST_RANKS, RankIdentity
from netmon.records import (
    TRANSFER,
    TRANSFER_EACH,
    TRANSFER_IMPLAUSIBLE,
    TRANSFER_ONE,
    TRANSFER_OPERATION,
    TRANSFER_OPERATIONS,
    TRANSFER_UNREPORTED,
    Table,
    distinct,
    empty,
)
from netmon.wire.limits import MAX_BYTES, MAX_COUNT

log = logging.getLogger(__name__)

_MOST_ROWS, _MOST_OF_EACH = 256, 1024  # of a batch; where each transfer is reported
_SUMS = ("bytes", "transfers", "missed", "operations")
_KINDS = (
    *("job", "rank", "pid", "communicator", "group_rank", "peer", "sends"),
    *("collective", "algorithm", "protocol", "device"),
)
_COARSER = (
    *((*_KINDS, "channel", "number"), (*_KINDS, "number"), _KINDS),
    *(("job", "rank", "pid", "peer", "sends"), ("job", "rank", "pid", "sends"), ("sends",)),
)
"""By what rows are one kind, until a batch has few enough."""

_NOTHING = empty(TRANSFERS)


class Transfers:
    """One per agent. There is nothing until the privileged part has found a library that tells them."""

    def __init__(self, ranks: Mapping[int, RankIdentity]) -> None:
        """ranks: by pid."""
        self._ring: RingBuffer | None = None
        self._counts: Table = np.zeros(TRANSFER_EACH, np.uint64)
        self._warned = False
        self._ranks = ranks

    def attach(self, descriptors: Mapping[str, int]) -> None:
        """descriptors: of netmon.kernel.training.nccl.HANDED_OVER, which are closed."""
        self._ring = RingBuffer(descriptors["transfers"], TRANSFER_RING_BYTES, TRANSFER)
        self._counts = mapped_array(descriptors["transfer_counts"], np.dtype("<u8"), TRANSFER_EACH)
        for descriptor in descriptors.values():
            os.close(descriptor)

    @property
    def level(self) -> float:
        """How full the ring is, from 0 to 1."""
        return 0.0 if self._ring is None else self._ring.level

    @property
    def waiting(self) -> int:
        """Operations that wait to be reported with the next one of their connection."""
        return int(self._counts[TRANSFER_UNREPORTED])

    def due(self, jobs: dict[str, int]) -> Table:
        """dtype TRANSFERS of what ranks transferred since the last call. jobs: index of each name, which grows.

        Others use the same libraries: who is no rank, or one of another host that is a namespace of this machine.
        """
        if self._ring is None:
            return _NOTHING
        ranks = self._ranks
        events = self._ring.take()
        if self._counts[TRANSFER_IMPLAUSIBLE] and not self._warned:
            self._warned = True
            log.warning(
                "a library called like NCCL is not what its debug information says: its transfers may be missing"
            )
        rows = _rows(events[np.isin(events["pid"], list(ranks))])
        for pid in distinct(rows["pid"]).tolist():
            own = rows["pid"] == pid
            rows["job"][own] = jobs.setdefault(ranks[pid].job, len(jobs))
            rows["rank"][own] = ranks[pid].rank
        most = _MOST_OF_EACH if (rows["level"] == TRANSFER_ONE).any() else _MOST_ROWS
        for names in _COARSER:
            if len(rows) <= most:
                break
            rows = merged(rows, names)
        return rows


def _rows(events: Table) -> Table:
    """events: dtype TRANSFER → dtype TRANSFERS, of jobs that are not known."""
    rows = np.zeros(len(events), TRANSFERS)
    rows["job"] = rows["rank"] = UNKNOWN
    for name in ("start_ns", "end_ns", "pid", "level", "collective", "algorithm", "protocol", "channel", "operations"):
        rows[name] = events[name]
    rows["communicator"], rows["sends"] = events["thread"], events["receives"] == 0
    for name, most in (("rank", MOST_RANKS), ("peer", MOST_RANKS), ("device", 0xFFFF)):
        known = (events[name] >= 0) & (events[name] < most)
        rows["group_rank" if name == "rank" else name] = np.where(known, events[name], UNKNOWN)
    rows["number"] = np.minimum(events["number"], MAX_COUNT).astype(np.int64)
    rows["transfers"], rows["missed"] = events["transfers"], events["missed"]
    rows["bytes"] = np.minimum(events["bytes"], MAX_BYTES).astype(np.int64)
    rows["bytes"][(rows["transfers"] == 0) & (rows["missed"] > 0)] = UNKNOWN
    rows["queued_ns"] = np.where(events["queued_ns"], events["queued_ns"].astype(np.int64), UNKNOWN)
    return rows


def merged(rows: Table, names: Sequence[str]) -> Table:
    """One row for all that have the same in these columns: sums, the whole time, and else what they have in common."""
    keys = [rows[name] for name in names]
    order = np.lexsort(keys)
    rows = rows[order]
    new = np.zeros(len(rows), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    first = np.flatnonzero(new)
    merged = np.diff(np.append(first, len(rows))) > 1
    one = rows[first]
    for name in TRANSFERS.names or ():
        column: npt.NDArray[np.int64] = rows[name]
        if name in _SUMS:
            known = np.maximum(column, 0)
            one[name] = np.minimum(np.add.reduceat(known, first), MAX_BYTES if name == "bytes" else MAX_COUNT)
        else:
            least, most = np.minimum.reduceat(column, first), np.maximum.reduceat(column, first)
            one[name] = least if name == "start_ns" else most if name == "end_ns" else np.where(least == most, most, -1)
    one["bytes"][(one["transfers"] == 0) & (one["missed"] > 0)] = UNKNOWN
    level = np.maximum.reduceat(rows["level"], first)
    one["level"] = np.where(merged, np.maximum(level, TRANSFER_OPERATION), level)
    if "number" not in names:
        one["level"][merged] = TRANSFER_OPERATIONS
    return one
