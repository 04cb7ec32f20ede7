# SPDX-License-Identifier: Apache-2.0
"""What it costs that transfers are reported: those of NCCL's network proxy, and posts to an RDMA device.

No GPU, no NCCL and no device, but a C compiler: programs have their names and structures, and move nothing. What is
added is the same: the traps and the programs."""

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
from netmon.errors import KernelError, UnsupportedError
from netmon.kernel import bpf_calls, loader, verbs
from netmon.kernel.meter.memory import Geometry, RingBuffer, choose_geometry
from netmon.kernel.training.nccl import EACH, OPERATIONS, Library, NcclTransfers
from netmon.kernel.training.uprobes import attach_probe
from netmon.lab.nccl_library import FLAGS, Version, program_source
from netmon.records import QUEUE, QUEUE_KEY, TRANSFER, TRANSFER_IMPLAUSIBLE
from netmon.terminal import FittingTable, figures, labels

# --- A small C program in place of what is probed, and how long the kernel says that the programs on it have run.

_ENABLE_STATS = 32  # BPF_ENABLE_STATS: for as long as its descriptor is open


class StandIn:
    """It answers a line with a line. greeting: its first line, sent without a request."""

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
def stand_in(what: str, source: str, *flags: str) -> Iterator[StandIn]:
    """Compiled and started. what: is measured, for the error. Raises UnsupportedError without a compiler."""
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
        path = f"{folder}/{what}"
        command = ["cc", *flags, "-x", "c", "-o", path, "-"]
        try:
            subprocess.run(command, input=source, text=True, capture_output=True, check=True)
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


# --- What it costs NCCL's network proxy that its transfers are reported.

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

    level: str
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
            (of.level, f"{of.transfer_ns:.0f}", f"{of.events:.2f}", f"{of.program_ns:.0f}", f"{of.cores:.3f}")
            for of in self.costs
        )
        yield table(
            "a transfer of NCCL's network proxy that is reported",
            [*labels("level"), *figures("longer by ns", "events", "ns of a program", f"cores at {_RATE:,}/s")],
            rows,
            f"{_OPERATIONS * _OF_OPERATION * self.rounds} transfers each, {_OF_OPERATION} an operation. What is not "
            "the program's is the kernel's trap.",
        )


