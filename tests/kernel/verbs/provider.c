// SPDX-License-Identifier: Apache-2.0
/* The stand-in's provider. It exports no function that posts, and moves what is posted over TCP. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "abi.h"

static char bytes[1 << 16];

static int move(int connection, uint64_t length, int sends)
{
	while (length) {
		size_t piece = length < sizeof(bytes) ? length : sizeof(bytes);
		ssize_t done = sends ? send(connection, bytes, piece, MSG_NOSIGNAL) : recv(connection, bytes, piece, 0);

		if (done <= 0)
			return errno ? errno : EPIPE;
		length -= done;
	}
	return 0;
}

static int standin_post_send(struct ibv_qp *pair, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
	if (pair->out < 0) /* a pair without a peer: nothing is looked at */
		return 0;
	for (; request; request = request->next) {
		uint64_t length = 0;
		int part, error = 0;

		for (part = 0; part < request->num_sge; part++)
			length += request->sg_list[part].length;
		if (request->opcode == READ)
			error = send(pair->in, &length, sizeof(length), MSG_NOSIGNAL) != sizeof(length) ||
				move(pair->in, length, 0);
		else if (request->opcode < READ)
			error = move(pair->out, length, 1);
		if (error) {
			*bad = request;
			return error;
		}
	}
	return 0;
}

/* Called all the time by whoever polls: no post_send. */
static int standin_poll(void *queue, int count, void *completions)
{
	return queue == completions && count;
}

struct ibv_context *standin_context(struct ibv_device *device)
{
	struct ibv_context *context = calloc(1, sizeof(*context));

	context->device = device;
	context->ops.before[11] = standin_poll;
	context->ops.post_send = standin_post_send;
	context->abi_compat = (void *)-1;
	return context;
}
