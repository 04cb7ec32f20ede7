# SPDX-License-Identifier: Apache-2.0
"""What bpf/meter.c does with packets, in Python, into a meter's memory: slots change hands, and rings may be full."""

import zlib
from collections import Counter

import numpy as np

from netmon.kernel.meter.memory import Geometry, blank_memory

WAYS = 4


class SlotMachine:
    """One packet after the other. `sent`: by key, as bytes; `overflow` and `lost`: packets that have no row."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.memory = geometry, blank_memory(geometry)
        self.sent: Counter[bytes] = Counter()
        self.overflow = self.lost = 0
        self._sets = geometry.slots // WAYS

    def packet(self, key: np.void, cpu: int, now_ns: int, size: int) -> None:
        """A packet of this flow (FLOW_KEY), of so many bytes."""
        self.sent[key.tobytes()] += 1
        ledger = self.memory.ledger[cpu, int(key["link_protocol"]) >> 8]
        for name, count in (("frames", 1), ("packets", 1), ("frame_bytes", size), ("wire_bytes", size)):
            ledger[name] += count
        begin = (cpu * self._sets + zlib.crc32(key.tobytes()) % self._sets) * WAYS
        ways = range(begin, begin + WAYS)
        slots = self.memory.slots
        for slot in ways:
            if slots["bucket_start_ns"][slot] and slots["key"][slot] == key:
                self._add(slot, cpu, now_ns, size)
                return
        slot = min(ways, key=lambda way: int(slots["bucket_start_ns"][way]))
        self._take(slot, key, cpu, now_ns, size)

    def _add(self, slot: int, cpu: int, now_ns: int, size: int) -> None:
        row = self.memory.slots[slot]
        if now_ns - int(row["bucket_start_ns"]) >= self.geometry.bucket_ns:
            self._close(slot, cpu, now_ns, size)
            return
        row["wire_bytes"] += size
        row["payload_bytes"] += size
        row["packets"] += 1

    def _take(self, slot: int, key: np.void, cpu: int, now_ns: int, size: int) -> None:
        row, producer = self.memory.slots[slot], self.memory.producers[cpu]
        if self._full(cpu, "flows", self.geometry.flow_records):
            self.overflow += 1
            ledger = self.memory.ledger[cpu, int(key["link_protocol"]) >> 8]
            for name, count in (("packets", 1), ("wire_bytes", size), ("payload_bytes", size)):
                ledger[f"overflow_{name}"] += count
            return
        if row["bucket_start_ns"]:
            self._close(slot, cpu, now_ns, size)
        else:
            self._open(row, now_ns, size)
        row["key"] = key
        row["generation"] += 1
        opened = self.memory.flows[cpu, int(producer["flows"]) & (self.geometry.flow_records - 1)]
        opened["key"], opened["slot"], opened["generation"] = key, slot, row["generation"]
        producer["flows"] += 1

    def _close(self, slot: int, cpu: int, now_ns: int, size: int) -> None:
        row, producer = self.memory.slots[slot], self.memory.producers[cpu]
        if self._full(cpu, "buckets", self.geometry.ring_records):
            self.lost += int(row["packets"])
            ledger = self.memory.ledger[cpu, int(row["key"]["link_protocol"]) >> 8]
            for name in ("packets", "wire_bytes", "payload_bytes"):
                ledger[f"lost_{name}"] += row[name]
            row["losses"] += 1
            producer["losses"] += 1
            self._open(row, now_ns, size)
            return
        record = self.memory.buckets[cpu, int(producer["buckets"]) & (self.geometry.ring_records - 1)]
        record[0] = row["bucket_start_ns"]
        record[1] = int(row["wire_bytes"]) | int(row["payload_bytes"]) << 32
        record[2] = slot | int(row["generation"]) << 32 | int(row["packets"]) << 48
        self._open(row, now_ns, size)
        producer["buckets"] += 1

    def _open(self, row: np.void, now_ns: int, size: int) -> None:
        row["bucket_start_ns"] = now_ns - now_ns % self.geometry.bucket_ns
        row["packets"], row["wire_bytes"], row["payload_bytes"] = 1, size, size

    def _full(self, cpu: int, ring: str, size: int) -> bool:
        return int(self.memory.producers[ring][cpu]) - int(self.memory.consumers[ring][cpu]) >= size
