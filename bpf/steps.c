// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Uprobes on a training library: when each gradient was handed over, and when the wait for one was over. They run
 * a few hundred times per step of one process, not per packet.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"

BPF_RINGBUF_OUTPUT(steps, NETMON_STEP_PAGES);
BPF_ARRAY(steps_lost, u64, 1);

/* A std::string begins with the pointer to its characters and their number; a std::vector with the first element. */
struct cxx_string {
	u64 characters;
	u64 length;
};

/* FNV-1a over the words of the first name, its end where it is longer: names differ at their ends. */
static __always_inline u64 hash_of(u64 vector_address)
{
	u64 word[NETMON_NAME_BYTES / 8] = {}, hash = 0xcbf29ce484222325ULL, first = 0, characters;
	struct cxx_string string = {};
	u32 length;

	if (bpf_probe_read_user(&first, sizeof(first), (void *)vector_address) ||
	    bpf_probe_read_user(&string, sizeof(string), (void *)first))
		return 0;
	characters = string.characters;
	length = string.length;
	if (string.length >= NETMON_NAME_BYTES) {
		characters += string.length - (NETMON_NAME_BYTES - 1);
		length = NETMON_NAME_BYTES - 1;
	}
	/* The mask changes nothing; it shows the verifier the bound. */
	if (bpf_probe_read_user(word, length & (NETMON_NAME_BYTES - 1), (void *)characters))
		return 0;
#pragma unroll
	for (int i = 0; i < NETMON_NAME_BYTES / 8; i++)
		hash = (hash ^ word[i]) * 0x100000001b3ULL;
	return hash;
}

static __always_inline void submit(u32 kind, u64 name_hash)
{
	struct netmon_step *step = steps.ringbuf_reserve(sizeof(*step));
	u32 zero = 0;

	if (!step) {
		steps_lost.increment(zero);
		return;
	}
	step->time_ns = bpf_ktime_get_ns();
	step->name_hash = name_hash;
	step->pid = bpf_get_current_pid_tgid() >> 32;
	step->kind = kind;
	steps.ringbuf_submit(step, 0);
}

/* Horovod: Status EnqueueTensorAllreduces(contexts, tensors, outputs, ready_events, names, …), Status in memory. */
int step_enqueue(struct pt_regs *ctx)
{
#if defined(__aarch64__)
	u64 names = ctx->regs[4]; /* the returned Status has a register of its own */
#else
	u64 names = ctx->r9;
#endif
	submit(NETMON_STEP_ENQUEUE, hash_of(names));
	return 0;
}

int step_wait(struct pt_regs *ctx)
{
	submit(NETMON_STEP_WAIT, 0);
	return 0;
}
