# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the lab's own trainer, over real sockets."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import free_port

from netmon.errors import LabError
from netmon.lab.trainers.collectives import PATTERNS, Ring, fused_ends
from netmon.lab.trainers.ring import Gradients
from netmon.lab.trainers.script import gradient_times_ns, layer_sizes


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_layers_hold_all_parameters(parameters, layers):
    sizes = layer_sizes(parameters, layers)
    assert sum(sizes) == parameters
    assert min(sizes) >= 1
    assert len(sizes) == min(layers, parameters)


@given(st.integers(1, 10**8), st.integers(2, 9), st.integers(4, 10**8))
def test_fused_blocks_cover_the_padded_buffer(parameters, size, fusion_bytes):
    ends = fused_ends(layer_sizes(parameters), fusion_bytes, size)
    assert ends == sorted(set(ends))
    assert all(end % size == 0 for end in ends)
    assert parameters <= ends[-1] < parameters + size


def bytes_received(connection):
    """tcpi_bytes_received of linux/tcp.h: payload, without retransmissions."""
    return struct.unpack_from("<Q", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 128)[0]


def reduce_on(rank, size, port, parameters, iterations, all_counted):
    ring = Ring(rank, ["127.0.0.1"] * size, port)
    gradients = Gradients(layer_sizes(parameters), rank, size)
    for iteration in range(iterations):
        gradients.compute(iteration)
        for block in gradients.blocks():
            ring.all_reduce(block)
        gradients.check(iteration)
    received = bytes_received(ring._from)
    all_counted.wait(120)  # the end of a connection counts as a byte, too
    ring.close()
    return len(gradients.values), received


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("parameters", [1, 1000, 3_000_001])
def test_every_rank_gets_the_sum_and_sends_what_equation_3_1_says(size, parameters):
    port, all_counted = free_port(size), threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(reduce_on, rank, size, port, parameters, 2, all_counted) for rank in range(size)]
        for run in runs:
            padded, received = run.result(30)
            assert received == 2 * (2 * (size - 1) * padded * 4 // size)


def reduce_by(pattern, rank, size, port):
    collective = PATTERNS[pattern](rank, ["127.0.0.1"] * size, port)
    gradients = Gradients(layer_sizes(10_007), rank, size, fusion_bytes=8192)
    for iteration in range(2):
        gradients.compute(iteration)
        for block in gradients.blocks():
            collective.all_reduce(block)
        gradients.check(iteration)
    collective.close()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_pattern_gives_every_rank_the_sum(pattern, size):
    port = free_port(2 * size)
    with ThreadPoolExecutor(size) as pool:
        for run in [pool.submit(reduce_by, pattern, rank, size, port) for rank in range(size)]:
            run.result(30)


def test_gradients_come_during_the_backward_pass_last_layer_first():
    assert gradient_times_ns(4, 100, 0.0) == [100, 100, 100, 100]
    assert gradient_times_ns(4, 120, 2 / 3) == [60, 80, 100, 120]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(2, 5), st.floats(0, 1))
def test_blocks_are_ready_in_their_order_and_the_last_when_all_is_computed(layers, size, share):
    gradients = Gradients(layers, 0, size, fusion_bytes=1 << 18)
    ready = gradients.ready_ns(1_000_000, share)
    assert len(ready) == len(gradients.blocks())
    assert ready == sorted(ready)
    assert ready[-1] == 1_000_000


def test_a_wrong_sum_is_noticed():
    gradients = Gradients(layer_sizes(1000), rank=0, size=2)
    gradients.compute(0)
    gradients.values[:] = np.arange(len(gradients.values)) % 251 * 3
    gradients.check(0)
    gradients.values[7] += 1
    with pytest.raises(LabError, match=r"wrong sum in iteration 0: \[7\] 22"):
        gradients.check(0)
