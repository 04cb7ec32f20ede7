// SPDX-License-Identifier: Apache-2.0
/*
 * A program that posts by libibverbs what a known schedule says, and writes down what it has posted.
 *
 *   program serve ADDRESS PORT           the other end: swallows what comes at PORT, sends what is asked for at PORT + 1
 *   program post ADDRESS PORT PAIRS CALLS PAUSE_US ACCOUNT       by lists of requests (ibv_post_send)
 *   program build ADDRESS PORT PAIRS CALLS PAUSE_US ACCOUNT      by requests that are built one after the other (ibv_wr_…)
 *   program HOSTILE …                    see below
 *
 * On standard output: `ready` once the queue pairs are; then it waits for a line, posts, and ends with `pair kind bytes
 * requests` of each. ACCOUNT: a file, mapped, that has two words for each pair: bytes that are about to be posted, and bytes
 * that were.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "abi.h"

#define MOST_PAIRS 64
#define KINDS 4

static struct ibv_device device = {.node_type = 1, .name = "standin0", .dev_name = "uverbs0"};
static const char *const kinds[KINDS] = {"send", "write", "read", "other"};
static const int kind_of[] = {1, 1, 0, 0, 2, 3, 3, 3, [FLUSH] = 3, [ATOMIC_WRITE] = 1};

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct sockaddr_in place(const char *address, int port)
{
	struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons(port)};

	inet_pton(AF_INET, address, &found.sin_addr);
	return found;
}

static int connected(const char *address, int port)
{
	struct sockaddr_in peer = place(address, port);
	int connection = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(connection, (struct sockaddr *)&peer, sizeof(peer)))
		fail("connect");
	return connection;
}

static void *swallow(void *given)
{
	static __thread char bytes[1 << 16];
	int connection = (intptr_t)given;

	while (recv(connection, bytes, sizeof(bytes), 0) > 0)
		;
	close(connection);
	return NULL;
}

static void *send_what_is_asked(void *given)
{
	static char bytes[1 << 16];
	int connection = (intptr_t)given;
	uint64_t length;

	while (recv(connection, &length, sizeof(length), MSG_WAITALL) == sizeof(length))
		while (length) {
			ssize_t done =
				send(connection, bytes, length < sizeof(bytes) ? length : sizeof(bytes), MSG_NOSIGNAL);

			if (done <= 0)
				return NULL;
			length -= done;
		}
	close(connection);
	return NULL;
}

struct listening {
	int connection;
	void *(*serve)(void *);
};

static void *accept_all(void *given)
{
	struct listening *own = given;

	for (;;) {
		pthread_t thread;
		intptr_t connection = accept(own->connection, NULL, NULL);

		if (connection < 0 || pthread_create(&thread, NULL, own->serve, (void *)connection))
			fail("accept");
		pthread_detach(thread);
	}
}

static int serve(const char *address, int port)
{
	static struct listening both[2] = {{0, swallow}, {0, send_what_is_asked}};
	pthread_t thread;
	int one = 1, number;

	for (number = 0; number < 2; number++) {
		struct sockaddr_in here = place(address, port + number);

		both[number].connection = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(both[number].connection, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(both[number].connection, (struct sockaddr *)&here, sizeof(here)) ||
		    listen(both[number].connection, 1024))
			fail("listen");
	}
	puts("listening");
	fflush(stdout);
	if (pthread_create(&thread, NULL, accept_all, &both[0]))
		fail("thread");
	accept_all(&both[1]);
	return 0;
}

static struct ibv_pd *opened(void)
{
	struct ibv_context *context = ibv_open_device(&device);

	if (!context)
		fail("ibv_open_device");
	return ibv_alloc_pd(context);
}

static struct ibv_qp *made_ready(struct ibv_pd *domain, const char *peer, uint32_t number)
{
	struct ibv_qp *pair = ibv_qp_to_qp_ex(ibv_create_qp(domain, NULL));
	struct ibv_qp_attr attributes = {.qp_state = INIT, .dest_qp_num = number, .is_global = 1};

	ibv_modify_qp(pair, &attributes, STATE);
	attributes.qp_state = READY_TO_RECEIVE;
	attributes.dgid[10] = attributes.dgid[11] = 0xff;
	inet_pton(AF_INET, peer, attributes.dgid + 12);
	ibv_modify_qp(pair, &attributes, STATE | PATH | DESTINATION);
	attributes.qp_state = READY_TO_SEND;
	ibv_modify_qp(pair, &attributes, STATE);
	return pair;
}

static void wait_for_a_line(const char *said)
{
	char line[16];

	puts(said);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

static uint64_t drawn(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return *seed >> 33;
}

/* The same as a list of requests says. */
static int build(struct ibv_qp *pair, const struct ibv_send_wr *request)
{
	pair->wr_start(pair);
	for (; request; request = request->next) {
		const struct ibv_sge *parts = request->sg_list;
		struct ibv_data_buf buffers[8];
		int part;

		switch (request->opcode) {
		case WRITE:
			pair->wr_rdma_write(pair, 1, 2);
			break;
		case WRITE_WITH_IMM:
			pair->wr_rdma_write_imm(pair, 1, 2, 3);
			break;
		case SEND:
			pair->wr_send(pair);
			break;
		case SEND_WITH_IMM:
			pair->wr_send_imm(pair, 3);
			break;
		case READ:
			pair->wr_rdma_read(pair, 1, 2);
			break;
		case COMPARE_AND_SWAP:
			pair->wr_atomic_cmp_swp(pair, 1, 2, 3, 4);
			break;
		case FETCH_AND_ADD:
			pair->wr_atomic_fetch_add(pair, 1, 2, 3);
			break;
		case LOCAL_INVALIDATE:
			pair->wr_local_inv(pair, 1);
			break;
		case FLUSH:
			pair->wr_flush(pair, 1, 2, 1000, 1, 0);
			break;
		case ATOMIC_WRITE:
			pair->wr_atomic_write(pair, 1, 2, parts);
			continue;
		}
		for (part = 0; part < request->num_sge; part++) {
			buffers[part].addr = (void *)parts[part].addr;
			buffers[part].length = parts[part].length;
		}
		if (request->num_sge == 1 && request->send_flags & INLINE)
			pair->wr_set_inline_data(pair, buffers[0].addr, buffers[0].length);
		else if (request->send_flags & INLINE)
			pair->wr_set_inline_data_list(pair, request->num_sge, buffers);
		else if (request->num_sge == 1)
			pair->wr_set_sge(pair, 1, parts[0].addr, parts[0].length);
		else if (request->num_sge)
			pair->wr_set_sge_list(pair, request->num_sge, parts);
	}
	return pair->wr_complete(pair);
}

