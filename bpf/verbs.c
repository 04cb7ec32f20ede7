// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * What processes hand to RDMA devices by libibverbs, per queue pair. A program posts through a table in its memory
 * (ibv_post_send is inline), which leads to a function of the device's provider that no library exports; or it builds
 * requests one after the other, by functions in the queue pair itself (ibv_wr_send and others, inline as well). So
 * probes on what libibverbs exports tell where these functions are, user space puts probes on them, and this counts.
 *
 * All of them sit on entries. Structures are those of libibverbs' ABI (rdma-core, infiniband/verbs.h), the same since
 * 2006. Anybody can make up such structures: what is read has bounds, and costs the one who posts it.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"
#include "current.h"
#include "cxx.h"

#if defined(__aarch64__)
#define HERE(ctx) ((ctx)->pc)
#else
#define HERE(ctx) ((ctx)->rip)
#endif

BPF_TABLE("hash", struct netmon_queue_key, struct netmon_queue, verbs_queues, NETMON_QUEUES);
BPF_TABLE("hash", u32, u32, verbs_users, 4096); /* queue pairs of a user */
BPF_TABLE("lru_hash", struct netmon_provider, u8, verbs_known, NETMON_PROVIDERS);
BPF_TABLE("lru_hash", struct netmon_provider, u64, verbs_strange, NETMON_PROVIDERS);
BPF_RINGBUF_OUTPUT(verbs_providers, NETMON_PROVIDER_RING_BYTES / NETMON_PAGE_BYTES);
BPF_TABLE("array", u32, u64, verbs_uncounted, NETMON_UNCOUNTED);

/* Offsets within struct ibv_context, ibv_qp_ex, ibv_device, ibv_qp_attr. */
#define POST_SEND 208
#define FUNCTIONS 184
#define DEVICE_NAME 24
#define DESTINATION 28
#define GID 56
#define LID 80

#define ATOMIC_BYTES 8

#define STATE_GIVEN 1
#define PATH_GIVEN (1 << 7)
#define DESTINATION_GIVEN (1 << 20)
#define READY_TO_RECEIVE 2
#define READY_TO_SEND 3

/* The functions of struct ibv_qp_ex by which requests are built, in its order: ibv_wr_start(3). */
enum function {
	WR_ATOMIC_CMP_SWP,
	WR_ATOMIC_FETCH_ADD,
	WR_BIND_MW,
	WR_LOCAL_INV,
	WR_RDMA_READ,
	WR_RDMA_WRITE,
	WR_RDMA_WRITE_IMM,
	WR_SEND,
	WR_SEND_IMM,
	WR_SEND_INV,
	WR_SEND_TSO,
	WR_SET_UD_ADDR, /* and the next: where it goes to */
	WR_SET_XRC_SRQN,
	WR_SET_INLINE_DATA, /* and the next three: what the request moves */
	WR_SET_INLINE_DATA_LIST,
	WR_SET_SGE,
	WR_SET_SGE_LIST,
	WR_START, /* and the next: a list begins, and is posted */
	WR_COMPLETE,
	WR_ABORT,	 /* it is given up */
	WR_ATOMIC_WRITE, /* and the next: of rdma-core 44 and later; before, the provider's own data stand there */
	WR_FLUSH,
	WR_FUNCTIONS
};

#define NOT_COUNTED (1 << WR_SET_UD_ADDR | 1 << WR_SET_XRC_SRQN | 1 << WR_START | 1 << WR_COMPLETE)

struct queue_pair {
	u64 context, others[5];
	u32 handle, number, state, type;
};

struct request {
	u64 id, next, parts;
	u32 count, opcode;
};

struct part {
	u64 address;
	u32 length, key;
};

#define READ(to, from) read_user(&(to), sizeof(to), (void *)(from))

static __always_inline void miss(u32 which, u64 amount)
{
	u64 *sum = verbs_uncounted.lookup(&which);

	if (sum)
		lock_xadd(sum, amount);
}

/* Where this context posts, once; 0: it is none. */
static __always_inline u64 report_provider(u64 context, u32 pid)
{
	struct netmon_provider provider = {.pid = pid}, *row;
	u8 known = 1;

	if (READ(provider.address, context + POST_SEND) || !provider.address)
		return 0;
	if (verbs_known.lookup(&provider))
		return provider.address;
	row = verbs_providers.ringbuf_reserve(sizeof(*row));
	if (!row) {
		miss(NETMON_UNCOUNTED_PROVIDERS, 1);
		return provider.address;
	}
	*row = provider;
	verbs_providers.ringbuf_submit(row, 0);
	verbs_known.update(&provider, &known);
	return provider.address;
}

/* … ibv_alloc_pd(struct ibv_context *), ibv_create_cq(struct ibv_context *, …) */
int verbs_context(struct pt_regs *ctx)
{
	u32 pid = current_pid();

	if (pid)
		report_provider(FIRST(ctx), pid);
	return 0;
}

/* … ibv_create_qp, ibv_reg_mr(struct ibv_pd *, …): its first word is the context. */
int verbs_domain(struct pt_regs *ctx)
{
	u32 pid = current_pid();
	u64 context = 0;

	if (pid && !READ(context, FIRST(ctx)))
		report_provider(context, pid);
	return 0;
}

