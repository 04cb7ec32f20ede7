/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* How a flow finds its slot among the ways of its set, and whose slot a new flow gets. No map is touched here. */
#ifndef NETMON_WAYS_H
#define NETMON_WAYS_H

#include "netmon.h"

/* The unit of `opened` is half a millisecond; it wraps after half a minute, which costs a worse choice at most. */
#define OPENED_SHIFT 19

#define LANES 0x0001000100010001ULL

/* What is needed to find a flow's slot in its set, or to choose whose slot it gets. Way n has the lane n. */
struct set {
	u64 tags; /* 0: the slot was never used */
	u16 opened[NETMON_WAYS];
};

/* The products are added up, so that none waits for another; the last one mixes their upper halves in. */
static __always_inline u64 hash_of(const union flow_words *flow)
{
	u64 h = flow->word[0] * 0x9e3779b97f4a7c15ULL + flow->word[1] * 0xbf58476d1ce4e5b9ULL +
		flow->word[2] * 0x94d049bb133111ebULL + flow->word[3] * 0xd6e8feb86659fd93ULL +
		flow->word[4] * 0xa0761d6478bd642fULL;

	return (h ^ (h >> 32)) * 0xe7037ed1a0b428dbULL;
}

static __always_inline int same_flow(const struct netmon_slot *slot, const union flow_words *flow)
{
	const u64 *word = (const u64 *)&slot->key;

	return !((word[0] ^ flow->word[0]) | (word[1] ^ flow->word[1]) | (word[2] ^ flow->word[2]) |
		 (word[3] ^ flow->word[3]) | (word[4] ^ flow->word[4]));
}

/* The top bit of every lane that is equal. Above the lowest there may be some that are not. */
static __always_inline u64 lanes_with(u64 tags, u16 tag)
{
	u64 different = tags ^ tag * LANES;

	return (different - LANES) & ~different & LANES << 15;
}

/* The number of the lowest lane with its top bit set. */
static __always_inline u32 lowest_lane(u64 lanes)
{
	return ((lanes & -lanes) >> 15) * 0x0000000100020003ULL >> 48 & (NETMON_WAYS - 1);
}

static __always_inline u64 larger(s64 a, s64 b)
{
	return a - ((a - b) & (a - b) >> 63); /* a jump would be mispredicted every other time */
}

/* The way whose bucket was opened longest ago. */
static __always_inline u32 quietest(const struct set *s, u64 now)
{
	u16 time = now >> OPENED_SHIFT;
	u64 ages[NETMON_WAYS];

#pragma unroll
	for (int i = 0; i < NETMON_WAYS; i++)
		ages[i] = (u64)(u16)(time - s->opened[i]) << 2 | i;
	return larger(larger(ages[0], ages[1]), larger(ages[2], ages[3])) & (NETMON_WAYS - 1);
}

#endif
