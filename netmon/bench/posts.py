# SPDX-License-Identifier: Apache-2.0
"""What counting a post to an RDMA device costs who posts: a program posts by a table as libibverbs has it, to a
function that does nothing, without a probe on that function and with it. Takes a C compiler; no device.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from netmon.bench.result import table
from netmon.bench.specs import PostsSpec, Progress, silent
from netmon.bench.stand_in import StandIn, counted_run_times, run_times, stand_in
from netmon.errors import NetmonError
from netmon.kernel import bpf_calls, loader, verbs
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.training.uprobes import attach_probe
from netmon.records import QUEUE, QUEUE_KEY
from netmon.terminal import FittingTable, figures, labels

_POSTS = 20_000  # of a round
_BUCKET_NS = 10_000
_KINDS = ((1, 1), (8, 1), (8, 8))  # requests of a post, parts of each
_SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
struct part { uint64_t address; uint32_t length, key; };
struct request { uint64_t id; struct request *next; struct part *parts; int count, opcode; uint64_t rest[12]; };
struct context { void *device; void *before[25]; int (*post_send)(void *, struct request *, void **); };
struct pair { struct context *context; void *others[5]; uint32_t handle, number, state, type; };
static __attribute__((noinline)) int post_send(void *pair, struct request *request, void **bad)
{
	__asm__ volatile("" : : "r"(pair), "r"(request), "r"(bad) : "memory");
	return 0;
}
int main(void)
{
	static struct part parts[8];
	static struct request requests[8];
	struct context context = {0};
	struct pair pair = {.context = &context, .number = 1};
	int count, each, posts, n;
	for (n = 0; n < 8; n++)
		parts[n].length = 4096;
	context.post_send = post_send;
	printf("%lx\n", (unsigned long)(void *)post_send);
	fflush(stdout);
	while (scanf("%d %d %d", &count, &each, &posts) == 3) {
		struct timespec a, b;
		void *bad;
		for (n = 0; n < count; n++) {
			requests[n].parts = parts;
			requests[n].count = each;
			requests[n].next = n + 1 < count ? &requests[n + 1] : NULL;
		}
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (n = 0; n < posts; n++)
			pair.context->post_send(&pair, requests, &bad);
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("%.1f\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / posts);
		fflush(stdout);
	}
	return 0;
}
"""


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


def measure(spec: PostsSpec, progress: Progress = silent) -> PostsResult:
    """Blocks for some seconds. Raises NetmonError."""
    with ExitStack() as cleanup:
        program = cleanup.enter_context(stand_in("posts", _SOURCE, "-O2"))
        maps = _loaded(cleanup)
        cleanup.enter_context(counted_run_times())
        place = verbs.place_of(program.pid, int(program.greeting, 16))
        if place is None:
            raise NetmonError("cannot measure posts: the program is not mapped")
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
