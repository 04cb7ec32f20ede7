# SPDX-License-Identifier: Apache-2.0
"""Marks that lead to nothing, or come too late: counted, kept where they may become of use, and said once."""

import logging
from collections import Counter

from netmon.records import Mark, Moment, Source

_log = logging.getLogger(__name__)
_MOST_PENDING = 1_000  # marks kept per process that has not joined

REPEATED, GONE, STRANGER, DISTANT = (
    "repeated, out of order or out of any iteration",
    "of a process that is gone",
    "of a process that never joined",
    "from a distant past or future",
)
"""Why a mark is not used."""

Key = tuple[str, int, int]
"""Job as the process calls it, rank, pid."""


class RejectedMarks:
    """Those of one host, and what there is to say of its ranks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.unusable: Counter[str] = Counter()  # marks that led to nothing, by reason
        self._lines: dict[str, None] = {}  # an ordered set
        self._pending: dict[Key, list[Mark]] = {}

    @property
    def warnings(self) -> list[str]:
        """One line each; the last one counts the marks that were not used."""
        counts = ", ".join(f"{count} {reason}" for reason, count in self.unusable.items() if count)
        unused = [f"{self._host}: marks that were not used: {counts}"] if counts else []
        return [*self._lines, *unused]

    def warn(self, line: str) -> None:
        """Log a line and keep it for viewers, once."""
        if line not in self._lines:
            self._lines[line] = None
            _log.warning(line)

    def set_pending(self, key: Key, mark: Mark) -> None:
        """Of a process that has not joined, but may."""
        pending = self._pending.setdefault(key, [])
        self.unusable[STRANGER] += 1
        if not pending:
            self.warn(f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} are kept aside: it never joined")
        if len(pending) < _MOST_PENDING:
            pending.append(mark)

    def take_pending(self, key: Key) -> list[Mark]:
        """What is kept of a process that joins."""
        return self._pending.pop(key, [])

    def late(self, mark: Mark, first: bool) -> None:
        """A mark has come after the rows around it had settled; first: its rank has not ended an iteration yet."""
        # Waits bound an iteration only where nothing follows; their lateness costs no other one. What the traffic
        # tells comes late by its nature, and is no finer than the account of what has settled.
        # The first step of a process is reported once the second one has shown what a step is.
        if mark.moment not in (Moment.FIRST_WAIT, Moment.LAST_WAIT) and mark.source != Source.INFERRED and not first:
            self.warn(
                f"marks of rank {mark.rank} of job {mark.job!r} on {self._host} came after their rows had "
                "settled; near the iteration's edges rows carry its neighbour's number: raise --settle"
            )
