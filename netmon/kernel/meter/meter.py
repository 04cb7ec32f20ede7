# SPDX-License-Identifier: Apache-2.0
"""What the kernel has counted, as tables: reads bpf/meter.c's maps through mapped memory, without privilege.

Exactness. A bucket is delivered either by its record in the ring, or, where its flow went quiet, by reading it in
its slot once it is older than STALE_NS. The kernel does not know of the latter and sends the record of such a
bucket all the same when the next packet comes; it is recognised by slot, generation and time, and only what it
has beyond the delivered counts is added (nothing, unless the program was interrupted in the middle). If the ring was
full at that moment, the kernel has counted as lost what had been delivered already; `ledger` takes that off.
"""

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import FlowNumbers, New
from netmon.kernel.meter.ring_buffer import RingBuffer
from netmon.kernel.meter.row_buffer import RowBuffer
from netmon.kernel.meter.unnamed_slots import UnnamedSlots
from netmon.records import KERNEL_BUCKET, KERNEL_FLOW, KERNEL_LEDGER, SLOT, Table

STALE_NS = 30_000_000
"""A bucket that ended so long ago is taken from its slot."""

_COUNTS = ("packets", "wire_bytes", "payload_bytes")
_TAKEN = np.dtype(
    [("bucket_start_ns", "<u8"), ("generation", "<u2"), ("link", "<u4"), *((name, "<u4") for name in _COUNTS)]
)
_LEDGER_COUNTERS = KERNEL_LEDGER.names[2:] if KERNEL_LEDGER.names else ()

# The third word of KERNEL_BUCKET is slot | generation << 32 | packets << 48, of BUCKET flow_id | packets << 32.
_OPENING_BYTES = KERNEL_FLOW.itemsize + 8  # in the ring
_HALF, _PACKETS_SHIFT = np.uint64(32), np.uint64(48)
_CHUNK = 4_096
"""Records handled at a time, so that the columns of one pass are still in the cache for the next."""

Slots = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]


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
    """One drain. buckets: dtype BUCKET, in the meter's `rows`; new: the flows that have ids of their own since."""

    buckets: Table
    new: New


