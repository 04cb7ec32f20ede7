/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Every collective and transfer of PyTorch's distributed package: what it is, in which group, when it is over. */
#ifndef NETMON_WORKS_H
#define NETMON_WORKS_H

#define NETMON_NOBODY 0xffffffff /* who is the other one is not known */
#define NETMON_ALL 0xfffffffe	 /* of a group: there is no other one */

/* A gloo::Context begins with its rank and size, or with these after a pointer to its methods. */
struct gloo_context {
	u32 word[4];
};

static __always_inline int submit_work(u8 kind, u64 work)
{
	struct netmon_step step = {.library = NETMON_GLOO, .kind = kind, .work = work};

	return submit_step(&step);
}

static __always_inline int submit_group(u64 group, u32 rank, u32 size)
{
	struct netmon_step step = {.library = NETMON_GLOO, .kind = NETMON_STEP_GROUP, .name_hash = group};

	step.group_rank = rank < size && size <= 0xffff ? rank : 0;
	step.group_size = rank < size && size <= 0xffff ? size : 0;
	return submit_step(&step);
}

/* Which group, and who this rank is in it. pointer: to a std::shared_ptr<gloo::Context> */
static __always_inline void tell_context(struct netmon_step *step, u64 pointer)
{
	struct gloo_context context = {};
	u64 address = 0;

	if (!read_user(&address, sizeof(address), (void *)pointer))
		step->name_hash = address;
	if (!read_user(&context, sizeof(context), (void *)address)) {
		int at = context.word[0] < context.word[1] && context.word[1] <= 0xffff ? 0 : 2;

		if (context.word[at] < context.word[at + 1] && context.word[at + 1] <= 0xffff) {
			step->group_rank = context.word[at];
			step->group_size = context.word[at + 1];
		}
	}
}

/* tensors: a vector of vectors of them; the first one's first tells the size, unless several are summed together */
static __always_inline int begin_gloo_work(u64 work, u64 context_pointer, u64 tensors, u32 operation, u32 sequence)
{
	struct netmon_step step = {.library = NETMON_GLOO, .kind = NETMON_STEP_BEGIN, .work = work};
	struct cxx_vector outer = {}, inner = {};
	u64 tensor = 0;

	step.tensors = operation;
	step.sequence = sequence;
	tell_context(&step, context_pointer);
	if (!read_user(&outer, sizeof(outer), (void *)tensors) && outer.end > outer.begin &&
	    !read_user(&inner, sizeof(inner), (void *)outer.begin) && inner.end > inner.begin &&
	    (inner.end == inner.begin + sizeof(tensor) || !NETMON_SUMS(operation)) &&
	    !read_user(&tensor, sizeof(tensor), (void *)inner.begin))
		step.size = size_of_tensor(tensor);
	return submit_step(&step);
}

/* With a rank of a group; both may be unknown. */
static __always_inline int begin_transfer(u64 work, u64 tensor_pointer, u16 operation, u64 group, u32 peer)
{
	struct netmon_step step = {.library = NETMON_GLOO, .kind = NETMON_STEP_BEGIN, .work = work};
	u64 tensor = 0;

	step.tensors = operation;
	step.sequence = peer;
	step.name_hash = group;
	if (!read_user(&tensor, sizeof(tensor), (void *)tensor_pointer))
		step.size = size_of_tensor(tensor);
	return submit_step(&step);
}

/* Of a value of each xla::PrimitiveType; 0: of complex numbers of 16, which no size can tell. */
static __always_inline u32 bytes_of_xla(u32 type)
{
	return type == 18					    ? 0
	       : type == 5 || type == 9 || type == 12 || type == 15 ? 8
	       : type == 4 || type == 8 || type == 11		    ? 4
	       : type == 3 || type == 7 || type == 10 || type == 16 ? 2
								    : 1;
}

/*
 * JAX on CPUs: the calls of an xla::cpu::GlooCommunicator, which begins with a pointer to its methods and one to its
 * gloo::Context. Each ends in the thread that has begun it, before the next one there: the thread tells which is over.
 * whole: `count` is of the part of each rank, and all of them are sent.
 */
static __always_inline int begin_xla_work(u64 communicator, u16 operation, u32 type, u64 count, int whole, u32 peer)
{
	struct netmon_step step = {
		.library = NETMON_XLA, .kind = NETMON_STEP_BEGIN, .work = bpf_get_current_pid_tgid()};

	step.tensors = operation;
	step.sequence = peer == NETMON_ALL ? 0 : peer;
	tell_context(&step, communicator + sizeof(u64));
	if (whole)
		count *= step.group_size;
	step.size = size_of(count, bytes_of_xla(type));
	submit_step(&step);
	return submit_work(peer == NETMON_ALL ? NETMON_STEP_WAIT_BEGIN : NETMON_STEP_WORK_WAIT, step.work);
}

#endif