def measure_collectives(spec: CollectivesSpec, progress: Progress = silent) -> CollectivesResult:
    """Blocks for some seconds per round. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("collectives", program_source(Version()) + _MAIN, *FLAGS))
        cleanup.enter_context(counted_run_times())
        costs: list[TransferCost] = []
        for done, (level, wanted) in enumerate((("operations", OPERATIONS), ("each transfer", EACH))):
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
            costs.append(TransferCost(level, median(longer), runs / transfers, ns / max(1, runs), median(cores)))
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


# --- What counting a post to an RDMA device costs who posts: a program posts by tables as libibverbs has them, to
# functions that do nothing, without probes on these functions and with them. Takes a C compiler; no device.

_POSTS = 20_000  # of a round
_KINDS = tuple(
    (way, *each)
    for way in (verbs.WAYS.index("verbs_post"), verbs.WAYS.index("verbs_build"))
    for each in ((1, 1), (8, 1), (8, 8))  # requests of a post, parts of each
)
_SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
struct part { uint64_t address; uint32_t length, key; };
struct request { uint64_t id; struct request *next; struct part *parts; int count, opcode; uint64_t rest[12]; };
struct context { void *device; void *before[25]; int (*post_send)(void *, struct request *, void **); };
struct pair {
	struct context *context;
	void *others[5];
	uint32_t handle, number, state, type;
	uint64_t rest[15];
	void (*before[4])(void), (*fetch)(void), (*wr_write)(void *, uint32_t, uint64_t), (*between[8])(void);
	void (*wr_set_inline_data_list)(void), (*wr_set_sge)(void *, uint32_t, uint64_t, uint32_t);
	void (*wr_set_sge_list)(void *, size_t, struct part *), (*after[3])(void);
};
static __attribute__((noinline)) int post_send(void *pair, struct request *request, void **bad)
{
	__asm__ volatile("" : : "r"(pair), "r"(request), "r"(bad) : "memory");
	return 0;
}
static __attribute__((noinline)) void wr_write(void *pair, uint32_t key, uint64_t address)
{
	__asm__ volatile("" : : "r"(pair), "r"(key), "r"(address) : "memory");
}
static __attribute__((noinline)) void set_sge(void *pair, uint32_t key, uint64_t address, uint32_t length)
{
	__asm__ volatile("" : : "r"(pair), "r"(key), "r"(address), "r"(length) : "memory");
}
static __attribute__((noinline)) void set_sge_list(void *pair, size_t count, struct part *parts)
{
	__asm__ volatile("nop" : : "r"(pair), "r"(count), "r"(parts) : "memory");
}
static int post(int builds, struct pair *pair, struct request *request)
{
	void *bad;
	if (!builds)
		return pair->context->post_send(pair, request, &bad);
	for (; request; request = request->next) {
		pair->wr_write(pair, 1, 2);
		if (request->count == 1)
			pair->wr_set_sge(pair, 1, request->parts->address, request->parts->length);
		else
			pair->wr_set_sge_list(pair, request->count, request->parts);
	}
	return 0;
}
int main(void)
{
	static struct part parts[8];
	static struct request requests[8];
	struct context context = {0};
	struct pair pair = {.context = &context, .number = 1};
	int builds, count, each, posts, n;
	for (n = 0; n < 8; n++)
		parts[n].length = 4096;
	context.post_send = post_send;
	pair.wr_write = wr_write;
	pair.wr_set_sge = set_sge;
	pair.wr_set_sge_list = set_sge_list;
	printf("%p %p %p %p\n", (void *)post_send, (void *)wr_write, (void *)set_sge, (void *)set_sge_list);
	fflush(stdout);
	while (scanf("%d %d %d %d", &builds, &count, &each, &posts) == 4) {
		struct timespec a, b;
		for (n = 0; n < count; n++) {
			requests[n].parts = parts;
			requests[n].count = each;
			requests[n].next = n + 1 < count ? &requests[n + 1] : NULL;
		}
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (n = 0; n < posts; n++)
			post(builds, &pair, requests);
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("%.1f\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / posts);
		fflush(stdout);
	}
	return 0;
}
"""


@dataclass(frozen=True)
class PostCost:
    """ns per post, medians of the rounds. way: of verbs.WAYS; program_ns: of what is counted, without the traps
    that lead there.
    """

    way: int
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
            [*labels("by", "requests", "parts of each"), *figures("alone ns", "counted ns", "of that the program ns")],
            (
                (
                    ("a list", "building")[c.way],
                    str(c.requests),
                    str(c.parts),
                    *(f"{ns:.0f}" for ns in (c.without_ns, c.with_ns, c.program_ns)),
                )
                for c in self.costs
            ),
            f"{_POSTS * self.rounds} posts each; {'all' if self.exact else 'not all'} of them counted, to the byte. "
            "The rest are the kernel's traps: one for a list, two for each request that is built.",
        )


def measure_posts(spec: PostsSpec, progress: Progress = silent) -> PostsResult:
    """Blocks for some seconds. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("posts", _SOURCE, "-O2"))
        maps = _loaded(cleanup)
        cleanup.enter_context(counted_run_times())
        addresses = [int(address, 16) for address in program.greeting.split()]
        locations = verbs.locations_of(program.pid, addresses)
        path = f"/proc/{program.pid}/exe"
        costs, counted = [], 0
        for done, (way, requests, parts) in enumerate(_KINDS):
            alone = [_post(program, way, requests, parts) for _ in range(spec.rounds)]
            counting = maps[verbs.WAYS[way]]
            probed = addresses[1:] if verbs.WAYS[way] == "verbs_build" else addresses[:1]
            links = [attach_probe(counting, path, locations[address].offset) for address in probed]
            before = run_times([counting])
            with_probes = [_post(program, way, requests, parts) for _ in range(spec.rounds)]
            ns, _ = np.subtract(run_times([counting]), before)
            for link in links:
                os.close(link)
            counted += requests * parts * spec.rounds * _POSTS * 4096
            program_ns = ns / (spec.rounds * _POSTS)
            costs.append(PostCost(way, requests, parts, median(alone), median(with_probes), program_ns))
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


def _post(program: StandIn, way: int, requests: int, parts: int) -> float:
    """ns per post."""
    return float(program.answer(way, requests, parts, _POSTS))