/* … ibv_qp_to_qp_ex(struct ibv_qp *): whoever builds requests has to call it. Of a queue pair that has no such functions
 * something else stands there: user space looks at where it leads.
 */
int verbs_extended(struct pt_regs *ctx)
{
	struct netmon_provider all = {.pid = current_pid(), .way = NETMON_BUILDS}, *row;
	u64 table[WR_FUNCTIONS] = {};
	u32 number, left = 0;
	u8 known = 1;

	if (!all.pid || READ(table, FIRST(ctx) + FUNCTIONS))
		return 0;
#pragma unroll
	for (number = 0; number < WR_FUNCTIONS; number++)
		all.address += table[number]; /* they are known together */
	if (!all.address || verbs_known.lookup(&all))
		return 0;
#pragma unroll
	for (number = 0; number < WR_FUNCTIONS; number++) {
		if (NOT_COUNTED >> number & 1 || !table[number])
			continue;
		row = verbs_providers.ringbuf_reserve(sizeof(*row));
		if (!row) {
			left++;
			continue;
		}
		row->address = table[number];
		row->pid = all.pid;
		row->way = NETMON_BUILDS;
		verbs_providers.ringbuf_submit(row, 0);
	}
	if (left)
		miss(NETMON_UNCOUNTED_PROVIDERS, left);
	else
		verbs_known.update(&all, &known);
	return 0;
}

static __always_inline struct netmon_queue *queue_of(const struct netmon_queue_key *key)
{
	struct netmon_queue *known = verbs_queues.lookup((struct netmon_queue_key *)key), made = {};
	u32 one = 1, *queues;
	u64 device = 0;

	if (known)
		return known;
	made.uid = (u32)bpf_get_current_uid_gid();
	queues = verbs_users.lookup(&made.uid);
	if (queues && *queues >= NETMON_QUEUES_OF_USER)
		return 0;
	bpf_get_current_comm(&made.process, sizeof(made.process));
	if (!READ(device, key->context))
		bpf_probe_read_user_str(made.device, sizeof(made.device), (void *)(device + DEVICE_NAME));
	if (verbs_queues.update((struct netmon_queue_key *)key, &made))
		return 0;
	if (queues)
		lock_xadd(queues, 1);
	else
		verbs_users.update(&made.uid, &one);
	return verbs_queues.lookup((struct netmon_queue_key *)key);
}

/* int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int mask): every queue pair has to be made ready by it. */
int verbs_modify(struct pt_regs *ctx)
{
	u64 attributes = SECOND(ctx), mask = THIRD(ctx);
	struct queue_pair pair = {};
	struct netmon_queue_key key = {.pid = current_pid()};
	struct netmon_queue *queue;
	u32 state = 0;

	if (!key.pid || READ(pair, FIRST(ctx)) || !report_provider(pair.context, key.pid))
		return 0;
	key.context = pair.context;
	key.number = pair.number;
	queue = queue_of(&key);
	if (!queue)
		return 0;
	/* Before it is ready nothing can be posted. */
	if (mask & STATE_GIVEN && pair.state == READY_TO_RECEIVE && !READ(state, attributes) &&
	    state == READY_TO_SEND && !queue->begun_ns)
		queue->begun_ns = bpf_ktime_get_ns();
	if (mask & DESTINATION_GIVEN)
		READ(queue->remote, attributes + DESTINATION);
	if (mask & PATH_GIVEN) {
		READ(queue->gid, attributes + GID);
		queue->lid = 0;
		read_user(&queue->lid, 2, (void *)(attributes + LID));
	}
	return 0;
}

static __always_inline u32 kind_of(u32 opcode)
{
	switch (opcode) {
	case 0: /* RDMA write, with immediate data, atomic */
	case 1:
	case 15:
		return NETMON_POSTED_WRITE;
	case 2: /* send, with immediate data, with invalidation, segmented */
	case 3:
	case 9:
	case 10:
		return NETMON_POSTED_SEND;
	case 4:
		return NETMON_POSTED_READ;
	}
	return NETMON_POSTED_OTHER;
}

static __always_inline void strange(u64 here, u32 pid, u32 way)
{
	struct netmon_provider called = {.address = here, .pid = pid, .way = way};
	u64 one = 1, *calls = verbs_strange.lookup(&called);

	if (calls)
		lock_xadd(calls, 1);
	else
		verbs_strange.update(&called, &one);
}

/* Bytes of a list of parts. */
static __always_inline u64 length_of(struct netmon_queue *queue, u64 at, u32 count)
{
	struct part parts[NETMON_POSTED_PARTS];
	u64 sum = 0, size = count;
	u32 part;

	if (count > NETMON_POSTED_PARTS) {
		size = NETMON_POSTED_PARTS;
		if (queue)
			lock_xadd(&queue->unread, 1);
	}
	if (size == 1) {
		parts[0].length = 0;
		if (READ(parts[0], at) && queue)
			lock_xadd(&queue->unread, 1);
		sum = parts[0].length;
	} else if (size) {
		size *= sizeof(struct part);
		asm volatile("" : "+r"(size)); /* the verifier has to see the next comparison */
		if (size > sizeof(parts))
			size = sizeof(parts);
		__builtin_memset(parts, 0, sizeof(parts));
		if (read_user(parts, size, (void *)at) && queue)
			lock_xadd(&queue->unread, 1);
#pragma unroll
		for (part = 0; part < NETMON_POSTED_PARTS; part++)
			sum += parts[part].length;
	}
	return sum;
}

