// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Uprobes on training libraries: when gradients were handed over, and when the waiting for them began and was over.
 * They run a few hundred times per step of one process, not per packet.
 *
 * Most sit on entries, also those that tell an end: a return probe replaces the return address on the stack, and a
 * C++ exception that passes it (a peer has gone, which elastic training survives) ends the process. Probed at their
 * return, too, are functions that no exception leaves: CUDA's in C, and those that compiled programs of JAX call.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"
#include "budgets.h"
#include "current.h"
#include "cxx.h"
#include "tensor_sizes.h"

BPF_RINGBUF_OUTPUT(steps, NETMON_STEP_PAGES);
/* Calls of which the ring had no room to tell, and those that were beyond the budget of their process or user. */
BPF_F_TABLE("array", u32, u64, steps_lost, 2, BPF_F_MMAPABLE);

BPF_TABLE("lru_hash", u64, struct budget, budgets, NETMON_BUDGETS);

/* A call of Horovod's in a thread, until the sizes of all tensors that it hands over are known. */
struct handing {
	u64 name_hash, values;
	u32 left;     /* tensors whose sizes are to come */
	u32 bytes;    /* of a value; 0: they differ, or cannot be read */
	u32 of;	      /* NETMON_OF_…, of what is no sum */
	u32 transfer; /* whether it is none */
};

BPF_TABLE("lru_hash", u64, struct handing, handing_over, NETMON_HANDING);
BPF_TABLE("lru_hash", u64, u64, sizes_reported, NETMON_SIZES_REPORTED); /* when */

/* Of a thread that is about to begin a transfer: in which group, with which rank of it. */
struct peer {
	u64 group;
	u32 rank, pad;
};

BPF_TABLE("lru_hash", u64, struct peer, peers, NETMON_HANDING);

/* Processes that have handed something to NCCL and have not waited for their GPU since: 0, or when they began to. */
BPF_TABLE("lru_hash", u32, u64, queued_on_gpu, NETMON_HANDING);

static __always_inline struct budget *budget_of(u64 key)
{
	struct budget none = {}, *budget = budgets.lookup(&key);

	if (budget)
		return budget;
	budgets.update(&key, &none);
	return budgets.lookup(&key);
}

/* 0: the ring was full, 1: the caller was over its budget. bcc 0.18 has no atomic_increment. */
static __always_inline void count(u32 which)
{
	u64 *lost = steps_lost.lookup(&which);

	if (lost)
		lock_xadd(lost, 1);
}

static __always_inline void report(const struct netmon_step *row)
{
	struct netmon_step *step = steps.ringbuf_reserve(sizeof(*step));

	if (!step) {
		count(0);
		return;
	}
	*step = *row;
	steps.ringbuf_submit(step, 0); /* the first of them wakes user space if it sleeps, none while it is behind */
}

/* step: all but whose it is, and when it was unless that is now. */
static __always_inline int submit_step(struct netmon_step *step)
{
	u64 now = bpf_ktime_get_ns();
	u32 pid = current_pid();
	struct budget *process, *user;

	if (!pid)
		return 0;
	if (!step->time_ns)
		step->time_ns = now;
	step->pid = pid;
	process = budget_of(pid);
	user = budget_of(OF_USER | (u32)bpf_get_current_uid_gid());
	if (!process || !user)
		return 0;
	/* The process first: what is beyond its own budget costs its user nothing. */
	if (pays(process, now, NETMON_CALL_NS_OF_PROCESS, NETMON_CALLS_AT_ONCE) &&
	    pays(user, now, NETMON_CALL_NS_OF_USER, NETMON_CALLS_AT_ONCE_OF_USER)) {
		report(step);
		return 0;
	}
	count(1);
	if (process->dropped++ % NETMON_DROPS_REPORTED_EVERY == 0) {
		step->kind = NETMON_STEP_DROPPED;
		step->name_hash = process->dropped;
		report(step);
	}
	return 0;
}

static __always_inline int submit_sized(u8 library, u8 kind, u64 name_hash, u16 tensors, u64 size)
{
	struct netmon_step step = {
		.library = library, .kind = kind, .name_hash = name_hash, .tensors = tensors, .size = size};

	return submit_step(&step);
}

static __always_inline int submit(u8 library, u8 kind, u64 name_hash, u16 tensors)
{
	return submit_sized(library, kind, name_hash, tensors, 0);
}

#include "transfers.h"
#include "works.h"

