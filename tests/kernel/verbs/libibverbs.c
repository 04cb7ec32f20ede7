// SPDX-License-Identifier: Apache-2.0
/* A libibverbs without devices: what it exports is called as the real one's is, and leads to the provider beside it. */
#include <dlfcn.h>
#include <stdlib.h>
#include "abi.h"

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	void *provider = dlopen("libstandin-rdmav34.so", RTLD_NOW);
	struct ibv_context *(*open)(struct ibv_device *) = provider ? dlsym(provider, "standin_context") : NULL;

	return open ? open(device) : NULL;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *domain = calloc(1, sizeof(*domain));

	domain->context = context;
	return domain;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, void *attributes)
{
	static uint32_t number = 16;
	struct ibv_qp *pair = calloc(1, sizeof(*pair));

	pair->context = domain->context;
	pair->pd = domain;
	pair->qp_num = __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED);
	pair->qp_type = 2;
	pair->out = pair->in = -1;
	((void (*)(struct ibv_qp *))pair->context->ops.after[0])(pair);
	return pair;
}

struct ibv_qp *ibv_qp_to_qp_ex(struct ibv_qp *pair)
{
	return pair;
}

int ibv_modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask)
{
	if (mask & STATE && attributes)
		pair->state = attributes->qp_state;
	return 0;
}