static __always_inline void count(struct netmon_queue *queue, u32 kind, u64 bytes, u64 requests)
{
	asm volatile("" : "+r"(queue)); /* a compiler that adds before it compares is refused by the verifier */
	lock_xadd(&queue->bytes[kind & (NETMON_POSTED_KINDS - 1)], bytes);
	lock_xadd(&queue->requests[kind & (NETMON_POSTED_KINDS - 1)], requests);
}

/* int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **), of a provider */
int verbs_post(struct pt_regs *ctx)
{
	u64 at = SECOND(ctx), here = 0, sum, requests = 0, bytes = 0;
	struct netmon_queue_key key = {.pid = current_pid()};
	struct queue_pair pair = {};
	struct netmon_queue *queue;
	u32 kind, number;

	if (!key.pid)
		return 0;
	if (READ(pair, FIRST(ctx)) || READ(here, pair.context + POST_SEND) || here != HERE(ctx)) {
		strange(HERE(ctx), key.pid, NETMON_POSTS);
		return 0;
	}
	key.context = pair.context;
	key.number = pair.number;
	queue = queue_of(&key);
	for (number = 0; number < NETMON_POSTED_REQUESTS && at; number++) {
		struct request request = {};

		if (READ(request, at))
			break;
		at = request.next;
		kind = kind_of(request.opcode);
		sum = length_of(queue, request.parts, request.count);
		if (kind == NETMON_POSTED_OTHER && request.opcode != 5 && request.opcode != 6)
			sum = 0; /* it moves nothing */
		requests++;
		bytes += sum;
		if (queue)
			count(queue, kind, sum, 1);
	}
	if (!queue) {
		miss(NETMON_UNCOUNTED_REQUESTS, requests);
		miss(NETMON_UNCOUNTED_BYTES, bytes);
	} else if (at) {
		lock_xadd(&queue->unread, 1);
	}
	return 0;
}

/* Which of a queue pair's functions this is; WR_FUNCTIONS: none of them. */
static __always_inline u32 function_of(u64 pair, u64 here)
{
	u64 table[WR_FUNCTIONS];
	u32 number, found = WR_FUNCTIONS;

	if (READ(table, pair + FUNCTIONS))
		return found;
#pragma unroll
	for (number = 0; number < WR_FUNCTIONS; number++)
		if (table[number] == here)
			found = number;
	return found;
}

/* void wr_send(struct ibv_qp_ex *), wr_set_sge(struct ibv_qp_ex *, key, address, length) and others, of a provider. A
 * queue pair is locked while a list is built, or belongs to one thread.
 */
int verbs_build(struct pt_regs *ctx)
{
	u32 function = function_of(FIRST(ctx), HERE(ctx)), kind;
	struct netmon_queue_key key = {.pid = current_pid()};
	struct queue_pair pair = {};
	struct netmon_queue *queue;
	u64 bytes = 0;

	if (!key.pid)
		return 0;
	if (function == WR_FUNCTIONS || READ(pair, FIRST(ctx))) {
		strange(HERE(ctx), key.pid, NETMON_BUILDS);
		return 0;
	}
	key.context = pair.context;
	key.number = pair.number;
	queue = queue_of(&key);
	if (function == WR_ABORT) {
		if (queue)
			lock_xadd(&queue->unread, 1);
		return 0;
	}
	if (function <= WR_SEND_TSO || function >= WR_ATOMIC_WRITE) {
		if (function == WR_ATOMIC_WRITE)
			bytes = ATOMIC_BYTES;
		kind = function < WR_RDMA_READ || function == WR_FLUSH	   ? NETMON_POSTED_OTHER
		       : function == WR_RDMA_READ			   ? NETMON_POSTED_READ
		       : function < WR_SEND || function == WR_ATOMIC_WRITE ? NETMON_POSTED_WRITE
									   : NETMON_POSTED_SEND;
		if (queue) {
			queue->building = kind;
			count(queue, kind, bytes, 1);
		} else {
			miss(NETMON_UNCOUNTED_REQUESTS, 1);
			miss(NETMON_UNCOUNTED_BYTES, bytes);
		}
		return 0;
	}
	if (function == WR_SET_SGE)
		bytes = (u32)FOURTH(ctx);
	else if (function == WR_SET_INLINE_DATA)
		bytes = THIRD(ctx);
	else if (function == WR_SET_SGE_LIST || function == WR_SET_INLINE_DATA_LIST)
		bytes = length_of(queue, THIRD(ctx), SECOND(ctx));
	if (queue)
		count(queue, queue->building, bytes, 0);
	else
		miss(NETMON_UNCOUNTED_BYTES, bytes);
	return 0;
}
