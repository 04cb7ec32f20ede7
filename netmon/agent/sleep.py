# SPDX-License-Identifier: Apache-2.0
"""Between two looks nobody here uses a CPU, and the kernel ends it where it has something that cannot wait."""

import select
import time
from collections.abc import Iterable

from netmon.agent.poll_schedule import Rest
from netmon.kernel.meter.wakes import Wakes


class Sleep:
    """One per agent."""

    def __init__(self, wakes: Wakes, answers: int, steps: int) -> None:
        """answers: descriptor of what the privileged part says; steps: of the ring of ranks' calls (both not kept)."""
        self._wakes = wakes
        self._calm = _poll((wakes.descriptor, answers))
        self._all = _poll((wakes.descriptor, answers, steps))

    def rest(self, rest: Rest, ranks: bool) -> bool:
        """Blocks; whether it was ended early. ranks: they report steps all the time, so that this wakes nobody."""
        if not rest.wakes:
            time.sleep(rest.ns / 1e9)
            return False
        if not self._wakes.arm(rest.level):
            return True
        poll = self._calm if ranks else self._all
        return bool(poll.poll(rest.ns / 1e9))

    def close(self) -> None:
        """Closes what it polls."""
        self._calm.close()
        self._all.close()
        self._wakes.close()


def _poll(descriptors: Iterable[int]) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, select.EPOLLIN)
    return poll
