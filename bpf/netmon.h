/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The only contract between the kernel and user space: every structure, map and limit that crosses the
 * boundary stands here, and nowhere else. netmon/records.py mirrors the structures as numpy dtypes; the two
 * are compared at load, and a mismatch refuses to start.
 *
 * Set at load: NETMON_BUCKET_NS (bucket width), NETMON_SLOTS (per CPU, power of two), NETMON_CPUS (possible
 * CPUs), NETMON_LINKS (power of two), NETMON_RING_PAGES, NETMON_FLOW_PAGES, NETMON_STEP_PAGES.
 */
#ifndef NETMON_H
#define NETMON_H

#define NETMON_RX 0
#define NETMON_TX 1

/* Slots that one flow may live in: a set is scanned once, so the cost of a packet has a bound. */
#define NETMON_WAYS 4

/* What a flow that is not IP has for a protocol; its destination port is the EtherType. */
#define NETMON_PROTOCOL_NON_IP 255

/*
 * One unidirectional 5-tuple on one link. IPv4 addresses are IPv4-mapped (::ffff:a.b.c.d). Ports are in
 * network order, 0 where there are none (other protocols, fragments).
 */
struct netmon_flow_key {
	u8 src[16];
	u8 dst[16];
	u16 src_port;
	u16 dst_port;
	u32 link_protocol; /* ifindex << 9 | direction << 8 | IP protocol */
};

/*
 * The open bucket of one flow on one CPU: one cache line. Only its own CPU writes it (the programs run with
 * bottom halves off), so nothing here is atomic; user space reads it through a mapping and never writes.
 */
struct netmon_slot {
	struct netmon_flow_key key;
	u64 bucket_start_ns; /* CLOCK_MONOTONIC; 0: never used */
	u32 wire_bytes;
	u32 payload_bytes;
	u16 packets;	/* segments */
	u16 generation; /* how often the slot changed its flow; bounded in flight by the flow ring's size */
	u32 pad;
};

/* A flow has taken a slot. Submitted before the first bucket of that flow in that slot can be. */
struct netmon_flow {
	struct netmon_flow_key key;
	u32 slot;
	u16 generation;
	u16 pad;
};

/* A closed bucket of the flow that held (slot, generation). */
struct netmon_bucket {
	u64 bucket_start_ns;
	u32 wire_bytes;
	u32 payload_bytes;
	u32 slot;
	u16 generation;
	u16 packets;
};

/* Monotonic counters of one link on one CPU. */
struct netmon_ledger {
	u32 link; /* ifindex << 1 | direction; 0: not in use */
	u32 pad;
	u64 frames;	 /* sk_buffs or XDP buffers seen */
	u64 packets;	 /* the same as sent on the link: the segments of a super-packet */
	u64 frame_bytes; /* their lengths, as a software NIC counts them: a super-packet has one header */
	u64 wire_bytes;	 /* the same as sent on the link: a super-packet has one header per segment */
	u64 overflow_packets, overflow_wire_bytes, overflow_payload_bytes; /* new flow, flow ring full */
	u64 lost_packets, lost_wire_bytes, lost_payload_bytes;		   /* closed bucket, bucket ring full */
};

#define NETMON_STEP_ENQUEUE 1 /* entry: a gradient was handed to the library */
#define NETMON_STEP_WAIT 2    /* return: the wait for a reduced gradient is over */

/* What a training process did, in the clock of the buckets. */
struct netmon_step {
	u64 time_ns;
	u64 name_hash; /* FNV-1a of the first tensor's name, 0 where unknown */
	u32 pid;       /* thread group */
	u32 kind;
};

/* Bytes of a tensor's name that are hashed, a power of two. */
#define NETMON_NAME_BYTES 256

#endif
