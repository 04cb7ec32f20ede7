/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
#ifndef NETMON_PTRACE_H
#define NETMON_PTRACE_H

#include <asm/ptrace.h>

/* What a probe's program is given. On aarch64 the kernel shows user space this under another name. */
#ifdef __aarch64__
struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
#endif

#endif
