/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What bcc's own headers take from a kernel tree, so that none has to be installed: this directory stands in for
 * /lib/modules/$(uname -r)/build. Our programs read no kernel structure, so nothing here depends on the kernel's build.
 */
#ifndef NETMON_KCONFIG_H
#define NETMON_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1
/* The size of a ring is so many pages, and pages are not 4 KB everywhere: user space says. */
#ifdef NETMON_PAGE_BYTES
#define PAGE_SIZE NETMON_PAGE_BYTES
#else
#define PAGE_SIZE 4096
#endif

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;

#endif