class Meter:
    """The reading end of one loaded meter. Not thread-safe; never blocks."""

    def __init__(self, descriptors: Mapping[str, int], geometry: Geometry, numbers: FlowNumbers | None = None) -> None:
        """descriptors: of the maps `slots`, `ledger`, `buckets`, `flows`; they may be closed afterwards.

        numbers: what the flows are called; None for the usual budgets.
        """
        self.geometry = geometry
        self.rows = RowBuffer()
        """What has been drained; the caller gives it up by `rows.shrink(0)` when it is done with it."""
        self._buckets = RingBuffer(descriptors["buckets"], geometry.ring_bytes, KERNEL_BUCKET)
        self._flows = RingBuffer(descriptors["flows"], geometry.flow_ring_bytes, KERNEL_FLOW)
        count = geometry.cpus * geometry.slots
        self._slots = mapped_array(descriptors["slots"], SLOT, count)
        self._ledger = mapped_array(descriptors["ledger"], KERNEL_LEDGER, geometry.cpus * geometry.links * 2)
        self.fill = 0.0
        """How full the fuller one of the rings was at the last drain, from 0 to 1."""
        self.numbers = FlowNumbers() if numbers is None else numbers
        self._flow_of_slot = np.zeros(count, np.uint32)
        self._generation = np.zeros(count, np.uint16)
        self._unnamed = UnnamedSlots(self.numbers, self._slots, self._flow_of_slot, self._generation)
        self._now_ns = 0
        self._occupied: Slots = np.zeros(0, np.uint32)
        self._displaced = _Holders.none()
        self._taken = np.zeros(count, _TAKEN)  # what was delivered out of a slot; bucket_start_ns 0: nothing
        self._has_taken = np.zeros(count, bool)
        self._outstanding: Slots = np.zeros(0, np.uint32)  # slots with something taken
        self._lost_packets, self._lost_seen = self._ledger["lost_packets"], 0
        self._recovered: dict[int, npt.NDArray[np.int64]] = {}

    def drain(self, now_ns: int) -> Drained:
        """Everything closed so far, and what ended more than STALE_NS before now_ns (mono).

        Rows come in no particular order, and several may be of the same flow and bucket: they add up.
        """
        self._now_ns = now_ns
        moved = self._moved_on()
        words = self._buckets.view()
        self.fill = words.nbytes / self._buckets.size
        self.fill = max(self.fill, len(self._flows) * _OPENING_BYTES / self._flows.size)
        openings = self._flows.take()  # after the buckets: has at least the flows that they are of
        ids = self.numbers.number(openings["key"], now_ns)
        opened = _Holders(openings["slot"], openings["generation"], ids)
        begin = len(self.rows)
        self._closed(words, opened)
        self._buckets.release(len(words))
        self._assign(opened)
        if self._buckets.complete:
            self._recover(moved)
        self._outstanding = self._outstanding[self._has_taken[self._outstanding]]
        self._take_stale(now_ns)
        self._unnamed.promote(now_ns)
        return Drained(self.rows.table(begin), self.numbers.take_new())

    def forget(self, flow_ids: Iterable[int]) -> None:
        """These flows are over: their ids are not used any more. What comes of one is a new flow, or its aggregate's.

        To be called when what was drained has been taken from `rows`.
        """
        places = self._unnamed.forget(flow_ids)
        self._displaced = self._displaced.renamed(places)

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

    def _closed(self, words: Words, opened: "_Holders") -> None:
        """words: (n, 3) of KERNEL_BUCKET, in the ring; they become rows."""
        begin = len(self.rows)
        into = self.rows.grow(len(words))
        rows = self.rows.table(begin)
        changing = len(opened.slots) or len(self._displaced.slots)
        emptied = False
        for start in range(0, len(words), _CHUNK):
            part, to = words[start : start + _CHUNK], into[start : start + _CHUNK]
            to[:, 0], to[:, 1] = part[:, 0], part[:, 1]  # time; wire and payload bytes
            last = part[:, 2].copy()  # slot, generation, packets
            slots = last.astype(np.uint32)  # the lower half
            self._unnamed.carry(slots, (last >> _HALF).astype(np.uint16), part[:, 1], self._now_ns)
            to[:, 2] = self._flow_of_slot[slots] | last >> _PACKETS_SHIFT << _HALF
            if changing:
                self._name_displaced(rows[start : start + _CHUNK], slots, last, opened)
            if len(self._outstanding):
                emptied |= self._take_off(rows[start : start + _CHUNK], slots, last)
        if emptied:
            self.rows.drop(begin + np.flatnonzero(rows["packets"] == 0))

    def _name_displaced(self, rows: Table, slots: Slots, last: Words, opened: "_Holders") -> None:
        """Rows whose slot had another flow then than it has now: by (slot, generation), among the latest changes."""
        generations = (last >> _HALF).astype(np.uint16)
        changed = np.flatnonzero(self._generation[slots] != generations)
        if len(changed):
            holders = self._displaced.and_also(opened)
            rows["flow_id"][changed] = holders.find(slots[changed], generations[changed])

    def _take_off(self, rows: Table, slots: Slots, last: Words) -> bool:
        """Rows that were delivered out of their slot already keep only what came after that; whether there were any."""
        suspects = np.flatnonzero(self._has_taken[slots])
        if not len(suspects):
            return False
        of = slots[suspects]
        same = self._taken["bucket_start_ns"][of] == rows["bucket_start_ns"][suspects]
        same &= self._taken["generation"][of] == (last[suspects] >> _HALF).astype(np.uint16)
        again, of = suspects[same], of[same]
        for name in _COUNTS:
            rows[name][again] -= self._taken[name][of]
        self._has_taken[of] = False
        return bool(len(again))

    def _assign(self, opened: "_Holders") -> None:
        slots = opened.slots
        displaced = _Holders(slots, self._generation[slots], self._flow_of_slot[slots]).and_also(opened)
        # A slot's last bucket is submitted before its next flow is, but after our look at the buckets perhaps.
        self._displaced = displaced if self._buckets.complete else self._displaced.and_also(displaced)
        if len(slots):
            self._occupied = np.union1d(self._occupied, slots)
        self._flow_of_slot[slots] = opened.flow_ids  # of several openings of a slot the last one stays
        self._generation[slots] = opened.generations
        self._unnamed.open(slots, opened.flow_ids)

    def _moved_on(self) -> Slots:
        """Slots with something taken out of a bucket that is no longer the open one, if anything was lost lately.

        Without a loss every such bucket has its record, and there is nothing to look for.
        """
        lost = int(self._lost_packets.sum())
        if lost == self._lost_seen:
            return self._outstanding[:0]
        self._lost_seen = lost
        slots = self._outstanding
        moved = self._slots["bucket_start_ns"][slots] != self._taken["bucket_start_ns"][slots]
        moved |= self._slots["generation"][slots] != self._taken["generation"][slots]
        moved_slots: Slots = slots[moved]
        return moved_slots

    def _recover(self, moved: Slots) -> None:
        """What is still taken in slots that had moved on before the drain came with no record: counted as lost."""
        for slot in moved[self._has_taken[moved]].tolist():
            taken = self._taken[slot]
            counts = np.array([taken[name] for name in _COUNTS], np.int64)
            link = int(taken["link"])
            self._recovered[link] = self._recovered.get(link, np.zeros(3, np.int64)) + counts
            self._has_taken[slot] = False

    def _take_stale(self, now_ns: int) -> None:
        before = now_ns - STALE_NS - self.geometry.bucket_ns
        open_ = self._occupied[~self._has_taken[self._occupied]]
        quiet = open_[self._slots["bucket_start_ns"][open_] < before]
        if not len(quiet):
            return
        first, second = self._slots[quiet], self._slots[quiet]
        # A slot that a program is just rewriting reads differently twice (bpf/meter.c, open_bucket).
        steady = (first == second) & (first["generation"] == self._generation[quiet])
        quiet, first = quiet[steady], first[steady]
        for name in ("bucket_start_ns", "generation", *_COUNTS):
            self._taken[name][quiet] = first[name]
        self._taken["link"][quiet] = first["key"]["link_protocol"] >> 8
        self._has_taken[quiet] = True
        self._outstanding = np.concatenate([self._outstanding, quiet])
        self._unnamed.carry(quiet, first["generation"], first["wire_bytes"].astype(np.uint64), now_ns)
        begin = len(self.rows)
        self.rows.grow(len(quiet))
        rows = self.rows.table(begin)
        rows["flow_id"] = self._flow_of_slot[quiet]
        for name in ("bucket_start_ns", *_COUNTS):
            rows[name] = first[name]


