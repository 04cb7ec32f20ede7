# SPDX-License-Identifier: Apache-2.0
"""When the agent does what. A look at what waits is cheap; a drain takes it in; a batch sends it.

Records wait in the rings for the batch with which they leave, and the agent sleeps until then. The kernel ends the
sleep where somebody is waiting: a flow that is new (its process may be short), a ring that fills, the first call of a
training library, the first record after a silence; so does an answer of the privileged part. While such things come one
after the other, nobody is woken for each of them: the agent looks by itself.
"""

import select
import time
from collections.abc import Iterable
from dataclasses import dataclass

from netmon.kernel.meter.memory import Wakes

LOOK_NS = 50_000_000
"""Between two looks while each finds something; from the end of a silence to its batch, with what is open then."""
BATCH_NS = 1_000_000_000
"""Between two batches, unless somebody waits for them; the horizon moves on where there is nothing to send, too."""

_LEAST_NS = 1_000_000
_BUSY_LOOK_NS = 5_000_000
_RANKS_LOOK_NS = 100_000_000  # while ranks report their steps: what they tell waits in small rings
_IDLE_LOOK_NS = 334_000_000  # for what nobody is woken for, such as a process that begins: its steps are to be seen
_SHORTEST_BATCH_NS, _LONGEST_BATCH_NS = 100_000_000, 2_000_000_000  # whatever the collector asks for
_FULL = 1 / 16  # of a ring, from which nobody waits for the batch
_FAST = 1 / 8  # of a ring, filled from one look to the next: the next one comes sooner


@dataclass(frozen=True)
class Rest:
    """Until the next look. wakes: whether it may be ended; level: of a ring of buckets, above which it is."""

    ns: int
    wakes: bool = False
    level: float = 0.0


class PollSchedule:
    """One per agent. Knows no clock: times are given, in ns (mono)."""

    def __init__(self, now_ns: int) -> None:
        """A batch has just been sent."""
        self._looked_ns = self._sent_ns = now_ns
        self._waits_ns: int | None = None  # since when
        self._level, self._growth = 0.0, 0.0
        self._hurried = False
        self.requested_ns = self.within_ns = 0
        """Between two batches at least, and at most while something waits, if the collector has asked for it."""

    def update(self, now_ns: int, level: float, waits: bool, hurried: bool = False) -> None:
        """What a look has shown. level: of the fullest ring, 0 to 1; waits: whether anything is to be taken or sent;
        hurried: whether more of what ends a rest is likely to come at once.
        """
        self._growth, self._level = level - self._level, level
        self._looked_ns, self._hurried = now_ns, hurried
        if not waits:
            self._waits_ns = None
        elif self._waits_ns is None:
            self._waits_ns = now_ns

    @property
    def full(self) -> bool:
        """Whether a ring wants to be drained."""
        return self._level > _FULL

    @property
    def batch_is_due(self) -> bool:
        """By the last look."""
        return self._looked_ns >= self._due_ns

    @property
    def _due_ns(self) -> int:
        batch_ns = min(self.requested_ns, _LONGEST_BATCH_NS)
        if self._waits_ns is None:
            return self._sent_ns + max(BATCH_NS, batch_ns)
        within_ns = max(self.within_ns, _SHORTEST_BATCH_NS) if self.within_ns else BATCH_NS
        return max(self._sent_ns + max(min(BATCH_NS, within_ns), batch_ns), self._waits_ns + LOOK_NS)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to take or to send."""
        return self._waits_ns is None

    def awake(self) -> None:
        """The host was suspended: a batch is due, whose clock tells where its times have jumped."""
        self._sent_ns = 0
        if self._waits_ns is not None:
            self._waits_ns = 0

    def drained(self) -> None:
        """The rings are empty."""
        self._level = 0.0

    def sent(self) -> None:
        """A batch, after the last look."""
        self._sent_ns = self._looked_ns

    def rest(self, ranks: bool = False) -> Rest:
        """Until the next look: the rings must not fill up meanwhile, and whoever is idle is left alone.

        ranks: whether ranks have reported their steps lately.
        """
        if self._growth > _FAST:
            return Rest(_BUSY_LOOK_NS)
        if self._hurried:
            return Rest(LOOK_NS)
        longest_ns = _RANKS_LOOK_NS if ranks else _IDLE_LOOK_NS
        ns = min(longest_ns, max(_LEAST_NS, self._due_ns - self._looked_ns))
        return Rest(ns, wakes=True, level=_FULL if self._waits_ns is not None else 0.0)


class Sleep:
    """Between two looks nobody here uses a CPU, and the kernel ends it where it has something that cannot wait."""

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
        self._calm.close()
        self._all.close()
        self._wakes.close()


def _poll(descriptors: Iterable[int]) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, select.EPOLLIN)
    return poll
