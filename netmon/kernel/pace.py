# SPDX-License-Identifier: Apache-2.0
"""A limit to the time that a kind of work may take, so that a monitor stays light whatever its host does."""

import time
from types import TracebackType


class Pace:
    """Work that may take a share of one core in the long run, and a stock of time at once."""

    def __init__(self, share: float, stock_ns: int) -> None:
        """Begins with a full stock."""
        self._share, self._most_ns, self._stock_ns = share, stock_ns, float(stock_ns)
        self._last_ns = self._begin_ns = time.monotonic_ns()

    def allows(self) -> bool:
        """Whether the work may be begun now. It is then done inside a `with` block, which times it."""
        now = time.monotonic_ns()
        self._stock_ns = min(self._most_ns, self._stock_ns + (now - self._last_ns) * self._share)
        self._last_ns = now
        return self._stock_ns > 0

    def __enter__(self) -> None:
        """The work begins."""
        self._begin_ns = time.monotonic_ns()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """The work is done."""
        self.spend(time.monotonic_ns() - self._begin_ns)

    def spend(self, time_ns: int) -> None:
        """So much has been done by somebody else, such as a child."""
        self._stock_ns -= time_ns
