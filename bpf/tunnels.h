/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What each segment of a super-packet repeats: all headers up to the innermost transport's payload. Only
 * super-packets that may be in a tunnel come here, so this reads by a helper, which also sees what is not in the
 * linear part, and is simple rather than fast. A layer that is not known (MPLS, ESP, FOU) ends the walk; then only the
 * outer header is taken to repeat.
 */
#ifndef NETMON_TUNNELS_H
#define NETMON_TUNNELS_H

#include "parse.h"

#define ETHERTYPE_BRIDGED 0x6558 /* an Ethernet frame */
#define IP_IPV4 4
#define IP_IPV6 41
#define IP_GRE 47
#define IP_ETHERNET 143

/* Outer and inner Ethernet, two tags each, IPv6, a tunnel, and what extension headers there may be. */
#define LAYERS 14

/* What stands at the walk's position: an EtherType, or with this bit an IP protocol. */
#define OVER_IP 0x10000
#define UNKNOWN 0x20000
#define PAYLOAD 0x30000

#define JUMBO_BYTES 8

struct walk {
	u32 position;
	u32 next;
	u32 jumbo_bytes; /* of the hop-by-hop headers that BIG TCP has for itself: they are not on the link */
	u32 guessed;	 /* a tunnel over UDP was told by what stands in it */
};

/*
 * The walk of each CPU is in a map: the verifier does not follow what is stored there. Otherwise it would try every
 * sequence of layers, each with its own positions, and kernels before 6.4 give up (a million instructions) long before
 * they have seen them all. For the same reason every access is one to memory.
 */
BPF_TABLE("percpu_array", u32, struct walk, walks, 1);
typedef volatile struct walk walk_t;

/* VXLAN (with a group policy too) and Geneve do not say that they are it, and their ports are anybody's choice. */
static __always_inline void enter_udp(walk_t *w, const u8 *tunnel)
{
	u32 type = tunnel[2] << 8 | tunnel[3];

	w->position += sizeof(struct udp_header);
	w->next = PAYLOAD;
	if (tunnel[7])
		return; /* reserved in both */
	if ((tunnel[0] & 0x7f) == 0x08) {
		w->position += 8;
		w->next = ETHERTYPE_BRIDGED;
		w->guessed = 1;
	} else if (!(tunnel[0] >> 6) && !(tunnel[1] & 0x3f) &&
		   (type == ETHERTYPE_BRIDGED || type == ETHERTYPE_IPV4 || type == ETHERTYPE_IPV6)) {
		w->position += 8 + (tunnel[0] & 0x3f) * 4;
		w->next = type;
		w->guessed = 1;
	}
}

static __always_inline void enter_gre(walk_t *w, const u8 *header)
{
	u32 optional = !!(header[0] & 0x80) + !!(header[0] & 0x20) + !!(header[0] & 0x10);

	w->position += 4 + optional * 4; /* checksum, key, sequence number */
	w->next = header[1] & 7 ? UNKNOWN : header[2] << 8 | header[3];
}

static __always_inline void enter_extension(walk_t *w, const u8 *header, u32 protocol)
{
	u32 length = protocol == IP_AH ? (header[1] + 2) * 4 : (header[1] + 1) * 8;

	if (protocol == IP_HOP_BY_HOP && !header[1] && header[2] == 0xc2 && header[3] == 4)
		w->jumbo_bytes += JUMBO_BYTES;
	w->position += length;
	w->next = OVER_IP | header[0];
}

/* header: its first 16 bytes; at every layer of a super-packet there are more. */
static __always_inline void enter(walk_t *w, const u8 *header)
{
	switch (w->next) {
	case ETHERTYPE_BRIDGED:
	case OVER_IP | IP_ETHERNET:
		w->position += sizeof(struct ethernet_header);
		w->next = header[12] << 8 | header[13];
		break;
	case ETHERTYPE_8021Q:
	case ETHERTYPE_8021AD:
		w->position += VLAN_BYTES;
		w->next = header[2] << 8 | header[3];
		break;
	case ETHERTYPE_IPV4:
	case OVER_IP | IP_IPV4:
		w->position += (header[0] & 15) * 4;
		w->next = header[0] >> 4 == 4 && (header[0] & 15) >= 5 ? OVER_IP | header[9] : UNKNOWN;
		break;
	case ETHERTYPE_IPV6:
	case OVER_IP | IP_IPV6:
		w->position += sizeof(struct ipv6_header);
		w->next = header[0] >> 4 == 6 ? OVER_IP | header[6] : UNKNOWN;
		break;
	case OVER_IP | IP_HOP_BY_HOP:
	case OVER_IP | IP_ROUTING:
	case OVER_IP | IP_DESTINATION:
	case OVER_IP | IP_AH:
		enter_extension(w, header, w->next & 0xff);
		break;
	case OVER_IP | IP_GRE:
		enter_gre(w, header);
		break;
	case OVER_IP | IP_UDP:
		enter_udp(w, header + sizeof(struct udp_header));
		break;
	case OVER_IP | IP_TCP:
		w->position += (header[12] >> 4) * 4;
		w->next = PAYLOAD;
		break;
	default:
		w->next = UNKNOWN;
	}
}

/* As far as the walk's innermost payload; 0, or -1 where that is not known. segments: 0 where nobody has counted. */
static __always_inline int walk_layers(struct __sk_buff *skb, walk_t *w, u32 segments)
{
	u32 size = skb->gso_size, bytes;

	w->position = w->jumbo_bytes = w->guessed = 0;
	w->next = ETHERTYPE_BRIDGED;
	for (int i = 0; i < LAYERS && w->next < UNKNOWN; i++) {
		u8 header[16] = {};

		if (bpf_skb_load_bytes(skb, w->position, header, sizeof(header)) < 0)
			return -1;
		enter(w, header);
	}
	if (w->next != PAYLOAD || w->position >= skb->len)
		return -1;
	bytes = skb->len - w->position;
	/* A datagram's content may look like a tunnel's; then it is not as many segments as this one is. */
	if (w->guessed && segments && size && (bytes + size - 1) / size != segments)
		return -1;
	return 0;
}

#endif
