/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Which process is running, by the number that user space knows it by. Set at load: NETMON_PID_NAMESPACE_DEVICE and
 * _INODE, of the PID namespace that user space lives in (inode 0: the machine's own).
 */
#ifndef NETMON_CURRENT_H
#define NETMON_CURRENT_H

/* 0: a process of another PID namespace. The kernel tells numbers of the process's own namespace only. */
static __always_inline u32 current_pid(void)
{
#if NETMON_PID_NAMESPACE_INODE
	struct bpf_pidns_info info = {};

	bpf_get_ns_current_pid_tgid(NETMON_PID_NAMESPACE_DEVICE, NETMON_PID_NAMESPACE_INODE, &info, sizeof(info));
	return info.tgid;
#else
	return bpf_get_current_pid_tgid() >> 32;
#endif
}

#endif
