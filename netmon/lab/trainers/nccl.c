// SPDX-License-Identifier: Apache-2.0
/*
 * What stands in for libnccl.so.2: a network proxy with NCCL's names for its functions and fields, whose structures lie as
 * the generated layout.h says. It moves bytes over TCP, tells its operations and transfers as NCCL does, and counts them.
 *
 * TOTAL: as NCCL 2.23 to 2.26, whose subs keep the sum of what they have moved.
 *
 * Coupled ends are those of one rank in a ring, and send as over RDMA: when the receiver is there and has said so, and what
 * has come before.
 *
 * Under another name it stands in for libcudart.so: a thread waits for what it has queued on a stream.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "layout.h"

#define HIDDEN __attribute__((visibility("hidden"), noinline))
#define CALLED(name) __asm__(name)
#define ARGUMENTS int sub, struct ncclProxyArgs *args

/* As in NCCL, they look for a profiler and find none. */
static void *volatile profiler;

HIDDEN int start_operation(ARGUMENTS) CALLED("_Z29ncclProfilerStartProxyOpEventiP13ncclProxyArgs");
HIDDEN int stop_operation(ARGUMENTS) CALLED("_Z28ncclProfilerStopProxyOpEventiP13ncclProxyArgs");
HIDDEN int stop_step(ARGUMENTS, int step) CALLED("_Z30ncclProfilerStopProxyStepEventiP13ncclProxyArgsi");
HIDDEN int record_step(ARGUMENTS, int step, ncclProfilerEventState_t state)
	CALLED("_Z37ncclProfilerRecordProxyStepEventStateiP13ncclProxyArgsi24ncclProfilerEventState_t");
HIDDEN int record_operation(ARGUMENTS, int steps, size_t size, ncclProfilerEventState_t state)
#ifdef TOTAL
	CALLED("_Z35ncclProfilerRecordProxyOpEventStateiP13ncclProxyArgsim24ncclProfilerEventState_t");
#else
	CALLED("_Z35ncclProfilerRecordProxyOpEventStateiP13ncclProxyArgs24ncclProfilerEventState_t");
#endif
HIDDEN int send_progress(void *proxy, struct ncclProxyArgs *args)
	CALLED("_ZL17sendProxyProgressP14ncclProxyStateP13ncclProxyArgs");
HIDDEN int receive_progress(void *proxy, struct ncclProxyArgs *args)
	CALLED("_ZL17recvProxyProgressP14ncclProxyStateP13ncclProxyArgs");

#define LOOKS                \
	{                    \
		if (profiler) \
			abort(); \
		return 0;    \
	}

int start_operation(ARGUMENTS) LOOKS
int stop_operation(ARGUMENTS) LOOKS
int stop_step(ARGUMENTS, int step) LOOKS
int record_step(ARGUMENTS, int step, ncclProfilerEventState_t state) LOOKS
int record_operation(ARGUMENTS, int steps, size_t size, ncclProfilerEventState_t state) LOOKS

struct moved {
	uint64_t bytes, transfers, spins;
};

struct proxy {
	int socket;
	char *buffer;
	const int *sizes;
	struct moved *moved;
	sem_t *come; /* of the rank's other end: what may be sent on; 0: not coupled */
	int round; /* transfers, of which the first sends what is the rank's own, and the last is not sent on */
};

static int move(int socket, char *buffer, int size, int send_it)
{
	int done = 0;

	while (socket >= 0 && done < size) {
		ssize_t now = send_it ? send(socket, buffer + done, size - done, MSG_NOSIGNAL) :
					recv(socket, buffer + done, size - done, 0);

		if (now <= 0 && errno != EINTR)
			return -1;
		done += now > 0 ? now : 0;
	}
	return 0;
}

static void size_is(struct ncclProxySubArgs *sub, int size)
{
#ifdef TOTAL
	sub->transSize += size;
#else
	sub->transSize = size;
#endif
}

int send_progress(void *pointer, struct ncclProxyArgs *args)
{
	struct proxy *proxy = pointer;
	int failed = proxy->come ? move(proxy->socket, proxy->buffer, 1, 0) : 0; /* the receiver is ready */

	for (int number = 0; number < args->nsubs; number++) {
		struct ncclProxySubArgs *sub = &args->subs[number];

		for (int step = 0; step < sub->nsteps && !failed; step += args->sliceSteps) {
			int size = proxy->sizes[step / args->sliceSteps];

			record_step(number, args, step, ncclProfilerProxyStepSendGPUWait);
			if (proxy->come && step / args->sliceSteps % proxy->round)
				sem_wait(proxy->come);
#ifndef TOTAL
			/* The peer is not ready: again and again. */
			for (int spin = 0; spin < 50; spin++, proxy->moved->spins++)
				record_step(number, args, step, ncclProfilerProxyStepSendPeerWait_v4);
#endif
			size_is(sub, size);
			record_step(number, args, step, ncclProfilerProxyStepSendWait);
			failed = move(proxy->socket, proxy->buffer, size, 1);
			if (!failed) {
				proxy->moved->bytes += size;
				proxy->moved->transfers++;
			}
			stop_step(number, args, step);
		}
	}
	record_operation(0, args, 0, 0, 0);
	return failed;
}

