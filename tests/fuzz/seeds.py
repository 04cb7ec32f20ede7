# SPDX-License-Identifier: Apache-2.0
"""Writes what fuzzing begins with, beside what it has found worth keeping: python tests/fuzz/seeds.py."""

import struct
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "unit"), str(Path(__file__).parent)]

from collector_stream import hello
from hpack import Encoder
from mutations import honest_batches
from scapy.all import IP, TCP, UDP, Dot1Q, Ether, IPv6, Raw, wrpcap, wrpcapng
from snapshot_example import example
from targets import CORPUS

from netmon.marks import MarkPacket, encode
from netmon.views import Selection
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.mapping import encode_selection, encode_snapshot
from netmon.wire.tables import split_tables

_ENTRY = b'{"ph": "%s", "name": "%s", "ts": %d, "pid": %d, "args": {"dtype": "float32"}}'


def put(target: str, name: str, data: bytes) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(data)


def library(names: bytes) -> bytes:
    """An ELF file with one segment, its symbols and their names."""
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 18, 0, 1, 64, 16)
    at = 64 + 3 * 64 + 56
    header = struct.pack("<4sBBB9x8xQQQ4xHHHHHH", b"\x7fELF", 2, 1, 1, 0, 64 + 3 * 64, 64, 64, 56, 1, 64, 3, 0)
    row = struct.Struct("<4xI8xQQQII8xQ")
    sections = [row.pack(0, 0, 0, 0, 0, 0, 0), row.pack(11, 0, at, len(symbols), 2, 0, 24)]
    sections.append(row.pack(3, 0, at + len(symbols), len(names), 0, 0, 0))
    segment = struct.pack("<IIQQ8xQ8x8x", 1, 5, 0, 0, 4096)
    return header.ljust(64, b"\0") + b"".join(sections) + segment[:56] + symbols + names


def frame(kind: int, body: bytes, flags: int = 0, stream: int = 0) -> bytes:
    """Of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def main() -> None:
    for number, one in enumerate(honest_batches(6)):
        message = encode_batch(one)
        put("batch", f"honest{number}", message.SerializeToString())
        few = [table[:, :3] for table in split_tables(message.tables).tables]
        rows = bytes(table.shape[1] for table in few)
        put("tables", f"honest{number}", rows + b"".join(table.tobytes() for table in few))
    put("hello", "honest", netmon_pb2.AgentMessage(hello=encode_hello(hello())).SerializeToString())
    begun, told = Encoder().encode([(":status", "200")]), b"\0\0\0\0\2\x08\5"
    over = Encoder().encode([("grpc-status", "3"), ("grpc-message", "no%20")])
    pieces = [frame(4, b"\0\5\0\0\x40\0"), frame(1, begun, 4, 1), frame(0, told, 0, 1), frame(6, b"12345678")]
    put("channel", "refused", b"".join([*pieces, frame(8, b"\0\0\1\0"), frame(1, over, 5, 1)]))
    put("channel", "leaves", b"".join([*pieces, frame(7, b"\0\0\0\1\0\0\0\0bye"), frame(3, b"\0\0\0\x08", 0, 1)]))
    put("marks", "one", encode(MarkPacket("train", 1, 4, 7, 2, 10**12, 25_000_000)))
    events = b",\n".join(_ENTRY % (ph, b"NEGOTIATE_ALLREDUCE", 1000 * n, 3) for n, ph in enumerate((b"B", b"E", b"X")))
    start = b'{"name": "process_name", "ph": "M", "args": {"start_time_since_epoch_in_micros":1700000000000000}}'
    put("timeline", "short", b"[\n" + start + b",\n" + events)
    ends = {"src": "10.0.0.1", "dst": "10.0.0.2"}
    frames = [
        Ether() / IP(**ends) / TCP(sport=1, dport=2) / Raw(b"x" * 20),
        Ether() / Dot1Q(vlan=3) / IPv6(src="::1", dst="::2") / UDP(sport=5, dport=6) / Raw(b"y"),
        Ether(type=0x0806) / Raw(b"z" * 28),
    ]
    for write, name in ((wrpcap, "short.pcap"), (wrpcapng, "short.pcapng")):
        put("pcap", name, b"")
        write(str(CORPUS / "pcap" / name), frames)
    put("elf", "library", library(b"\0horovod_torch_allreduce\0_ZN7horovod\0"))
    put("viewer", "request", encode_selection(Selection(("h0",), ("train",), 5), 500).SerializeToString())
    put("viewer", "snapshot", encode_snapshot(example()).SerializeToString())


if __name__ == "__main__":
    main()
