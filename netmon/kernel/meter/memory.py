# SPDX-License-Identifier: Apache-2.0
"""The memory that the BPF programs and the agent share: how large it is on this machine, and its parts as arrays."""

import mmap
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import UsageError
from netmon.records import (
    KERNEL_BUCKET,
    KERNEL_CONSUMER,
    KERNEL_FLOW,
    KERNEL_LEDGER,
    KERNEL_PRODUCER,
    SLOT,
    Table,
    empty,
)

PAGE_BYTES = mmap.PAGESIZE


def whole_pages(size: int) -> int:
    """The bytes of the pages that so many bytes need."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


# --- How large the maps are on this machine.

MIN_BUCKET_NS, MAX_BUCKET_NS = 1_000, 1_000_000_000
_SLOTS = 8_192  # of a CPU, unless set otherwise: half a megabyte, which a second-level cache holds
_SLOT_MEMORY = 64 << 20  # of all CPUs together, unless set otherwise
_MIN_SLOTS, MAX_SLOTS = 1 << 10, 1 << 20
_RING_MEMORY, _MOST_RECORDS, _LEAST_RECORDS = 48 << 20, 1 << 18, 1 << 12  # of all CPUs; of a CPU
_FLOW_RING_MEMORY, _MOST_OPENINGS, _LEAST_OPENINGS = 16 << 20, 1 << 14, 1 << 10
_MEMORY_SHARE = 4  # of what is free now, one part at most goes into slots
_POSSIBLE = Path("/sys/devices/system/cpu/possible")


@dataclass(frozen=True)
class Geometry:
    """Sizes of the maps, chosen at load."""

    bucket_ns: int
    cpus: int
    slots: int  # per CPU
    links: int  # interfaces at most
    ring_records: int  # closed buckets that wait, per CPU
    flow_records: int  # new flows that wait, per CPU
    step_ring_bytes: int


def possible_cpus(text: str | None = None) -> int:
    """How many CPU numbers there can be, from the kernel's list such as `0-3` or `0,2-5`."""
    last = (text if text is not None else _POSSIBLE.read_text()).strip().split(",")[-1]
    return int(last.split("-")[-1]) + 1


