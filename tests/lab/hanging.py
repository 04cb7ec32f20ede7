# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script on Gloo that stands still in one way or another. Arguments: what, rank, step.

what: sleep, other, busy, end, stop, with all-reduces; ddp, pipeline: a rank sleeps in such a training. life: DDP that
does what trainings do besides steps, round after round, its checkpoint to the path that follows.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

STEPS, ROUNDS = 12 * 10, 2


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


class Pipeline:
    """Each rank takes something from the one before, and hands it on; then all sum."""

    def step(self) -> None:
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        tensor = torch.zeros(1_000)
        if rank:
            dist.recv(tensor, rank - 1)
        if rank < last:
            dist.send(tensor, rank + 1)
        dist.all_reduce(tensor)


class Ddp:
    def __init__(self) -> None:
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 200))

    def step(self) -> None:
        self.model(torch.randn(4, 200)).sum().backward()


class Life:
    """One after the other, each after so many steps, by the ranks that do it."""

    EVERY = 20

    def __init__(self) -> None:
        self.ddp, self.steps, self.rank = Ddp(), 0, dist.get_rank()
        compiler = [sys.executable, "-c", "import time\nend = time.monotonic() + 8\nwhile time.monotonic() < end: pass"]
        own: dict[str, Callable[[], object]] = {
            "compile": lambda: subprocess.run(compiler, check=True),
            "evaluate": lambda: busy(6 + 2 * self.rank),
            "checkpoint": lambda: self.rank == 0 and checkpoint(30),
            "accelerate": lambda: self.rank == 0 and time.sleep(12),
            "load": lambda: self.rank == dist.get_world_size() - 1 and subprocess.run(compiler, check=True),
            "traced": lambda: time.sleep(0),
        }
        self.does = own

    def step(self) -> None:
        number, rest = divmod(self.steps, self.EVERY)
        self.steps += 1
        if rest == self.EVERY - 1:
            what = list(self.does)[number % len(self.does)]
            print(f"does {what} {number}", flush=True)
            self.does[what]()
            dist.barrier()
        self.ddp.step()


def checkpoint(seconds: float) -> None:
    """So slowly as a disk that many share: a megabyte a second."""
    end = time.monotonic() + seconds
    with open(sys.argv[4], "wb") as file:
        while time.monotonic() < end:
            file.write(bytes(1 << 18))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.25)


class Sums:
    def step(self) -> None:
        dist.all_reduce(torch.zeros(10_000))


def main() -> None:
    what, who, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, trained = dist.get_rank(), {"ddp": Ddp, "pipeline": Pipeline, "life": Life}.get(what, Sums)()
    for step in range(STEPS if what != "life" else Life.EVERY * ROUNDS * len(trained.does)):
        time.sleep(0.05)
        if step == when and rank == who:
            print(f"{what} {time.time_ns()} {os.getpid()}", flush=True)
            if what in ("sleep", "ddp", "pipeline"):
                time.sleep(1_000)
            elif what == "other":
                dist.all_gather([torch.zeros(10) for _ in range(dist.get_world_size())], torch.zeros(10))
            elif what == "busy":
                busy(12)
            elif what == "end":
                os._exit(0)
            elif what == "stop":
                time.sleep(3)
        trained.step()
    print("done", flush=True)


if __name__ == "__main__":
    main()
