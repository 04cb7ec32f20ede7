# SPDX-License-Identifier: Apache-2.0
"""What the C library does with memory that is given back: kept for the next batch, instead of returned to the kernel.

A batch of some thousand rows makes tables of some hundred kilobytes, again and again. As glibc comes, each of them is
mapped and unmapped, and the kernel clears its pages anew: half of what summing up the rows costs.
"""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT_BYTES = 4 << 20


def keep_heap() -> None:
    """To be called once, before there is work. Where the C library is another one, nothing changes."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
