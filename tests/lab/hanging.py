# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script on Gloo that stands still in one way or another. Arguments: what, rank, step."""

import os
import sys
import time

import torch
import torch.distributed as dist

STEPS = 12 * 10


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def main() -> None:
    what, who, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, tensor = dist.get_rank(), torch.zeros(10_000)
    for step in range(STEPS):
        time.sleep(0.05)
        if step == when and rank == who:
            print(f"{what} {time.time_ns()} {os.getpid()}", flush=True)
            if what == "sleep":
                time.sleep(1_000)
            elif what == "other":
                dist.all_gather([torch.zeros(10) for _ in range(dist.get_world_size())], torch.zeros(10))
            elif what == "busy":
                busy(12)
            elif what == "end":
                os._exit(0)
            elif what == "stop":
                time.sleep(3)
        dist.all_reduce(tensor)
    print("done", flush=True)


if __name__ == "__main__":
    main()
