# SPDX-License-Identifier: Apache-2.0
"""What the C library does with memory that is given back: kept for the next batch, instead of returned to the kernel.

A batch of some thousand rows makes tables of some hundred kilobytes, again and again. As glibc comes, each of them is
mapped and unmapped, and the kernel clears its pages anew: half of what summing up the rows costs.
"""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_KEPT_BYTES = 4 << 20


def keep_heap() -> None:
    """To be called once, before there is work. Where the C library is another one, nothing changes.

    All threads share one arena: one at a time has Python's lock, and each arena would keep as much.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
        library.mallopt(_ARENA_MAX, 1)


def trim_heap() -> None:
    """What the start has used and the work will not goes back to the kernel."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
