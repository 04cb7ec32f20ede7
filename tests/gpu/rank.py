# SPDX-License-Identifier: Apache-2.0
"""A rank of an ordinary PyTorch job: what it is told on standard input, it does, and says how long each time took.

It knows nothing of netmon. Started with another Python than the tests', one that has PyTorch.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BACKEND = os.environ.get("NETMON_TEST_BACKEND", "nccl")  # gloo: to try the tests where there is no GPU


class Rank:
    def __init__(self) -> None:
        self._device = torch.device("cuda", 0) if BACKEND == "nccl" else torch.device("cpu")
        if BACKEND == "nccl":
            torch.cuda.set_device(0)
        dist.init_process_group(BACKEND)
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self.all_reduce(1 << 10, 1)

    def about(self) -> dict[str, Any]:
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if BACKEND == "nccl" else ""
        name = torch.cuda.get_device_name(0) if BACKEND == "nccl" else "none"
        return {"pid": os.getpid(), "torch": torch.__version__, "nccl": nccl, "gpu": name}

    def all_reduce(self, size: int, times: int) -> list[int]:
        numbers = self._ones(size)
        return self._timed(times, lambda: dist.all_reduce(numbers, dist.ReduceOp.MAX))

    def all_gather(self, size: int, times: int) -> list[int]:
        """size: of what comes of all together."""
        every, own = self._ones(size), self._ones(size // self._size)
        return self._timed(times, lambda: dist.all_gather_into_tensor(every, own))

    def reduce_scatter(self, size: int, times: int) -> list[int]:
        every, own = self._ones(size), self._ones(size // self._size)
        return self._timed(times, lambda: dist.reduce_scatter_tensor(own, every))

    def send_around(self, size: int, times: int) -> list[int]:
        """Each to the next, and from the one before."""
        ours, theirs = self._ones(size), self._ones(size)

        def exchange() -> None:
            to, of = (self._rank + 1) % self._size, (self._rank - 1) % self._size
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, ours, to), dist.P2POp(dist.irecv, theirs, of)]):
                work.wait()

        return self._timed(times, exchange)

    def train(self, width: int, steps: int) -> list[int]:
        """A small DistributedDataParallel training."""
        torch.manual_seed(1)
        layers = [torch.nn.Linear(width, width) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers).to(self._device))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        batch = torch.randn(64, width, device=self._device)

        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return self._timed(steps, step)

    def _ones(self, size: int) -> torch.Tensor:
        return torch.ones(max(1, size // 4), dtype=torch.float32, device=self._device)

    def _timed(self, times: int, call: Callable[[], object]) -> list[int]:
        """ns of each."""
        took = []
        for _ in range(times):
            begin = time.perf_counter_ns()
            call()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            took.append(time.perf_counter_ns() - begin)
        return took


def main() -> None:
    rank = Rank()
    print(json.dumps(rank.about()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(rank, name)(*arguments)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