def mapped_array(descriptor: int, dtype: "np.dtype[Any]", count: int) -> Table:
    """The values of a BPF_F_MMAPABLE array map, live and read-only: (count,) of dtype."""
    size = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    array: Table = np.frombuffer(memory, dtype, count)
    return array


@dataclass(frozen=True)
class _Holders:
    """Which flow held a slot in a generation: three columns."""

    slots: Slots
    generations: npt.NDArray[np.uint16]
    flow_ids: npt.NDArray[np.uint32]

    @staticmethod
    def none() -> "_Holders":
        return _Holders(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint32))

    def and_also(self, other: "_Holders") -> "_Holders":
        return _Holders(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.generations, other.generations]),
            np.concatenate([self.flow_ids, other.flow_ids]),
        )

    def renamed(self, flow_ids: Mapping[int, int]) -> "_Holders":
        """With other ids in the place of some."""
        ids = [flow_ids.get(i, i) for i in self.flow_ids.tolist()]
        return _Holders(self.slots, self.generations, np.array(ids, np.uint32))

    def find(self, slots: Slots, generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
        known, wanted = _joined(self.slots, self.generations), _joined(slots, generations)
        order = np.argsort(known, kind="stable")
        flow_ids: npt.NDArray[np.uint32] = self.flow_ids[order[np.searchsorted(known[order], wanted)]]
        return flow_ids


def _joined(slots: Slots, generations: npt.NDArray[np.uint16]) -> Words:
    return slots.astype(np.uint64) << np.uint64(16) | generations
