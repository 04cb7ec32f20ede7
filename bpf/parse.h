/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Packet parsing: each step checks its bounds, advances the cursor and returns the next type, or -1 where the
 * frame ends before the header does. Nothing is assumed about a frame: what cannot be read is counted on the
 * flow that has only an EtherType, so that no byte is left out.
 */
#ifndef NETMON_PARSE_H
#define NETMON_PARSE_H

#include "netmon.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_8021Q 0x8100
#define ETHERTYPE_8021AD 0x88a8

#define IP_HOP_BY_HOP 0
#define IP_TCP 6
#define IP_UDP 17
#define IP_ROUTING 43
#define IP_FRAGMENT 44
#define IP_AH 51
#define IP_DESTINATION 60

#define VLAN_TAGS 2
#define VLAN_BYTES 4
/* A chain longer than this is counted by the protocol number that stands where we stopped, without ports. */
#define IPV6_EXTENSIONS 6

struct ethernet_header {
	u8 destination[6];
	u8 source[6];
	u16 type;
};

struct vlan_header {
	u16 tag;
	u16 type;
};

struct ipv4_header {
	u8 version_length;
	u8 service;
	u16 total_length;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 src;
	u32 dst;
};

struct ipv6_header {
	u32 version_class_label;
	u16 payload_length;
	u8 next;
	u8 hops;
	u64 src[2];
	u64 dst[2];
};

struct ipv6_extension {
	u8 next;
	u8 length;
	u16 fragment;
	u32 rest;
};

struct tcp_header {
	u16 src_port;
	u16 dst_port;
	u32 sequence;
	u32 acknowledgement;
	u8 offset;
	u8 flags;
	u16 window;
	u32 checksum_urgent;
};

struct udp_header {
	u16 src_port;
	u16 dst_port;
	u16 length;
	u16 checksum;
};

struct cursor {
	void *start;
	void *position;
	void *end;
};

/* The key as the words in which it is compared and hashed. */
union flow_words {
	struct netmon_flow_key key;
	u64 word[5];
};

struct packet {
	union flow_words flow;
	u32 protocol;
	u32 header_bytes;  /* up to the transport payload */
	u32 payload_bytes; /* transport payload */
};

static __always_inline u16 swap16(u16 value)
{
	return __builtin_bswap16(value);
}

static __always_inline u32 offset(const struct cursor *c)
{
	return c->position - c->start;
}

static __always_inline int parse_ethernet(struct cursor *c)
{
	struct ethernet_header *eth = c->position;
	u16 type;

	if ((void *)(eth + 1) > c->end)
		return -1;
	c->position = eth + 1;
	type = swap16(eth->type);
#pragma unroll
	for (int i = 0; i < VLAN_TAGS; i++) {
		struct vlan_header *vlan = c->position;

		if (type != ETHERTYPE_8021Q && type != ETHERTYPE_8021AD)
			break;
		if ((void *)(vlan + 1) > c->end)
			return type;
		c->position = vlan + 1;
		type = swap16(vlan->type);
	}
	return type;
}

/* Ports and header of TCP and UDP. A later fragment has no header; a first one has, but its flow has no ports. */
static __always_inline int parse_transport(struct cursor *c, struct packet *p, int fragment, int first)
{
	if (fragment && !first)
		return 0;
	if (p->protocol == IP_TCP) {
		struct tcp_header *tcp = c->position;
		u32 length;

		if ((void *)(tcp + 1) > c->end)
			return -1;
		length = (tcp->offset >> 4) * 4;
		if (length < sizeof(*tcp))
			return -1;
		p->header_bytes += length;
		if (!fragment) {
			p->flow.key.src_port = tcp->src_port;
			p->flow.key.dst_port = tcp->dst_port;
		}
	} else if (p->protocol == IP_UDP) {
		struct udp_header *udp = c->position;

		if ((void *)(udp + 1) > c->end)
			return -1;
		p->header_bytes += sizeof(*udp);
		if (!fragment) {
			p->flow.key.src_port = udp->src_port;
			p->flow.key.dst_port = udp->dst_port;
		}
	}
	return 0;
}

