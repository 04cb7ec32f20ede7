/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
#define LINUX_VERSION_CODE 0
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
