// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Counts every frame of the watched links in buckets of time, per flow, and lets it pass.
 *
 * The open buckets live in a set-associative table: a flow's hash names a set of NETMON_WAYS slots of its own
 * CPU. A packet whose flow has a slot costs the parsing, one clock read and one array access. One whose flow
 * has none takes the slot that was quiet longest: the old flow's bucket is closed and the new flow announced, so
 * the table is never full and nobody has to delete from it. What can be full are the two rings to user space;
 * then the bytes are added to the link's overflow (no room to announce a flow) or lost (no room for a closed
 * bucket) counters. Either way every byte of `wire_bytes` in the ledger is in exactly one place.
 */
#include "tunnels.h"

#define PASS_XDP 2   /* XDP_PASS */
#define PASS_TC (-1) /* TCX_NEXT, TC_ACT_UNSPEC: on to the next program, as if we were not there */

#define NETMON_SETS (NETMON_SLOTS / NETMON_WAYS)
#define ALL_SETS (NETMON_CPUS * NETMON_SETS)
#define ALL_LINKS (NETMON_CPUS * NETMON_LINKS * 2)

struct netmon_set {
	struct netmon_slot way[NETMON_WAYS];
};

BPF_F_TABLE("array", u32, struct netmon_set, slots, ALL_SETS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_ledger, ledger, ALL_LINKS, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(buckets, NETMON_RING_PAGES);
BPF_RINGBUF_OUTPUT(flows, NETMON_FLOW_PAGES);

/* User space polls; a wake-up per record would cost more than the record. */
#define NO_WAKEUP 1

/* Orders our stores as seen by user space's reading of the mapping (x86 keeps store order by itself). */
#define publish() asm volatile("" ::: "memory")

struct amount {
	u64 now;
	u32 wire_bytes;
	u32 payload_bytes;
	u16 packets;
};

static __always_inline u32 set_of(const union flow_words *flow)
{
	u64 h = flow->word[0] * 0x9e3779b97f4a7c15ULL;

	h = (h ^ flow->word[1]) * 0xbf58476d1ce4e5b9ULL;
	h ^= flow->word[2] * 0x94d049bb133111ebULL;
	h = (h ^ (h >> 29) ^ flow->word[3]) * 0xd6e8feb86659fd93ULL;
	h = (h ^ (h >> 32) ^ flow->word[4]) * 0xa0761d6478bd642fULL;
	return (h >> 40) & (NETMON_SETS - 1);
}

static __always_inline int same_flow(const struct netmon_slot *slot, const union flow_words *flow)
{
	const u64 *word = (const u64 *)&slot->key;

	/* ports and link first: the likeliest to differ */
	return word[4] == flow->word[4] && word[3] == flow->word[3] && word[1] == flow->word[1] &&
	       word[2] == flow->word[2] && word[0] == flow->word[0];
}

/* The time comes first: who reads the old time twice has read the old counts in between. */
static __always_inline void open_bucket(struct netmon_slot *slot, const struct amount *a)
{
	slot->bucket_start_ns = a->now - a->now % NETMON_BUCKET_NS;
	publish();
	slot->wire_bytes = a->wire_bytes;
	slot->payload_bytes = a->payload_bytes;
	slot->packets = a->packets;
}

static __always_inline void lose(struct netmon_ledger *l, const struct netmon_slot *slot)
{
	l->lost_packets += slot->packets;
	l->lost_wire_bytes += slot->wire_bytes;
	l->lost_payload_bytes += slot->payload_bytes;
}

static __always_inline void fill(struct netmon_bucket *bucket, const struct netmon_slot *slot, u32 index)
{
	bucket->bucket_start_ns = slot->bucket_start_ns;
	bucket->wire_bytes = slot->wire_bytes;
	bucket->payload_bytes = slot->payload_bytes;
	bucket->slot = index;
	bucket->generation = slot->generation;
	bucket->packets = slot->packets;
}

/*
 * A record is submitted after its slot was rewritten: whoever has seen the record will not find the same bucket
 * open in the slot any more.
 */
static __always_inline void next_bucket(struct netmon_slot *slot, u32 index, struct netmon_ledger *l,
					const struct amount *a)
{
	struct netmon_bucket *closed = buckets.ringbuf_reserve(sizeof(*closed));

	if (!closed) {
		lose(l, slot);
		open_bucket(slot, a);
		return;
	}
	fill(closed, slot, index);
	open_bucket(slot, a);
	publish();
	buckets.ringbuf_submit(closed, NO_WAKEUP);
}

static __always_inline void next_flow(struct netmon_slot *slot, u32 index, struct netmon_ledger *l,
				      const union flow_words *flow, const struct amount *a)
{
	struct netmon_flow *opened = flows.ringbuf_reserve(sizeof(*opened));
	u16 generation = slot->generation + 1;

	if (!opened) {
		l->overflow_packets += a->packets;
		l->overflow_wire_bytes += a->wire_bytes;
		l->overflow_payload_bytes += a->payload_bytes;
		return;
	}
	if (slot->packets)
		next_bucket(slot, index, l, a);
	else
		open_bucket(slot, a);
	slot->key = flow->key;
	slot->generation = generation;
	opened->key = flow->key;
	opened->slot = index;
	opened->generation = generation;
	opened->pad = 0;
	flows.ringbuf_submit(opened, NO_WAKEUP);
}

static __always_inline void add(struct netmon_slot *slot, u32 index, struct netmon_ledger *l, const struct amount *a)
{
	u32 wire_bytes = slot->wire_bytes + a->wire_bytes;
	u32 packets = slot->packets + a->packets;

	/* A bucket that its fields cannot hold is closed early; user space adds the two records up. */
	if (a->now - slot->bucket_start_ns >= NETMON_BUCKET_NS || wire_bytes < slot->wire_bytes || packets > 0xffff) {
		next_bucket(slot, index, l, a);
		return;
	}
	slot->wire_bytes = wire_bytes;
	slot->payload_bytes += a->payload_bytes;
	slot->packets = packets;
}

static __always_inline void account(struct packet *p, u32 ifindex, u32 direction, u32 frame_bytes,
				    const struct amount *a)
{
	u32 cpu = bpf_get_smp_processor_id(), index, set;
	struct netmon_slot *victim;
	struct netmon_ledger *l;
	struct netmon_set *s;
	u32 chosen = 0;

	index = (cpu * NETMON_LINKS + (ifindex & (NETMON_LINKS - 1))) * 2 + direction;
	l = ledger.lookup(&index);
	if (!l)
		return;
	l->link = ifindex << 1 | direction;
	l->frames++;
	l->packets += a->packets;
	l->frame_bytes += frame_bytes;
	l->wire_bytes += a->wire_bytes;

	p->flow.key.link_protocol = ifindex << 9 | direction << 8 | p->protocol;
	set = cpu * NETMON_SETS + set_of(&p->flow);
	s = slots.lookup(&set);
	if (!s)
		return;
#pragma unroll
	for (int i = 0; i < NETMON_WAYS; i++) {
		if (same_flow(&s->way[i], &p->flow)) {
			add(&s->way[i], set * NETMON_WAYS + i, l, a);
			return;
		}
	}
	victim = &s->way[0];
#pragma unroll
	for (int i = 1; i < NETMON_WAYS; i++) {
		if (s->way[i].bucket_start_ns < victim->bucket_start_ns) {
			victim = &s->way[i];
			chosen = i;
		}
	}
	next_flow(victim, set * NETMON_WAYS + chosen, l, &p->flow, a);
}

static __always_inline void meter_xdp_buffer(struct xdp_md *ctx, u32 frame_bytes)
{
	struct amount a = {.now = bpf_ktime_get_ns(), .wire_bytes = frame_bytes, .packets = 1};
	struct packet p;

	parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end, frame_bytes);
	a.payload_bytes = p.payload_bytes;
	account(&p, ctx->ingress_ifindex, NETMON_RX, frame_bytes, &a);
}

