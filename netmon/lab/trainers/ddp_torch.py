# SPDX-License-Identifier: Apache-2.0
"""An ordinary DistributedDataParallel training script, over gloo: it knows nothing of netmon, nor of Horovod.

The only thing unusual is that it writes down when each iteration's moments were, to compare with later.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from script import (  # type: ignore[import-not-found]
    IterationLog,
    Pauses,
    Transfers,
    gradient_times_ns,
    options,
    read_layers,
    wait_until,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch_script import build_model, forward, interruptions, torch_hangs  # type: ignore[import-not-found]


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, layers: list[int]) -> None:
        super().__init__()
        self.layers = build_model(layers)

    def forward(self, batch: torch.Tensor, due_ns: list[int]) -> torch.Tensor:
        """due_ns: when each layer's gradient is to come, last first."""
        return forward(self.layers, batch, due_ns)


class Moments:
    """When the first bucket of a step was handed over and the last one had come, seen by the hook that hands over.

    The autograd engine ends a backward pass by calling back who requested it, in order: first ours, then the reducer,
    which waits for its buckets, then ours again.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.first_enqueue = self.last_wait = self.interrupted = 0
        self._interruptions = interruptions()

    def hand_over(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not self.first_enqueue:
            self.first_enqueue = time.monotonic_ns()
            self.interrupted = interruptions() - self._interruptions
            _call_back(self._begin_waiting)
        return allreduce_hook(group, bucket)

    def _begin_waiting(self) -> None:
        self._interruptions = interruptions()
        _call_back(self._note_last_wait)

    def _note_last_wait(self) -> None:
        self.last_wait = time.monotonic_ns()
        self.interrupted += interruptions() - self._interruptions


def _call_back(function: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)


@contextlib.contextmanager
def _profiled(path: str) -> Iterator[None]:
    """What the CPU does until the context ends, as Kineto writes it; nothing without a path."""
    if not path:
        yield
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield
    profiler.export_chrome_trace(path)


def main() -> None:
    parser = options("one rank of a DistributedDataParallel training job")
    parser.add_argument("--profile", default="", help="where PyTorch's profiler writes its trace")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    layers = read_layers(args.layers, args.params)
    times_ns = gradient_times_ns(len(layers), int(args.compute * 1e9), args.backward_share)
    model = DistributedDataParallel(Model(layers), gradient_as_bucket_view=True)
    moments = Moments()
    model.register_comm_hook(None, moments.hand_over)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    pauses, metric = Pauses(args.pauses, rank), torch.zeros(1)
    hangs = torch_hangs(args.hangs, rank, sums=True)
    iteration, middle = 0, model.module.layers[len(layers) // 2].weight
    middle.register_hook(lambda _: pauses.collect(iteration))
    with IterationLog(args.log, rank, Transfers(args.transfers).begin_due) as log, _profiled(args.profile):
        for iteration in range(args.iterations):
            start, times = time.monotonic_ns(), pauses.computing(iteration)
            optimizer.zero_grad()
            batch = torch.randn(1, 1)
            loss = (model(batch, [start + int(times * ns) for ns in times_ns]) - 2 * batch).pow(2).mean()
            wait_until(start + int(times * args.compute * (1 - args.backward_share) * 1e9))
            moments.begin()
            pauses.be_late(iteration)
            loss.backward()
            optimizer.step()
            noted = moments.first_enqueue, moments.last_wait, time.monotonic_ns(), moments.interrupted
            log.add(iteration, start, *noted)
            pauses.keep(iteration + 1, lambda: dist.all_reduce(metric))
            hangs.keep(iteration + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # One of Gloo's threads may still be letting go of what the hook returned. That takes Python, and while Python is
    # being taken down it aborts the process.
    os._exit(0)
