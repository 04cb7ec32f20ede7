/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* How large tensors are, read where libraries of many versions have it. What does not fit together is not known. */
#ifndef NETMON_TENSOR_SIZES_H
#define NETMON_TENSOR_SIZES_H

/* As user space wants it; 0 where it cannot be true. */
static __always_inline u64 size_of(u64 values, u64 bytes)
{
	if (!values || values > NETMON_MOST_VALUES || !bytes || bytes > 8)
		return 0;
	return values << 4 | bytes;
}

/* In the order of Horovod's enum DataType; integers are no gradients. */
static __always_inline u32 bytes_of_horovod(u32 type)
{
	return type == 6 || type == 10 ? 2 : type == 7 ? 4 : type == 8 ? 8 : 0;
}

/* Of all of them: what is sent and not summed may be anything. */
static __always_inline u32 width_of_horovod(u32 type)
{
	return type == 5 || type == 8				   ? 8
	       : type == 4 || type == 7				   ? 4
	       : type == 2 || type == 3 || type == 6 || type == 10 ? 2
								   : 1;
}

/* A horovod::common::Request begins with these, in all versions. */
struct horovod_request {
	u32 rank, kind, type;
};

/* The product of a shape's sizes; 0: it is none. */
static __always_inline u64 values_of(u64 begin, u64 end)
{
	u64 sizes[8] = {}, values = 1, bytes = end - begin;

	if (bytes > sizeof(sizes) || bytes % 8)
		return 0;
	/* A scalar has no sizes, and one value. The mask changes nothing; it shows the verifier the bound. */
	if (bytes && read_user(sizes, bytes & 127, (void *)begin))
		return 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		if (8 * i < bytes) {
			/* Two factors below 2^32: their product is one that can be checked. */
			if (sizes[i] >> 32 || values >> 32)
				return 0;
			values *= sizes[i];
		}
	}
	return values > NETMON_MOST_VALUES ? 0 : values;
}

/*
 * How large a PyTorch tensor of one dimension is, as a bucket's is. Where its TensorImpl has the sizes depends on the
 * version. So it is looked for: the number of dimensions, five places for their sizes, five for their strides, an offset, the
 * number of values, and the type, all of which have to fit together. 0: not found.
 */
#define TENSOR_WORDS 32
#define MOST_DIMENSIONS 5 /* of tensors that have their sizes within them */

static __always_inline u64 size_of_flat_tensor(u64 address)
{
	u64 word[TENSOR_WORDS] = {};

	if (read_user(word, sizeof(word), (void *)address))
		return 0;
#pragma unroll
	for (int at = 3; at + 13 < TENSOR_WORDS; at++) {
		u16 type = word[at + 13]; /* c10::ScalarType */

		if (word[at] == 1 && word[at + 6] == 1 && word[at + 1] == word[at + 12] && word[at + 1] > 0)
			return size_of(word[at + 1], type == 5 || type == 15 ? 2 : type == 6 ? 4 : type == 7 ? 8 : 0);
	}
	return 0;
}

/* The values of a PyTorch tensor of up to five dimensions and the bytes of each, looked for in the same way; 0: not found. */
static __always_inline u64 size_of_tensor(u64 address)
{
	u64 word[TENSOR_WORDS] = {}, product;

	if (read_user(word, sizeof(word), (void *)address))
		return 0;
#pragma unroll
	for (int at = 3; at + 13 < TENSOR_WORDS; at++) {
		u16 type = word[at + 13]; /* c10::ScalarType */

		product = 1;
#pragma unroll
		for (int n = 0; n < MOST_DIMENSIONS; n++) {
			if (n < word[at])
				product *= word[at + 1 + n];
		}
		if (word[at] >= 1 && word[at] <= MOST_DIMENSIONS && product == word[at + 12] && product &&
		    product < NETMON_MOST_VALUES)
			return size_of(product, type == 4 || type == 7		       ? 8
						: type == 3 || type == 6	       ? 4
						: type == 2 || type == 5 || type == 15 ? 2
										       : 1);
	}
	return 0;
}

static __always_inline u64 bytes_of_size(u64 size)
{
	return (size >> 4) * (size & 15);
}

#endif