/* The names that a call hands over: of the first one the hash, of all the number, each of so many bytes. */
static __always_inline int submit_names(struct cxx_vector names, u64 first_hash, u64 bytes)
{
	u64 tensors = (names.end - names.begin) / bytes, thread = bpf_get_current_pid_tgid();
	struct handing begun = {.name_hash = first_hash, .left = tensors};

	handing_over.update(&thread, &begun);
	return submit(NETMON_HOROVOD, NETMON_STEP_ENQUEUE, first_hash, tensors > 0xffff ? 0xffff : tensors);
}

/* Status EnqueueTensorAllreduces(contexts, tensors, outputs, ready_events, names, …), Status in memory. */
int horovod_enqueue(struct pt_regs *ctx)
{
	struct cxx_vector names = {};

	if (read_user(&names, sizeof(names), (void *)FIFTH_AFTER_RESULT(ctx)))
		return submit(NETMON_HOROVOD, NETMON_STEP_ENQUEUE, 0, 1);
	return submit_names(names, hash_of(names.begin), sizeof(struct cxx_string));
}

int horovod_enqueue_cow(struct pt_regs *ctx)
{
	struct cxx_vector names = {};

	if (read_user(&names, sizeof(names), (void *)FIFTH_AFTER_RESULT(ctx)))
		return submit(NETMON_HOROVOD, NETMON_STEP_ENQUEUE, 0, 1);
	return submit_names(names, hash_of_cow(names.begin), sizeof(struct cow_string));
}

/*
 * void Request::set_tensor_shape(this, const std::vector<int64_t>&): within EnqueueTensorAllreduces once for each tensor, in
 * the order of their names, after its type has been set. The thread that negotiates with other ranks calls it, too.
 */
int horovod_shape(struct pt_regs *ctx)
{
	u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), key, *reported_ns, values;
	struct handing *call = handing_over.lookup(&thread);
	struct horovod_request request = {};
	struct cxx_vector shape = {};
	u32 bytes;

	if (!call || !call->left)
		return 0;
	if (read_user(&request, sizeof(request), (void *)FIRST(ctx)) ||
	    read_user(&shape, sizeof(shape), (void *)SECOND(ctx))) {
		call->left = 0;
		return 0;
	}
	values = values_of(shape.begin, shape.end);
	if (call->transfer)
		return submit_transfer(NETMON_HOROVOD, call->of, values * width_of_horovod(request.type));
	bytes = bytes_of_horovod(request.type);
	if (!values || !bytes || (call->bytes && call->bytes != bytes)) {
		call->left = 0;
		return 0;
	}
	call->values += values;
	call->bytes = bytes;
	if (--call->left)
		return 0;
	key = mix(mix(thread >> 32, call->name_hash), call->values);
	reported_ns = sizes_reported.lookup(&key);
	if (reported_ns && now - *reported_ns < NETMON_SIZE_AGAIN_NS)
		return 0;
	sizes_reported.update(&key, &now);
	return submit_sized(NETMON_HOROVOD, NETMON_STEP_SIZE, call->name_hash, 0, size_of(call->values, bytes));
}

/* EnqueueTensorAllgather(s), Broadcast, Alltoall, Reducescatter(s): collectives that reduce no gradients. */
static __always_inline int submit_other(u32 of)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct handing begun = {.left = 1, .of = of, .transfer = 1};

	handing_over.update(&thread, &begun);
	return submit(NETMON_HOROVOD, NETMON_STEP_OTHER, 0, 0);
}

int horovod_other(struct pt_regs *ctx)
{
	return submit_other(NETMON_OF_ALL);
}

int horovod_gather(struct pt_regs *ctx)
{
	return submit_other(NETMON_OF_EACH);
}

