/* SPDX-License-Identifier: Apache-2.0 */
/* Posts by a table as libibverbs has it, to a function that does nothing: netmon.bench.probes measures what counting costs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
struct part {
	uint64_t address;
	uint32_t length, key;
};
struct request {
	uint64_t id;
	struct request *next;
	struct part *parts;
	int count, opcode;
	uint64_t rest[12];
};
struct context {
	void *device;
	void *before[25];
	int (*post_send)(void *, struct request *, void **);
};
struct pair {
	struct context *context;
	void *others[5];
	uint32_t handle, number, state, type;
};
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
