# SPDX-License-Identifier: Apache-2.0
"""How large the maps are on this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import UsageError
from netmon.kernel import pages
from netmon.records import KERNEL_BUCKET, KERNEL_FLOW, SLOT

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
    free = os.sysconf("SC_AVPHYS_PAGES") * pages.PAGE_BYTES
    most = min(free // _MEMORY_SHARE, MAX_SLOTS * cpus * SLOT.itemsize)
    if needed > most:
        raise UsageError(
            f"cannot keep {slots} flows per CPU on {cpus} CPUs: they take {needed >> 20} MB, and {most >> 20} MB is "
            "the most here; give a smaller --flows"
        )
    return rounded