int horovod_broadcast(struct pt_regs *ctx)
{
	return submit_other(NETMON_OF_ONE);
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

int horovod_done_cow(struct pt_regs *ctx)
{
	return submit(NETMON_HOROVOD, NETMON_STEP_DONE, hash_of_cow(SECOND(ctx)), 1);
}

/*
 * std::shared_ptr<gloo::Context> Rendezvous(prefix, address, port, rank, size, …), the pointer in memory. Called when
 * Horovod is set up, with the prefix "global" for the job as a whole: an elastic job gives its ranks out again, and
 * tells nobody but the process.
 */
static __always_inline int submit_rank(struct pt_regs *ctx, u64 characters, u64 length)
{
	const u64 global = 0x6c61626f6c67; /* as it lies in memory */
	u64 prefix = 0;

	if (length != 6 || read_user(&prefix, 6, (void *)characters) || prefix != global)
		return 0;
	return submit(NETMON_HOROVOD, NETMON_STEP_RANK,
		      (u64)FOURTH_AFTER_RESULT(ctx) << 32 | (u32)FIFTH_AFTER_RESULT(ctx), 0);
}

int horovod_rank(struct pt_regs *ctx)
{
	struct cxx_string prefix = {};

	if (read_user(&prefix, sizeof(prefix), (void *)FIRST_AFTER_RESULT(ctx)))
		return 0;
	return submit_rank(ctx, prefix.characters, prefix.length);
}

int horovod_rank_cow(struct pt_regs *ctx)
{
	struct cow_string prefix = {};
	struct cow_head head = {};

	if (read_user(&prefix, sizeof(prefix), (void *)FIRST_AFTER_RESULT(ctx)) ||
	    read_user(&head, sizeof(head), (void *)(prefix.characters - sizeof(head))))
		return 0;
	return submit_rank(ctx, prefix.characters, head.length);
}

/* void c10d::Reducer::all_reduce_bucket(this, Bucket&): a DDP model's own, so nothing but gradients, in one tensor. */
int reducer_enqueue(struct pt_regs *ctx)
{
	u64 tensor = 0, size = 0;

	if (!read_user(&tensor, sizeof(tensor), (void *)SECOND(ctx)))
		size = size_of_flat_tensor(tensor);
	return submit_sized(NETMON_REDUCER, NETMON_STEP_ENQUEUE, mix(NETMON_HASH_SEED, FIRST(ctx)), 1, size);
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

/*
 * What has no name is known by its size: its memory is another one in each step. User space tells those of one size
 * apart by their order.
 */
static __always_inline int submit_unnamed(u8 library, u64 named_size, u64 least, u64 size)
{
	u8 kind = named_size < least ? NETMON_STEP_OTHER : NETMON_STEP_ENQUEUE;

	return submit_sized(library, kind, mix(NETMON_HASH_SEED, named_size), 1, size);
}

/* NCCL only queues what it is handed, for the GPU. */
static __always_inline void queue_on_gpu(void)
{
	u32 process = bpf_get_current_pid_tgid() >> 32;
	u64 since = 0;

	queued_on_gpu.update(&process, &since);
}

/* ncclResult_t ncclAllReduce(send, receive, count, ncclDataType_t, …) */
int nccl_enqueue(struct pt_regs *ctx)
{
	u32 type = FOURTH(ctx), bytes = type == 6 || type == 9 ? 2 : type == 7 ? 4 : type == 8 ? 8 : 0;

	queue_on_gpu();
	return submit_unnamed(NETMON_NCCL, THIRD(ctx), NETMON_LEAST_GRADIENT_VALUES, size_of(THIRD(ctx), bytes));
}

static __always_inline int submit_nccl_transfer(u64 of, u64 bytes)
{
	queue_on_gpu();
	return submit_transfer(NETMON_NCCL, of, bytes);
}

/* ncclResult_t ncclAllGather, ncclReduceScatter, ncclAlltoAll(send, receive, count of a rank's part, type, …) */
int nccl_gather(struct pt_regs *ctx)
{
	return submit_nccl_transfer(NETMON_OF_EACH, bytes_of_nccl(THIRD(ctx), FOURTH(ctx)));
}

/* ncclResult_t ncclBroadcast(send, receive, count, type, …) */
int nccl_broadcast(struct pt_regs *ctx)
{
	return submit_nccl_transfer(NETMON_OF_ONE, bytes_of_nccl(THIRD(ctx), FOURTH(ctx)));
}

/* ncclResult_t ncclSend, ncclRecv(buffer, count, type, …) */
int nccl_send(struct pt_regs *ctx)
{
	return submit_nccl_transfer(NETMON_OF_ALL, bytes_of_nccl(SECOND(ctx), THIRD(ctx)));
}

/* ProcessGroupNCCL::allreduce(this, tensors, options): shows that gradients go by NCCL, where its own calls do not. */
int nccl_call(struct pt_regs *ctx)
{
	queue_on_gpu();
	return submit(NETMON_NCCL, NETMON_STEP_OTHER, 0, 0);
}

/*
 * cudaError_t cudaStreamSynchronize, cudaEventSynchronize, cudaDeviceSynchronize(…), by the process's first thread: the
 * first such wait after something was handed to NCCL, unless more is handed over meanwhile. All others are passed over,
 * as often as they may come.
 */
int cuda_wait(struct pt_regs *ctx)
{
	u64 thread = bpf_get_current_pid_tgid(), *since;
	u32 process = thread >> 32;

	since = process == (u32)thread ? queued_on_gpu.lookup(&process) : 0;
	if (since)
		*since = bpf_ktime_get_ns();
	return 0;
}

/* Its return. */
int cuda_waited(struct pt_regs *ctx)
{
	struct netmon_step begin = {.library = NETMON_CUDA, .kind = NETMON_STEP_WAIT_BEGIN};
	u64 thread = bpf_get_current_pid_tgid(), *since;
	u32 process = thread >> 32;

	since = process == (u32)thread ? queued_on_gpu.lookup(&process) : 0;
	if (!since || !*since)
		return 0;
	begin.time_ns = *since;
	queued_on_gpu.delete(&process);
	submit_step(&begin);
	return submit(NETMON_CUDA, NETMON_STEP_WAIT_END, 0, 0);
}

/* gloo's AllreduceOptions, and what it has pointers to: a buffer of its memory. */
struct gloo_allreduce {
	u64 context[2], timeout_ms, algorithm;
	struct cxx_vector in;
	u64 in_capacity;
	struct cxx_vector out;
	u64 out_capacity, values, value_bytes;
};

/* ProcessGroupGloo::allreduce(this, tensors, options), in the thread that trains. */
int gloo_call(struct pt_regs *ctx)
{
	return submit(NETMON_GLOO, NETMON_STEP_CALL, 0, 0);
}

/* void gloo::allreduce(AllreduceOptions const&), in the same order, in threads that PyTorch keeps for it. */
int gloo_enqueue(struct pt_regs *ctx)
{
	struct gloo_allreduce options = {};
	struct gloo_buffer buffer = {};
	u64 first = 0, size = 0;

	if (read_user(&options, sizeof(options), (void *)FIRST(ctx)) ||
	    read_user(&first, sizeof(first), (void *)options.out.begin) ||
	    read_user(&buffer, sizeof(buffer), (void *)first))
		return submit(NETMON_GLOO, NETMON_STEP_OTHER, 0, 0);
	/* Older ones have something else there. */
	if (options.values < NETMON_MOST_VALUES && options.value_bytes <= 8 &&
	    options.values * options.value_bytes == buffer.bytes)
		size = size_of(options.values, options.value_bytes);
	return submit_unnamed(NETMON_GLOO, buffer.bytes, NETMON_LEAST_GRADIENT_BYTES, size);
}

/* void gloo::allgather, allgatherv, alltoall, alltoallv, gather(… &) */
int gloo_transfer(struct pt_regs *ctx)
{
	return submit_gloo(ctx, NETMON_OF_ALL);
}

/* void gloo::broadcast, reduce(… &) */
int gloo_broadcast(struct pt_regs *ctx)
{
	return submit_gloo(ctx, NETMON_OF_ONE);
}

/* ProcessGroupGloo::send, recv(this, tensors, rank, …), a result in memory. */
int gloo_send(struct pt_regs *ctx)
{
	struct peer peer = {.group = FIRST_AFTER_RESULT(ctx), .rank = THIRD_AFTER_RESULT(ctx)};
	u64 thread = bpf_get_current_pid_tgid();

	peers.update(&thread, &peer);
	return submit_gloo_send(SECOND_AFTER_RESULT(ctx));
}

/* AsyncWork(this, std::shared_ptr<gloo::Context>, std::vector<std::vector<at::Tensor>>, OpType, u64 sequence, …) */
int gloo_work(struct pt_regs *ctx)
{
	return begin_gloo_work(FIRST(ctx), SECOND(ctx), THIRD(ctx), FOURTH(ctx), FIFTH(ctx));
}

/* SendWork, RecvWork(this, at::Tensor&, …) */
static __always_inline int submit_transfer_work(struct pt_regs *ctx, u16 operation)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct peer *peer = peers.lookup(&thread);

	return begin_transfer(FIRST(ctx), SECOND(ctx), operation, peer ? peer->group : 0,
			      peer ? peer->rank : NETMON_NOBODY);
}

int gloo_send_work(struct pt_regs *ctx)
{
	return submit_transfer_work(ctx, NETMON_OPERATION_SEND);
}

int gloo_receive_work(struct pt_regs *ctx)
{
	return submit_transfer_work(ctx, NETMON_OPERATION_RECEIVE);
}

/* SendWork::wait, RecvWork::wait(this, …) */
int transfer_wait(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_WORK_WAIT, FIRST(ctx));
}

