# SPDX-License-Identifier: Apache-2.0
"""Frames → rows per flow and bucket; flow keys → numbered, described flows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from netmon.records import BUCKET, FLOW_KEY, Direction, Flow, Owner, Table, address
from netmon.replay.capture import CHUNK
from netmon.replay.frames import Frames

IDLE_NS = 300_000_000_000
"""A flow that has been idle for so long when a portion begins is over: if it comes back it is a new one."""

_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)


class FlowCounts:
    """The flows of a replay, and their counts in buckets."""

    def __init__(self, bucket_ns: int, owner: Callable[[Flow], Owner]) -> None:
        """owner: says whose a new flow is."""
        self._bucket_ns, self._owner = bucket_ns, owner
        self._ids: dict[bytes, int] = {}
        self._last_ns: dict[bytes, int] = {}
        self._next_id = 1
        self._tidied_ns = 0

    def count(self, frames: Frames, since_ns: int) -> tuple[Table, list[Flow]]:
        """At least one frame → rows, dtype BUCKET, and the flows that are new among them.

        since_ns: a time that the former portions reached, by which flows are idle. Several rows may be of one flow
        and bucket, for only CHUNK frames are sure to fit a row.
        """
        self._tidy(since_ns)
        parts = [self._count(frames.take(slice(at, at + CHUNK))) for at in range(0, len(frames), CHUNK)]
        return np.concatenate([rows for rows, _ in parts]), [flow for _, new in parts for flow in new]

    def _count(self, frames: Frames) -> tuple[Table, list[Flow]]:
        start = frames.time_ns // self._bucket_ns * self._bucket_ns
        first, of_frame = _distinct(frames.words)
        times, of_time = np.unique(start, return_inverse=True)
        cells, of_cell = np.unique(of_time * len(first) + of_frame, return_inverse=True)
        flow = cells % len(first)
        rows = np.empty(len(cells), BUCKET)
        rows["bucket_start_ns"] = times[cells // len(first)]
        rows["packets"] = np.bincount(of_cell)
        rows["wire_bytes"] = np.bincount(of_cell, weights=frames.wire_bytes)
        rows["payload_bytes"] = np.bincount(of_cell, weights=frames.payload_bytes)
        begun, ended = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), np.int64)
        np.minimum.at(begun, of_frame, start)
        np.maximum.at(ended, of_frame, start)
        ids, new = self._number(np.ascontiguousarray(frames.words[first]), begun, ended)
        rows["flow_id"] = ids[flow]
        return rows, new

    def _number(
        self, words: npt.NDArray[np.uint64], begun: npt.NDArray[np.int64], ended: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], list[Flow]]:
        """Walks the flows of a portion one by one, not its frames."""
        ids, new = np.empty(len(words), np.uint32), []
        for i, key in enumerate(words.view("V40")[:, 0].tolist()):
            known = self._ids.get(key)
            if known is None:
                known = self._ids[key] = self._next_id
                self._next_id += 1
                new.append(self._describe(known, words[i], int(begun[i])))
            ids[i] = known
            self._last_ns[key] = max(self._last_ns.get(key, 0), int(ended[i]))
        return ids, new

    def _describe(self, flow_id: int, words: npt.NDArray[np.uint64], first_ns: int) -> Flow:
        src, dst, src_port, dst_port, link_protocol = words.view(FLOW_KEY)[0].item()
        direction = Direction(link_protocol >> 8 & 1)
        ends = (address(src), address(dst), src_port, dst_port)
        flow = Flow(flow_id, link_protocol >> 9, direction, *ends, link_protocol & 0xFF, first_ns)
        return replace(flow, owner=self._owner(flow))

    def _tidy(self, now_ns: int) -> None:
        if now_ns < self._tidied_ns + IDLE_NS // 5:
            return
        self._tidied_ns = now_ns
        for key in [key for key, last_ns in self._last_ns.items() if last_ns < now_ns - IDLE_NS]:
            del self._last_ns[key], self._ids[key]


def _distinct(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of (n, 5) words: a row of each value that occurs, and the value's number in every row."""
    hashed = np.zeros(len(words), np.uint64)
    for column, multiplier in enumerate(_MULTIPLIERS):
        hashed = (hashed ^ words[:, column]) * np.uint64(multiplier)
        hashed ^= hashed >> np.uint64(31)
    _, first, number = np.unique(hashed, return_index=True, return_inverse=True)
    if not (words[first[number]] == words).all():  # two values with one hash: seldom enough to do it the slow way
        _, first, number = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return first, number
