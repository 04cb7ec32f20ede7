/* SPDX-License-Identifier: Apache-2.0 */
/* A proxy that has NCCL's names and structures, and moves nothing: netmon.bench.probes measures what telling it costs. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
typedef enum {
	ncclProfilerProxyStepSendGPUWait,
	ncclProfilerProxyStepSendPeerWait_v4,
	ncclProfilerProxyStepSendWait,
	ncclProfilerProxyStepRecvWait,
	ncclProfilerProxyStepRecvFlushWait
} ncclProfilerEventState_t;
typedef enum { ncclFuncAllReduce = 4 } ncclFunc_t;
typedef enum { ncclPatternRing } ncclPattern_t;
static volatile ncclFunc_t function;
static volatile ncclPattern_t pattern;
struct ncclProxyConnection {
	int send;
	void *transportResources;
};
struct sendNetResources {
	int tpRank, tpRemoteRank, netDev;
};
struct recvNetResources {
	int tpRank, tpRemoteRank, netDev;
};
struct ncclProxySubArgs {
	struct ncclProxyConnection *connection;
	int channelId, nsteps;
	long transSize;
};
struct ncclProxyArgs {
	struct ncclProxySubArgs subs[64];
	uint64_t opCount;
	int sliceSteps;
	uint8_t coll, pattern, protocol;
};
static void *volatile profiler;
static volatile int seen;
#define CALLED(name) __asm__(name)
#define ARGUMENTS int sub, struct ncclProxyArgs *args
#define LOOKS                   \
	{                       \
		if (profiler)   \
			seen++; \
	}
#define HIDDEN __attribute__((noinline, noclone, visibility("hidden"))) void
HIDDEN begin(ARGUMENTS) CALLED("_Z29ncclProfilerStartProxyOpEventiP13ncclProxyArgs");
HIDDEN end(ARGUMENTS) CALLED("_Z28ncclProfilerStopProxyOpEventiP13ncclProxyArgs");
HIDDEN arrived(ARGUMENTS, int step) CALLED("_Z30ncclProfilerStopProxyStepEventiP13ncclProxyArgsi");
HIDDEN record(ARGUMENTS, int step, ncclProfilerEventState_t state)
	CALLED("_Z37ncclProfilerRecordProxyStepEventStateiP13ncclProxyArgsi24ncclProfilerEventState_t");
HIDDEN operated(ARGUMENTS, ncclProfilerEventState_t state)
	CALLED("_Z35ncclProfilerRecordProxyOpEventStateiP13ncclProxyArgs24ncclProfilerEventState_t");
HIDDEN sends(void *proxy, struct ncclProxyArgs *args) CALLED("_ZL17sendProxyProgressP14ncclProxyStateP13ncclProxyArgs");
HIDDEN receives(void *proxy, struct ncclProxyArgs *args)
	CALLED("_ZL17recvProxyProgressP14ncclProxyStateP13ncclProxyArgs");
HIDDEN begin(ARGUMENTS)
LOOKS
HIDDEN end(ARGUMENTS)
LOOKS
HIDDEN arrived(ARGUMENTS, int step) LOOKS HIDDEN
	record(ARGUMENTS, int step, ncclProfilerEventState_t state) LOOKS HIDDEN
	operated(ARGUMENTS, ncclProfilerEventState_t state) LOOKS HIDDEN sends(void *proxy, struct ncclProxyArgs *args)
{
	for (int step = 0; step < args->subs[0].nsteps; step += args->sliceSteps) {
		record(0, args, step, ncclProfilerProxyStepSendGPUWait);
		if (profiler)
			record(0, args, step, ncclProfilerProxyStepSendPeerWait_v4);
		args->subs[0].transSize = 1 << 20;
		record(0, args, step, ncclProfilerProxyStepSendWait);
		arrived(0, args, step);
	}
	operated(0, args, 0);
}
HIDDEN receives(void *proxy, struct ncclProxyArgs *args)
{
	for (int step = 0; step < args->subs[0].nsteps; step += args->sliceSteps) {
		record(0, args, step, ncclProfilerProxyStepRecvWait);
		args->subs[0].transSize = 1 << 20;
		record(0, args, step, ncclProfilerProxyStepRecvFlushWait);
		arrived(0, args, step);
	}
	operated(0, args, 0);
}
static int64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(void)
{
	static struct sendNetResources resources = {0, 1, 0};
	static volatile struct recvNetResources others;
	static struct ncclProxyConnection connection = {1, &resources};
	static struct ncclProxyArgs args = {.sliceSteps = 2, .coll = 4, .protocol = 2};
	long operations, every_ns;
	args.subs[0].connection = &connection;
	puts("ready");
	fflush(stdout);
	while (scanf("%d %ld %ld", &args.subs[0].nsteps, &operations, &every_ns) == 3) {
		int64_t began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
		for (long n = 0; n < operations; n++) {
			int64_t due = began + n * every_ns;
			struct timespec until = {due / 1000000000, due % 1000000000};
			if (every_ns)
				clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
			args.opCount++;
			begin(0, &args);
			sends(NULL, &args);
			end(0, &args);
		}
		used = now(CLOCK_PROCESS_CPUTIME_ID) - used;
		printf("%ld %ld\n", (long)(now(CLOCK_MONOTONIC) - began), (long)used);
		fflush(stdout);
	}
	receives(NULL, &args);
	return others.netDev;
}
