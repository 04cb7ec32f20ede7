# SPDX-License-Identifier: Apache-2.0
"""How large the maps are on this machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from netmon.errors import UsageError
from netmon.kernel.meter.meter import Geometry
from netmon.records import SLOT

_MIN_BUCKET_NS, _MAX_BUCKET_NS = 1_000, 1_000_000_000
_SLOTS = 16_384  # of a CPU, unless told otherwise
_SLOT_MEMORY = 128 << 20  # of all CPUs together, unless told otherwise
_MIN_SLOTS, _MAX_SLOTS = 1 << 10, 1 << 20
_MEMORY_SHARE = 4  # of what is free now, one part at most goes into slots
_MIN_LINKS, _MAX_LINKS = 16, 65_536
_POSSIBLE = Path("/sys/devices/system/cpu/possible")


def possible_cpus(text: str | None = None) -> int:
    """How many CPU numbers there can be, from the kernel's list such as `0-3` or `0,2-5`."""
    last = (text if text is not None else _POSSIBLE.read_text()).strip().split(",")[-1]
    return int(last.split("-")[-1]) + 1


def choose_geometry(bucket_ns: int, indices: Sequence[int], slots: int = 0) -> Geometry:
    """indices: of the interfaces to watch; slots: per CPU, 0 for as many as suit the machine.

    Raises UsageError for a bucket width that is out of range, or slots that memory cannot hold.
    """
    if not _MIN_BUCKET_NS <= bucket_ns <= _MAX_BUCKET_NS:
        raise UsageError(f"cannot count in buckets of {bucket_ns} ns: the width must be between 1 us and 1 s")
    cpus = possible_cpus()
    return Geometry(
        bucket_ns=bucket_ns,
        cpus=cpus,
        slots=_asked_slots(slots, cpus) if slots else _usual_slots(cpus),
        links=_links(indices),
        ring_bytes=16 << 20,
        flow_ring_bytes=1 << 20,
        step_ring_bytes=2 << 20,
    )


def _usual_slots(cpus: int) -> int:
    slots = _SLOTS
    while slots > _MIN_SLOTS and slots * cpus * SLOT.itemsize > _SLOT_MEMORY:
        slots //= 2
    return slots


def _asked_slots(slots: int, cpus: int) -> int:
    """The power of two that has room for so many."""
    rounded = max(_MIN_SLOTS, 1 << (slots - 1).bit_length())
    needed = rounded * cpus * SLOT.itemsize
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(free // _MEMORY_SHARE, _MAX_SLOTS * cpus * SLOT.itemsize)
    if needed > most:
        raise UsageError(
            f"cannot keep {slots} flows per CPU on {cpus} CPUs: they take {needed >> 20} MB, and {most >> 20} MB is "
            "the most here; give a smaller --flows"
        )
    return rounded


def _links(indices: Sequence[int]) -> int:
    """The smallest table in which no two interfaces share an entry."""
    links = _MIN_LINKS
    while links < _MAX_LINKS and len({index % links for index in indices}) < len(indices):
        links *= 2
    return links
