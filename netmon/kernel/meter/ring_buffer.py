# SPDX-License-Identifier: Apache-2.0
"""The BPF ring buffer as a numpy array: mapped memory, no system call and no callback per record."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel import pages
from netmon.records import Table, empty

_FLAGS = np.uint32(1 << 30)  # bit 31: busy, bit 30: discarded


class RingBuffer:
    """The only consumer of one BPF_MAP_TYPE_RINGBUF whose records all have one dtype (size a multiple of 8).

    Layout (kernel/bpf/ringbuf.c): a page with the consumer's position, one with the producer's, then the data pages
    mapped twice in a row, so that a view never wraps. A record has a header of 8 bytes: length with two flag bits,
    page offset.
    """

    def __init__(self, descriptor: int, size: int, dtype: "np.dtype[Any]") -> None:
        """descriptor: of the map (not kept); size: of its data, in bytes; dtype: of the records."""
        if dtype.itemsize % 8:
            raise ValueError(f"records of {dtype.itemsize} bytes are padded by the kernel")
        self.size = size
        self.complete = True
        """Whether the last view reached the newest reservation that it could see."""
        page = pages.PAGE_BYTES
        self._consumer_page = mmap.mmap(descriptor, page)
        self._data_pages = mmap.mmap(descriptor, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        # As Python reads them fastest: they are looked at far more often than there is something to take.
        self._consumer = memoryview(self._consumer_page).cast("Q")
        self._producer = memoryview(self._data_pages).cast("Q")
        self._data = np.frombuffer(self._data_pages, np.uint8, 2 * size, page)
        self._dtype = dtype
        self._nothing = empty(dtype)

    def __len__(self) -> int:
        """Records that wait, those still being written included."""
        return (self._producer[0] - self._consumer[0]) // (self._dtype.itemsize + 8)

    @property
    def level(self) -> float:
        """How full it is, from 0 to 1."""
        return (self._producer[0] - self._consumer[0]) / self.size

    def view(self) -> npt.NDArray[np.uint64]:
        """The complete records, oldest first, in the mapped memory: (n, itemsize / 8) words, valid until `release`.

        Ends before the first record that is still being written.
        """
        start, words = self._consumer[0], self._dtype.itemsize // 8 + 1
        count = (self._producer[0] - start) // (8 * words)
        offset = start & (self.size - 1)
        records = self._data[offset : offset + count * words * 8].view("<u8").reshape(count, words)
        headers = records[:, 0].astype("<u4")  # the length is the lower half
        self.complete = not count or headers.max() < _FLAGS
        if not self.complete:  # our programs discard nothing, so this is a busy one
            records = records[: int(np.argmax(headers >= _FLAGS))]
        return records[:, 1:]

    def release(self, count: int) -> None:
        """Gives the oldest `count` records back to the kernel."""
        self._consumer[0] += count * (self._dtype.itemsize + 8)

    def take(self) -> Table:
        """A copy of the complete records, (n,) of their dtype; their room is given back."""
        if self._producer[0] == self._consumer[0]:
            return self._nothing
        words = self.view()
        records: Table = np.ascontiguousarray(words).view(self._dtype).reshape(len(words))
        self.release(len(words))
        return records.copy()

    def close(self) -> None:
        """Unmaps the memory; views that were given out must be gone."""
        self._consumer.release()
        self._producer.release()
        del self._data
        self._consumer_page.close()
        self._data_pages.close()
