# SPDX-License-Identifier: Apache-2.0
"""What scripts of PyTorch share: a model with the gradients of a big one, its arithmetic a wait; ways to stand still.

Runs in the trainer's own environment.
"""

import resource

import torch
import torch.distributed as dist
from script import Hangs, wait_until  # type: ignore[import-not-found]


def interruptions() -> int:
    """How often this thread had to give its CPU to another one: then a moment may have passed before it was noted."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class Pace(torch.autograd.Function):  # type: ignore[misc]
    """Changes nothing, but lets the backward pass go on no earlier than at a given moment: the accelerator's."""

    @staticmethod
    def forward(ctx, values, deadline_ns):  # type: ignore[no-untyped-def]
        """Note the moment, CLOCK_MONOTONIC in ns."""
        ctx.deadline_ns = deadline_ns
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        wait_until(ctx.deadline_ns)
        return gradient, None


def build_model(layers: list[int]) -> torch.nn.ModuleList:
    """A chain of wide layers of one input each: all the gradients of a big model, little of its arithmetic."""
    return torch.nn.ModuleList(torch.nn.Linear(1, size, bias=False) for size in layers)


def forward(model: torch.nn.ModuleList, batch: torch.Tensor, due_ns: list[int]) -> torch.Tensor:
    """Each layer's mean output is the next one's input. due_ns: when each layer's gradient is to come, last first."""
    for layer, due in zip(model, reversed(due_ns), strict=True):
        batch = Pace.apply(layer(batch).mean(dim=1, keepdim=True), due) + batch
    return batch


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
