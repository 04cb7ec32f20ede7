# SPDX-License-Identifier: Apache-2.0
"""When the agent does what. A look at what waits is cheap and often; a tick takes it in; a batch sends it.

A tick comes at once where somebody is waiting for it: a flow that is new (its process may be short), a ring that fills,
an answer of the privileged part. All other records wait in the rings for the batch with which they leave.
"""

LOOK_NS = 50_000_000
"""Between two looks: what is new is seen so soon, and ranks' marks are taken so often."""
BATCH_NS = 200_000_000
"""Between two batches, as long as there is something to send."""

_BUSY_LOOK_NS = 5_000_000
_IDLE_LOOK_NS = 100_000_000
_IDLE_NS = 1_000_000_000  # without anything, after which looks and batches come less often
_IDLE_BATCH_NS = 1_000_000_000  # the horizon moves on all the same
_LONGEST_BATCH_NS = 2_000_000_000  # whatever the collector asks for
_FULL = 1 / 16  # of a ring, from which nobody waits for the batch
_FAST = 1 / 8  # of a ring, filled from one look to the next: the next one comes sooner


class Rhythm:
    """One per agent. Knows no clock: times are given, in ns (mono)."""

    def __init__(self, now_ns: int) -> None:
        """A batch has just been sent."""
        self._looked_ns = self._active_ns = self._sent_ns = now_ns
        self._level, self._growth = 0.0, 0.0
        self._waits = False
        self.asked_ns = 0
        """Between two batches at least, if the collector has asked for it."""

    def look(self, now_ns: int, level: float, waits: bool) -> None:
        """What a look has shown. level: of the fullest ring, 0 to 1; waits: whether anything is to be taken or sent."""
        self._growth, self._level = level - self._level, level
        self._looked_ns, self._waits = now_ns, waits
        if waits:
            self._active_ns = now_ns

    @property
    def full(self) -> bool:
        """Whether a ring wants to be drained."""
        return self._level > _FULL

    @property
    def batch_is_due(self) -> bool:
        """By the last look."""
        usual_ns = BATCH_NS if self._waits else _IDLE_BATCH_NS
        return self._looked_ns - self._sent_ns >= max(usual_ns, min(self.asked_ns, _LONGEST_BATCH_NS))

    def drained(self) -> None:
        """The rings are empty."""
        self._level = 0.0

    def sent(self) -> None:
        """A batch, after the last look."""
        self._sent_ns = self._looked_ns

    @property
    def rest_ns(self) -> int:
        """Until the next look: the rings must not fill up meanwhile, and whoever is idle is left alone."""
        if self._growth > _FAST:
            return _BUSY_LOOK_NS
        return _IDLE_LOOK_NS if self._looked_ns - self._active_ns > _IDLE_NS else LOOK_NS
