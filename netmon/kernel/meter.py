# SPDX-License-Identifier: Apache-2.0
"""What the kernel has counted, as tables: reads bpf/meter.c's maps through mapped memory, without privilege.

Exactness. A bucket is delivered either by its record in the ring, or, where its flow went quiet, by reading it in
its slot once it is older than STALE_NS. The kernel does not know of the latter and sends the record of such a
bucket all the same when the next packet comes; it is recognised by slot, generation and time, and only what it
has beyond the delivered counts is added (nothing, unless the program was interrupted in the middle). If the ring was
full at that moment, the kernel has counted as lost what had been delivered already; `ledger` takes that off.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel.numbers import FlowNumbers
from netmon.kernel.ring import RingBuffer
from netmon.records import BUCKET, KERNEL_BUCKET, KERNEL_FLOW, KERNEL_LEDGER, SLOT, Table

STALE_NS = 30_000_000
"""A bucket that ended so long ago is taken from its slot."""

MAX_FLOWS = 1 << 18
"""Flows remembered; beyond it, those that hold no slot are forgotten (and numbered anew when they come back)."""

_COUNTS = ("packets", "wire_bytes", "payload_bytes")
_TAKEN = np.dtype(
    [("bucket_start_ns", "<u8"), ("generation", "<u2"), ("link", "<u4"), *((name, "<u4") for name in _COUNTS)]
)
_LEDGER_COUNTERS = KERNEL_LEDGER.names[2:] if KERNEL_LEDGER.names else ()

Slots = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Geometry:
    """Sizes of the maps, chosen at load."""

    bucket_ns: int
    cpus: int
    slots: int  # per CPU
    links: int
    ring_bytes: int
    flow_ring_bytes: int
    step_ring_bytes: int


@dataclass(frozen=True)
class Drained:
    """One drain. buckets: dtype BUCKET; keys: dtype FLOW_KEY, row i is the new flow with id first_id + i."""

    buckets: Table
    keys: Table
    first_id: int


class Meter:
    """The reading end of one loaded meter. Not thread-safe; never blocks."""

    def __init__(self, descriptors: Mapping[str, int], geometry: Geometry) -> None:
        """descriptors: of the maps `slots`, `ledger`, `buckets`, `flows`; they may be closed afterwards."""
        self.geometry = geometry
        self._buckets = RingBuffer(descriptors["buckets"], geometry.ring_bytes, KERNEL_BUCKET)
        self._flows = RingBuffer(descriptors["flows"], geometry.flow_ring_bytes, KERNEL_FLOW)
        count = geometry.cpus * geometry.slots
        self._slots = mapped_array(descriptors["slots"], SLOT, count)
        self._ledger = mapped_array(descriptors["ledger"], KERNEL_LEDGER, geometry.cpus * geometry.links * 2)
        self._numbers = FlowNumbers()
        self._flow_of_slot = np.zeros(count, np.uint32)
        self._generation = np.zeros(count, np.uint16)
        self._occupied: Slots = np.zeros(0, np.uint32)
        self._taken = np.zeros(count, _TAKEN)  # what was delivered out of a slot; bucket_start_ns 0: nothing
        self._outstanding: Slots = np.zeros(0, np.uint32)  # slots with something taken
        self._recovered: dict[int, npt.NDArray[np.int64]] = {}

    def drain(self, now_ns: int) -> Drained:
        """Everything closed so far, and what ended more than STALE_NS before now_ns (mono).

        Rows come in no particular order, and several may be of the same flow and bucket: they add up.
        """
        moved = self._moved_on()
        records = self._buckets.view()
        openings = self._flows.take()  # after the buckets: has at least the flows that they are of
        first_id = self._numbers.next_id
        ids, new_keys = self._numbers.number(openings["key"])
        closed = self._closed(records, openings, ids)
        self._buckets.release(len(records))
        self._assign(openings, ids)
        if self._buckets.complete:
            self._recover(moved)
        self._outstanding = self._outstanding[self._taken["bucket_start_ns"][self._outstanding] != 0]
        stale = self._take_stale(now_ns)
        if len(self._numbers) > MAX_FLOWS:
            self._numbers.keep(self._flow_of_slot[self._occupied].tolist())
        return Drained(np.concatenate([closed, stale]), new_keys, first_id)

    def ledger(self) -> dict[int, dict[str, int]]:
        """Counters by link (ifindex << 1 | direction) and name of KERNEL_LEDGER, over all CPUs, as they are now."""
        rows = self._ledger[self._ledger["link"] != 0]
        links: dict[int, dict[str, int]] = {}
        for link in np.unique(rows["link"]).tolist():
            of_link = rows[rows["link"] == link]
            counters = {name: int(of_link[name].sum()) for name in _LEDGER_COUNTERS}
            for name, count in zip(_COUNTS, self._recovered.get(link, (0, 0, 0)), strict=True):
                counters[f"lost_{name}"] -= int(count)
            links[link] = counters
        return links

    def _closed(self, records: Table, openings: Table, ids: npt.NDArray[np.uint32]) -> Table:
        slots, generations = records["slot"], records["generation"]
        flow_ids = self._flow_of_slot[slots]
        changed = np.flatnonzero(self._generation[slots] != generations)
        if len(changed):
            flow_ids[changed] = _flows_of(records[changed], openings, ids)
        rows = _rows(flow_ids, records)
        if len(self._outstanding):
            taken = self._taken[slots]
            same = (taken["bucket_start_ns"] == records["bucket_start_ns"]) & (taken["generation"] == generations)
            again = np.flatnonzero(same)
            for name in _COUNTS:
                rows[name][again] -= taken[name][again]
            self._taken["bucket_start_ns"][slots[again]] = 0
            rows = rows[rows["packets"] > 0]
        return rows

    def _assign(self, openings: Table, ids: npt.NDArray[np.uint32]) -> None:
        slots = openings["slot"]
        self._occupied = np.union1d(self._occupied, slots) if len(slots) else self._occupied
        self._flow_of_slot[slots] = ids  # of several openings of a slot the last one stays
        self._generation[slots] = openings["generation"]

    def _moved_on(self) -> Slots:
        """Slots with something taken out of a bucket that is no longer the open one."""
        now, was = self._slots[self._outstanding], self._taken[self._outstanding]
        moved = (now["bucket_start_ns"] != was["bucket_start_ns"]) | (now["generation"] != was["generation"])
        slots: Slots = self._outstanding[moved]
        return slots

    def _recover(self, moved: Slots) -> None:
        """What is still taken in slots that had moved on before the drain came with no record: counted as lost."""
        for slot in moved[self._taken["bucket_start_ns"][moved] != 0].tolist():
            taken = self._taken[slot]
            counts = np.array([taken[name] for name in _COUNTS], np.int64)
            link = int(taken["link"])
            self._recovered[link] = self._recovered.get(link, np.zeros(3, np.int64)) + counts
            self._taken["bucket_start_ns"][slot] = 0

    def _take_stale(self, now_ns: int) -> Table:
        occupied = self._occupied
        before = now_ns - STALE_NS - self.geometry.bucket_ns
        quiet = occupied[
            (self._slots["bucket_start_ns"][occupied] < before) & (self._taken["bucket_start_ns"][occupied] == 0)
        ]
        first, second = self._slots[quiet], self._slots[quiet]
        # A slot that a program is just rewriting reads differently twice (bpf/meter.c, open_bucket).
        steady = (first == second) & (first["generation"] == self._generation[quiet])
        quiet, first = quiet[steady], first[steady]
        for name in ("bucket_start_ns", "generation", *_COUNTS):
            self._taken[name][quiet] = first[name]
        self._taken["link"][quiet] = first["key"]["link_protocol"] >> 8
        self._outstanding = np.concatenate([self._outstanding, quiet])
        return _rows(self._flow_of_slot[quiet], first)


def mapped_array(descriptor: int, dtype: "np.dtype[Any]", count: int) -> Table:
    """The values of a BPF_F_MMAPABLE array map, live and read-only: (count,) of dtype."""
    size = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    array: Table = np.frombuffer(memory, dtype, count)
    return array


def _rows(flow_ids: npt.NDArray[np.uint32], counts: Table) -> Table:
    rows = np.empty(len(flow_ids), BUCKET)
    rows["flow_id"] = flow_ids
    for name in ("bucket_start_ns", *_COUNTS):
        rows[name] = counts[name]
    return rows


def _flows_of(records: Table, openings: Table, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Flow ids of records whose slot changed hands since the last drain, by (slot, generation)."""
    opened = openings["slot"].astype(np.uint64) << np.uint64(16) | openings["generation"]
    wanted = records["slot"].astype(np.uint64) << np.uint64(16) | records["generation"]
    order = np.argsort(opened, kind="stable")
    flow_ids: npt.NDArray[np.uint32] = ids[order[np.searchsorted(opened[order], wanted)]]
    return flow_ids
