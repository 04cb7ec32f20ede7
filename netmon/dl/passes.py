# SPDX-License-Identifier: Apache-2.0
"""All-reduces of a library that tells no names: put in order, and named by their size and place.

A training script that reduces its gradients itself hands them over in the same order in every step, and computes for
much longer between two passes over them than between two calls of one. So a call is the k-th of its size in a pass.
"""

from collections import Counter, deque

import numpy as np

from netmon.dl.recurrence import Event
from netmon.records import STEP_CALL, STEP_ENQUEUE, STEP_OTHER

_RECENT = 512  # calls, whose pauses tell what a pause between passes is
_SETTLED = 64  # calls, after which that is found anew only now and then
_LEAST_PAUSE_NS = 1_000_000
_MOST_HELD = 10_000  # events after a call of which no size is told
_MOST_SIZES = 10_000  # in a pass
_HASH_PRIME, _HASH_BITS = 0x100000001B3, (1 << 64) - 1


class Passes:
    """The calls of one process. Feed it in order of time."""

    def __init__(self) -> None:
        """No call yet."""
        self._held: deque[Event] = deque()  # from the first call on whose size is not known
        self._pauses: deque[int] = deque(maxlen=_RECENT)
        self._calls = 0
        self._limit_ns = _LEAST_PAUSE_NS
        self._last_ns = 0
        self._of_size: Counter[int] = Counter()  # calls in this pass

    def feed(self, event: Event) -> list[Event]:
        """The events that are complete now, in order of time, each at its call and by its name."""
        if event.kind == STEP_CALL or (self._held and event.kind not in (STEP_ENQUEUE, STEP_OTHER)):
            self._held.append(event)
            return self._release() if len(self._held) > _MOST_HELD else []
        if not self._held:
            return [self._named(event)]
        return [self._named(event._replace(time_ns=self._held[0].time_ns)), *self._release()]

    def _release(self) -> list[Event]:
        """All up to the next call; the first one is done with."""
        self._held.popleft()
        events = []
        while self._held and self._held[0].kind != STEP_CALL:
            events.append(self._named(self._held.popleft()))
        return events

    def _named(self, event: Event) -> Event:
        pause, self._last_ns = event.time_ns - self._last_ns, event.time_ns
        if event.kind != STEP_ENQUEUE or not event.name:
            return event
        self._calls += 1
        if self._calls > 1:
            self._pauses.append(pause)
        if self._calls < _SETTLED or self._calls % _SETTLED == 0:
            self._limit_ns = self._find_limit()
        if pause >= self._limit_ns or len(self._of_size) > _MOST_SIZES:
            self._of_size.clear()
        self._of_size[event.name] += 1
        return event._replace(name=(event.name ^ self._of_size[event.name]) * _HASH_PRIME & _HASH_BITS)

    def _find_limit(self) -> int:
        """Half of what the computation usually takes: that is the longer one of two kinds of pauses.

        A single one that is much longer still, as of an evaluation or a checkpoint, does not count.
        """
        if not self._pauses:
            return _LEAST_PAUSE_NS
        pauses = np.array(self._pauses, np.float64)
        between = np.sqrt(max(1.0, np.median(pauses)) * pauses.max())
        return max(_LEAST_PAUSE_NS, int(np.median(pauses[pauses >= between]) / 2))