static int post(int builds, const char *address, int port, int pairs, int calls, int pause_us, const char *account_path)
{
	static uint64_t posted[MOST_PAIRS][KINDS][2];
	struct ibv_qp *pair[MOST_PAIRS];
	int file = open(account_path, O_RDWR | O_CREAT, 0644), number, call;
	uint64_t *account, seed = 1;
	struct ibv_pd *domain = opened();

	if (file < 0 || ftruncate(file, sizeof(uint64_t) * 2 * MOST_PAIRS))
		fail("account");
	account = mmap(NULL, sizeof(uint64_t) * 2 * MOST_PAIRS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	usleep(500000); /* as long as real ones need at least to tell each other their numbers */
	for (number = 0; number < pairs; number++) {
		pair[number] = made_ready(domain, address, 100 + number);
		pair[number]->out = connected(address, port);
		pair[number]->in = connected(address, port + 1);
	}
	wait_for_a_line("ready");
	for (call = 0; call < calls; call++) {
		int chosen = drawn(&seed) % pairs, requests = 1 + drawn(&seed) % 8, request, part;
		struct ibv_send_wr list[8] = {}, *bad = NULL;
		struct ibv_sge parts[8][8] = {};
		uint64_t sum = 0;

		for (request = 0; request < requests; request++) {
			struct ibv_send_wr *one = &list[request];

			one->opcode = drawn(&seed) % 10;
			if (one->opcode > LOCAL_INVALIDATE)
				one->opcode += FLUSH - LOCAL_INVALIDATE - 1;
			one->num_sge = one->opcode == LOCAL_INVALIDATE || one->opcode == FLUSH ? 0
				       : one->opcode > READ				       ? 1
											       : 1 + drawn(&seed) % 8;
			one->send_flags = one->opcode < READ && drawn(&seed) % 4 == 0 ? INLINE : 0;
			one->sg_list = parts[request];
			one->next = request + 1 < requests ? &list[request + 1] : NULL;
			posted[chosen][kind_of[one->opcode]][1]++;
			for (part = 0; part < one->num_sge; part++) {
				uint32_t length = one->opcode > READ	     ? 8
						  : one->send_flags & INLINE ? 1 + drawn(&seed) % 64
									     : drawn(&seed) % 20000;

				parts[request][part].length = length;
				posted[chosen][kind_of[one->opcode]][0] += length;
				sum += length;
			}
		}
		account[2 * chosen] += sum;
		if (builds ? build(pair[chosen], list) : pair[chosen]->context->ops.post_send(pair[chosen], list, &bad))
			fail("post");
		account[2 * chosen + 1] += sum;
		if (pause_us)
			usleep(pause_us);
	}
	for (number = 0; number < pairs; number++)
		for (call = 0; call < KINDS; call++)
			printf("%u %s %lu %lu\n", pair[number]->qp_num, kinds[call], posted[number][call][0],
			       posted[number][call][1]);
	wait_for_a_line("posted");
	return 0;
}

/* What nobody who means well does. Its own pairs have no peers: the provider looks at nothing. */
static int hostile(const char *what, long count)
{
	struct ibv_pd *domain = opened();
	struct ibv_send_wr request = {.opcode = WRITE}, *bad;
	struct ibv_sge parts[32];
	struct ibv_qp *pair, other;
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **) = domain->context->ops.post_send;
	long number;

	usleep(500000);
	pair = made_ready(domain, "198.18.255.1", 1);
	wait_for_a_line("ready");
	memset(parts, 0xff, sizeof(parts)); /* lengths of 4 GiB */
	request.sg_list = parts;
	if (!strcmp(what, "many")) {
		request.num_sge = 1;
		parts[0].length = 1000;
		for (number = 0; number < count; number++)
			post_send(made_ready(domain, "198.18.255.1", 2), &request, &bad);
	} else if (!strcmp(what, "tables")) {
		other = *pair;
		other.context = NULL;
		post_send(&other, &request, &bad);
		other.context = (void *)0x1234;
		post_send(&other, &request, &bad);
		other = *pair;
		post_send(&other, NULL, &bad);
		post_send(&other, (void *)0x1234, &bad);
		request.num_sge = 4;
		request.sg_list = NULL;
		post_send(&other, &request, &bad);
		ibv_modify_qp(&other, NULL, STATE | PATH | DESTINATION);
	} else if (!strcmp(what, "huge")) {
		request.num_sge = 16;
		for (number = 0; number < count; number++)
			post_send(pair, &request, &bad);
		request.num_sge = -1;
		post_send(pair, &request, &bad);
	} else if (!strcmp(what, "abort")) {
		for (number = 0; number < count; number++) {
			pair->wr_start(pair);
			pair->wr_rdma_write(pair, 1, 2);
			pair->wr_set_sge(pair, 1, 2, 1000);
			pair->wr_abort(pair);
		}
	} else if (!strcmp(what, "built")) { /* nonsense */
		other = *pair;
		pair->wr_start(pair);
		pair->wr_set_sge(pair, 1, 2, 3); /* of no request */
		pair->wr_send(pair);
		pair->wr_set_sge_list(pair, 20, parts);
		pair->wr_set_inline_data(pair, NULL, 7);
		other.context = (void *)0x1234;
		pair->wr_send(&other);
		other.wr_send = NULL; /* it is none of its functions */
		pair->wr_send(&other);
	} else if (!strcmp(what, "circle")) {
		request.num_sge = 1;
		parts[0].length = 1000;
		request.next = &request;
		post_send(pair, &request, &bad);
	} else if (!strcmp(what, "lie")) { /* what it says is its post_send is what everybody calls to poll, or worse */
		struct ibv_context *context = domain->context;
		char *liar = (char *)context->ops.before[11];

		context->ops.post_send = (void *)(liar + 1);
		ibv_alloc_pd(context);
		context->ops.post_send = (void *)liar;
		ibv_alloc_pd(context);
		context->ops.post_send = (void *)&strlen;
		ibv_alloc_pd(context);
		wait_for_a_line("told");
		for (number = 0; number < count; number++) {
			((int (*)(void *, int, void *))liar)(pair, 1, NULL);
			usleep(10);
		}
	} else if (!strcmp(what, "cost")) {
		struct timespec begin, end;

		request.num_sge = 1;
		parts[0].length = 4096;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (number = 0; number < count; number++)
			post_send(pair, &request, &bad);
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("ns %.1f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count);
	}
	wait_for_a_line("posted");
	return 0;
}

int main(int count, char **given)
{
	if (count == 4 && !strcmp(given[1], "serve"))
		return serve(given[2], atoi(given[3]));
	if (count == 8 && (!strcmp(given[1], "post") || !strcmp(given[1], "build")))
		return post(given[1][0] == 'b', given[2], atoi(given[3]), atoi(given[4]), atoi(given[5]),
			    atoi(given[6]), given[7]);
	return count == 3 ? hostile(given[1], atol(given[2])) : 2;
}
