// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * For how long ranks were stopped, to the nanosecond: SIGSTOP and SIGCONT as they are sent to them. Runs on the raw
 * tracepoint signal_generate, once per signal of any process; for every other signal that is one comparison, and for
 * every other process a look at the few that are watched.
 *
 * A signal is sent under its target's own lock, so no two CPUs write to one entry.
 *
 * Set at load: NETMON_WATCHED, the offsets NETMON_TASK_*, _SIGNAL_PIDS, _PID_*, _UPID_* and _PIDNS_INUM, which user space
 * reads from the kernel's own BTF, and NETMON_PID_NAMESPACE_INODE (0: the machine's own).
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"

/* As on all architectures but MIPS, Alpha, SPARC and PA-RISC. */
#define SIGCONT 18
#define SIGSTOP 19

#define PIDTYPE_TGID 1
#define UPID_BYTES 16
#define DEEPEST 8 /* PID namespaces, one in the other */

struct watched_ranks {
	struct netmon_stop ranks[NETMON_WATCHED];
};

/* User space writes whom to watch, and reads the rest. */
BPF_F_TABLE("array", u32, struct watched_ranks, stops, 1, BPF_F_MMAPABLE);

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), (void *)(from))

/* By the number that user space knows it by; 0: a process of another PID namespace. */
static __always_inline u32 pid_of(u64 task)
{
	u32 number = 0;
#if NETMON_PID_NAMESPACE_INODE
	u64 signal = 0, pid = 0, namespace = 0;
	u32 level = 0, inode;
	int depth;

	READ(signal, task + NETMON_TASK_SIGNAL);
	READ(pid, signal + NETMON_SIGNAL_PIDS + PIDTYPE_TGID * sizeof(u64));
	READ(level, pid + NETMON_PID_LEVEL);
#pragma unroll
	for (depth = 0; depth < DEEPEST; depth++) {
		u64 place = pid + NETMON_PID_NUMBERS + depth * UPID_BYTES;

		if (depth > level)
			break;
		inode = 0;
		READ(namespace, place + NETMON_UPID_NS);
		READ(inode, namespace + NETMON_PIDNS_INUM);
		if (inode == (u32)NETMON_PID_NAMESPACE_INODE) {
			READ(number, place + NETMON_UPID_NR);
			break;
		}
	}
#else
	READ(number, task + NETMON_TASK_TGID);
#endif
	return number;
}

struct signal_arguments {
	u64 signal, info, task, group, result;
};

int signal_sent(struct signal_arguments *ctx)
{
	int signal = ctx->signal, place;
	u32 first = 0, pid;
	u64 now;
	struct watched_ranks *watched;

	if (signal != SIGSTOP && signal != SIGCONT)
		return 0;
	watched = stops.lookup(&first);
	pid = pid_of(ctx->task);
	if (!watched || !pid)
		return 0;
	now = bpf_ktime_get_ns();
#pragma unroll
	for (place = 0; place < NETMON_WATCHED; place++) {
		struct netmon_stop *stop = &watched->ranks[place];

		if (stop->pid != pid)
			continue;
		if (signal == SIGSTOP) {
			if (stop->begin_ns <= stop->end_ns)
				stop->begin_ns = now;
		} else if (stop->begin_ns > stop->end_ns) {
			stop->total_ns += now - stop->begin_ns;
			stop->end_ns = now;
		}
	}
	return 0;
}
