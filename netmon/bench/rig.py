# SPDX-License-Identifier: Apache-2.0
"""Loaded programs on a bench: the meter, and what it is compared with (bpf/bench.c)."""

import dataclasses
import os
import struct
import time
from typing import Any

from netmon.kernel import loader
from netmon.kernel.bpf_calls import dry_run
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.link_numbers import number_interface
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import Meter

LOOPBACK = 1
"""The ifindex that test runs have."""

PROGRAMS = {"xdp": "meter_xdp", "tc_ingress": "meter_tc_ingress", "tc_egress": "meter_tc_egress"}


class LoadedMeter:
    """A meter that is attached to nothing. Its only traffic is test runs."""

    def __init__(self, bucket_ns: int = 10_000) -> None:
        """Raises KernelError, UnsupportedError. A bucket below what the agent takes is fine on a bench."""
        geometry = dataclasses.replace(choose_geometry(10_000), bucket_ns=bucket_ns)
        self.descriptors = loader.load(geometry)
        number_interface(self.descriptors["interfaces"], LOOPBACK, 1)
        self.meter = Meter(map_memory(self.descriptors, geometry), geometry, FlowNumbers(EVERY))

    def drain(self) -> int:
        """Empties the rings; how many rows there were."""
        rows = len(self.meter.drain(time.monotonic_ns()).buckets)
        self.meter.rows.shrink(0)
        return rows


class Yardsticks:
    """The empty program, the floor, and the front that changes flows."""

    def __init__(self) -> None:
        """Compiles bpf/bench.c in this process."""
        os.environ["BCC_KERNEL_SOURCE"] = str(loader.sources() / "headers")
        from bcc import BPF

        flags = loader.compiler_flags(choose_geometry(10_000))
        self._module: Any = BPF(text=(loader.sources() / "bench.c").read_bytes(), cflags=flags)
        kinds = {"xdp": BPF.XDP, "tc": BPF.SCHED_CLS}
        self._programs = {
            (what, kind): int(self._module.load_func(f"{what}_{kind}".encode(), number).fd)
            for what in ("empty", "floor", "turn")
            for kind, number in kinds.items()
        }

    def program(self, what: str, program: str) -> int:
        """what: "empty", "floor" or "turn"; program: of PROGRAMS. The descriptor of the matching type."""
        return self._programs[what, _kind(program)]

    def aim(self, program: str, target: int, flows: int) -> None:
        """Lets the front of this program's type pass its packets on to target, with so many flows in turn."""
        table = self._module[f"{_kind(program)}_target".encode()]
        table[table.Key(0)] = table.Leaf(target)
        turns = self._module[b"turns"]
        turns[turns.Key(0)] = turns.Leaf(0, flows - 1)


def _kind(program: str) -> str:
    return "xdp" if program == "xdp" else "tc"


def ns_per_run(program: int, frame: bytes, repeat: int) -> int:
    """Mean time of one run, as the kernel measures it."""
    ns: int = dry_run(program, frame, repeat)[1]
    return ns


def frame(kind: str = "ipv4", size: int = 1514) -> bytes:
    """A TCP frame without options. kind: "ipv4", "ipv6" or "vlan" (one 802.1Q tag before IPv4)."""
    addresses = bytes(12)
    tcp = struct.pack(">HHIIBBHHH", 1000, 2000, 0, 0, 0x50, 0x10, 0, 0, 0)
    if kind == "ipv6":
        head = addresses + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, size - 54, 6, 64) + bytes(range(32)) + tcp
        return head.ljust(size, b"\0")
    tag = b"\x81\x00\x00\x05" if kind == "vlan" else b""
    total = size - 14 - len(tag)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, total, 0, 0, 64, 6, 0) + bytes((198, 18, 0, 1, 198, 18, 0, 2))
    return (addresses + tag + b"\x08\x00" + ip + tcp).ljust(size, b"\0")
