# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job whose network is real and whose accelerator is a wait. The launcher sets RANK.

An iteration: forward and backward pass (a wait), then a ring all-reduce of all gradients, then the update, which
checks every reduced value.
"""

import argparse
import os
import time

import numpy as np

from netmon.errors import LabError
from netmon.horovod import Steps
from netmon.lab.trainers.allreduce import Floats, Ring, fused_ends
from netmon.lab.trainers.iteration_log import IterationLog, wait_until
from netmon.lab.trainers.layers import layer_sizes

FUSION_BYTES = 4 << 20


class Gradients:
    """float32 gradients of all layers in one buffer, padded to a multiple of the ring's size."""

    def __init__(self, parameters: int, rank: int, size: int) -> None:
        """All ranks agree on a pattern of small whole numbers, so that sums in float32 are exact."""
        self.ends = fused_ends(layer_sizes(parameters), FUSION_BYTES, size)
        self.values: Floats = np.empty(self.ends[-1], np.float32)
        self._pattern = (np.arange(self.ends[-1]) % 251).astype(np.float32)
        self._rank, self._size = rank, size

    def blocks(self) -> list[Floats]:
        """The fused blocks, in the order of their reduction; views of `values`."""
        return [self.values[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]

    def compute(self, iteration: int) -> None:
        """This rank's contribution: pattern·(rank+1) + iteration."""
        np.multiply(self._pattern, self._rank + 1, out=self.values)
        self.values += iteration % 1024

    def check(self, iteration: int) -> None:
        """Raise LabError unless `values` is the sum over all ranks."""
        expected = self._pattern * (self._size * (self._size + 1) // 2) + self._size * (iteration % 1024)
        if not np.array_equal(self.values, expected):
            wrong = int(np.argmax(self.values != expected))
            got, wanted = self.values[wrong], expected[wrong]
            raise LabError(f"rank {self._rank} has a wrong sum in iteration {iteration}: [{wrong}] {got} for {wanted}")


def train(ring: Ring, parameters: int, compute_ns: int, iterations: int, log: IterationLog) -> None:
    """Train for `iterations`, compute_ns of each without the network; blocks."""
    gradients = Gradients(parameters, ring.rank, ring.size)
    steps = Steps(parameters=parameters)
    for iteration in range(iterations):
        with steps.step():
            start = time.monotonic_ns()
            gradients.compute(iteration)
            wait_until(start + compute_ns)
            first_enqueue = time.monotonic_ns()
            steps.first_enqueue()
            for block in gradients.blocks():
                ring.all_reduce(block)
            steps.last_wait()
            last_wait = time.monotonic_ns()
            gradients.check(iteration)
            end = time.monotonic_ns()
        log.add(iteration, start, first_enqueue, last_wait, end)
    steps.close()


def main() -> None:
    """Run the rank that the environment names."""
    parser = argparse.ArgumentParser(description="one rank of the ring trainer")
    parser.add_argument("--addresses", required=True, help="of all ranks, comma-separated")
    parser.add_argument("--params", type=int, required=True)
    parser.add_argument("--compute-ns", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    with IterationLog(args.log, rank) as log:
        ring = Ring(rank, args.addresses.split(","))
        train(ring, args.params, args.compute_ns, args.iterations, log)
        ring.close()


if __name__ == "__main__":
    main()
