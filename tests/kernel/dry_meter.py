# SPDX-License-Identifier: Apache-2.0
"""For tests: the kernel programs on single frames, without an interface."""

import errno
import time
from collections import Counter
from dataclasses import dataclass

from netmon.kernel import bpf_calls, loader
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.records import address

PROGRAMS = {"meter_xdp": 2, "meter_tc_ingress": 0xFFFFFFFF, "meter_tc_egress": 0xFFFFFFFF}
"""What each program must return: XDP_PASS, TCX_NEXT."""

Counts = tuple[int, int, int]
Flow = tuple[str, str, int, int, int]


@dataclass
class Loaded:
    programs: dict[str, int]
    meter: Meter

    def run(self, name: str, frame: bytes, repeat: int = 1, context: bytes = b"") -> int:
        """How many bytes ran: none where the kernel refuses to make such a frame."""
        try:
            verdict, _ = bpf_calls.dry_run(self.programs[name], frame, repeat, context)
        except OSError as error:
            if error.errno == errno.EINVAL and name != "meter_xdp":
                return 0
            raise
        assert verdict == PROGRAMS[name]
        return len(frame) * repeat

    def counted(self) -> dict[Flow, Counts]:
        """Everything counted since the last call: flow → packets, wire bytes, payload bytes."""
        time.sleep(STALE_NS / 1e9 + 0.001)
        drained = self.meter.drain(time.monotonic_ns())
        self.names.update(zip(drained.new.ids.tolist(), drained.new.keys.tolist(), strict=True))
        counts: Counter[tuple[Flow, int]] = Counter()
        for flow_id, *amounts in drained.buckets[["flow_id", "packets", "wire_bytes", "payload_bytes"]].tolist():
            src, dst, src_port, dst_port, link_protocol = self.names[flow_id]
            flow = (address(src), address(dst), src_port, dst_port, link_protocol & 0xFF)
            for i, count in enumerate(amounts):
                counts[flow, i] += count
        self.meter.rows.shrink(0)
        return {flow: (counts[flow, 0], counts[flow, 1], counts[flow, 2]) for flow, _ in counts}

    def __post_init__(self) -> None:
        self.names: dict[int, tuple[bytes, bytes, int, int, int]] = {}


def load() -> Loaded:
    """A meter of its own, with buckets of 10 µs."""
    geometry = choose_geometry(10_000)
    descriptors = loader.load(geometry)
    return Loaded(descriptors, Meter(map_memory(descriptors, geometry), geometry, FlowNumbers(EVERY)))
