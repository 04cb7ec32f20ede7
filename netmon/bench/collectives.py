# SPDX-License-Identifier: Apache-2.0
"""What it costs NCCL's network proxy that its transfers are told.

No GPU and no NCCL: a program whose proxy has NCCL's names and structures, and moves nothing. What is added to a
transfer is the same as with NCCL: the traps and the programs.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from netmon.bench.result import table
from netmon.bench.specs import CollectivesSpec, Progress, silent
from netmon.bench.stand_in import StandIn, counted_run_times, run_times, stand_in
from netmon.errors import KernelError
from netmon.kernel import bpf_calls, loader
from netmon.kernel.meter.memory import Geometry, RingBuffer, choose_geometry
from netmon.kernel.training.nccl import EACH, OPERATIONS, Library, NcclTransfers
from netmon.lab.nccl_library import FLAGS, Version, program_source
from netmon.records import TRANSFER, TRANSFER_IMPLAUSIBLE
from netmon.terminal import FittingTable, figures, labels

_BUCKET_NS = 10_000
_ATTACH_S = 30.0
_OF_OPERATION, _OPERATIONS = 8, 2_500  # transfers; of a round
_RATE, _PACED_MS = 50_000, 500

_MAIN = r"""
#include <stdio.h>
#include <time.h>
static int64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(void)
{
	void *end = stand_in_connect(-1, 1, 0, 1, 0);
	long operations, every_ns, done = 0;
	int steps, sizes[64];
	for (int at = 0; at < 64; at++)
		sizes[at] = 1 << 20;
	puts("ready");
	fflush(stdout);
	while (scanf("%d %ld %ld", &steps, &operations, &every_ns) == 3) {
		int64_t began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
		for (long n = 0; n < operations; n++) {
			int64_t due = began + n * every_ns;
			struct timespec until = {due / 1000000000, due % 1000000000};
			if (every_ns)
				clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
			stand_in_operate(end, done++, 4, 0, 2, steps / 2, sizes);
		}
		used = now(CLOCK_PROCESS_CPUTIME_ID) - used;
		printf("%ld %ld\n", (long)(now(CLOCK_MONOTONIC) - began), (long)used);
		fflush(stdout);
	}
}
"""


@dataclass(frozen=True)
class TransferCost:
    """Medians of the rounds. transfer_ns: what a transfer takes longer, with its share of its operation; program_ns:
    of an event, without the trap that leads there; events: of a transfer; cores: at 50,000 transfers a second.
    """

    told: str
    transfer_ns: float
    events: float
    program_ns: float
    cores: float


@dataclass(frozen=True)
class CollectivesResult:
    costs: tuple[TransferCost, ...]
    rounds: int

    def shown(self) -> Iterator[FittingTable]:
        rows = (
            (of.told, f"{of.transfer_ns:.0f}", f"{of.events:.2f}", f"{of.program_ns:.0f}", f"{of.cores:.3f}")
            for of in self.costs
        )
        yield table(
            "a transfer of NCCL's network proxy that is told",
            [*labels("told"), *figures("longer by ns", "events", "ns of a program", f"cores at {_RATE:,}/s")],
            rows,
            f"{_OPERATIONS * _OF_OPERATION * self.rounds} transfers each, {_OF_OPERATION} an operation. What is not "
            "the program's is the kernel's trap.",
        )


def measure(spec: CollectivesSpec, progress: Progress = silent) -> CollectivesResult:
    """Blocks for some seconds per round. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("collectives", program_source(Version()) + _MAIN, *FLAGS))
        cleanup.enter_context(counted_run_times())
        costs: list[TransferCost] = []
        for done, (told, wanted) in enumerate((("operations", OPERATIONS), ("each transfer", EACH))):
            probed = Probed(program.path, wanted)
            longer, cores, ns, runs = [], [], 0, 0
            for _ in range(spec.rounds):
                alone, alone_used = _operate(program, _OPERATIONS)[0], _paced(program)
                with probed.attached():
                    before = probed.run_times()
                    longer.append((_operate(program, _OPERATIONS)[0] - alone) / _OPERATIONS / _OF_OPERATION)
                    of_round, runs_of_round = np.subtract(probed.run_times(), before)
                    ns, runs = ns + of_round, runs + runs_of_round
                    cores.append((_paced(program) - alone_used) / 1e6 / _PACED_MS)
            transfers = _OPERATIONS * _OF_OPERATION * spec.rounds
            costs.append(TransferCost(told, median(longer), runs / transfers, ns / max(1, runs), median(cores)))
            progress(done + 1, 2)
    return CollectivesResult(tuple(costs), spec.rounds)


class Probed:
    """The probes on a library that processes map, without an agent."""

    def __init__(self, library: str, wanted: int) -> None:
        """wanted: OPERATIONS or EACH. Raises NetmonError."""
        self._library, self._wanted = library, wanted
        self._geometry = choose_geometry(_BUCKET_NS, 1, 0)
        loader.prepare(self._geometry)
        self._loaded: dict[str, int] = {}

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Raises KernelError with the reason why it is not."""
        nccl = NcclTransfers(lambda: self._load(self._geometry), self._wanted)
        descriptor, until = os.open(self._library, os.O_RDONLY), time.monotonic() + _ATTACH_S
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        nccl.take(Library(file, status.st_uid, self._library, descriptor, lambda _: True, True))
        try:
            while not nccl.follow([file], lambda uid, cost_ns: None):
                if (said := nccl.warnings()) or time.monotonic() > until:
                    raise KernelError(said[0] if said else f"{self._library} is not read")
                time.sleep(0.01)
            transfers, counts = nccl.hand_over()
            ring = RingBuffer(transfers, loader.TRANSFER_RING_BYTES, TRANSFER)
            os.close(transfers)
            os.close(counts)
            try:
                yield
                if int.from_bytes(
                    bpf_calls.array_entry(self._loaded["transfer_counts"], TRANSFER_IMPLAUSIBLE, 8), "little"
                ):
                    raise KernelError(f"{self._library} is not what its debug information says")
            finally:
                ring.close()
        finally:
            nccl.close()

    def run_times(self) -> tuple[int, int]:
        """ns that the programs have run for, and how often; where the kernel keeps that."""
        return run_times(self._loaded[name] for name in loader.COLLECTIVE_PROGRAMS)

    def _load(self, geometry: Geometry) -> dict[str, int]:
        self._loaded = loader.load_collectives(geometry)
        return self._loaded


def _operate(program: StandIn, operations: int, every_ns: int = 0) -> tuple[int, int]:
    """ns that so many took, and ns of processor time."""
    took, used = map(int, program.answer(2 * _OF_OPERATION, operations, every_ns).split())
    return took, used


def _paced(program: StandIn) -> int:
    """ns of processor time, at _RATE, for _PACED_MS."""
    every_ns = _OF_OPERATION * 1_000_000_000 // _RATE
    return _operate(program, _PACED_MS * 1_000_000 // every_ns, every_ns)[1]
