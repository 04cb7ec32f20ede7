// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Counts every frame of the watched links in buckets of time, per flow, and lets it pass.
 *
 * The open buckets live in a set-associative table: a flow's hash names a set of NETMON_WAYS slots of its own
 * CPU, and a tag of 16 bits that tells which of them is likely the flow's. A packet whose flow has a slot costs the
 * parsing, one clock read and a few array accesses. One whose flow has none takes the slot whose bucket was opened
 * longest ago: the old flow's bucket is closed and the new flow announced, so the table is never full and nobody has
 * to delete from it. What can be full are the CPU's two rings to user space; then the bytes are added to the
 * overflow counters of their link (no room to announce a flow) or to the lost ones (no room for a closed bucket).
 * Either way every byte of `wire_bytes` in the ledger is in exactly one place.
 *
 * Nothing here is locked or atomic: the programs run with bottom halves off, so that those of one CPU run one after the
 * other, and every map is divided among the CPUs. Where a kernel preempts bottom halves and has no lock that keeps them
 * apart, netmon/kernel/loader.py refuses to load any of this.
 */
#include "tunnels.h"
#include "ways.h"

#define PASS_XDP 2   /* XDP_PASS */
#define PASS_TC (-1) /* TCX_NEXT, TC_ACT_UNSPEC: on to the next program, as if we were not there */

#define NETMON_SETS (NETMON_SLOTS / NETMON_WAYS)
#define LINKS ((NETMON_LINKS + 1) * 2) /* ledger entries of a CPU */

