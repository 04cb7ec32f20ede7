# SPDX-License-Identifier: Apache-2.0
"""For tests: captures in every format, and `netmon replay` on them."""

import functools
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

HOST, PEER = "198.18.1.1", "198.18.1.2"
EPOCH_NS = 1_700_000_000_000_000_000

Timed = tuple[int, bytes]
"""A frame and its time since EPOCH_NS (ns)."""


@functools.cache
def segment(payload: int = 100, sent: bool = True, sport: int = 1000) -> bytes:
    """A TCP segment of HOST to PEER, or back."""
    ends = {"src": HOST, "dst": PEER} if sent else {"src": PEER, "dst": HOST}
    return bytes(Ether(src="02:00:00:00:00:01") / IP(**ends) / TCP(sport=sport, dport=2000) / Raw(b"x" * payload))


def pcap(
    path: Path, frames: Sequence[Timed], *, link: int = 1, snap: int = 1 << 16, order: str = "<", nano: bool = False
) -> Path:
    """A classic capture."""
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snap, link)]
    for time_ns, frame in frames:
        seconds, rest = divmod(EPOCH_NS + time_ns, 1_000_000_000)
        kept = frame[:snap]
        parts += [struct.pack(f"{order}IIII", seconds, rest // unit, len(kept), len(frame)), kept]
    path.write_bytes(b"".join(parts))
    return path


def pcapng(path: Path, frames: Sequence[Timed], *, link: int = 1, order: str = "<", nano: bool = False) -> Path:
    """A capture with one interface; in ns or, without an option that says so, µs."""

    def block(kind: int, body: bytes) -> bytes:
        size = 12 + len(body)
        return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)

    resolution = struct.pack(f"{order}HHB3xI", 9, 1, 9, 0) if nano else b""
    parts = [
        block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack(f"{order}HHI", link, 0, 1 << 16) + resolution),
    ]
    for time_ns, frame in frames:
        stamp = (EPOCH_NS + time_ns) // (1 if nano else 1000)
        head = struct.pack(f"{order}IIIII", 0, stamp >> 32, stamp & 0xFFFFFFFF, len(frame), len(frame))
        parts.append(block(6, head + frame + bytes(-len(frame) % 4)))
    path.write_bytes(b"".join(parts))
    return path


def replay(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command, as a process."""
    command = [sys.executable, "-m", "netmon", "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def refused(*arguments: object) -> str:
    """The one line with which it fails."""
    done = replay(*arguments)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    return line


def table(data: Path, name: str) -> pd.DataFrame:
    """A table of the dataset, buckets by time."""
    rows = pd.read_parquet(data / name)
    return rows.sort_values("bucket_start_ns") if name == "buckets" else rows
