# SPDX-License-Identifier: Apache-2.0
"""The batches of one session, in their order again.

An agent publishes many at a time. Where one is refused, or gets lost with its connection, those behind it may be on the
bus before it comes again. Every batch says which one goes before it (`previous`) and up to which the bus had
acknowledged all when it was sent (`acknowledged`): what lies below that does not come later, so that no time has to
pass until a gap is known to be one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from netmon.wire.bus import Label

MOST_HELD = 1_024
"""Batches: far more than an agent has on the way at a time."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Held(Generic[T]):
    label: Label
    what: T


class InOrder(Generic[T]):
    """Of one session. Labels of batches in, as the bus has them; batches out, ascending, each once."""

    def __init__(self, stored: int) -> None:
        """stored: the rows of every batch up to there are in the dataset; what is missing of those does not come.

        One that does come is given out: an iteration, or the ledger, may need what it says beside its rows.
        """
        self.last = 0  # that was given out
        self._known = stored  # nothing up to there comes later
        self._held: dict[int, _Held[T]] = {}

    @property
    def held(self) -> int:
        """Batches that wait for one before them."""
        return len(self._held)

    def add(self, label: Label, what: T) -> Iterator[T]:
        """A batch has come; what may be taken in now. One that was given out before is not given out again."""
        self._known = max(self._known, label.acknowledged)
        if label.sequence > self.last:
            held = self._held.get(label.sequence)
            # Sent again without the batch that went before it, which was given up.
            if held is None or label.previous < held.label.previous:
                self._held[label.sequence] = _Held(label, what)
        yield from self._ready(len(self._held) > MOST_HELD)

    def give_up(self) -> Iterator[T]:
        """What is missing does not come: everything that is held."""
        while self._held:
            yield from self._ready(anyhow=True)

    def _ready(self, anyhow: bool) -> Iterator[T]:
        while self._held:
            first = min(self._held)
            if not anyhow and self._held[first].label.previous > max(self.last, self._known):
                return
            anyhow = False
            self.last = max(self.last, first)
            yield self._held.pop(first).what
