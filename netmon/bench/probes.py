# SPDX-License-Identifier: Apache-2.0
"""What probes cost those they are put on: small C programs stand in for an RDMA device and for NCCL."""

import contextlib
import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from netmon.bench.result import table
from netmon.bench.specs import CollectivesSpec, PostsSpec, Progress, silent
from netmon.errors import KernelError, NetmonError, UnsupportedError
from netmon.kernel import bpf_calls, loader, verbs
from netmon.kernel.meter.memory import Geometry, RingBuffer, choose_geometry
from netmon.kernel.training.nccl import EACH, OPERATIONS, Library, NcclTransfers
from netmon.kernel.training.uprobes import attach_probe
from netmon.records import QUEUE, QUEUE_KEY, TRANSFER, TRANSFER_IMPLAUSIBLE
from netmon.terminal import FittingTable, figures, labels

# --- A C program in place of what is probed, and how long the kernel says that the programs on it have run.

_ENABLE_STATS = 32  # BPF_ENABLE_STATS: for as long as its descriptor is open


class StandIn:
    """It answers a line with a line. greeting: its first line, which nobody has asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid, self.greeting = self._child.pid, self._line()

    def answer(self, *numbers: int) -> str:
        assert self._child.stdin
        self._child.stdin.write(f"{' '.join(map(str, numbers))}\n")
        self._child.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._child.stdout
        return self._child.stdout.readline()

    def end(self) -> None:
        """The end of its standard input ends it."""
        self._child.communicate()


@contextlib.contextmanager
def stand_in(what: str, *flags: str) -> Iterator[StandIn]:
    """Compiled and started. what: is measured, by a program of this name beside us. Raises UnsupportedError without a
    compiler.
    """
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
        path = f"{folder}/{what}"
        command = ["cc", *flags, "-o", path, str(Path(__file__).with_name(f"{what}.c"))]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnsupportedError(f"cannot measure {what}: it takes a C compiler ({error})") from error
        program = StandIn(path)
        try:
            yield program
        finally:
            program.end()


@contextlib.contextmanager
def counted_run_times() -> Iterator[None]:
    """The kernel measures every run of every program: some 20 ns more each."""
    descriptor = bpf_calls.call(_ENABLE_STATS, struct.pack("=I", 0))[0]
    try:
        yield
    finally:
        os.close(descriptor)


def run_times(programs: Iterable[int]) -> tuple[int, int]:
    """ns that these programs (descriptors) have run for, and how often; where the kernel keeps that."""
    texts = [Path(f"/proc/self/fdinfo/{program}").read_text() for program in programs]
    found = [dict(re.findall(r"(run_time_ns|run_cnt):\s*(\d+)", text)) for text in texts]
    return sum(int(each.get("run_time_ns", 0)) for each in found), sum(int(each.get("run_cnt", 0)) for each in found)


# --- A post to an RDMA device: by a table as libibverbs has it, to a function that does nothing, with a probe on it and
# without.


_POSTS = 20_000  # of a round
_BUCKET_NS = 10_000
_KINDS = ((1, 1), (8, 1), (8, 8))  # requests of a post, parts of each


@dataclass(frozen=True)
class PostCost:
    """ns per post, medians of the rounds. program_ns: of what is counted, without the trap that leads there."""

    requests: int
    parts: int
    without_ns: float
    with_ns: float
    program_ns: float


@dataclass(frozen=True)
class PostsResult:
    """Each kind of post. exact: every post was counted, to the byte."""

    costs: tuple[PostCost, ...]
    exact: bool
    rounds: int

    def shown(self) -> Iterator[FittingTable]:
        yield table(
            "a post to an RDMA device",
            [*labels("requests", "parts of each"), *figures("alone ns", "counted ns", "of that the program ns")],
            (
                (str(c.requests), str(c.parts), *(f"{ns:.0f}" for ns in (c.without_ns, c.with_ns, c.program_ns)))
                for c in self.costs
            ),
            f"{_POSTS * self.rounds} posts each; {'all' if self.exact else 'not all'} of them counted, to the byte. "
            "The rest is the kernel's trap.",
        )


def measure_posts(spec: PostsSpec, progress: Progress = silent) -> PostsResult:
    """Blocks for some seconds. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("posts", "-O2"))
        maps = _loaded(cleanup)
        cleanup.enter_context(counted_run_times())
        place = verbs.place_of(program.pid, int(program.greeting, 16))
        if place is None:
            raise NetmonError("cannot measure_posts posts: the program is not mapped")
        path = f"/proc/{program.pid}/exe"
        costs, counted = [], 0
        for done, (requests, parts) in enumerate(_KINDS):
            alone = [_post(program, requests, parts) for _ in range(spec.rounds)]
            link = attach_probe(maps["verbs_post"], path, place.offset)
            before = run_times([maps["verbs_post"]])
            probed = [_post(program, requests, parts) for _ in range(spec.rounds)]
            ns, runs = np.subtract(run_times([maps["verbs_post"]]), before)
            os.close(link)
            counted += requests * parts * spec.rounds * _POSTS * 4096
            costs.append(PostCost(requests, parts, median(alone), median(probed), ns / max(1, runs)))
            progress(done + 1, len(_KINDS))
        _, values = bpf_calls.entries(maps[verbs.QUEUES], QUEUE_KEY.itemsize, QUEUE.itemsize, 32768)
        exact = int(np.frombuffer(values, QUEUE)["bytes"].sum()) == counted
    return PostsResult(tuple(costs), exact, spec.rounds)


def _loaded(cleanup: ExitStack) -> dict[str, int]:
    before = os.environ.get(verbs.EVERYWHERE)
    os.environ[verbs.EVERYWHERE] = "1"
    try:
        found = loader.load(choose_geometry(_BUCKET_NS, 1, 0))
    finally:
        if before is None:
            del os.environ[verbs.EVERYWHERE]
    for descriptor in found.values():
        cleanup.callback(os.close, descriptor)
    return found


def _post(program: StandIn, requests: int, parts: int) -> float:
    """ns per post."""
    return float(program.answer(requests, parts, _POSTS))


# --- A transfer of NCCL's network proxy.
#
# No GPU and no NCCL: a program whose proxy has NCCL's names and structures, and moves nothing. What is added to a
# transfer is the same as with NCCL: the traps and the programs.


_FLAGS = ("-g", "-O1", "-fno-ipa-icf", "-fno-ipa-cp", "-fno-ipa-ra")
_ATTACH_S = 30.0
_OF_OPERATION, _OPERATIONS = 8, 2_500  # transfers; of a round
_RATE, _PACED_MS = 50_000, 500


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


def measure_collectives(spec: CollectivesSpec, progress: Progress = silent) -> CollectivesResult:
    """Blocks for some seconds per round. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("collectives", *_FLAGS))
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
