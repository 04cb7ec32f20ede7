/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Empty: bcc asks for it, our programs need nothing of it. */
