// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * What ranks send each other by NCCL, over whatever network: uprobes on the functions that NCCL's network proxy calls when an
 * operation begins and ends, and when a transfer is on its way or has come. They are called whether a profiler is loaded
 * or not.
 *
 * Nothing is probed that spins: the sites of the calls that tell a transfer are, one by one, not the function, which
 * waiting for a peer calls again and again.
 *
 * A proxy is one thread, and so are all calls of one operation: nothing here is atomic but what all share.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"
#include "budgets.h"
#include "current.h"
#include "cxx.h"

BPF_RINGBUF_OUTPUT(transfers, NETMON_TRANSFER_PAGES);
BPF_ARRAY(layouts, struct netmon_layout, NETMON_LAYOUTS);
BPF_F_TABLE("array", u32, u64, transfer_counts, NETMON_TRANSFER_COUNTS, BPF_F_MMAPABLE);

BPF_TABLE("lru_hash", u64, struct budget, budgets, NETMON_BUDGETS);

/* The subs of an operation change places, their connections do not. */
struct operation_key {
	u64 operation, connection;
	u32 pid, pad;
};

struct operation {
	u64 queued_ns, first_ns;
	u64 bytes, told_bytes;
	u64 before; /* what the sum of its sub was when it began */
	u32 transfers, told;
};

BPF_TABLE("lru_hash", struct operation_key, struct operation, open_operations, NETMON_OPEN_OPERATIONS);

/* Of a connection: operations that could not be told. */
struct unreported {
	u64 queued_ns, start_ns, bytes;
	u32 transfers, missed, operations, pad;
};

BPF_TABLE("lru_hash", struct operation_key, struct unreported, unreported_operations, NETMON_OPEN_OPERATIONS);

/* Transfers that are under way, where each is told. */
struct transfer_key {
	struct operation_key of;
	u64 step;
};

struct under_way {
	u64 start_ns, bytes;
};

BPF_TABLE("lru_hash", struct transfer_key, struct under_way, under_way_transfers, NETMON_OPEN_OPERATIONS);

/* bcc before 0.26 does not declare it. */
static u64 (*attach_cookie)(void *ctx) = (void *)174;

#define READ_USER(to, from) read_user(&(to), sizeof(to), (void *)(from))

static __always_inline void count(u32 which, u64 by)
{
	u64 *counted = transfer_counts.lookup(&which);

	if (counted)
		lock_xadd(counted, by);
}

static __always_inline int tells_each(void)
{
	u32 which = NETMON_EACH;
	u64 *each = transfer_counts.lookup(&which);

	return each && *each;
}

/* A call's sub, and the key of its operation. 0: it is none. */
static __always_inline u64 find(struct pt_regs *ctx, const struct netmon_layout *layout, struct operation_key *key)
{
	u32 number = (u32)FIRST(ctx);
	u64 sub = SECOND(ctx) + (u64)number * layout->sub_bytes;

	key->operation = SECOND(ctx);
	key->pid = current_pid();
	if (!key->pid)
		return 0;
	if (number >= layout->subs || READ_USER(key->connection, sub + layout->connection) || !key->connection) {
		count(NETMON_IMPLAUSIBLE, 1);
		return 0;
	}
	return sub;
}

static __always_inline struct netmon_layout *layout_of(struct pt_regs *ctx)
{
	u32 number = attach_cookie(ctx);

	return layouts.lookup(&number);
}

static __always_inline struct budget *budget_of(u64 key)
{
	struct budget none = {}, *budget = budgets.lookup(&key);

	if (budget)
		return budget;
	budgets.update(&key, &none);
	return budgets.lookup(&key);
}

/* Whether there is room for a row of this process. */
static __always_inline int may_tell(u32 pid, u64 now)
{
	struct budget *process = budget_of(pid), *user = budget_of(OF_USER | (u32)bpf_get_current_uid_gid());

	return process && user && pays(process, now, NETMON_ROW_NS_OF_PROCESS, NETMON_ROWS_AT_ONCE) &&
	       pays(user, now, NETMON_ROW_NS_OF_USER, NETMON_ROWS_AT_ONCE_OF_USER);
}

/* All of a row that the operation says, and neither its times nor its bytes. 0: it cannot be read. */
static __always_inline int describe(const struct netmon_layout *layout, u64 operation, u64 sub, u64 connection,
				    struct netmon_transfer *row)
{
	u32 send = 0, channel = 0;
	u64 resources = 0;
	u8 collective = 0, pattern = 0, protocol = 0;

