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

static int transfer(struct ibv_qp *pair, int opcode, uint64_t length)
{
	if (opcode == READ)
		return send(pair->in, &length, sizeof(length), MSG_NOSIGNAL) != sizeof(length) ||
		       move(pair->in, length, 0);
	return opcode < READ || opcode == ATOMIC_WRITE ? move(pair->out, length, 1) : 0;
}

static int standin_post_send(struct ibv_qp *pair, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
	if (pair->out < 0) /* a pair without a peer: nothing is looked at */
		return 0;
	for (; request; request = request->next) {
		uint64_t length = 0;
		int part, error;

		for (part = 0; part < request->num_sge; part++)
			length += request->sg_list[part].length;
		error = transfer(pair, request->opcode, length);
		if (error) {
			*bad = request;
			return error;
		}
	}
	return 0;
}

/* Requests that are built one after the other: their opcodes and lengths are kept until they are posted. */
#define BEGINS(name, opcode, ...)                                      \
	static void standin_##name(struct ibv_qp *pair, ##__VA_ARGS__) \
	{                                                              \
		begin(pair, opcode);                                   \
	}

static __attribute__((noinline)) void begin(struct ibv_qp *pair, int opcode)
{
	if (pair->requests < 8) {
		pair->lengths[pair->requests] = 0;
		pair->opcodes[pair->requests++] = opcode;
	}
}

static __attribute__((noinline)) void add(struct ibv_qp *pair, uint64_t length)
{
	if (pair->requests)
		pair->lengths[pair->requests - 1] += length;
}

BEGINS(wr_atomic_cmp_swp, COMPARE_AND_SWAP, uint32_t key, uint64_t address, uint64_t compare, uint64_t swap)
BEGINS(wr_atomic_fetch_add, FETCH_AND_ADD, uint32_t key, uint64_t address, uint64_t value)
BEGINS(wr_flush, FLUSH, uint32_t key, uint64_t address, size_t length, uint8_t type, uint8_t level)
BEGINS(wr_local_inv, LOCAL_INVALIDATE, uint32_t key)
BEGINS(wr_rdma_read, READ, uint32_t key, uint64_t address)
BEGINS(wr_rdma_write, WRITE, uint32_t key, uint64_t address)
BEGINS(wr_rdma_write_imm, WRITE_WITH_IMM, uint32_t key, uint64_t address, uint32_t data)
BEGINS(wr_send, SEND)
BEGINS(wr_send_imm, SEND_WITH_IMM, uint32_t data)

static void standin_wr_atomic_write(struct ibv_qp *pair, uint32_t key, uint64_t address, const void *word)
{
	begin(pair, ATOMIC_WRITE);
	add(pair, 8);
}

static void standin_wr_set_inline_data(struct ibv_qp *pair, void *address, size_t length)
{
	add(pair, length);
}

static void standin_wr_set_inline_data_list(struct ibv_qp *pair, size_t count, const struct ibv_data_buf *parts)
{
	while (count--)
		add(pair, parts[count].length);
}

static void standin_wr_set_sge(struct ibv_qp *pair, uint32_t key, uint64_t address, uint32_t length)
{
	add(pair, length);
}

static void standin_wr_set_sge_list(struct ibv_qp *pair, size_t count, const struct ibv_sge *parts)
{
	while (count--)
		add(pair, parts[count].length);
}

static void standin_wr_start(struct ibv_qp *pair)
{
	pair->requests = 0;
}

static int standin_wr_complete(struct ibv_qp *pair)
{
	int number, error = 0;

	for (number = 0; pair->out >= 0 && number < pair->requests && !error; number++)
		error = transfer(pair, pair->opcodes[number], pair->lengths[number]);
	return error;
}

static void standin_wr_abort(struct ibv_qp *pair)
{
	pair->requests = -1;
}

static void standin_create_qp(struct ibv_qp *pair)
{
	pair->wr_atomic_cmp_swp = standin_wr_atomic_cmp_swp;
	pair->wr_atomic_fetch_add = standin_wr_atomic_fetch_add;
	pair->wr_local_inv = standin_wr_local_inv;
	pair->wr_rdma_read = standin_wr_rdma_read;
	pair->wr_rdma_write = standin_wr_rdma_write;
	pair->wr_rdma_write_imm = standin_wr_rdma_write_imm;
	pair->wr_send = standin_wr_send;
	pair->wr_send_imm = standin_wr_send_imm;
	pair->wr_set_inline_data = standin_wr_set_inline_data;
	pair->wr_set_inline_data_list = standin_wr_set_inline_data_list;
	pair->wr_set_sge = standin_wr_set_sge;
	pair->wr_set_sge_list = standin_wr_set_sge_list;
	pair->wr_start = standin_wr_start;
	pair->wr_complete = standin_wr_complete;
	pair->wr_abort = standin_wr_abort;
	pair->wr_atomic_write = standin_wr_atomic_write;
	pair->wr_flush = standin_wr_flush;
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
	context->ops.after[0] = standin_create_qp;
	context->abi_compat = (void *)-1;
	return context;
}
