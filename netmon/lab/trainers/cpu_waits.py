# SPDX-License-Identifier: Apache-2.0
"""Whether a moment was noted when it was there; standard library only, for Horovod's environment imports it."""

import os
import threading
import time

LOOK_SECONDS = 0.005
NOTED_AT_ONCE_NS = 500_000
"""A thread that has waited longer for a CPU noted something late."""


class CpuWaits:
    """How long the threads that ask, and the one that looks, have waited for a CPU although they could go on (ns).

    The latter counts because the others wait for it, too, where it holds Python's lock.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # descriptors of their schedstat, by thread
        self._before: dict[int, int] = {}
        threading.Thread(target=self._look_again_and_again, daemon=True).start()

    def total(self) -> int:
        """Of this thread, until now."""
        thread = threading.get_native_id()
        if thread not in self._files:
            self._files[thread] = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        return _waited(self._files[thread])

    def lately(self) -> int:
        """The longest of all within the last milliseconds."""
        now = {thread: _waited(file) for thread, file in list(self._files.items())}
        return max((now[thread] - before for thread, before in self._before.items()), default=0)

    def _look_again_and_again(self) -> None:
        self.total()
        while True:
            time.sleep(LOOK_SECONDS)
            self._before = {thread: _waited(file) for thread, file in list(self._files.items())}


def _waited(schedstat: int) -> int:
    try:
        return int(os.pread(schedstat, 64, 0).split()[1])
    except ProcessLookupError:  # the thread has ended
        return 0
