// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Uprobes on training libraries: when gradients were handed over, and when the waiting for them began and was over.
 * They run a few hundred times per step of one process, not per packet.
 *
 * All of them sit on entries, also those that tell an end: a return probe replaces the return address on the stack,
 * and a C++ exception that passes it (a peer has gone, which elastic training survives) ends the process.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"

BPF_RINGBUF_OUTPUT(steps, NETMON_STEP_PAGES);
BPF_ARRAY(steps_lost, u64, 1);

/* Arguments of the C++ ABI. On x86-64 a result in memory takes the first place, so that the next ones move up. */
#if defined(__aarch64__)
#define FIRST(ctx) ((ctx)->regs[0])
#define SECOND(ctx) ((ctx)->regs[1])
#define THIRD(ctx) ((ctx)->regs[2])
#define FIFTH_AFTER_RESULT(ctx) ((ctx)->regs[4])
#else
#define FIRST(ctx) ((ctx)->rdi)
#define SECOND(ctx) ((ctx)->rsi)
#define THIRD(ctx) ((ctx)->rdx)
#define FIFTH_AFTER_RESULT(ctx) ((ctx)->r9)
#endif

/* A std::string begins with the pointer to its characters and their number; a std::vector with its begin and end. */
struct cxx_string {
	u64 characters, length, inside[2];
};

struct cxx_vector {
	u64 begin, end;
};

static __always_inline u64 mix(u64 hash, u64 word)
{
	return (hash ^ word) * 0x100000001b3ULL;
}

/* FNV-1a over the words of a name, its end where it is longer: names differ at their ends. 0: it cannot be read. */
static __always_inline u64 hash_of(u64 string_address)
{
	u64 word[NETMON_NAME_BYTES / 8] = {}, hash = NETMON_HASH_SEED, characters;
	struct cxx_string string = {};
	u32 length;

	if (bpf_probe_read_user(&string, sizeof(string), (void *)string_address))
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
		hash = mix(hash, word[i]);
	return hash;
}

static __always_inline int submit(u8 library, u8 kind, u64 name_hash, u16 tensors)
{
	struct netmon_step *step = steps.ringbuf_reserve(sizeof(*step));
	u32 zero = 0;

	if (!step) {
		steps_lost.atomic_increment(zero);
		return 0;
	}
	step->time_ns = bpf_ktime_get_ns();
	step->name_hash = name_hash;
	step->pid = bpf_get_current_pid_tgid() >> 32;
	step->kind = kind;
	step->library = library;
	step->tensors = tensors;
	steps.ringbuf_submit(step, 0);
	return 0;
}

/* Status EnqueueTensorAllreduces(contexts, tensors, outputs, ready_events, names, …), Status in memory. */
int horovod_enqueue(struct pt_regs *ctx)
{
	u64 names = FIFTH_AFTER_RESULT(ctx);
	struct cxx_vector vector = {};
	u64 tensors;

	if (bpf_probe_read_user(&vector, sizeof(vector), (void *)names))
		return submit(NETMON_HOROVOD, NETMON_STEP_ENQUEUE, 0, 1);
	tensors = (vector.end - vector.begin) / sizeof(struct cxx_string);
	if (tensors > 0xffff)
		tensors = 0xffff;
	return submit(NETMON_HOROVOD, NETMON_STEP_ENQUEUE, hash_of(vector.begin), tensors);
}

/* EnqueueTensorAllgather(s), Broadcast, Alltoall, Reducescatter(s): collectives that reduce no gradients. */
int horovod_other(struct pt_regs *ctx)
{
	return submit(NETMON_HOROVOD, NETMON_STEP_OTHER, 0, 0);
}

/* PyTorch: void WaitAndClear(int handle) */
int horovod_wait_begin(struct pt_regs *ctx)
{
	return submit(NETMON_HOROVOD, NETMON_STEP_WAIT_BEGIN, 0, 0);
}

/* HandleManager::ReleaseHandle(int), which WaitAndClear calls once the tensor has come. */
int horovod_wait_end(struct pt_regs *ctx)
{
	return submit(NETMON_HOROVOD, NETMON_STEP_WAIT_END, 0, 0);
}

/* void Timeline::End(this, const std::string& tensor_name, …), called for every tensor, also without a timeline. */
int horovod_done(struct pt_regs *ctx)
{
	return submit(NETMON_HOROVOD, NETMON_STEP_DONE, hash_of(SECOND(ctx)), 1);
}

/* void c10d::Reducer::all_reduce_bucket(this, Bucket&): a DDP model's own, so nothing but gradients. */
int reducer_enqueue(struct pt_regs *ctx)
{
	return submit(NETMON_REDUCER, NETMON_STEP_ENQUEUE, mix(NETMON_HASH_SEED, FIRST(ctx)), 1);
}

/* void c10d::Reducer::finalize_backward(this) */
int reducer_wait_begin(struct pt_regs *ctx)
{
	return submit(NETMON_REDUCER, NETMON_STEP_WAIT_BEGIN, mix(NETMON_HASH_SEED, FIRST(ctx)), 0);
}

/* void c10d::Reducer::finalize_bucket_dense(this, Bucket&), called once the bucket has come. */
int reducer_wait_end(struct pt_regs *ctx)
{
	return submit(NETMON_REDUCER, NETMON_STEP_WAIT_END, mix(NETMON_HASH_SEED, FIRST(ctx)), 0);
}

/* ncclResult_t ncclAllReduce(send, receive, count, …): a buffer that is sent again has the same address and size. */
int nccl_enqueue(struct pt_regs *ctx)
{
	u64 name = mix(mix(NETMON_HASH_SEED, FIRST(ctx)), THIRD(ctx));

	return submit(NETMON_NCCL, NETMON_STEP_ENQUEUE, name, 1);
}
