/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What ranks send each other beside sums of gradients; included where it can be told. */
#ifndef NETMON_TRANSFERS_H
#define NETMON_TRANSFERS_H

/* Bytes that ranks send each other and do not sum; of: NETMON_OF_… */
static __always_inline int submit_transfer(u8 library, u64 of, u64 bytes)
{
	return bytes ? submit_sized(library, NETMON_STEP_TRANSFER, of, 1, size_of(bytes, 1)) : 0;
}

/* In the order of ncclDataType_t. */
static __always_inline u64 bytes_of_nccl(u64 values, u32 type)
{
	return values * (type == 4 || type == 5 || type == 8   ? 8
			 : type == 2 || type == 3 || type == 7 ? 4
			 : type == 6 || type == 9	       ? 2
							       : 1);
}

struct gloo_buffer {
	u64 methods, memory, bytes;
};

/* What gloo's options of all collectives but all-reduces and scatters begin with; one of the buffers may be missing. */
struct gloo_options {
	u64 context[2], in, out;
};

static __always_inline u64 bytes_of_gloo(u64 address)
{
	struct gloo_buffer buffer = {};

	if (!address || read_user(&buffer, sizeof(buffer), (void *)address))
		return 0;
	return buffer.bytes;
}

static __always_inline int submit_gloo(struct pt_regs *ctx, u64 of)
{
	struct gloo_options options = {};
	u64 in, out;

	if (read_user(&options, sizeof(options), (void *)FIRST(ctx)))
		return 0;
	in = bytes_of_gloo(options.in);
	out = bytes_of_gloo(options.out);
	return submit_transfer(NETMON_GLOO, of, in > out ? in : out);
}

/* Of the first of the tensors. */
static __always_inline int submit_gloo_send(u64 tensors_address)
{
	struct cxx_vector tensors = {};
	u64 tensor = 0;

	if (read_user(&tensors, sizeof(tensors), (void *)tensors_address) ||
	    read_user(&tensor, sizeof(tensor), (void *)tensors.begin))
		return 0;
	return submit_transfer(NETMON_GLOO, NETMON_OF_ALL, bytes_of_size(size_of_tensor(tensor)));
}

#endif
