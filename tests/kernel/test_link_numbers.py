# SPDX-License-Identifier: Apache-2.0
"""Interfaces that collide in the kernel's table are told apart, and what has no place in it is refused."""

import pytest

from netmon.bench.kernel import LOOPBACK, PROGRAMS, frame
from netmon.errors import KernelError
from netmon.kernel import loader
from netmon.kernel.bpf_calls import dry_run
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import Meter
from netmon.kernel.watching import forget_interface, number_interface

pytestmark = pytest.mark.kernel

COLLIDING = [LOOPBACK + 1024 * n for n in range(1, 5)]


def test_colliding_interfaces_have_numbers_of_their_own() -> None:
    geometry = choose_geometry(10_000, interfaces=5)
    descriptors = loader.load(geometry)
    meter, table = Meter(map_memory(descriptors, geometry), geometry), descriptors["interfaces"]

    def counted() -> dict[int, int]:
        dry_run(descriptors[PROGRAMS["xdp"]], frame(), 100)
        return {link: counters["frames"] for link, counters in meter.ledger().items()}

    assert counted() == {0: 100}  # without a number, visibly
    for number, index in enumerate(COLLIDING[:3], 1):
        number_interface(table, index, number)
    number_interface(table, LOOPBACK, 4)
    assert counted() == {0: 100, 4 << 1: 100}
    with pytest.raises(KernelError, match="cannot number"):
        number_interface(table, COLLIDING[3], 5)
    forget_interface(table, LOOPBACK)
    number_interface(table, COLLIDING[3], 5)
    assert counted() == {0: 200, 4 << 1: 100}
    forget_interface(table, COLLIDING[0])
    number_interface(table, LOOPBACK, 4)  # it is made again: the entry that it had goes on
    assert counted() == {0: 200, 4 << 1: 200}
