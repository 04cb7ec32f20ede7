# SPDX-License-Identifier: Apache-2.0
"""Training scripts on gloo whose ranks exchange more than sums of gradients: FSDP, a pipeline, experts, layers
that are split (tensor parallel), and all that in one (hybrid).

Each writes down when its steps began and ended, when the first call in them was made and the last one was over, and
knows nothing of netmon. Computing is a wait.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from script import (  # type: ignore[import-not-found]
    IterationLog,
    Pauses,
    layer_sizes,
    options,
    read_layers,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_script import build_model, torch_hangs  # type: ignore[import-not-found]

_FSDP_LAYERS, _MICRO_BATCHES, _EXPERT_LAYERS, _BLOCKS = 4, 4, 2, 4
_MOST_UNITS = 48  # that are gathered each by itself
_WIDTH = 64
_EXCHANGES, _FLOAT = 4, 4  # of a layer of experts, there and back in both passes; bytes

Step = Callable[[], int | None]
"""Returns busiest_bytes, as IterationLog.add has it; None: as much in each step."""


class Calls:
    """When the first call of a step was made that other ranks take part in, and when the last one, or the wait for it,
    was over: CLOCK_MONOTONIC in ns; 0: none yet.
    """

    _NAMES = (
        *("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"),
        *("all_to_all_single", "all_reduce", "all_gather_tensor", "wait_tensor", "isend", "irecv", "recv", "wait"),
    )

    def __init__(self) -> None:
        self.first_ns = self.last_ns = 0
        for place in (dist, functional, dist.Work):
            for name in self._NAMES:
                if hasattr(place, name):
                    setattr(place, name, self._noting(getattr(place, name)))

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.first_ns = self.first_ns or time.monotonic_ns()
            result = call(*arguments, **named)
            self.last_ns = time.monotonic_ns()
            return result

        return noted


def fsdp(parameters: int, compute_s: float, layers: Sequence[int] = (), backward_share: float = 0.0) -> Step:
    """PyTorch's fully_shard: an all-gather of parameters per layer, forward and backward; gradients scattered.

    layers: parameters of each; so many in a row are gathered at once that there are at most _MOST_UNITS.
    """
    model = build_model(_units(layers) if layers else layer_sizes(parameters, _FSDP_LAYERS))
    forward_s, backward_s = (share * compute_s / len(model) for share in (1 - backward_share, backward_share))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        batch = torch.randn(1, 1)
        for layer in model:
            time.sleep(forward_s)
            batch = layer(batch).mean(dim=1, keepdim=True) + batch
            if backward_s:
                batch.register_hook(lambda _: time.sleep(backward_s))
        batch.pow(2).mean().backward()
        optimizer.step()

    return step


def _units(layers: Sequence[int]) -> list[int]:
    least, units = -(-sum(layers) // _MOST_UNITS), [0]
    for size in layers:
        units[-1] += size
        if units[-1] >= least:
            units.append(0)
    return [size for size in units if size]


def pipeline(parameters: int, compute_s: float) -> Step:
    """One forward, one backward: each stage sends activations to the next one and gradients to the one before."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    values, weight = parameters // _MICRO_BATCHES, torch.ones(1, requires_grad=True)
    computed: list[tuple[torch.Tensor, torch.Tensor]] = []
    sent: list[dist.Work] = []

    def receive(source: int) -> torch.Tensor:
        received = torch.zeros(values, 1)
        if 0 <= source <= last:
            dist.irecv(received, source).wait()
        time.sleep(compute_s / (2 * _MICRO_BATCHES))
        return received

    def send(tensor: torch.Tensor, target: int) -> None:
        if 0 <= target <= last:
            sent.append(dist.isend(tensor, target))

    def step() -> None:
        weight.grad = None
        ahead = min(last - rank, _MICRO_BATCHES)
        for micro_batch in range(_MICRO_BATCHES + ahead):
            if micro_batch < _MICRO_BATCHES:
                batch = receive(rank - 1).requires_grad_()
                computed.append((batch, batch * weight))
                send(computed[-1][1].detach(), rank + 1)
            if micro_batch >= ahead:
                gradient, (batch, output) = receive(rank + 1), computed.pop(0)
                output.backward(gradient)
                assert batch.grad is not None
                send(batch.grad, rank - 1)
        while sent:
            sent.pop().wait()

    return step


class Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Values go to other ranks, so many to each, and their gradients come back."""

    @staticmethod
    def forward(ctx, values, sent, taken, compute_s):  # type: ignore[no-untyped-def]
        """Compute, then exchange."""
        ctx.back = taken, sent, compute_s
        return exchanged(values, sent, taken, compute_s)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return exchanged(gradient, *ctx.back), None, None, None


def exchanged(values: torch.Tensor, sent: list[int], taken: list[int], compute_s: float) -> torch.Tensor:
    """What the others have sent, after computing."""
    time.sleep(compute_s)
    received = torch.empty(sum(taken))
    dist.all_to_all_single(received, values.contiguous(), taken, sent)
    return received


def experts(parameters: int, compute_s: float) -> Step:
    """Tokens go to their experts and back, unevenly, in both passes; the gradients that all ranks share are summed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    router, shared = torch.Generator().manual_seed(0), torch.zeros(parameters // 2)
    weight = torch.ones(1, requires_grad=True)
    each, pause_s = parameters // (2 * size * _EXPERT_LAYERS), compute_s / (4 * _EXPERT_LAYERS)

    def step() -> int:
        weight.grad, mean, busiest = None, weight, 0
        for _ in range(_EXPERT_LAYERS):
            counts = (torch.rand(size, size, generator=router) * 2 * each).int()  # the same for all: [from, to]
            sent, taken = counts[rank].tolist(), counts[:, rank].tolist()
            away = counts.clone().fill_diagonal_(0)
            busiest += _EXCHANGES * _FLOAT * int(max(away.sum(0).max(), away.sum(1).max()))
            tokens = Exchange.apply(mean.expand(sum(sent)), sent, taken, pause_s)
            mean = Exchange.apply(tokens, taken, sent, pause_s).mean()
        mean.backward()
        dist.all_reduce(shared)
        return busiest

    return step


class Block(torch.nn.Module):  # type: ignore[misc]
    """Two layers that are split over ranks, one by its outputs and one by its inputs. Computing is a wait."""

    def __init__(self, mesh: DeviceMesh, compute_s: float) -> None:
        super().__init__()
        self.compute_s = compute_s
        self.wide, self.narrow = torch.nn.Linear(_WIDTH, 2 * _WIDTH), torch.nn.Linear(2 * _WIDTH, _WIDTH)
        parallelize_module(self, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Sums what each rank has of it."""
        time.sleep(self.compute_s)
        result: torch.Tensor = batch + self.narrow(torch.relu(self.wide(batch)))
        return result


def tensor(parameters: int, compute_s: float) -> Step:
    """Each layer is split over all ranks, which sum activations and gradients: of so many values in each pass."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*(Block(mesh, compute_s / _BLOCKS) for _ in range(_BLOCKS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(max(1, parameters // (_BLOCKS * _WIDTH)), _WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

    return step


def hybrid(parameters: int, compute_s: float) -> Step:
    """Two stages, each of layers split over two ranks, and, of eight ranks, sharded over two more."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 4, 2), mesh_dim_names=("stages", "data", "layers"))
    group, first = mesh.get_group("stages"), mesh.get_local_rank("stages") == 0
    other = dist.get_global_rank(group, int(first))
    blocks = _BLOCKS // 2
    each_s = compute_s / (blocks * _MICRO_BATCHES)
    model = torch.nn.Sequential(*(Block(mesh["layers"], each_s) for _ in range(blocks)))
    if mesh["data"].size() > 1:
        for block in model:
            fully_shard(block, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shape = max(1, parameters // (_BLOCKS * _MICRO_BATCHES * _WIDTH)), _WIDTH
    sum_of_norms = torch.zeros(1)

    def receive() -> torch.Tensor:
        received = torch.zeros(shape)
        dist.recv(received, other, group=group)
        return received

    def step() -> None:
        optimizer.zero_grad()
        sent: list[dist.Work] = []
        passed: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(_MICRO_BATCHES):
            batch = (torch.randn(shape) if first else receive()).requires_grad_()
            passed.append((batch, model(batch)))
            if first:
                sent.append(dist.isend(passed[-1][1].detach().contiguous(), other, group=group))
        for batch, output in passed:
            output.backward(receive() if first else torch.ones(shape))
            if not first:
                assert batch.grad is not None
                sent.append(dist.isend(batch.grad.contiguous(), other, group=group))
        for transfer in sent:
            transfer.wait()
        dist.all_reduce(sum_of_norms)
        optimizer.step()

    return step


KINDS = {"fsdp": fsdp, "pipeline": pipeline, "experts": experts, "tensor": tensor, "hybrid": hybrid}


def main() -> None:
    parser = options("one rank of a training job that exchanges more than gradients")
    parser.add_argument("--kind", choices=KINDS, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, metric = int(os.environ["RANK"]), torch.zeros(1)
    pauses, hangs = Pauses(args.pauses, rank), torch_hangs(args.hangs, rank, args.kind == "tensor")
    sized = (read_layers(args.layers, args.params) if args.layers else (), args.backward_share)
    step = KINDS[args.kind](args.params, args.compute, *(sized if args.kind == "fsdp" else ()))
    calls = Calls()
    with IterationLog(args.log, rank) as log:
        for iteration in range(args.iterations):
            calls.first_ns, start = 0, time.monotonic_ns()
            pauses.be_late(iteration)
            busiest = step() or 0
            log.add(iteration, start, calls.first_ns, calls.last_ns, time.monotonic_ns(), busiest_bytes=busiest)
            pauses.keep(iteration + 1, lambda: dist.all_reduce(metric))
            hangs.keep(iteration + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the mesh of FSDP still holds its group, and a group that Python takes down at its end aborts