	if (READ_USER(send, connection + layout->send) || READ_USER(resources, connection + layout->resources) ||
	    READ_USER(channel, sub + layout->channel) || READ_USER(row->number, operation + layout->operation) ||
	    READ_USER(collective, operation + layout->collective) || READ_USER(pattern, operation + layout->pattern) ||
	    READ_USER(protocol, operation + layout->protocol))
		return 0;
	row->thread = (u32)bpf_get_current_pid_tgid();
	row->receives = !send;
	row->channel = channel;
	row->collective = layout->collectives[collective & 31];
	row->algorithm = layout->algorithms[pattern & 31];
	row->protocol = protocol;
	row->rank = row->peer = row->device = NETMON_NO_RANK;
	READ_USER(row->rank, resources + (send ? layout->send_rank : layout->receive_rank));
	READ_USER(row->peer, resources + (send ? layout->send_peer : layout->receive_peer));
	READ_USER(row->device, resources + (send ? layout->send_device : layout->receive_device));
	return 1;
}

/* 0: the ring is full. */
static __always_inline int submit_row(const struct netmon_transfer *told)
{
	struct netmon_transfer *row = transfers.ringbuf_reserve(sizeof(*row));

	if (!row)
		return 0;
	*row = *told;
	transfers.ringbuf_submit(row, BPF_RB_NO_WAKEUP);
	return 1;
}

/* ncclProfilerStartProxyOpEvent(int sub, ncclProxyArgs*), or one of its own for each direction */
int nccl_queued(struct pt_regs *ctx)
{
	struct netmon_layout *layout = layout_of(ctx);
	struct operation_key key = {};
	struct operation operation = {};
	u64 sub;

	if (!layout)
		return 0;
	sub = find(ctx, layout, &key);
	if (!sub || (layout->total && READ_USER(operation.before, sub + layout->size)))
		return 0;
	operation.queued_ns = bpf_ktime_get_ns();
	open_operations.update(&key, &operation);
	return 0;
}

/* One transfer of an operation, of which all is known. */
static __always_inline void tell_one(const struct netmon_layout *layout, const struct operation_key *key, u64 sub,
				     struct operation *operation, const struct under_way *transfer, u64 now)
{
	struct netmon_transfer row = {.level = NETMON_TRANSFER, .transfers = 1, .start_ns = transfer->start_ns};

	row.end_ns = now;
	row.bytes = transfer->bytes;
	row.queued_ns = operation->queued_ns;
	row.pid = key->pid;
	if (!may_tell(key->pid, now) || !describe(layout, key->operation, sub, key->connection, &row) ||
	    !submit_row(&row))
		return; /* it is told with its operation */
	operation->told_bytes += transfer->bytes;
	operation->told++;
}

/*
 * At a call of ncclProfilerRecordProxyStepEventState(int sub, ncclProxyArgs*, int step, state): a transfer is on its way, is
 * awaited, or has come. Its size is the sub's latest.
 */
int nccl_moved(struct pt_regs *ctx)
{
	struct netmon_layout *layout = layout_of(ctx);
	u32 state = (u32)FOURTH(ctx);
	struct operation_key key = {};
	struct operation *operation, begun = {};
	struct under_way transfer = {}, *before;
	struct transfer_key under = {};
	u64 sub, now;

	count(NETMON_TRAPS, 1);
	if (!layout || (state != layout->sent && state != layout->received && state != layout->awaited))
		return 0;
	if (state == layout->awaited && !tells_each())
		return 0;
	sub = find(ctx, layout, &key);
	if (!sub)
		return 0;
	now = bpf_ktime_get_ns();
	under.of = key;
	under.step = (u32)THIRD(ctx);
	transfer.start_ns = now;
	if (state == layout->awaited) {
		under_way_transfers.update(&under, &transfer);
		return 0;
	}
	if (READ_USER(transfer.bytes, sub + layout->size) || transfer.bytes > NETMON_MOST_TRANSFER_BYTES) {
		count(NETMON_IMPLAUSIBLE, 1);
		return 0;
	}
	operation = open_operations.lookup(&key);
	if (!operation) { /* it had begun before it was probed */
		open_operations.update(&key, &begun);
		operation = open_operations.lookup(&key);
		if (!operation)
			return 0;
	}
	if (!operation->first_ns)
		operation->first_ns = now;
	operation->bytes += transfer.bytes;
	operation->transfers++;
	if (!tells_each())
		return 0;
	if (state == layout->sent) {
		under_way_transfers.update(&under, &transfer);
		return 0;
	}
	before = under_way_transfers.lookup(&under);
	if (!before)
		return 0;
	transfer.start_ns = before->start_ns;
	under_way_transfers.delete(&under);
	tell_one(layout, &key, sub, operation, &transfer, now);
	return 0;
}