/* AsyncWork::finishWorkGlooError(this, …), Work::finishAndThrow(this, …), which ends a transfer */
int work_over(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_OVER, FIRST(ctx));
}

/* torch::autograd::Engine::execute(this, …) */
int backward(struct pt_regs *ctx)
{
	return submit(NETMON_GLOO, NETMON_STEP_BACKWARD, 0, 0);
}

/* ProcessGroupGloo(this, store, int rank, int size, …) */
int gloo_group(struct pt_regs *ctx)
{
	return submit_group(FIRST(ctx), THIRD(ctx), FOURTH(ctx));
}

/* gloo::rendezvous::Context(this, int rank, int size, …), of which a group makes one or several */
int gloo_context(struct pt_regs *ctx)
{
	return submit_group(FIRST(ctx), SECOND(ctx), THIRD(ctx));
}

/* void c10d::ProcessGroup::setGroupName(this, const std::string&) */
int group_name(struct pt_regs *ctx)
{
	return submit(NETMON_GLOO, NETMON_STEP_GROUP_NAME, hash_of(SECOND(ctx)), 0);
}

int group_name_cow(struct pt_regs *ctx)
{
	return submit(NETMON_GLOO, NETMON_STEP_GROUP_NAME, hash_of_cow(SECOND(ctx)), 0);
}

