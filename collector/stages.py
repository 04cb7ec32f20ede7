# SPDX-License-Identifier: Apache-2.0
"""The host stage, and what of the job stage answers it within a tick: hands on the messages between them."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collector.host.batches import Settled
from collector.host.exchange import Talk
from collector.host.stage import HostStage
from collector.jobs.rank_registry import RankRegistry
from collector.settings import Settings
from netmon.wire.batch_fields import ManyBatches

_T = TypeVar("_T")


class Stages:
    """Both, as the registry works with them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.hosts = HostStage(settings)
        self._registry = RankRegistry()

    @property
    def shared(self) -> int:
        """How much is known of what several hosts have to do with each other, as Answering counts it."""
        return len(self._registry)

    def tick(self) -> Settled:
        return talk(self.hosts.tick(), self._registry)

    def take(
        self,
        session_indices: Sequence[int] | npt.NDArray[np.int64],
        many: ManyBatches,
        sequences: Sequence[int] | None = None,
    ) -> Settled:
        return talk(self.hosts.take(session_indices, many, sequences), self._registry)

    def settle_all(self, session_indices: Sequence[int], leaving: bool) -> Settled:
        return talk(self.hosts.settle_all(session_indices, leaving), self._registry)


def talk(work: Talk[_T], rank_registry: RankRegistry) -> _T:
    """Do the host stage's work; each message that it yields is answered."""
    try:
        news = next(work)
        while True:
            news = work.send(rank_registry.answer(news))
    except StopIteration as done:
        found: _T = done.value
        return found