int meter_xdp(struct xdp_md *ctx)
{
	meter_xdp_buffer(ctx, ctx->data_end - ctx->data);
	return PASS_XDP;
}

/* For interfaces whose frames do not fit into one page: the headers do, the rest is in fragments. */
int meter_xdp_frags(struct xdp_md *ctx)
{
	meter_xdp_buffer(ctx, bpf_xdp_get_buff_len(ctx));
	return PASS_XDP;
}

/*
 * A super-packet becomes what its segments are on the link. Each has all headers up to the innermost payload; those
 * beyond the flow's own are its payload. TCP that is in no tunnel says all that is needed by itself.
 */
static __always_inline void segment(struct __sk_buff *skb, const struct packet *p, struct amount *a)
{
	u32 count = skb->gso_segs, size = skb->gso_size, header = p->header_bytes, inner = 0, jumbo = 0;
	struct walk w = {};

	if (count <= 1 && !size)
		return;
	if ((p->protocol != IP_TCP || skb->len > 0xffff) && !walk_layers(skb, &w, count)) {
		jumbo = w.jumbo_bytes;
		if (w.position > header && w.position - header < a->payload_bytes)
			inner = w.position - header;
	}
	if (!count)
		count = (a->payload_bytes - inner + size - 1) / size;
	if (!count)
		return;
	a->packets = count;
	a->wire_bytes += (count - 1) * (header + inner) - count * jumbo;
	a->payload_bytes += (count - 1) * inner;
}

static __always_inline void meter_tc(struct __sk_buff *skb, u32 direction)
{
	struct amount a = {.now = bpf_ktime_get_ns(), .packets = 1};
	u32 frame_bytes = skb->len;
	struct packet p;

	if (parse(&p, (void *)(long)skb->data, (void *)(long)skb->data_end, frame_bytes) < 0 &&
	    skb->data_end - skb->data < frame_bytes) {
		/* Headers outside the linear part: the kernel will pull them in sooner or later, so it may be now. */
		bpf_skb_pull_data(skb, frame_bytes < 192 ? frame_bytes : 192);
		parse(&p, (void *)(long)skb->data, (void *)(long)skb->data_end, frame_bytes);
	}
	a.wire_bytes = frame_bytes;
	a.payload_bytes = p.payload_bytes;
	segment(skb, &p, &a);
	if (skb->vlan_present) {
		/* A tag that stands in the metadata is on the link all the same, in every segment. */
		a.wire_bytes += a.packets * VLAN_BYTES;
		/* What is received was counted by the NIC before its tag was put aside. */
		if (direction == NETMON_RX)
			frame_bytes += VLAN_BYTES;
	}
	account(&p, skb->ifindex, direction, frame_bytes, &a);
}

int meter_tc_ingress(struct __sk_buff *skb)
{
	meter_tc(skb, NETMON_RX);
	return PASS_TC;
}

int meter_tc_egress(struct __sk_buff *skb)
{
	meter_tc(skb, NETMON_TX);
	return PASS_TC;
}
