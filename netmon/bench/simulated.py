# SPDX-License-Identifier: Apache-2.0
"""As many CPUs as one likes: writes into the meter's memory what their programs would, without a kernel."""

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.geometry import Geometry
from netmon.kernel.meter.memory import blank_memory
from netmon.kernel.meter.meter import Meter


class SimulatedCpus:
    """A meter, and the CPUs that it reads. Every slot keeps the flow that it gets."""

    def __init__(self, geometry: Geometry) -> None:
        """Nothing has happened on any CPU."""
        self.geometry = geometry
        self._memory = blank_memory(geometry)
        self.meter = Meter(self._memory, geometry, FlowNumbers(EVERY))

    def open_flows(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        """A flow takes each of these slots, at most flow_records of a CPU, with one packet of 100 bytes."""
        table, flows = self._memory.slots, self._memory.flows
        table["key"]["src_port"][slots] = slots & 0xFFFF
        table["key"]["link_protocol"][slots] = 1 << 9 | slots >> 16
        self._open_buckets(slots, now_ns)
        cpus, places = self._places(slots, "flows", flows.shape[1])
        openings = np.zeros(len(slots), flows.dtype)
        openings["key"], openings["slot"] = table["key"][slots], slots
        flows[cpus, places] = openings
        self._publish(cpus, "flows")

    def next_buckets(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        """Each of these slots closes its bucket, at most ring_records of a CPU, and opens one with one packet."""
        held = self._memory.slots[slots]
        cpus, places = self._places(slots, "buckets", self.geometry.ring_records)
        records = np.zeros((len(slots), 3), np.uint64)
        records[:, 0] = held["bucket_start_ns"]
        records[:, 1] = held["wire_bytes"] | held["payload_bytes"].astype(np.uint64) << np.uint64(32)
        records[:, 2] = slots.astype(np.uint64) | held["packets"].astype(np.uint64) << np.uint64(48)
        self._open_buckets(slots, now_ns)
        self._memory.buckets[cpus, places] = records
        self._publish(cpus, "buckets")

    def lose_buckets(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        """As next_buckets where the rings are full."""
        held, links = self._memory.slots[slots], self._memory.slots["key"]["link_protocol"][slots] >> 8
        cpus = slots // self.geometry.slots
        for name in ("packets", "wire_bytes", "payload_bytes"):
            np.add.at(self._memory.ledger[f"lost_{name}"], (cpus, links), held[name])
        self._open_buckets(slots, now_ns)
        self._memory.slots["losses"][slots] += 1
        np.add.at(self._memory.producers["losses"], cpus, 1)

    def _open_buckets(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        table = self._memory.slots
        table["bucket_start_ns"][slots] = now_ns - now_ns % self.geometry.bucket_ns
        table["packets"][slots], table["wire_bytes"][slots], table["payload_bytes"][slots] = 1, 100, 46
        cpus, links = slots // self.geometry.slots, table["key"]["link_protocol"][slots] >> 8
        for name, count in (("frames", 1), ("packets", 1), ("frame_bytes", 100), ("wire_bytes", 100)):
            np.add.at(self._memory.ledger[name], (cpus, links), count)

    def _places(self, slots: npt.NDArray[np.intp], ring: str, size: int) -> tuple[npt.NDArray[np.intp], ...]:
        """The slots' CPUs, and where each one's record goes in its CPU's ring. slots: ascending."""
        cpus = slots // self.geometry.slots
        within = np.arange(len(cpus)) - np.searchsorted(cpus, cpus)
        position = self._memory.producers[ring][cpus].astype(np.intp) + within
        return cpus, position & (size - 1)

    def _publish(self, cpus: npt.NDArray[np.intp], ring: str) -> None:
        np.add.at(self._memory.producers[ring], cpus, np.uint64(1))