BPF_TABLE("array", u32, struct netmon_interface, interfaces, NETMON_INTERFACES);
BPF_TABLE("array", u32, struct set, sets, NETMON_CPUS *NETMON_SETS);
BPF_F_TABLE("array", u32, struct netmon_slot, slots, NETMON_CPUS *NETMON_SLOTS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_ledger, ledger, NETMON_CPUS *LINKS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_producer, producers, NETMON_CPUS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_consumer, consumers, NETMON_CPUS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_bucket, buckets, NETMON_CPUS *NETMON_BUCKETS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct netmon_flow, flows, NETMON_CPUS *NETMON_FLOWS, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(wakes, 1);

/*
 * What was stored before is seen by user space's reading of the mapping before what is stored after. x86 keeps the
 * order of stores by itself; elsewhere an atomic operation that returns a value keeps it (there is no fence in BPF).
 */
static __always_inline void publish(struct netmon_producer *producer)
{
#ifdef NETMON_WEAK_ORDER
	u64 fences = __sync_fetch_and_add(&producer->fences, 1);

	asm volatile("" : : "r"(fences) : "memory");
#else
	asm volatile("" ::: "memory");
#endif
}

struct amount {
	u64 now;
	u32 wire_bytes;
	u32 payload_bytes;
	u16 packets;
};

/* Where a packet's flow is counted. */
struct place {
	u32 cpu;
	u32 set;
	u32 way;
	u32 slot;
	u16 tag;
};

static __always_inline u32 number_of(u32 ifindex)
{
#pragma unroll
	for (int i = 0; i < NETMON_PROBES; i++) {
		u32 place = (ifindex + i) & (NETMON_INTERFACES - 1);
		struct netmon_interface *interface = interfaces.lookup(&place);

		if (interface && interface->index == ifindex)
			return interface->number;
	}
	return 0;
}

static __always_inline struct netmon_ledger *ledger_of(u32 cpu, u32 link)
{
	u32 index = cpu * LINKS + link;

	return ledger.lookup(&index);
}

/* The time comes first: who reads the old time twice has read the old counts in between. */
static __always_inline void open_bucket(struct netmon_slot *slot, struct netmon_producer *producer,
					const struct amount *a)
{
	slot->bucket_start_ns = a->now - a->now % NETMON_BUCKET_NS;
	publish(producer);
	slot->wire_bytes = a->wire_bytes;
	slot->payload_bytes = a->payload_bytes;
	slot->packets = a->packets;
}

/* What is lost is the flow's that held the slot, whoever displaces it. */
static __always_inline void lose(struct netmon_slot *slot, struct netmon_producer *producer, u32 cpu)
{
	struct netmon_ledger *l = ledger_of(cpu, slot->key.link_protocol >> 8);

	if (l) {
		l->lost_packets += slot->packets;
		l->lost_wire_bytes += slot->wire_bytes;
		l->lost_payload_bytes += slot->payload_bytes;
	}
	publish(producer);
	slot->losses++;
	publish(producer);
	producer->losses++;
}

/* Whether there is room at this position: looks at where user space is only when the ring seems full. */
static __always_inline int has_room(u64 position, u64 *limit, u32 cpu, int of_flows, u32 size)
{
	struct netmon_consumer *consumer;

	if (position < *limit)
		return 1;
	consumer = consumers.lookup(&cpu);
	if (consumer)
		*limit = (of_flows ? consumer->flows : consumer->buckets) + size;
	return position < *limit;
}

/*
 * Ends user space's sleep when it has waited for what was just published, once. Where both sides move at the same moment the
 * record may go unnoticed until the next one or until user space wakes by itself: it is late then, and not lost.
 */
static __always_inline void wake(struct netmon_producer *producer, u32 cpu)
{
	struct netmon_consumer *consumer = consumers.lookup(&cpu);
	u64 sleep;

	if (!consumer || (producer->buckets <= consumer->wake_buckets && producer->flows <= consumer->wake_flows))
		return;
	sleep = consumer->sleep;
	if (producer->woken == sleep)
		return;
	producer->woken = sleep;
	wakes.ringbuf_output(&sleep, sizeof(sleep), BPF_RB_FORCE_WAKEUP);
}

/*
 * Closes the slot's bucket and opens the next one. The record is published after the slot was rewritten: whoever has
 * seen the record will not find the same bucket open in the slot any more.
 */
static __always_inline void next_bucket(struct netmon_slot *slot, struct netmon_producer *producer,
					const struct place *at, const struct amount *a)
{
	u32 cpu = at->cpu, index = cpu * NETMON_BUCKETS + (producer->buckets & (NETMON_BUCKETS - 1));
	struct netmon_bucket *closed = 0;

	if (has_room(producer->buckets, &producer->buckets_limit, cpu, 0, NETMON_BUCKETS))
		closed = buckets.lookup(&index);
	if (!closed) {
		lose(slot, producer, cpu);
		open_bucket(slot, producer, a);
		return;
	}
	closed->bucket_start_ns = slot->bucket_start_ns;
	closed->wire_bytes = slot->wire_bytes;
	closed->payload_bytes = slot->payload_bytes;
	closed->slot = at->slot;
	closed->generation = slot->generation;
	closed->packets = slot->packets;
	open_bucket(slot, producer, a);
	publish(producer);
	producer->buckets++;
}

static __always_inline void next_flow(struct set *s, struct netmon_ledger *l, const struct place *at,
				      const union flow_words *flow, const struct amount *a)
{
	u32 cpu = at->cpu, slot_index = at->slot, index, shift = at->way * 16;
	struct netmon_producer *producer = producers.lookup(&cpu);
	struct netmon_slot *slot = slots.lookup(&slot_index);
	struct netmon_flow *opened = 0;

	if (!producer || !slot)
		return;
	index = cpu * NETMON_FLOWS + (producer->flows & (NETMON_FLOWS - 1));
	if (has_room(producer->flows, &producer->flows_limit, cpu, 1, NETMON_FLOWS))
		opened = flows.lookup(&index);
	if (!opened) {
		l->overflow_packets += a->packets;
		l->overflow_wire_bytes += a->wire_bytes;
		l->overflow_payload_bytes += a->payload_bytes;
		return;
	}
	if (slot->bucket_start_ns)
		next_bucket(slot, producer, at, a);
	else
		open_bucket(slot, producer, a);
	s->tags = (s->tags & ~(0xffffULL << shift)) | (u64)at->tag << shift;
	s->opened[at->way & (NETMON_WAYS - 1)] = a->now >> OPENED_SHIFT;
	slot->key = flow->key;
	slot->generation++;
	opened->key = flow->key;
	opened->slot = at->slot;
	opened->generation = slot->generation;
	publish(producer);
	producer->flows++;
	wake(producer, cpu);
}

static __always_inline void add(struct netmon_slot *slot, struct set *s, const struct place *at, const struct amount *a)
{
	u32 wire_bytes = slot->wire_bytes + a->wire_bytes, cpu = at->cpu;
	u32 packets = slot->packets + a->packets;
	struct netmon_producer *producer;

	/* A bucket that its fields cannot hold is closed early; user space adds the two records up. */
	if (a->now - slot->bucket_start_ns >= NETMON_BUCKET_NS || wire_bytes < slot->wire_bytes || packets > 0xffff) {
		producer = producers.lookup(&cpu);
		if (!producer)
			return;
		s->opened[at->way & (NETMON_WAYS - 1)] = a->now >> OPENED_SHIFT;
		next_bucket(slot, producer, at, a);
		wake(producer, cpu);
		return;
	}
	slot->wire_bytes = wire_bytes;
	slot->payload_bytes += a->payload_bytes;
	slot->packets = packets;
}

static __always_inline void account(struct packet *p, u32 ifindex, u32 direction, u32 frame_bytes,
				    const struct amount *a)
{
	u32 link = number_of(ifindex) << 1 | direction;
	struct place at = {.cpu = bpf_get_smp_processor_id()};
	struct netmon_ledger *l = ledger_of(at.cpu, link);
	struct set *s;
	u64 hash, lanes;

	if (!l)
		return;
	l->frames++;
	l->packets += a->packets;
	l->frame_bytes += frame_bytes;
	l->wire_bytes += a->wire_bytes;

	p->flow.key.link_protocol = link << 8 | p->protocol;
	hash = hash_of(&p->flow);
	at.set = at.cpu * NETMON_SETS + (hash >> 28 & (NETMON_SETS - 1));
	at.tag = hash >> 48 | 1;
	s = sets.lookup(&at.set);
	if (!s)
		return;
	lanes = lanes_with(s->tags, at.tag);
	for (int i = 0; i < NETMON_WAYS; i++) { /* once, unless flows of one set have the same tag */
		struct netmon_slot *slot;

		if (!lanes)
			break;
		at.way = lowest_lane(lanes);
		at.slot = at.set * NETMON_WAYS + at.way;
		slot = slots.lookup(&at.slot);
		if (!slot)
			return;
		if (same_flow(slot, &p->flow)) {
			add(slot, s, &at, a);
			return;
		}
		lanes &= lanes - 1;
	}
	lanes = lanes_with(s->tags, 0);
	at.way = lanes ? lowest_lane(lanes) : quietest(s, a->now);
	at.slot = at.set * NETMON_WAYS + at.way;
	next_flow(s, l, &at, &p->flow, a);
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

/* bpf_xdp_get_buff_len by its number (Linux 5.18): bcc knows its name from 0.25 on. */
static u64 (*xdp_frame_bytes)(struct xdp_md *ctx) = (void *)188;

/* For interfaces whose frames do not fit into one page: the headers do, the rest is in fragments. */
int meter_xdp_frags(struct xdp_md *ctx)
{
	meter_xdp_buffer(ctx, xdp_frame_bytes(ctx));
	return PASS_XDP;
}

/*
 * A super-packet becomes what its segments are on the link. Each has all headers up to the innermost payload; those
 * beyond the flow's own are its payload. TCP that is in no tunnel says all that is needed by itself.
 */
static __always_inline void segment(struct __sk_buff *skb, const struct packet *p, struct amount *a)
{
	u32 count = skb->gso_segs, size = skb->gso_size, header = p->header_bytes, inner = 0, jumbo = 0;
	u32 only = 0;
	walk_t *w;

	if (count <= 1 && !size)
		return;
	w = walks.lookup(&only);
	if (w && (p->protocol != IP_TCP || skb->len > 0xffff) && !walk_layers(skb, w, count)) {
		jumbo = w->jumbo_bytes;
		if (w->position > header && w->position - header < a->payload_bytes)
			inner = w->position - header;
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
