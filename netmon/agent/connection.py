# SPDX-License-Identifier: Apache-2.0
"""The seam between a spool and whoever takes its batches: one connection, from its beginning to its end.

There are two kinds: a gRPC stream to a collector (`grpc_connection`), where an acknowledgement says that a batch is in
the dataset, and NATS JetStream (`bus_connection`), where it says that the bus keeps the batch until a worker has
stored it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from netmon.agent.exchange import ClockExchanges
from netmon.agent.outgoing import Outgoing
from netmon.agent.pressure import Backpressure

_MOST_SILENT_S = 60.0


@dataclass(frozen=True)
class End:
    """How a connection ended. refused: the collector will not have the session as it is; silent: we gave it up."""

    reason: str  # empty: in order
    answered: bool = False
    refused: bool = False
    silent: bool = False


class Connection(Protocol):
    """Publishes what goes out, in its order, and tells the spool what is acknowledged."""

    backpressure: Backpressure
    """What the other end can take now."""

    def run(self, heard: Callable[[], None], strikes: dict[int, int]) -> End:
        """Blocks until it has ended. heard: called when the other end answers; strikes: by batch. Does not raise."""

    def check(self) -> None:
        """To be called now and then, from another thread: ends a connection on which nothing is heard."""

    def end(self, why: str) -> None:
        """From any thread; `run` returns soon."""


Connect = Callable[[Outgoing, ClockExchanges | None, float], Connection]
"""(what goes out, to whom the time is told (None: it is not asked for), so long nothing may be heard) → one."""


class Patience:
    """How long a collector may be silent: longer when one turned out to be slow rather than gone."""

    def __init__(self) -> None:
        """Ten times the interval at which it says that it is alive."""
        self.most_s = 10.0

    def lost(self) -> None:
        """A stream was given up for its silence, and the collector answered on the next."""
        self.most_s = min(_MOST_SILENT_S, 2 * self.most_s)
