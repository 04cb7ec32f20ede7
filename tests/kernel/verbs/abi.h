/* SPDX-License-Identifier: Apache-2.0 */
/* Of libibverbs' ABI (rdma-core, infiniband/verbs.h) what the stand-in has: the same structures, with the same layout. */
#ifndef ABI_H
#define ABI_H

#include <stddef.h>
#include <stdint.h>

enum { WRITE, WRITE_WITH_IMM, SEND, SEND_WITH_IMM, READ, COMPARE_AND_SWAP, FETCH_AND_ADD, LOCAL_INVALIDATE };
enum { FLUSH = 14, ATOMIC_WRITE };
enum { RESET, INIT, READY_TO_RECEIVE, READY_TO_SEND };
enum { STATE = 1, PATH = 1 << 7, DESTINATION = 1 << 20, INLINE = 8 };

struct ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct ibv_data_buf {
	void *addr;
	size_t length;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge, opcode;
	unsigned int send_flags;
	uint32_t imm_data;
	uint64_t rest[11];
};

struct ibv_device {
	void *operations[2];
	int node_type, transport_type;
	char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct ibv_context;
struct ibv_qp;

struct ibv_context_ops {
	void *before[25];
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*post_recv)(struct ibv_qp *, void *, void **);
	void *after[5];
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd, async_fd, num_comp_vectors;
	uint64_t mutex[5];
	void *abi_compat;
};

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	void *send_cq, *recv_cq, *srq;
	uint32_t handle, qp_num;
	int state, qp_type;
	uint64_t rest[12];
	/* Of struct ibv_qp_ex, which begins with a queue pair. */
	uint64_t comp_mask, wr_id;
	unsigned int wr_flags;
	void (*wr_atomic_cmp_swp)(struct ibv_qp *, uint32_t, uint64_t, uint64_t, uint64_t);
	void (*wr_atomic_fetch_add)(struct ibv_qp *, uint32_t, uint64_t, uint64_t);
	void (*wr_bind_mw)(struct ibv_qp *, void *, uint32_t, const void *);
	void (*wr_local_inv)(struct ibv_qp *, uint32_t);
	void (*wr_rdma_read)(struct ibv_qp *, uint32_t, uint64_t);
	void (*wr_rdma_write)(struct ibv_qp *, uint32_t, uint64_t);
	void (*wr_rdma_write_imm)(struct ibv_qp *, uint32_t, uint64_t, uint32_t);
	void (*wr_send)(struct ibv_qp *);
	void (*wr_send_imm)(struct ibv_qp *, uint32_t);
	void (*wr_send_inv)(struct ibv_qp *, uint32_t);
	void (*wr_send_tso)(struct ibv_qp *, void *, uint16_t, uint16_t);
	void (*wr_set_ud_addr)(struct ibv_qp *, void *, uint32_t, uint32_t);
	void (*wr_set_xrc_srqn)(struct ibv_qp *, uint32_t);
	void (*wr_set_inline_data)(struct ibv_qp *, void *, size_t);
	void (*wr_set_inline_data_list)(struct ibv_qp *, size_t, const struct ibv_data_buf *);
	void (*wr_set_sge)(struct ibv_qp *, uint32_t, uint64_t, uint32_t);
	void (*wr_set_sge_list)(struct ibv_qp *, size_t, const struct ibv_sge *);
	void (*wr_start)(struct ibv_qp *);
	int (*wr_complete)(struct ibv_qp *);
	void (*wr_abort)(struct ibv_qp *);
	void (*wr_atomic_write)(struct ibv_qp *, uint32_t, uint64_t, const void *);
	void (*wr_flush)(struct ibv_qp *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	/* The stand-in's own: what is being built, and its connections, of which what is sent and written goes out by the
	 * one, what is read by the other. */
	int requests, opcodes[8];
	uint64_t lengths[8];
	int out, in;
};

struct ibv_qp_attr {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned int qp_access_flags;
	uint32_t cap[5];
	uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class, pad;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
	uint8_t rest[57];
};

_Static_assert(offsetof(struct ibv_context, ops.post_send) == 208, "post_send");
_Static_assert(offsetof(struct ibv_context, ops.before[11]) == 96, "poll_cq");
_Static_assert(offsetof(struct ibv_context, cmd_fd) == 264 && offsetof(struct ibv_context, abi_compat) == 320,
	       "context");
_Static_assert(offsetof(struct ibv_device, name) == 24, "device");
_Static_assert(offsetof(struct ibv_qp, qp_num) == 52 && offsetof(struct ibv_qp, state) == 56, "queue pair");
_Static_assert(offsetof(struct ibv_qp, wr_atomic_cmp_swp) == 184 && offsetof(struct ibv_qp, wr_rdma_read) == 216,
	       "functions");
_Static_assert(offsetof(struct ibv_qp, wr_set_sge) == 304 && offsetof(struct ibv_qp, wr_abort) == 336, "functions");
_Static_assert(offsetof(struct ibv_send_wr, sg_list) == 16 && offsetof(struct ibv_send_wr, num_sge) == 24, "request");
_Static_assert(offsetof(struct ibv_send_wr, opcode) == 28 && sizeof(struct ibv_send_wr) == 128, "request");
_Static_assert(offsetof(struct ibv_qp_attr, dest_qp_num) == 28 && offsetof(struct ibv_qp_attr, dgid) == 56,
	       "attributes");
_Static_assert(offsetof(struct ibv_qp_attr, dlid) == 80 && offsetof(struct ibv_qp_attr, is_global) == 85, "attributes");
_Static_assert(offsetof(struct ibv_qp_attr, port_num) == 86 && sizeof(struct ibv_qp_attr) == 144, "attributes");

struct ibv_context *ibv_open_device(struct ibv_device *);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *);
struct ibv_qp *ibv_create_qp(struct ibv_pd *, void *);
int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
struct ibv_qp *ibv_qp_to_qp_ex(struct ibv_qp *);

#endif
