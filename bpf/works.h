/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Every collective and transfer of PyTorch's distributed package: what it is, in which group, when it is over. */
#ifndef NETMON_WORKS_H
#define NETMON_WORKS_H

#define NETMON_NOBODY 0xffffffff

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

/* tensors: a vector of vectors of them; the first one's first tells the size, unless several are summed together */
static __always_inline int begin_gloo_work(u64 work, u64 context_pointer, u64 tensors, u32 operation, u32 sequence)
{
	struct netmon_step step = {.library = NETMON_GLOO, .kind = NETMON_STEP_BEGIN, .work = work};
	struct gloo_context context = {};
	struct cxx_vector outer = {}, inner = {};
	u64 address = 0, tensor = 0;

	step.tensors = operation;
	step.sequence = sequence;
	if (!bpf_probe_read_user(&address, sizeof(address), (void *)context_pointer))
		step.name_hash = address;
	if (!bpf_probe_read_user(&context, sizeof(context), (void *)address)) {
		int at = context.word[0] < context.word[1] && context.word[1] <= 0xffff ? 0 : 2;

		if (context.word[at] < context.word[at + 1] && context.word[at + 1] <= 0xffff) {
			step.group_rank = context.word[at];
			step.group_size = context.word[at + 1];
		}
	}
	if (!bpf_probe_read_user(&outer, sizeof(outer), (void *)tensors) && outer.end > outer.begin &&
	    !bpf_probe_read_user(&inner, sizeof(inner), (void *)outer.begin) && inner.end > inner.begin &&
	    (inner.end == inner.begin + sizeof(tensor) || !NETMON_SUMS(operation)) &&
	    !bpf_probe_read_user(&tensor, sizeof(tensor), (void *)inner.begin))
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
	if (!bpf_probe_read_user(&tensor, sizeof(tensor), (void *)tensor_pointer))
		step.size = size_of_tensor(tensor);
	return submit_step(&step);
}

#endif
