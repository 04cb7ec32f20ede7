/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What a uprobe on a C++ function finds: its arguments, and strings and vectors as they lie in memory. */
#ifndef NETMON_CXX_H
#define NETMON_CXX_H

/* Arguments of the C++ ABI. On x86-64 a result in memory takes the first place, so that the next ones move up. */
#if defined(__aarch64__)
#define FIRST(ctx) ((ctx)->regs[0])
#define SECOND(ctx) ((ctx)->regs[1])
#define THIRD(ctx) ((ctx)->regs[2])
#define FOURTH(ctx) ((ctx)->regs[3])
#define FIFTH(ctx) ((ctx)->regs[4])
#define FIRST_AFTER_RESULT(ctx) ((ctx)->regs[0])
#define SECOND_AFTER_RESULT(ctx) ((ctx)->regs[1])
#define THIRD_AFTER_RESULT(ctx) ((ctx)->regs[2])
#define FOURTH_AFTER_RESULT(ctx) ((ctx)->regs[3])
#define FIFTH_AFTER_RESULT(ctx) ((ctx)->regs[4])
/* After two objects of more than 16 bytes, which lie in memory: there is a pointer to each here, and none on x86-64. */
#define FIRST_AFTER_TWO(ctx) ((ctx)->regs[3])
#define SECOND_AFTER_TWO(ctx) ((ctx)->regs[4])
#define THIRD_AFTER_TWO(ctx) ((ctx)->regs[5])
#define FOURTH_AFTER_TWO(ctx) ((ctx)->regs[6])
#else
#define FIRST(ctx) ((ctx)->rdi)
#define SECOND(ctx) ((ctx)->rsi)
#define THIRD(ctx) ((ctx)->rdx)
#define FOURTH(ctx) ((ctx)->rcx)
#define FIFTH(ctx) ((ctx)->r8)
#define FIRST_AFTER_RESULT(ctx) ((ctx)->rsi)
#define SECOND_AFTER_RESULT(ctx) ((ctx)->rdx)
#define THIRD_AFTER_RESULT(ctx) ((ctx)->rcx)
#define FOURTH_AFTER_RESULT(ctx) ((ctx)->r8)
#define FIFTH_AFTER_RESULT(ctx) ((ctx)->r9)
#define FIRST_AFTER_TWO(ctx) ((ctx)->rdx)
#define SECOND_AFTER_TWO(ctx) ((ctx)->rcx)
#define THIRD_AFTER_TWO(ctx) ((ctx)->r8)
#define FOURTH_AFTER_TWO(ctx) ((ctx)->r9)
#endif

/*
 * A std::string begins with the pointer to its characters and their number; a std::vector with its begin and end.
 * Libraries built with _GLIBCXX_USE_CXX11_ABI=0 (PyTorch's wheels were, up to 2.5) have strings that are copied on write:
 * a pointer to the characters, before which their number stands.
 */
struct cxx_string {
	u64 characters, length, inside[2];
};

struct cow_string {
	u64 characters;
};

struct cow_head {
	u64 length, capacity, owners;
};

struct cxx_vector {
	u64 begin, end;
};

/*
 * The kernel's bpf_probe_read_user. At each call of that name bcc reads the names of all the kernel's functions, to see
 * whether it has this one: six seconds of a compilation's eleven.
 */
static int (*read_user)(void *to, u32 bytes, const void *from) = (void *)BPF_FUNC_probe_read_user;

static __always_inline u64 mix(u64 hash, u64 word)
{
	return (hash ^ word) * 0x100000001b3ULL;
}

/* FNV-1a over the words of a name, its end where it is longer: names differ at their ends. 0: it cannot be read. */
static __always_inline u64 hash_of_characters(u64 characters, u64 size)
{
	u64 word[NETMON_NAME_BYTES / 8] = {}, hash = NETMON_HASH_SEED;
	u32 length = size;

	if (size >= NETMON_NAME_BYTES) {
		characters += size - (NETMON_NAME_BYTES - 1);
		length = NETMON_NAME_BYTES - 1;
	}
	/* The mask changes nothing; it shows the verifier the bound. */
	if (read_user(word, length & (NETMON_NAME_BYTES - 1), (void *)characters))
		return 0;
#pragma unroll
	for (int i = 0; i < NETMON_NAME_BYTES / 8; i++)
		hash = mix(hash, word[i]);
	return hash;
}

static __always_inline u64 hash_of(u64 string_address)
{
	struct cxx_string string = {};

	if (read_user(&string, sizeof(string), (void *)string_address))
		return 0;
	return hash_of_characters(string.characters, string.length);
}

static __always_inline u64 hash_of_cow(u64 string_address)
{
	struct cow_string string = {};
	struct cow_head head = {};

	if (read_user(&string, sizeof(string), (void *)string_address) ||
	    read_user(&head, sizeof(head), (void *)(string.characters - sizeof(head))))
		return 0;
	return hash_of_characters(string.characters, head.length);
}

#endif
