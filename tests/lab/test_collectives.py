# SPDX-License-Identifier: Apache-2.0
"""What the probes tell of each collective and transfer of a real script: all of it, exactly."""

import numpy as np
import pytest
from loopback_ranks import run_ranks
from probed import Probed

from netmon.records import STEP_BACKWARD, STEP_BEGIN, STEP_OVER, STEP_WAIT_END, Table

pytestmark = pytest.mark.kernel

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, two = dist.get_rank(), dist.new_group([1, 2])
dist.barrier()
print("ready", flush=True)
input()
dist.all_reduce(torch.zeros(1000))
dist.broadcast(torch.zeros(500, dtype=torch.float64), 1)
dist.all_gather([torch.zeros(30) for _ in range(3)], torch.zeros(30))
dist.all_to_all_single(torch.zeros(9), torch.zeros(9))
dist.scatter(torch.zeros(7), [torch.zeros(7) for _ in range(3)] if rank == 1 else None, 1)
dist.reduce(torch.zeros(11), 2)
if rank:
    for _ in range(2):
        dist.all_reduce(torch.zeros(10, dtype=torch.int64), group=two)
if rank != 1:
    for source, values in ((0, 40), (2, 50)):
        tensor = torch.zeros(values)
        dist.send(tensor, 2 - rank) if rank == source else dist.recv(tensor, 2 - rank)
torch.ones(1, requires_grad=True).sum().backward()
dist.barrier()
os._exit(0)
"""
RANKS = 3
BROADCAST, SUM, REDUCE, GATHER, SCATTER, EXCHANGE, SEND, RECEIVE, BARRIER = 0, 1, 3, 4, 8, 11, 12, 13, 15  # OpType
FLOAT, DOUBLE, LONG = 4, 8, 8

OF_ALL = [
    (SUM, 1000, FLOAT),
    (BROADCAST, 500, DOUBLE),
    (GATHER, 30, FLOAT),
    (EXCHANGE, 9, FLOAT),
    (SCATTER, 7, FLOAT),
    (REDUCE, 11, FLOAT),
]
"""Operation, values, bytes of each."""


def collectives(begun: Table) -> list[tuple[int, ...]]:
    """With rank and size of the group."""
    named = begun[~np.isin(begun["tensors"], (SEND, RECEIVE))]
    columns = (named["tensors"], named["size"] >> 4, named["size"] & 15, named["group_rank"], named["group_size"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_operation_group_sequence_other_rank_and_bytes_are_told(probed: Probed) -> None:
    pids, _, told = run_ranks(probed, SCRIPT, RANKS)
    for rank, pid in enumerate(pids):
        own = told[told["pid"] == pid]
        begun = own[own["kind"] == STEP_BEGIN]
        in_two = [(SUM, 10, LONG, rank - 1, 2)] * 2 if rank else []
        expected = [*((*call, rank, RANKS) for call in OF_ALL), *in_two, (BARRIER, 0, 0, rank, RANKS)]
        assert collectives(begun) == expected
        transfers = begun[np.isin(begun["tensors"], (SEND, RECEIVE))]
        # Transfers are counted, too, by the two ranks that make them only.
        for size, steps in ((RANKS, [1, 1, 1, 1, 1, 1 + len(transfers)]), (2, [1] if rank else [])):
            of_group = begun[begun["group_size"] == size]
            assert np.diff(of_group["sequence"].astype(int)).tolist() == steps
            assert len(set(of_group["name_hash"].tolist())) == bool(len(of_group))
        sent = [(SEND, 40), (RECEIVE, 50)] if rank == 0 else [(RECEIVE, 40), (SEND, 50)] if rank == 2 else []
        found = list(zip(transfers["tensors"].tolist(), (transfers["size"] >> 4).tolist(), strict=True))
        assert found == sent
        assert set(transfers["sequence"].tolist()) <= {2 - rank}
        assert (own["kind"] == STEP_BACKWARD).sum() == 1
        # Each is over once, after it began and before the next one of this rank, which waits for all.
        over = own[np.isin(own["kind"], (STEP_OVER, STEP_WAIT_END)) & (own["work"] > 0)]
        for call, later in zip(begun, [*begun["time_ns"][1:].tolist(), np.iinfo(np.int64).max], strict=True):
            ends = over["time_ns"][(over["work"] == call["work"]) & (over["time_ns"] > call["time_ns"])]
            assert len(ends)
            assert call["time_ns"] < ends[0] < later
