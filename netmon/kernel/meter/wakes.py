# SPDX-License-Identifier: Apache-2.0
"""Sleeping until bpf/meter.c has something: who sleeps says what it waits for, and one record ends the sleep."""

import os

import numpy as np

from netmon.kernel import pages
from netmon.kernel.meter.geometry import Geometry
from netmon.kernel.meter.memory import Fence, MeterMemory
from netmon.kernel.meter.ring_buffer import RingBuffer

WAKES = "wakes"
"""The map in which the programs say that they have woken us: its descriptor is readable then."""

_WORDS = 8  # of KERNEL_PRODUCER and KERNEL_CONSUMER; the first two are positions of buckets and flows


class Wakes:
    """One per meter. Never blocks."""

    def __init__(self, descriptor: int, memory: MeterMemory, geometry: Geometry) -> None:
        """descriptor: of WAKES, of which a copy is kept."""
        self.descriptor = os.dup(descriptor)
        """To be polled."""
        self._ring = RingBuffer(descriptor, pages.PAGE_BYTES, np.dtype("<u8"))
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
        self._wake[:] = self._consumed
        self._wake[:, 0] += np.uint64(level * self._records)
        self._sleep += np.uint64(1)
        self._fence()
        return bool((self._produced <= self._wake).all())

    def close(self) -> None:
        """Nobody polls any more."""
        self._ring.close()
        os.close(self.descriptor)
