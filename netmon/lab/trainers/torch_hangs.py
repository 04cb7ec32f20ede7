# SPDX-License-Identifier: Apache-2.0
"""How ranks of torch.distributed stand still by what they call."""

import torch
import torch.distributed as dist
from script import Hangs  # type: ignore[import-not-found]

_VALUES = 1_000


def torch_hangs(path: str, rank: int, sums: bool) -> Hangs:
    """path: as Hangs has it; sums: whether an all-reduce is what all call next."""
    if not path:
        return Hangs("", rank, {}, int)
    groups = dist.new_group(), dist.new_group()
    values, size = torch.zeros(_VALUES), dist.get_world_size()

    def call(other: bool) -> None:
        if other and sums:
            dist.all_gather([torch.zeros(_VALUES) for _ in range(size)], values)
        elif other:
            dist.all_reduce(values)

    def sum_of_size(other: bool) -> None:
        dist.all_reduce(torch.zeros(_VALUES // 4) if other else values)

    def cross(other: bool) -> None:
        for group in groups if other else reversed(groups):
            dist.all_reduce(values, group=group)

    return Hangs(path, rank, {"call": call, "size": sum_of_size, "cross": cross}, _sequence)


def _sequence() -> int:
    return int(dist.group.WORLD._get_sequence_number_for_group())
