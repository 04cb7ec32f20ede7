# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job whose network is real and whose accelerator is a wait. The launcher sets RANK.

An iteration: forward and backward pass (a wait, in whose last part the gradients come, block by block), an all-reduce
of each block as soon as it is there, then the update, which checks every reduced value.
"""

import argparse
import bisect
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path

import numpy as np

from netmon.errors import LabError
from netmon.horovod import Steps
from netmon.lab.trainers.collectives import PATTERNS, PORT, Collective, Floats, fused_ends
from netmon.lab.trainers.script import IterationLog, Pauses, Transfers, gradient_times_ns, read_layers, wait_until

# --- When a rank may begin its next iteration: so that jobs which share a link keep out of each other's way.
#
# A file holds two numbers: `BEGIN PERIOD`, CLOCK_MONOTONIC and a duration, ns. Iterations begin no earlier than BEGIN
# and, where PERIOD is not 0, at BEGIN + k·PERIOD, each rank by itself. One that is late begins at once if it is not
# late by much, else with the next period that it is not late for by much, as CASSINI's agents do (Rajasekaran et al.,
# NSDI'24). The file may change at any time; where there is none, nothing is waited for.

_LATE = 0.25  # of a period
_LOOK_NS = 20_000_000  # at the file, while waiting


class Pace:
    def __init__(self, path: str) -> None:
        """path: of the file; empty: there is none."""
        self._path = Path(path) if path else None
        self._stamp = 0, 0
        self._due_ns = 0

    def wait(self) -> None:
        """Block until the next iteration may begin."""
        while self._path:
            if (text := _read(self._path)) != self._stamp:
                self._stamp, self._due_ns = text, text[0]
            period, now = self._stamp[1], time.monotonic_ns()
            late = int(now - self._due_ns - _LATE * period)
            if period and late > 0:  # by the clock alone: ranks that skipped as many as each likes would not meet again
                self._due_ns += -(-late // period) * period
            if self._due_ns - now > _LOOK_NS:
                wait_until(now + _LOOK_NS)
                continue
            wait_until(self._due_ns)
            self._due_ns += period
            return


def write_pace(path: Path, begin_ns: int, period_ns: int = 0) -> None:
    """Write the pace for ranks that look at the file."""
    new = path.with_suffix(".new")
    new.write_text(f"{begin_ns} {period_ns}\n")
    new.replace(path)


def _read(path: Path) -> tuple[int, int]:
    try:
        begin, period = path.read_text().split()
        return int(begin), int(period)
    except (OSError, ValueError):
        return 0, 0


# --- ring

FUSION_BYTES = 4 << 20
OVERLAPPED_FUSION_BYTES = 1 << 20  # small enough that a block can be on its way while the next one is computed


class Gradients:
    """float32 gradients of all layers in one buffer, padded to a multiple of the job's size."""

    def __init__(self, layers: Sequence[int], rank: int, size: int, fusion_bytes: int = FUSION_BYTES) -> None:
        """All ranks agree on a pattern of small whole numbers, so that sums in float32 are exact."""
        self.ends = fused_ends(layers, fusion_bytes, size)
        self.values: Floats = np.empty(self.ends[-1], np.float32)
        self._pattern = (np.arange(self.ends[-1]) % 251).astype(np.float32)
        self._rank, self.size = rank, size
        self._layer_ends = list(accumulate(reversed(layers)))

    def blocks(self) -> list[Floats]:
        """The fused blocks, in the order of their reduction; views of `values`."""
        return [self.values[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]

    def ready_ns(self, compute_ns: int, backward_share: float) -> list[int]:
        """When each block is complete, in ns from the step's start."""
        times = gradient_times_ns(len(self._layer_ends), compute_ns, backward_share)
        last = len(times) - 1
        return [times[min(last, bisect.bisect_left(self._layer_ends, end))] for end in self.ends]

    def compute(self, iteration: int) -> None:
        """This rank's contribution: pattern·(rank+1) + iteration."""
        np.multiply(self._pattern, self._rank + 1, out=self.values)
        self.values += iteration % 1024

    def check(self, iteration: int) -> None:
        """Raise LabError unless `values` is the sum over all ranks."""
        expected = self._pattern * (self.size * (self.size + 1) // 2) + self.size * (iteration % 1024)
        if not np.array_equal(self.values, expected):
            wrong = int(np.argmax(self.values != expected))
            got, wanted = self.values[wrong], expected[wrong]
            raise LabError(f"rank {self._rank} has a wrong sum in iteration {iteration}: [{wrong}] {got} for {wanted}")


class Trainer:
    """Computes and communicates at the same time, as Horovod does: a thread reduces block after block."""

    def __init__(self, collective: Collective, gradients: Gradients, compute_ns: int, backward_share: float) -> None:
        """backward_share: of compute_ns, the part in which gradients come; 0: all of them at its end."""
        self._collective = collective
        self._gradients = gradients
        self._compute_ns = compute_ns
        self._ready_ns = gradients.ready_ns(compute_ns, backward_share)
        self._to_reduce: queue.SimpleQueue[tuple[Floats, Future[None]]] = queue.SimpleQueue()
        # A daemon: whoever ends this rank need not wait for peers that will not answer any more.
        threading.Thread(target=self._communicate, name="communication", daemon=True).start()

    def train(self, iterations: int, steps: Steps, log: IterationLog, pauses: Pauses, pace: Pace) -> None:
        metric = np.zeros(self._gradients.size, np.float32)
        for iteration in range(iterations):
            pace.wait()
            with steps.step():
                start, first_enqueue, last_wait, end = self._step(iteration, steps, pauses)
                if pauses.keep(iteration + 1, lambda: self._enqueue(metric).result()):  # the last thing in its step
                    end = time.monotonic_ns()
            log.add(iteration, start, first_enqueue, last_wait, end)

    def _step(self, iteration: int, steps: Steps, pauses: Pauses) -> tuple[int, int, int, int]:
        start, times = time.monotonic_ns(), pauses.computing(iteration)
        self._gradients.compute(iteration)
        reduced: list[Future[None]] = []
        for ready_ns, block in zip(self._ready_ns, self._gradients.blocks(), strict=True):
            wait_until(start + int(times * ready_ns))
            if not reduced:
                pauses.be_late(iteration)
            if len(reduced) == len(self._ready_ns) // 2:
                pauses.collect(iteration)
            if not reduced:
                first_enqueue = time.monotonic_ns()
                steps.first_enqueue()
            reduced.append(self._enqueue(block))
        wait_until(start + int(times * self._compute_ns))
        steps.first_wait()
        for block_reduced in reduced:
            block_reduced.result()
        steps.last_wait()
        last_wait = time.monotonic_ns()
        self._gradients.check(iteration)
        return start, first_enqueue, last_wait, time.monotonic_ns()

    def _enqueue(self, block: Floats) -> Future[None]:
        done: Future[None] = Future()
        self._to_reduce.put((block, done))
        return done

    def _communicate(self) -> None:
        while True:
            block, done = self._to_reduce.get()
            try:
                self._collective.all_reduce(block)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of the lab's own trainer")
    parser.add_argument("--addresses", required=True, help="of all ranks, comma-separated")
    parser.add_argument("--port", type=int, default=PORT, help="on which ranks listen, of each job its own")
    parser.add_argument("--pattern", choices=PATTERNS, default="ring")
    parser.add_argument("--params", type=int, required=True)
    parser.add_argument("--layers", default="", help="JSON file with the parameters of each layer, instead")
    parser.add_argument("--compute-ns", type=int, required=True)
    parser.add_argument("--backward-share", type=float, default=0.0)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--pauses", default="", help="as Pauses has them")
    parser.add_argument("--transfers", default="", help="AFTER:upload or download:BYTES:ADDRESS:PORT, comma-separated")
    parser.add_argument("--pace", default="", help="file that says when iterations may begin: BEGIN PERIOD, in ns")
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    args = parser.parse_args()
    rank, addresses = int(os.environ["RANK"]), args.addresses.split(",")
    layers = read_layers(args.layers, args.params)
    fusion_bytes = OVERLAPPED_FUSION_BYTES if args.backward_share else FUSION_BYTES
    with IterationLog(args.log, rank, Transfers(args.transfers).begin_due) as log:
        collective = PATTERNS[args.pattern](rank, addresses, args.port)
        gradients = Gradients(layers, rank, len(addresses), fusion_bytes)
        steps = Steps(parameters=sum(layers))
        trainer = Trainer(collective, gradients, args.compute_ns, args.backward_share)
        trainer.train(args.iterations, steps, log, Pauses(args.pauses, rank), Pace(args.pace))
        steps.close()
        collective.close()


if __name__ == "__main__":
    main()
