# SPDX-License-Identifier: Apache-2.0
"""How much of the bus one host may take while workers are away or slow: the rest is for all others.

The servers bound the number of a host's batches (`netmon.wire.bus.BusSettings.most_batches`), the agent their bytes:
it knows what it has published, and the bus how many batches of the host are still there, which are the latest ones.
What does not fit stays in the spool, and is streamed coarser as soon as it is late.
"""

import logging
import threading
from collections import deque

_log = logging.getLogger(__name__)

SHARE = 1 / 4
"""Of what the stream may hold."""


class BusShare:
    """Of one agent, over all its sessions and connections. Thread-safe."""

    def __init__(self) -> None:
        """Nothing was published, and how much the bus holds is not known."""
        self._lock = threading.Lock()
        self._sizes: deque[int] = deque()  # of batches that may be on the bus, oldest first
        self._bytes = 0
        self._most: float = 0  # bytes; 0: any
        self._said = False

    def learn(self, stream_bytes: int | None) -> None:
        """What the stream may hold; None, or not above 0: anything."""
        with self._lock:
            self._most = SHARE * stream_bytes if stream_bytes and stream_bytes > 0 else 0

    def fits(self, size: int) -> bool:
        """Whether a batch may be published now; one always may."""
        with self._lock:
            return not self._most or not self._bytes or self._bytes + size <= self._most

    def say(self, host: str) -> None:
        """There is no room; once, until there has been for all."""
        with self._lock:
            if not self._said:
                self._said = True
                _log.warning(
                    "%s has %d bytes waiting on the bus, as much as one host may; batches wait", host, self._bytes
                )

    def published(self, size: int) -> None:
        """A batch is on its way."""
        with self._lock:
            self._sizes.append(size)
            self._bytes += size
            if not self._most:
                self._keep(0)

    def waiting(self, batches: int) -> None:
        """So many of the host's are on the bus, or on their way."""
        with self._lock:
            self._keep(batches)

    def _keep(self, batches: int) -> None:
        while len(self._sizes) > batches:
            self._bytes -= self._sizes.popleft()
        self._said &= bool(self._sizes)
