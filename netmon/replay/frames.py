# SPDX-License-Identifier: Apache-2.0
"""Frames that have been parsed, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from netmon.records import PROTOCOL_NON_IP, Direction
from netmon.replay.capture import Chunk
from netmon.replay.link import ETHERNET_BYTES, OUTGOING
from netmon.replay.parse import parse

PROTOCOL_SHIFT, DIRECTION_SHIFT, INTERFACE_SHIFT = np.uint64(32), np.uint64(40), np.uint64(41)
"""Within the last word of a FLOW_KEY."""

_UNKNOWN = -1


@dataclass(frozen=True)
class Frames:
    """Columns of n rows, in the order of the capture."""

    words: npt.NDArray[np.uint64]  # (n, 5): FLOW_KEY
    time_ns: npt.NDArray[np.int64]
    wire_bytes: npt.NDArray[np.int64]
    payload_bytes: npt.NDArray[np.int64]
    cut: npt.NDArray[np.bool_]  # headers that the capture does not have
    hardware_source: npt.NDArray[np.uint64]  # 0: not in the capture
    direction: npt.NDArray[np.int8]  # as the capture says, −1 where it does not

    def __len__(self) -> int:
        """Rows."""
        return len(self.time_ns)

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> "Frames":
        """Those rows."""
        return Frames(*(getattr(self, column.name)[rows] for column in fields(self)))


def concatenated(parts: Sequence[Frames]) -> Frames:
    """At least one part → one."""
    columns = ([getattr(part, column.name) for part in parts] for column in fields(Frames))
    return parts[0] if len(parts) == 1 else Frames(*map(np.concatenate, columns))


def frames_of(chunk: Chunk) -> Frames:
    """Copies what is needed out of a chunk. Wire bytes are those of the original frame with an Ethernet header."""
    headers, link, rows = parse(chunk), chunk.link, len(chunk.time_ns)
    hardware, direction = np.zeros(rows, np.uint64), np.full(rows, _UNKNOWN, np.int8)
    if link.hardware_source_at >= 0:
        there = chunk.available >= ETHERNET_BYTES
        address = np.zeros((rows, 8), np.uint8)
        address[there, :6] = chunk.data[there, link.hardware_source_at : link.hardware_source_at + 6]
        hardware = address.view(np.uint64)[:, 0]
    if link.kind_at >= 0:
        there = chunk.available >= link.header_bytes
        outgoing = chunk.data[:, link.kind_at] == OUTGOING
        direction[there] = np.where(outgoing, Direction.TX, Direction.RX)[there]
    wire = np.maximum(chunk.original - link.header_bytes + link.wire_header_bytes, 0)
    return Frames(headers.words, chunk.time_ns, wire, headers.payload_bytes, headers.cut, hardware, direction)


def is_ip(frames: Frames) -> npt.NDArray[np.bool_]:
    """Which frames have addresses."""
    ip: npt.NDArray[np.bool_] = frames.words[:, 4] >> PROTOCOL_SHIFT & np.uint64(0xFF) != PROTOCOL_NON_IP
    return ip


def knows_direction(frames: Frames) -> bool:
    """Whether the capture tells for every frame which way it went."""
    return not (frames.direction == _UNKNOWN).any()