/* ncclProfilerStopProxyStepEvent(int sub, ncclProxyArgs*, int step): what was sent has arrived. Where each is told. */
int nccl_arrived(struct pt_regs *ctx)
{
	struct netmon_layout *layout = layout_of(ctx);
	struct operation_key key = {};
	struct transfer_key under = {};
	struct under_way transfer, *before;
	struct operation *operation;
	u64 sub;

	if (!layout || !tells_each())
		return 0;
	sub = find(ctx, layout, &key);
	if (!sub)
		return 0;
	under.of = key;
	under.step = (u32)THIRD(ctx);
	before = under_way_transfers.lookup(&under);
	operation = open_operations.lookup(&key);
	if (!before || !operation)
		return 0;
	transfer = *before;
	under_way_transfers.delete(&under);
	tell_one(layout, &key, sub, operation, &transfer, bpf_ktime_get_ns());
	return 0;
}

/* ncclProfilerStopProxyOpEvent(int sub, ncclProxyArgs*) */
int nccl_over(struct pt_regs *ctx)
{
	struct netmon_layout *layout = layout_of(ctx);
	struct operation_key key = {}, on = {};
	struct operation *operation, unseen = {};
	struct netmon_transfer row = {.level = NETMON_OPERATION, .operations = 1};
	struct unreported *unreported, none = {};
	u32 steps = 0, slice_steps = 0, all;
	u64 sub, now, total = 0;

	if (!layout)
		return 0;
	sub = find(ctx, layout, &key);
	if (!sub)
		return 0;
	operation = open_operations.lookup(&key);
	if (!operation)
		operation = &unseen;
	if (READ_USER(steps, sub + layout->steps) || READ_USER(slice_steps, key.operation + layout->slice_steps) ||
	    !slice_steps || slice_steps > (1 << 16) || steps > (1 << 30) ||
	    !describe(layout, key.operation, sub, key.connection, &row)) {
		count(NETMON_IMPLAUSIBLE, 1);
		return 0;
	}
	now = bpf_ktime_get_ns();
	all = (steps + slice_steps - 1) / slice_steps;
	row.pid = key.pid;
	row.queued_ns = operation->queued_ns;
	row.start_ns = operation->first_ns ? operation->first_ns : operation->queued_ns ? operation->queued_ns : now;
	row.end_ns = now;
	row.bytes = operation->bytes - operation->told_bytes;
	row.transfers = operation->transfers - operation->told;
	row.missed = all > operation->transfers ? all - operation->transfers : 0;
	if (layout->total && operation->queued_ns && !READ_USER(total, sub + layout->size) &&
	    total - operation->before <= NETMON_MOST_TRANSFER_BYTES) {
		row.bytes = total - operation->before;
		row.transfers = all;
		row.missed = 0;
	}
	if (operation != &unseen)
		open_operations.delete(&key);
	on.connection = key.connection;
	on.pid = key.pid;
	unreported = unreported_operations.lookup(&on);
	if (unreported && unreported->operations) {
		row.level = NETMON_OPERATIONS;
		row.queued_ns = unreported->queued_ns;
		row.start_ns = unreported->start_ns;
		row.bytes += unreported->bytes;
		row.transfers += unreported->transfers;
		row.missed += unreported->missed;
		row.operations += unreported->operations;
	}
	if (may_tell(key.pid, now) && submit_row(&row)) {
		if (unreported && unreported->operations) {
			count(NETMON_UNREPORTED, -(u64)unreported->operations);
			count(NETMON_UNREPORTED_BYTES, -unreported->bytes);
			unreported->operations = 0;
		}
		return 0;
	}
	count(NETMON_UNREPORTED, 1);
	count(NETMON_UNREPORTED_BYTES, row.bytes - (unreported && unreported->operations ? unreported->bytes : 0));
	none.queued_ns = row.queued_ns;
	none.start_ns = row.start_ns;
	none.bytes = row.bytes;
	none.transfers = row.transfers;
	none.missed = row.missed;
	none.operations = row.operations;
	unreported_operations.update(&on, &none);
	return 0;
}
