# SPDX-License-Identifier: Apache-2.0
"""An ordinary DistributedDataParallel training script, over gloo: it knows nothing of netmon, nor of Horovod.

The only thing unusual is that it writes down when each iteration's moments were, to compare with later.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from iteration_log import IterationLog, wait_until  # type: ignore[import-not-found]
from layers import gradient_times_ns, read_layers  # type: ignore[import-not-found]
from paced_model import build_model, forward, interruptions  # type: ignore[import-not-found]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):  # type: ignore[misc]
    """The layers, with a forward pass."""

    def __init__(self, layers: list[int]) -> None:
        """layers: parameters of each."""
        super().__init__()
        self.layers = build_model(layers)

    def forward(self, batch: torch.Tensor, due_ns: list[int]) -> torch.Tensor:
        """due_ns: when each layer's gradient is to come, last first."""
        return forward(self.layers, batch, due_ns)


class FirstEnqueue:
    """When the first bucket of a step was handed over, seen by the hook that hands it over."""

    def __init__(self) -> None:
        """Before the first step."""
        self.time_ns = self.interrupted = 0

    def hand_over(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """For DistributedDataParallel.register_comm_hook."""
        before = interruptions()
        self.time_ns = self.time_ns or time.monotonic_ns()
        future = allreduce_hook(group, bucket)
        self.interrupted |= interruptions() - before
        return future


def main() -> None:
    """Train on random numbers."""
    parser = argparse.ArgumentParser(description="one rank of a DistributedDataParallel training job")
    parser.add_argument("--params", type=int, default=4_000_000)
    parser.add_argument("--layers", default="", help="JSON file with the parameters of each layer, instead")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of forward and backward pass, mostly waits")
    parser.add_argument("--backward-share", type=float, default=0.0, help="of them, in which gradients come")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    layers = read_layers(args.layers, args.params)
    times_ns = gradient_times_ns(len(layers), int(args.compute * 1e9), args.backward_share)
    model = DistributedDataParallel(Model(layers), gradient_as_bucket_view=True)
    first = FirstEnqueue()
    model.register_comm_hook(None, first.hand_over)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    with IterationLog(args.log, rank) as log:
        for iteration in range(args.iterations):
            start = time.monotonic_ns()
            first.time_ns = first.interrupted = 0
            optimizer.zero_grad()
            batch = torch.randn(1, 1)
            loss = (model(batch, [start + ns for ns in times_ns]) - 2 * batch).pow(2).mean()
            wait_until(start + int(args.compute * (1 - args.backward_share) * 1e9))
            loss.backward()  # which waits for the last bucket
            last_wait = time.monotonic_ns()
            optimizer.step()
            log.add(iteration, start, first.time_ns, last_wait, time.monotonic_ns(), first.interrupted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