int receive_progress(void *pointer, struct ncclProxyArgs *args)
{
	struct proxy *proxy = pointer;
	int failed = proxy->come ? move(proxy->socket, proxy->buffer, 1, 1) : 0;

	for (int number = 0; number < args->nsubs; number++) {
		struct ncclProxySubArgs *sub = &args->subs[number];

		for (int step = 0; step < sub->nsteps && !failed; step += args->sliceSteps) {
			int size = proxy->sizes[step / args->sliceSteps];

			record_step(number, args, step, ncclProfilerProxyStepRecvWait);
			failed = move(proxy->socket, proxy->buffer, size, 0);
			if (!failed) {
				proxy->moved->bytes += size;
				proxy->moved->transfers++;
				size_is(sub, size);
				record_step(number, args, step, ncclProfilerProxyStepRecvFlushWait);
				record_step(number, args, step, ncclProfilerProxyStepRecvGPUWait);
			}
			if (proxy->come && (step / args->sliceSteps + 1) % proxy->round)
				sem_post(proxy->come);
			stop_step(number, args, step);
		}
	}
	record_operation(0, args, 0, 0, 0);
	return failed;
}

struct communicator {
	struct ncclProxyArgs args;
	struct ncclProxyConnection connection;
	struct sendNetResources sends;
	struct recvNetResources receives;
	struct proxy proxy;
	struct moved moved;
};

/* One end of a connection: between these ranks, by this socket (-1: nothing is moved), on a channel. */
void *stand_in_connect(int socket, int sends, int rank, int peer, int channel)
{
	struct communicator *made = calloc(1, sizeof(*made));

	made->connection.send = sends;
	made->connection.transportResources = sends ? (void *)&made->sends : (void *)&made->receives;
	made->sends.tpRank = made->receives.tpRank = rank;
	made->sends.tpRemoteRank = made->receives.tpRemoteRank = peer;
	made->sends.netDev = made->receives.netDev = 3;
	made->args.nsubs = 1;
	made->args.sliceSteps = 2;
	made->args.subs[0].connection = &made->connection;
	made->args.subs[0].channelId = channel;
	made->proxy.socket = socket;
	made->proxy.buffer = malloc(1 << 20);
	made->proxy.moved = &made->moved;
	return made;
}

/* Both are of one rank in a ring of so many. */
void stand_in_couple(void *sends, void *receives, int ranks)
{
	struct proxy *to = &((struct communicator *)sends)->proxy, *from = &((struct communicator *)receives)->proxy;

	to->come = from->come = malloc(sizeof(*to->come));
	sem_init(to->come, 0, 0);
	to->round = from->round = 2 * (ranks - 1);
}

/* An operation of so many transfers, each of its size. 0: all have been. */
int stand_in_operate(void *pointer, uint64_t number, int collective, int pattern, int protocol, int count, const int *sizes)
{
	struct communicator *with = pointer;
	struct ncclProxyArgs *args = &with->args;
	int failed;

	args->opCount = number;
	args->coll = collective;
	args->pattern = pattern;
	args->protocol = protocol;
	args->subs[0].nsteps = 2 * count;
	with->proxy.sizes = sizes;
	start_operation(0, args);
	failed = with->connection.send ? send_progress(&with->proxy, args) : receive_progress(&with->proxy, args);
	if (!failed)
		stop_operation(0, args);
	return failed;
}

/* The same operation again and again, of which nothing is heard in between. */
void stand_in_repeat(void *pointer, int times, int count, const int *sizes)
{
	for (int time = 0; time < times; time++)
		stand_in_operate(pointer, time, 4, 0, 2, count, sizes);
}

void stand_in_moved(void *pointer, uint64_t *bytes, uint64_t *transfers)
{
	*bytes = ((struct communicator *)pointer)->moved.bytes;
	*transfers = ((struct communicator *)pointer)->moved.transfers;
}

struct stream {
	sem_t over;
	int queued; /* by the thread that waits */
};

void *stand_in_stream(void)
{
	struct stream *made = calloc(1, sizeof(*made));

	sem_init(&made->over, 0, 0);
	return made;
}

void stand_in_queue(void *stream)
{
	((struct stream *)stream)->queued++;
}

void stand_in_over(void *stream)
{
	sem_post(&((struct stream *)stream)->over);
}

int cudaStreamSynchronize(void *stream)
{
	struct stream *on = stream;

	for (; on->queued; on->queued--)
		while (sem_wait(&on->over))
			;
	return 0;
}

/* So that it is found. */
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *group, void *stream)
{
	return 4;
}
