# SPDX-License-Identifier: Apache-2.0
"""Threads without which the agent does not live on."""

import threading
from collections.abc import Iterable

from netmon.errors import KernelError


class Worker(threading.Thread):
    """A thread that remembers what it died of."""

    def __init__(self, name: str) -> None:
        """`start` starts it."""
        super().__init__(name=name, daemon=True)
        self.died_of: BaseException | None = None

    def run(self) -> None:
        """Works, and remembers why it could not."""
        try:
            self.work()
        except BaseException as error:
            self.died_of = error
            raise

    def work(self) -> None:
        """What the thread does."""
        raise NotImplementedError


def check_alive(threads: Iterable[threading.Thread]) -> None:
    """Raises KernelError where one of them has ended: an agent without it would look healthy, and send nothing."""
    for thread in threads:
        if not thread.is_alive():
            cause = getattr(thread, "died_of", None)
            because = f": {type(cause).__name__}: {cause}" if cause else ""
            raise KernelError(f"the agent's thread {thread.name!r} has ended{because}; start the agent again")
