# SPDX-License-Identifier: Apache-2.0
"""The memory that bpf/meter.c and the agent share, as arrays: every CPU's part of every map."""

import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel import pages
from netmon.kernel.meter.geometry import Geometry
from netmon.records import KERNEL_BUCKET, KERNEL_CONSUMER, KERNEL_FLOW, KERNEL_LEDGER, KERNEL_PRODUCER, SLOT, Table


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
    memory = mmap.mmap(descriptor, pages.whole_pages(count * dtype.itemsize), mmap.MAP_SHARED, protection)
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
