# SPDX-License-Identifier: Apache-2.0
"""For tests: the step programs, as an agent loads them, without the agent."""

import os

from netmon.kernel import loader
from netmon.kernel.meter.memory import RingBuffer, choose_geometry
from netmon.kernel.training.uprobes import Uprobes
from netmon.records import STEP


class Probed:
    """The step programs, and the ring that they write into."""

    def __init__(self) -> None:
        geometry = choose_geometry(10_000)
        self.descriptors = loader.load(geometry)
        self.ring = RingBuffer(self.descriptors["steps"], geometry.step_ring_bytes, STEP)
        self.uprobes = Uprobes(self.descriptors)

    def close(self) -> None:
        self.uprobes.close()
        self.ring.close()
        for descriptor in self.descriptors.values():
            os.close(descriptor)
