# SPDX-License-Identifier: Apache-2.0
"""The batches of one tick of the host stage, and what the tick has made of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import Accounted, IterationRows
from collector.host.tables import Classified
from collector.host.window import Output
from netmon.columnar import Columns
from netmon.dl.iterations import IterationTracker
from netmon.mark_runs import MarkRun, MarkTable, mark_table
from netmon.records import ClockExchange, Flow, NicSample
from netmon.wire.batch_fields import ManyBatches

_Indices = npt.NDArray[np.int64]


@dataclass
class Settled:
    """What a tick has made final, and what it could not take in."""

    outputs: dict[int, list[Output]] = field(default_factory=dict)  # by index, where something has become final
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)  # by index: batch, and why it breaks the contract
    failed: dict[int, tuple[int, Exception]] = field(default_factory=dict)  # by index: batch, 0: none; how it failed
    arrived: list[Columns] = field(default_factory=list)  # rows that have come, of ARRIVED
    final: list[Classified] = field(default_factory=list)  # rows that have settled
    ended: list[IterationRows] = field(default_factory=list)  # iterations that have; their accounts follow
    unclear: dict[str, IterationTracker] = field(default_factory=dict)  # jobs that are not understood, a rank of each
    accounted: list[Accounted] = field(default_factory=list)  # iterations whose rows have settled


@dataclass
class Batches:
    """The batches of one tick, those that are refused marked as such."""

    many: ManyBatches
    session: _Indices  # of each batch
    sequences: Sequence[int]  # of each batch
    settled: Settled
    flows: dict[int, list[Flow]] = field(default_factory=dict)  # these four by batch
    marks: dict[int, list[MarkRun]] = field(default_factory=dict)  # of ranks outside the rank table
    table_marks: MarkTable = field(default_factory=lambda: mark_table(()))  # those of the others that are taken in
    exchanges: dict[int, list[ClockExchange]] = field(default_factory=dict)
    nic: dict[int, list[NicSample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort what comes alongside rows by its batch."""
        self.good = np.ones(len(self.session), np.bool_)
        for name in ("flows", "exchanges", "nic"):
            found: dict[int, list[object]] = getattr(self, name)
            for batch, one in getattr(self.many, name):
                found.setdefault(batch, []).append(one)
        for batch, reason in self.many.refused.items():
            self.refuse(batch, reason)

    def refuse(self, batch: int, reason: str) -> None:
        """It breaks the contract; what follows it on its session comes again."""
        session_index, sequence = int(self.session[batch]), self.sequences[batch]
        known = self.settled.refused.get(session_index)
        if known is None or sequence < known[0]:
            self.settled.refused[session_index] = sequence, reason
        self.good[batch:][self.session[batch:] == session_index] = False

    def fail(self, batch: int, error: Exception) -> None:
        """The stage fails at it: nothing of its session is what it should be."""
        self.fail_session(int(self.session[batch]), error, self.sequences[batch])

    def fail_session(self, session_index: int, error: Exception, sequence: int = 0) -> None:
        """The stage fails at it; sequence: at which batch."""
        self.settled.failed.setdefault(session_index, (sequence, error))
        self.good[self.session == session_index] = False


def failing(work: Callable[[list[int]], object], session_indices: list[int]) -> list[tuple[int, Exception]]:
    """The sessions at which work(indices) fails, and how. Where it fails for many at once, it is tried on each half."""
    if not session_indices:
        return []
    try:
        work(session_indices)
    except Exception as error:
        if len(session_indices) == 1:
            return [(session_indices[0], error)]
        middle = len(session_indices) // 2
        return failing(work, session_indices[:middle]) + failing(work, session_indices[middle:])
    return []
