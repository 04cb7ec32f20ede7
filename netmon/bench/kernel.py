# SPDX-License-Identifier: Apache-2.0
"""What the kernel programs cost per packet, by BPF_PROG_TEST_RUN on a 1514-byte frame.

Each round measures the empty program, the floor (one clock read and one lookup of a 40-byte key) and every case
in turn; figures are medians over the rounds of what is left after subtracting the same round's empty program.

As a program: INTERFACE. It attaches the meter's programs in its network namespace, says so, and stays until it is
ended: the kernel path alone, and nobody who drains them.
"""

import dataclasses
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from netmon.bench.result import table
from netmon.bench.specs import KernelSpec, Progress, silent
from netmon.kernel import bpf_calls, loader
from netmon.kernel.bpf_calls import dry_run
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import Meter
from netmon.kernel.watching import number_interface
from netmon.terminal import FittingTable, figures, labels

# --- Loaded programs on a bench: the meter, and what it is compared with (bpf/bench.c).

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
        return self._programs[what, _type_of(program)]

    def aim(self, program: str, target: int, flows: int) -> None:
        """Lets the front of this program's type pass its packets on to target, with so many flows in turn."""
        table = self._module[f"{_type_of(program)}_target".encode()]
        table[table.Key(0)] = table.Leaf(target)
        turns = self._module[b"turns"]
        turns[turns.Key(0)] = turns.Leaf(0, flows - 1)


def _type_of(program: str) -> str:
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


# --- The kernel path alone.

ATTACHED = "attached"


def stay_attached(interface: str) -> None:
    """Blocks until a signal comes; the links vanish with the process."""
    loaded, index = LoadedMeter(), socket.if_nametoindex(interface)
    for program, attach_type in (("tc_ingress", bpf_calls.TCX_INGRESS), ("tc_egress", bpf_calls.TCX_EGRESS)):
        bpf_calls.link_create(loaded.descriptors[PROGRAMS[program]], index, attach_type)
    print(ATTACHED, flush=True)
    signal.pause()


# --- The benchmark.

_REPEAT = 200_000
_TAKEOVERS = 16_000  # of one run: what the flow ring holds
_MANY_FLOWS = 1 << 20


@dataclass(frozen=True)
class CaseResult:
    """One case on one program; times in ns per packet. The spread is the distance of the quartiles."""

    case: str
    program: str
    ns: float
    net_ns: float
    floor_ratio: float
    spread: float


@dataclass(frozen=True)
class KernelResult:
    cases: tuple[CaseResult, ...]
    empty_ns: dict[str, float]
    floor_net_ns: dict[str, float]
    rounds: int

    def shown(self) -> Iterator[FittingTable]:
        floors = ", ".join(f"{program} {ns:.0f} ns" for program, ns in self.floor_net_ns.items())
        columns = [*labels("case", prose=True), *labels("program"), *figures("ns", "net", "spread", "× floor")]
        rows = (
            (of.case, of.program, f"{of.ns:.0f}", f"{of.net_ns:.0f}", f"{of.spread:.0f}", f"{of.floor_ratio:.2f}")
            for of in self.cases
        )
        yield table("ns per packet, medians", columns, rows, f"Floor, net of the empty program: {floors}.")


@dataclass(frozen=True)
class _Case:
    name: str
    measure: Callable[[str], tuple[float, float]]
    """program → (ns, ns of the empty program reached the same way)"""


def measure(spec: KernelSpec, progress: Progress = silent) -> KernelResult:
    """Blocks for about a second per round. Raises KernelError."""
    bench = _Bench()
    samples: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    empty: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    floor: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    for done in range(spec.rounds):
        for program in PROGRAMS:
            nothing, least = bench.empty(program), bench.floor(program)
            empty[program].append(nothing)
            floor[program].append(least - nothing)
            for case in bench.cases():
                ns, base = case.measure(program)
                sample = (ns, ns - base, (ns - base) / (least - nothing))
                samples.setdefault((case.name, program), []).append(sample)
        progress(done + 1, spec.rounds)
    results = tuple(_result(case, program, values) for (case, program), values in samples.items())
    return KernelResult(results, _medians(empty), _medians(floor), spec.rounds)


def _result(case: str, program: str, samples: list[tuple[float, float, float]]) -> CaseResult:
    ns, net, ratio = (median(column) for column in zip(*samples, strict=True))
    nets = sorted(sample[1] for sample in samples)
    return CaseResult(case, program, ns, net, ratio, nets[3 * len(nets) // 4] - nets[len(nets) // 4])


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {program: median(values) for program, values in samples.items()}


class _Bench:
    def __init__(self) -> None:
        self._yardsticks = Yardsticks()
        self._baseline = LoadedMeter()
        self._narrow = LoadedMeter(bucket_ns=1)  # every packet closes a bucket
        self._frames = {kind: frame(kind) for kind in ("ipv4", "ipv6", "vlan")}

    def empty(self, program: str) -> float:
        return ns_per_run(self._yardsticks.program("empty", program), self._frames["ipv4"], _REPEAT)

    def floor(self, program: str) -> float:
        return ns_per_run(self._yardsticks.program("floor", program), self._frames["ipv4"], _REPEAT)

    def cases(self) -> Iterator[_Case]:
        yield _Case("hot_flow", lambda program: self._plain(self._baseline, program, "ipv4"))
        yield _Case("flows_64", lambda program: self._in_turn(program, 64, _REPEAT))
        yield _Case("flows_4096", lambda program: self._in_turn(program, 4096, _REPEAT))
        yield _Case("ipv6", lambda program: self._plain(self._baseline, program, "ipv6"))
        yield _Case("vlan", lambda program: self._plain(self._baseline, program, "vlan"))
        yield _Case("bucket_per_packet", lambda program: self._plain(self._narrow, program, "ipv4"))
        yield _Case("table_full", lambda program: self._in_turn(program, _MANY_FLOWS, _TAKEOVERS))
        yield _Case("ring_full", self._ring_full)

    def _plain(self, loaded: LoadedMeter, program: str, kind: str) -> tuple[float, float]:
        loaded.drain()
        base = self.empty(program)
        return ns_per_run(loaded.descriptors[PROGRAMS[program]], self._frames[kind], _REPEAT), base

    def _in_turn(self, program: str, flows: int, repeat: int) -> tuple[float, float]:
        """The front costs the same before the empty program as before ours."""
        front = self._yardsticks.program("turn", program)
        self._yardsticks.aim(program, self._yardsticks.program("empty", program), flows)
        base = ns_per_run(front, self._frames["ipv4"], repeat)
        self._yardsticks.aim(program, self._baseline.descriptors[PROGRAMS[program]], flows)
        for _ in range(2 if flows < _MANY_FLOWS else 1):  # first all flows get their slots
            self._baseline.drain()
            ns = ns_per_run(front, self._frames["ipv4"], repeat)
        return ns, base

    def _ring_full(self, program: str) -> tuple[float, float]:
        target = self._narrow.descriptors[PROGRAMS[program]]
        base = self.empty(program)
        for _ in range(4):  # more than the ring holds
            ns = ns_per_run(target, self._frames["ipv4"], _REPEAT)
        self._narrow.drain()
        return ns, base


if __name__ == "__main__":
    stay_attached(sys.argv[1])