/* total: length from the start of the IP header; 0 where the header does not say (super-packets above 64 KB). */
static __always_inline void set_payload(struct packet *p, u32 ip_offset, u32 total, u32 frame_bytes)
{
	u32 end = ip_offset + total;

	if (!total || end > frame_bytes)
		end = frame_bytes; /* never more than is there */
	p->payload_bytes = end > p->header_bytes ? end - p->header_bytes : 0;
}

static __always_inline int parse_ipv4(struct cursor *c, struct packet *p, u32 frame_bytes)
{
	struct ipv4_header *ip = c->position;
	u32 ip_offset = offset(c), length, *word;
	u16 fragment;

	if ((void *)(ip + 1) > c->end || ip->version_length >> 4 != 4)
		return -1;
	length = (ip->version_length & 15) * 4;
	if (length < sizeof(*ip))
		return -1;
	c->position += length;
	word = (u32 *)p->flow.key.src;
	word[2] = __builtin_bswap32(0xffff);
	word[3] = ip->src;
	word = (u32 *)p->flow.key.dst;
	word[2] = __builtin_bswap32(0xffff);
	word[3] = ip->dst;
	p->protocol = ip->protocol;
	p->header_bytes = ip_offset + length;
	fragment = swap16(ip->fragment) & 0x3fff; /* more-fragments flag and offset */
	if (parse_transport(c, p, fragment != 0, (fragment & 0x1fff) == 0) < 0)
		return -1;
	set_payload(p, ip_offset, swap16(ip->total_length), frame_bytes);
	return 0;
}

static __always_inline int parse_ipv6(struct cursor *c, struct packet *p, u32 frame_bytes)
{
	struct ipv6_header *ip = c->position;
	u32 ip_offset = offset(c), total;
	int fragment = 0, first = 1;
	u8 next;

	if ((void *)(ip + 1) > c->end || (*(u8 *)ip) >> 4 != 6)
		return -1;
	c->position = ip + 1;
	p->flow.word[0] = ip->src[0];
	p->flow.word[1] = ip->src[1];
	p->flow.word[2] = ip->dst[0];
	p->flow.word[3] = ip->dst[1];
	p->header_bytes = ip_offset + sizeof(*ip);
	next = ip->next;
#pragma unroll
	for (int i = 0; i < IPV6_EXTENSIONS; i++) {
		struct ipv6_extension *extension = c->position;
		u32 length;

		if (next != IP_HOP_BY_HOP && next != IP_ROUTING && next != IP_DESTINATION && next != IP_FRAGMENT &&
		    next != IP_AH)
			break;
		if ((void *)(extension + 1) > c->end)
			return -1;
		length = (extension->length + 1) * 8;
		if (next == IP_FRAGMENT) {
			length = sizeof(*extension);
			first = !(swap16(extension->fragment) & 0xfff8);
			fragment = !first || (swap16(extension->fragment) & 1);
		} else if (next == IP_AH) {
			length = (extension->length + 2) * 4;
		}
		next = extension->next;
		c->position += length;
		p->header_bytes += length;
		if (!first)
			break;
	}
	p->protocol = next;
	if (parse_transport(c, p, fragment, first) < 0)
		return -1;
	total = swap16(ip->payload_length);
	set_payload(p, ip_offset, total ? total + sizeof(*ip) : 0, frame_bytes);
	return 0;
}

/* Fills everything of the packet but the link. 0, or -1 where the frame is shorter than its headers say. */
static __always_inline int parse(struct packet *p, void *data, void *end, u32 frame_bytes)
{
	struct cursor c = {data, data, end};
	int type = parse_ethernet(&c), failed = 0;

	__builtin_memset(p, 0, sizeof(*p));
	if (type == ETHERTYPE_IPV4)
		failed = parse_ipv4(&c, p, frame_bytes);
	else if (type == ETHERTYPE_IPV6)
		failed = parse_ipv6(&c, p, frame_bytes);
	else
		failed = 1;
	if (failed) {
		__builtin_memset(p, 0, sizeof(*p));
		p->protocol = NETMON_PROTOCOL_NON_IP;
		p->flow.key.dst_port = type < 0 ? 0 : swap16(type);
		p->header_bytes = offset(&c);
		return failed < 0 || type < 0 ? -1 : 0;
	}
	return 0;
}

#endif
