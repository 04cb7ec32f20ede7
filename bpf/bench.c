// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * What the meter is measured against: nothing, the floor (one clock read and one lookup of a key of the same size),
 * and a front that gives every packet another flow before it goes on to the program under test.
 */
#include "netmon.h"

#define PASS_XDP 2
#define PASS_TC (-1)

/* From the start of the frame: the last two bytes of the IPv4 source address, and the source port behind it. */
#define ADDRESS_TAIL 28
#define SOURCE_PORT 34

struct turn {
	u32 next;
	u32 mask; /* flows in turn, less one */
};

struct words {
	u64 word[5];
};

BPF_PROG_ARRAY(xdp_target, 1);
BPF_PROG_ARRAY(tc_target, 1);
BPF_ARRAY(turns, struct turn, 1);
BPF_HASH(floor_table, struct words, u64, 65536);

static __always_inline void change_flow(void *data, void *end)
{
	struct turn *turn;
	u32 zero = 0, flow;

	turn = turns.lookup(&zero);
	if (!turn || data + SOURCE_PORT + 2 > end)
		return;
	flow = turn->next++ & turn->mask;
	*(u16 *)(data + SOURCE_PORT) = flow;
	*(u16 *)(data + ADDRESS_TAIL) = flow >> 16;
}

static __always_inline void floor(void)
{
	struct words key = {};
	u64 now = bpf_ktime_get_ns(), *value;

	value = floor_table.lookup(&key);
	if (value)
		*value += now;
}

int empty_xdp(struct xdp_md *ctx)
{
	return PASS_XDP;
}

int empty_tc(struct __sk_buff *skb)
{
	return PASS_TC;
}

int floor_xdp(struct xdp_md *ctx)
{
	floor();
	return PASS_XDP;
}

int floor_tc(struct __sk_buff *skb)
{
	floor();
	return PASS_TC;
}

int turn_xdp(struct xdp_md *ctx)
{
	change_flow((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	xdp_target.call(ctx, 0);
	return PASS_XDP;
}

int turn_tc(struct __sk_buff *skb)
{
	change_flow((void *)(long)skb->data, (void *)(long)skb->data_end);
	tc_target.call(skb, 0);
	return PASS_TC;
}
