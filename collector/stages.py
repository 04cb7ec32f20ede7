# SPDX-License-Identifier: Apache-2.0
"""The host stage and what of the job stage answers within a tick."""

from collections.abc import Sequence

from collector.host.batches import Settled
from collector.host.stage import HostStage
from collector.jobs.common_numbers import Numbers
from collector.jobs.rank_claims import Claims
from collector.jobs.remote_ends import Peers
from collector.settings import Settings
from netmon.wire.many import ManyBatches


class Stages:
    """Both, as the registry works with them."""

    def __init__(self, settings: Settings) -> None:
        """Begin without sessions."""
        self.numbers, self.claims, self.peers = Numbers(), Claims(), Peers()
        self.hosts = HostStage(settings, self.peers, self.numbers, self.claims)

    def tick(self) -> Settled:
        """As HostStage.tick."""
        return self.hosts.tick()

    def take(self, places: Sequence[int], many: ManyBatches) -> Settled:
        """As HostStage.take."""
        return self.hosts.take(places, many)

    def settle_all(self, places: Sequence[int], leaving: bool) -> Settled:
        """As HostStage.settle_all."""
        return self.hosts.settle_all(places, leaving)
