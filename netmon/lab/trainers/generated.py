# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that a generator describes (netmon.dl.generated): it pauses and sends as the recorded one did.

Each rank waits for its gap, sends its bytes of the phase to its peers and receives theirs, and goes on. Which
recorded iteration's gaps are played is drawn by all ranks alike.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.dl.generated import Generator, read_generator
from netmon.horovod import Steps
from netmon.lab.trainers.collectives import PORT, Mesh
from netmon.lab.trainers.script import IterationLog, wait_until


class Player:
    def __init__(self, generator: Generator, rank: int, mesh: Mesh, seed: int) -> None:
        """mesh: with a connection to every peer."""
        self._generator, self._rank, self._mesh = generator, rank, mesh
        self._random = np.random.default_rng(seed)
        largest = max(size for phase in generator.phases for size in phase.bytes.values())
        self._out, self._in = np.zeros(largest, np.uint8), dict[int, npt.NDArray[np.uint8]]()
        self._phases = [self._part(phase.bytes) for phase in generator.phases]

    def _part(self, sizes: Mapping[tuple[int, int], int]) -> tuple[dict[int, int], dict[int, int]]:
        sends = {b: size for (a, b), size in sizes.items() if a == self._rank}
        takes = {a: size for (a, b), size in sizes.items() if b == self._rank}
        for peer, size in takes.items():
            if len(self._in.get(peer, ())) < size:
                self._in[peer] = np.empty(size, np.uint8)
        return sends, takes

    def step(self, steps: Steps) -> tuple[int, int, int, int]:
        """An iteration: when it began, when it first sent, when it had all, when it ended."""
        drawn = int(self._random.integers(len(self._generator.gaps_ns)))
        start = now = time.monotonic_ns()
        first = 0
        for gaps, (sends, takes) in zip(self._generator.gaps_ns[drawn], self._phases, strict=True):
            wait_until(now + int(gaps[self._rank]))
            if not first:
                first = time.monotonic_ns()
                steps.first_enqueue()
                steps.first_wait()
            outgoing = {peer: self._out[:size] for peer, size in sends.items()}
            self._mesh.exchange(outgoing, {peer: self._in[peer][:size] for peer, size in takes.items()})
            now = time.monotonic_ns()
        steps.last_wait()
        wait_until(now + int(self._generator.after_ns[drawn][self._rank]))
        return start, first, now, time.monotonic_ns()


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of a recorded job, played again")
    parser.add_argument("--addresses", required=True, help="of all ranks, comma-separated")
    parser.add_argument("--port", type=int, default=PORT, help="on which ranks listen, of each job its own")
    parser.add_argument("--generator", type=Path, required=True, help="as `netmon export --format generator` makes it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    args = parser.parse_args()
    rank, addresses = int(os.environ["RANK"]), args.addresses.split(",")
    generator = read_generator(json.loads(args.generator.read_text()), str(args.generator))
    pairs = [pair for phase in generator.phases for pair in phase.bytes if rank in pair]
    mesh = Mesh(rank, addresses, {end for pair in pairs for end in pair} - {rank}, args.port)
    player, steps = Player(generator, rank, mesh, args.seed), Steps()
    with IterationLog(args.log, rank) as log:
        for iteration in range(args.iterations):
            with steps.step():
                moments = player.step(steps)
            log.add(iteration, *moments)
    steps.close()
    mesh.close()


if __name__ == "__main__":
    main()