/* bool c10d::Work::wait(this, timeout) */
int work_wait_begin(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_WAIT_BEGIN, FIRST(ctx));
}

/* void c10d::Work::synchronize(this), called once the tensor has come, by the thread that reduces it. */
int work_wait_end(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_WAIT_END, FIRST(ctx));
}

/*
 * xla::cpu::GlooCommunicator::AllReduce, AllGather, ReduceScatter(this, buffer, buffer, xla::PrimitiveType, u64 count of a rank's part, …),
 * the result and the buffers in memory.
 */
static __always_inline int begin_xla_collective(struct pt_regs *ctx, u16 operation, int whole)
{
	return begin_xla_work(FIRST_AFTER_RESULT(ctx), operation, FIRST_AFTER_TWO(ctx), SECOND_AFTER_TWO(ctx), whole,
			      NETMON_ALL);
}

int xla_all_reduce(struct pt_regs *ctx)
{
	return begin_xla_collective(ctx, NETMON_OPERATION_ALL_REDUCE, 0);
}

int xla_all_gather(struct pt_regs *ctx)
{
	return begin_xla_collective(ctx, NETMON_OPERATION_ALL_GATHER, 0);
}

int xla_reduce_scatter(struct pt_regs *ctx)
{
	return begin_xla_collective(ctx, NETMON_OPERATION_REDUCE_SCATTER, 1);
}

/* AllToAll(this, vector of buffers, vector of buffers, type, count of the part for one rank, …), pointers to the vectors */
int xla_all_to_all(struct pt_regs *ctx)
{
	return begin_xla_work(FIRST_AFTER_RESULT(ctx), NETMON_OPERATION_ALL_TO_ALL, FOURTH_AFTER_RESULT(ctx),
			      FIFTH_AFTER_RESULT(ctx), 1, NETMON_ALL);
}

/* CollectivePermute(this, buffer, buffer, type, count, std::optional<RankId> from whom, Span<RankId> to whom, …) */
int xla_permute(struct pt_regs *ctx)
{
	int receives = FOURTH_AFTER_TWO(ctx) & 0xff;

	return begin_xla_work(FIRST_AFTER_RESULT(ctx), receives ? NETMON_OPERATION_RECEIVE : NETMON_OPERATION_SEND,
			      FIRST_AFTER_TWO(ctx), SECOND_AFTER_TWO(ctx), 0,
			      receives ? THIRD_AFTER_TWO(ctx) : NETMON_NOBODY);
}

/* Return probes: these calls let no exception pass, which would not survive one. */
int xla_collective_over(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_WAIT_END, bpf_get_current_pid_tgid());
}

int xla_permute_over(struct pt_regs *ctx)
{
	return submit_work(NETMON_STEP_OVER, bpf_get_current_pid_tgid());
}
