# SPDX-License-Identifier: Apache-2.0
"""An ordinary Horovod PyTorch training script, in Horovod's own environment: without --marks, it knows no netmon.

The only thing unusual is that it writes down when each iteration's moments were, to compare with later.
"""

import time

import horovod.torch as hvd
import horovod.torch.optimizer as hvd_optimizer
import torch
from script import (  # type: ignore[import-not-found]
    Hangs,
    IterationLog,
    Pauses,
    Transfers,
    gradient_times_ns,
    options,
    read_layers,
    wait_until,
)
from torch_script import build_model, forward, interruptions  # type: ignore[import-not-found]


class Moments:
    """When gradients were handed to Horovod and came back, seen by wrapping what its optimizer calls."""

    def __init__(self) -> None:
        """Wrap once, before the optimizer is made."""
        self.step_end = self._wait_interrupted = 0
        self._interruptions = interruptions()  # when the last step ended
        self.begin()
        self._allreduce = hvd_optimizer.allreduce_async_
        self._synchronize = hvd_optimizer.synchronize
        hvd_optimizer.allreduce_async_ = self._note_allreduce
        hvd_optimizer.synchronize = self._note_synchronize

    def begin(self) -> None:
        self.first_enqueue = self.last_wait = 0
        self.interrupted = interruptions() - self._interruptions

    def watch_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Note when the optimizer's step is over, before anybody else who wraps it."""
        step = optimizer.step

        def noted(*args: object, **kwargs: object) -> object:
            result = step(*args, **kwargs)
            self.step_end, self._interruptions = time.monotonic_ns(), interruptions()
            return result

        optimizer.step = noted
        self._interruptions = interruptions()

    def end(self) -> None:
        """The step has been noted by everybody who wraps the optimizer."""
        self.interrupted += self._wait_interrupted + interruptions() - self._interruptions

    def _note_allreduce(self, *args: object, **kwargs: object) -> object:
        if self.first_enqueue:
            return self._allreduce(*args, **kwargs)
        before = interruptions()
        self.first_enqueue = time.monotonic_ns()
        handle = self._allreduce(*args, **kwargs)
        self.interrupted += interruptions() - before
        return handle

    def _note_synchronize(self, handle: object) -> object:
        before = interruptions()
        output = self._synchronize(handle)
        self.last_wait = time.monotonic_ns()
        self._wait_interrupted = interruptions() - before
        return output


def main() -> None:
    parser = options("one rank of a Horovod training job")
    parser.add_argument("--marks", action="store_true", help="report every step to netmon's agent")
    args = parser.parse_args()

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(hvd.rank())
    moments = Moments()
    layers = read_layers(args.layers, args.params)
    times_ns = gradient_times_ns(len(layers), int(args.compute * 1e9), args.backward_share)
    model = build_model(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    moments.watch_update(optimizer)
    if args.marks:
        from netmon.horovod import watch

        optimizer = watch(optimizer)

    pauses, metric = Pauses(args.pauses, hvd.rank()), torch.zeros(1)
    calls = {"call": lambda other: hvd.allgather(metric, name="other") if other else None}
    hangs = Hangs(args.hangs, hvd.rank(), calls, lambda: -2)
    iteration, middle = 0, model[len(layers) // 2].weight
    middle.register_hook(lambda _: pauses.collect(iteration))
    with IterationLog(args.log, hvd.rank(), Transfers(args.transfers).begin_due) as log:
        for iteration in range(args.iterations):
            start, times = time.monotonic_ns(), pauses.computing(iteration)
            moments.begin()
            log.tell()  # of the step before: between that and this one it would pass for a part of the hook's error
            optimizer.zero_grad()
            batch = torch.randn(1, 1)
            loss = (forward(model, batch, [start + int(times * ns) for ns in times_ns]) - 2 * batch).pow(2).mean()
            wait_until(start + int(times * args.compute * (1 - args.backward_share) * 1e9))
            pauses.be_late(iteration)
            loss.backward()
            optimizer.step()
            moments.end()
            noted = start, moments.first_enqueue, moments.last_wait, moments.step_end
            log.keep(iteration, noted, moments.interrupted)
            pauses.keep(iteration + 1, lambda: hvd.allreduce(metric, name="metric"))
            hangs.keep(iteration + 1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
