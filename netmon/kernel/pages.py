# SPDX-License-Identifier: Apache-2.0
"""How large a page of memory is: 4 KB on x86-64, 4, 16 or 64 KB on aarch64. The one place that asks."""

import mmap

PAGE_BYTES = mmap.PAGESIZE


def whole_pages(size: int) -> int:
    """The bytes of the pages that so many bytes need."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
