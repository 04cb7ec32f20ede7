# SPDX-License-Identifier: Apache-2.0
"""Pages of 64 KB, which no kernel here has: what is mapped lies where such a kernel has put it."""

import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

import netmon
from netmon.kernel import loader
from netmon.kernel.meter import memory as shared
from netmon.kernel.meter.memory import RingBuffer, choose_geometry, mapped_array
from netmon.kernel.owners import socket_events
from netmon.records import STEP

LARGE = 65_536
BUSY = 1 << 31


@pytest.fixture(autouse=True)
def large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PAGE_BYTES", LARGE)


def memory(size: int) -> int:
    descriptor = os.memfd_create("map")
    os.truncate(descriptor, size)
    return descriptor


def test_a_ring_buffer_is_read_behind_large_pages() -> None:
    size = 2 * LARGE
    descriptor = memory(2 * LARGE + 2 * size)
    with mmap.mmap(descriptor, 0) as kernel:
        entry = STEP.itemsize + 8
        for number in range(3):
            at = 2 * LARGE + number * entry
            kernel[at : at + 4] = (STEP.itemsize | (BUSY if number == 2 else 0)).to_bytes(4, "little")
            step = np.zeros(1, STEP)
            step["pid"] = 10 + number
            kernel[at + 8 : at + entry] = step.tobytes()
        kernel[LARGE : LARGE + 8] = (3 * entry).to_bytes(8, "little")
        ring = RingBuffer(descriptor, size, STEP)
        assert ring.take()["pid"].tolist() == [10, 11]
        assert int.from_bytes(kernel[:8], "little") == 2 * entry
        ring.close()
    os.close(descriptor)


def test_arrays_are_mapped_in_whole_pages() -> None:
    descriptor = memory(LARGE)
    os.pwrite(descriptor, np.arange(100, dtype="<u8").tobytes(), 0)
    assert mapped_array(descriptor, np.dtype("<u8"), 100).tolist() == list(range(100))
    os.close(descriptor)
    assert [shared.whole_pages(size) for size in (1, LARGE, LARGE + 1)] == [LARGE, LARGE, 2 * LARGE]


def test_the_programs_are_compiled_for_them() -> None:
    geometry = choose_geometry(10_000)
    flags = dict(flag[2:].split("=") for flag in loader.compiler_flags(geometry) if flag.startswith("-DNETMON_"))
    assert int(flags["NETMON_PAGE_BYTES"]) == LARGE
    assert int(flags["NETMON_STEP_PAGES"]) * LARGE == geometry.step_ring_bytes
    for size in (geometry.step_ring_bytes, socket_events.RING_BYTES, socket_events.EVENT_RING_BYTES):
        assert size % LARGE == 0
        assert (size // LARGE).bit_count() == 1  # the kernel takes no other number of pages


def test_nobody_else_asks_how_large_a_page_is() -> None:
    asking = re.compile(r"PAGESIZE|PAGE_SIZE|getpagesize")
    root = Path(netmon.__file__).parent / "kernel"
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if asking.search(path.read_text())}
    assert found == {"meter/memory.py"}
