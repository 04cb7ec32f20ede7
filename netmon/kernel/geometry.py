# SPDX-License-Identifier: Apache-2.0
"""How large the maps are on this machine."""

from collections.abc import Sequence
from pathlib import Path

from netmon.errors import UsageError
from netmon.kernel.meter import Geometry
from netmon.records import SLOT

_MIN_BUCKET_NS, _MAX_BUCKET_NS = 1_000, 1_000_000_000
_SLOTS = 16_384
_SLOT_MEMORY = 128 << 20  # of all CPUs together
_MIN_SLOTS = 1024
_MIN_LINKS, _MAX_LINKS = 16, 65_536
_POSSIBLE = Path("/sys/devices/system/cpu/possible")


def possible_cpus(text: str | None = None) -> int:
    """How many CPU numbers there can be, from the kernel's list such as `0-3` or `0,2-5`."""
    last = (text if text is not None else _POSSIBLE.read_text()).strip().split(",")[-1]
    return int(last.split("-")[-1]) + 1


def choose_geometry(bucket_ns: int, indices: Sequence[int]) -> Geometry:
    """indices: of the interfaces to watch. Raises UsageError for a bucket width that is out of range."""
    if not _MIN_BUCKET_NS <= bucket_ns <= _MAX_BUCKET_NS:
        raise UsageError(f"cannot count in buckets of {bucket_ns} ns: the width must be between 1 us and 1 s")
    cpus = possible_cpus()
    slots = _SLOTS
    while slots > _MIN_SLOTS and slots * cpus * SLOT.itemsize > _SLOT_MEMORY:
        slots //= 2
    return Geometry(
        bucket_ns=bucket_ns,
        cpus=cpus,
        slots=slots,
        links=_links(indices),
        ring_bytes=16 << 20,
        flow_ring_bytes=1 << 20,
        step_ring_bytes=1 << 18,
    )


def _links(indices: Sequence[int]) -> int:
    """The smallest table in which no two interfaces share an entry."""
    links = _MIN_LINKS
    while links < _MAX_LINKS and len({index % links for index in indices}) < len(indices):
        links *= 2
    return links
