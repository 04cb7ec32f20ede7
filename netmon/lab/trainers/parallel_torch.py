# SPDX-License-Identifier: Apache-2.0
"""Training scripts on gloo whose ranks exchange more than sums of gradients: FSDP, a pipeline, experts.

Each writes down when its steps began and ended, and knows nothing of netmon. Computing is a wait.
"""

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from paced_model import build_model  # type: ignore[import-not-found]
from script import (  # type: ignore[import-not-found]
    IterationLog,
    Pauses,
    layer_sizes,
    options,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_FSDP_LAYERS, _MICRO_BATCHES, _EXPERT_LAYERS = 4, 4, 2

Step = Callable[[], object]


def fsdp(parameters: int, compute_s: float) -> Step:
    """PyTorch's fully_shard: parameters are gathered layer by layer, forward and backward, and gradients scattered."""
    model = build_model(layer_sizes(parameters, _FSDP_LAYERS))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        batch = torch.randn(1, 1)
        for layer in model:
            time.sleep(compute_s / _FSDP_LAYERS)
            batch = layer(batch).mean(dim=1, keepdim=True) + batch
        batch.pow(2).mean().backward()
        optimizer.step()

    return step


def pipeline(parameters: int, compute_s: float) -> Step:
    """One forward, one backward: each stage sends activations to the next one and gradients to the one before."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    received, computed = (torch.zeros(parameters // _MICRO_BATCHES, 1) for _ in range(2))
    sent: list[dist.Work] = []

    def work(source: int, target: int) -> None:
        if 0 <= source <= last:
            dist.irecv(received, source).wait()
        time.sleep(compute_s / (2 * _MICRO_BATCHES))
        if 0 <= target <= last:
            sent.append(dist.isend(computed, target))

    def step() -> None:
        ahead = min(last - rank, _MICRO_BATCHES)
        for micro_batch in range(_MICRO_BATCHES + ahead):
            if micro_batch < _MICRO_BATCHES:
                work(rank - 1, rank + 1)
            if micro_batch >= ahead:
                work(rank + 1, rank - 1)
        while sent:
            sent.pop().wait()

    return step


def experts(parameters: int, compute_s: float) -> Step:
    """Tokens go to their experts and back, unevenly, in both passes; the gradients that all ranks share are summed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    router, shared = torch.Generator().manual_seed(0), torch.zeros(parameters // 2)
    each = parameters // (2 * size * _EXPERT_LAYERS)

    def exchange() -> None:
        counts = (torch.rand(size, size, generator=router) * 2 * each).int()  # the same for all: [from, to]
        for one in (counts, counts.T):
            time.sleep(compute_s / (4 * _EXPERT_LAYERS))
            sent, taken = one[rank].tolist(), one[:, rank].tolist()
            dist.all_to_all_single(torch.empty(sum(taken)), torch.empty(sum(sent)), taken, sent)

    def step() -> None:
        for _ in range(2 * _EXPERT_LAYERS):
            exchange()
        dist.all_reduce(shared)

    return step


def main() -> None:
    parser = options("one rank of a training job that exchanges more than gradients")
    parser.add_argument("--kind", choices=("fsdp", "pipeline", "experts"), required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, pauses, metric = int(os.environ["RANK"]), Pauses(args.pauses), torch.zeros(1)
    step = {"fsdp": fsdp, "pipeline": pipeline, "experts": experts}[args.kind](args.params, args.compute)
    with IterationLog(args.log, rank) as log:
        for iteration in range(args.iterations):
            start = time.monotonic_ns()
            step()
            end = time.monotonic_ns()
            log.add(iteration, start, start, end, end)
            pauses.keep(iteration + 1, lambda: dist.all_reduce(metric))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the mesh of FSDP still holds its group, and a group that Python takes down at its end aborts