def choose_geometry(bucket_ns: int, interfaces: int = 1, slots: int = 0, cpus: int = 0) -> Geometry:
    """interfaces: how many will be watched; slots: per CPU; cpus: CPU numbers. 0: as the machine has and suits it.

    Raises UsageError for slots that memory cannot hold.
    """
    cpus = cpus or possible_cpus()
    return Geometry(
        bucket_ns=bucket_ns,
        cpus=cpus,
        slots=_requested_slots(slots, cpus)
        if slots
        else _fitting(_SLOT_MEMORY // SLOT.itemsize // cpus, _MIN_SLOTS, _SLOTS),
        links=interfaces,
        ring_records=_fitting(_RING_MEMORY // KERNEL_BUCKET.itemsize // cpus, _LEAST_RECORDS, _MOST_RECORDS),
        flow_records=_fitting(_FLOW_RING_MEMORY // KERNEL_FLOW.itemsize // cpus, _LEAST_OPENINGS, _MOST_OPENINGS),
        step_ring_bytes=2 << 20,
    )


def _fitting(share: int, least: int, most: int) -> int:
    """The largest power of two that is not above a CPU's share, within bounds."""
    return min(most, max(least, 1 << (share.bit_length() - 1)))


def _requested_slots(slots: int, cpus: int) -> int:
    """The power of two that has room for so many."""
    rounded = max(_MIN_SLOTS, 1 << (slots - 1).bit_length())
    needed = rounded * cpus * SLOT.itemsize
    free = os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES
    most = min(free // _MEMORY_SHARE, MAX_SLOTS * cpus * SLOT.itemsize)
    if needed > most:
        raise UsageError(
            f"cannot keep {slots} flows per CPU on {cpus} CPUs: they take {needed >> 20} MB, and {most >> 20} MB is "
            "the most here; give a smaller --flows"
        )
    return rounded


# --- The memory that bpf/meter.c and the agent share, as arrays: every CPU's part of every map.


@dataclass(frozen=True)
class MeterMemory:
    """Live: a program may write anything but `consumers` at any time, and it alone does."""

    slots: Table  # (cpus × slots,) SLOT
    ledger: Table  # (cpus, 2 × (links + 1)) KERNEL_LEDGER
    producers: Table  # (cpus,) KERNEL_PRODUCER
    consumers: Table  # (cpus,) KERNEL_CONSUMER, written here
    buckets: npt.NDArray[np.uint64]  # (cpus, records, 3) KERNEL_BUCKET as words
    flows: Table  # (cpus, records) KERNEL_FLOW


MAPS = ("slots", "ledger", "producers", "consumers", "buckets", "flows")
"""The maps behind MeterMemory."""


def map_memory(descriptors: Mapping[str, int], geometry: Geometry) -> MeterMemory:
    """descriptors: of MAPS; they may be closed afterwards. Needs no privilege."""
    return _arranged(
        {
            name: mapped_array(descriptors[name], dtype, count, writable=name == "consumers")
            for name, (dtype, count) in _contents(geometry).items()
        },
        geometry,
    )


def blank_memory(geometry: Geometry) -> MeterMemory:
    """Memory that no program writes to: for those who write to it themselves."""
    return _arranged({name: np.zeros(count, dtype) for name, (dtype, count) in _contents(geometry).items()}, geometry)


def _contents(g: Geometry) -> "dict[str, tuple[np.dtype[Any], int]]":
    return {
        "slots": (SLOT, g.cpus * g.slots),
        "ledger": (KERNEL_LEDGER, g.cpus * 2 * (g.links + 1)),
        "producers": (KERNEL_PRODUCER, g.cpus),
        "consumers": (KERNEL_CONSUMER, g.cpus),
        "buckets": (KERNEL_BUCKET, g.cpus * g.ring_records),
        "flows": (KERNEL_FLOW, g.cpus * g.flow_records),
    }


def _arranged(arrays: dict[str, Table], g: Geometry) -> MeterMemory:
    return MeterMemory(
        slots=arrays["slots"],
        ledger=arrays["ledger"].reshape(g.cpus, -1),
        producers=arrays["producers"],
        consumers=arrays["consumers"],
        buckets=arrays["buckets"].view(np.uint64).reshape(g.cpus, g.ring_records, -1),
        flows=arrays["flows"].reshape(g.cpus, -1),
    )


def mapped_array(descriptor: int, dtype: "np.dtype[Any]", count: int, writable: bool = False) -> Table:
    """The values of a BPF_F_MMAPABLE array map, live and read-only unless set otherwise: (count,) of dtype."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = mmap.mmap(descriptor, whole_pages(count * dtype.itemsize), mmap.MAP_SHARED, protection)
    array: Table = np.frombuffer(memory, dtype, count)
    return array


class Fence:
    """What was read or written before a call is read or written before everything after it, on any architecture.

    x86 keeps the order of loads and of stores by itself. Where a CPU does not, a lock's release keeps what came before
    it in front, its acquisition what comes after it behind, and the two keep their own order.
    """

    def __init__(self) -> None:
        """Belongs to one thread."""
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Costs some 100 ns."""
        self._lock.release()
        self._lock.acquire()


# --- The BPF ring buffer as a numpy array: mapped memory, no system call and no callback per record.

_FLAGS = np.uint32(1 << 30)  # bit 31: busy, bit 30: discarded


class RingBuffer:
    """The only consumer of one BPF_MAP_TYPE_RINGBUF whose records all have one dtype (size a multiple of 8).

    Layout (kernel/bpf/ringbuf.c): a page with the consumer's position, one with the producer's, then the data pages
    mapped twice in a row, so that a view never wraps. A record has a header of 8 bytes: length with two flag bits,
    page offset.
    """

    def __init__(self, descriptor: int, size: int, dtype: "np.dtype[Any]") -> None:
        """descriptor: of the map (not kept); size: of its data, in bytes; dtype: of the records."""
        if dtype.itemsize % 8:
            raise ValueError(f"records of {dtype.itemsize} bytes are padded by the kernel")
        self.size = size
        self.complete = True
        """Whether the last view reached the newest reservation that it could see."""
        page = PAGE_BYTES
        self._consumer_page = mmap.mmap(descriptor, page)
        self._data_pages = mmap.mmap(descriptor, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        # As Python reads them fastest: they are looked at far more often than there is something to take.
        self._consumer = memoryview(self._consumer_page).cast("Q")
        self._producer = memoryview(self._data_pages).cast("Q")
        self._data = np.frombuffer(self._data_pages, np.uint8, 2 * size, page)
        self._dtype = dtype
        self._nothing = empty(dtype)

    def __len__(self) -> int:
        """Records that wait, those still being written included."""
        return (self._producer[0] - self._consumer[0]) // (self._dtype.itemsize + 8)

    @property
    def level(self) -> float:
        """How full it is, from 0 to 1."""
        return (self._producer[0] - self._consumer[0]) / self.size

    def view(self) -> npt.NDArray[np.uint64]:
        """The complete records, oldest first, in the mapped memory: (n, itemsize / 8) words, valid until `release`.

        Ends before the first record that is still being written.
        """
        start, words = self._consumer[0], self._dtype.itemsize // 8 + 1
        count = (self._producer[0] - start) // (8 * words)
        offset = start & (self.size - 1)
        records = self._data[offset : offset + count * words * 8].view("<u8").reshape(count, words)
        headers = records[:, 0].astype("<u4")  # the length is the lower half
        self.complete = not count or headers.max() < _FLAGS
        if not self.complete:  # our programs discard nothing, so this is a busy one
            records = records[: int(np.argmax(headers >= _FLAGS))]
        return records[:, 1:]

    def release(self, count: int) -> None:
        """Gives the oldest `count` records back to the kernel."""
        self._consumer[0] += count * (self._dtype.itemsize + 8)

    def take(self) -> Table:
        """A copy of the complete records, (n,) of their dtype; their room is given back."""
        if self._producer[0] == self._consumer[0]:
            return self._nothing
        words = self.view()
        records: Table = np.ascontiguousarray(words).view(self._dtype).reshape(len(words))
        self.release(len(words))
        return records.copy()

    def close(self) -> None:
        """Unmaps the memory; views that were given out must be gone."""
        self._consumer.release()
        self._producer.release()
        del self._data
        self._consumer_page.close()
        self._data_pages.close()


# --- Sleeping until bpf/meter.c has something: who sleeps says what it waits for, and one record ends the sleep.

WAKES = "wakes"
"""The map in which the programs say that they have woken us: its descriptor is readable then."""

_WORDS = 8  # of KERNEL_PRODUCER and KERNEL_CONSUMER; the first two are positions of buckets and flows


class Wakes:
    """One per meter. Never blocks."""

    def __init__(self, descriptor: int, memory: MeterMemory, geometry: Geometry) -> None:
        """descriptor: of WAKES, of which a copy is kept."""
        self.descriptor = os.dup(descriptor)
        """To be polled."""
        self._ring = RingBuffer(descriptor, PAGE_BYTES, np.dtype("<u8"))
        consumers = memory.consumers.view(np.uint64).reshape(-1, _WORDS)
        self._produced = memory.producers.view(np.uint64).reshape(-1, _WORDS)[:, :2]
        self._consumed, self._wake, self._sleep = consumers[:, :2], consumers[:, 2:4], consumers[:, 4]
        self._records = geometry.ring_records
        self._fence = Fence()

    def arm(self, level: float) -> bool:
        """Who polls is woken once: by a flow that takes a slot, or by a ring of buckets that is fuller than `level`.

        level: 0 to 1; 0: every closed bucket wakes. Returns false where there is something already: nobody is to wait.
        """
        self._ring.release(len(self._ring))
        np.add(self._consumed, np.array((int(level * self._records), 0), np.uint64), out=self._wake)
        self._sleep += np.uint64(1)
        self._fence()
        return bool((self._produced <= self._wake).all())

    def close(self) -> None:
        self._ring.close()
        os.close(self.descriptor)
