# SPDX-License-Identifier: Apache-2.0
"""The seam between a spool and whoever takes its batches: one connection, from its beginning to its end.

There are two kinds: a gRPC stream to a collector (`grpc_connection`), where an acknowledgement says that a batch is in
the dataset, and NATS JetStream (`bus_connection`), where it says that the bus keeps the batch until a worker has
stored it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from netmon.agent.exchange import ClockExchanges
from netmon.agent.pressure import Backpressure
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool, described
from netmon.errors import DataError
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)


class Message(NamedTuple):
    """An AgentMessage. sequence: of its batch; 0: an answer, which is not acknowledged."""

    sequence: int
    data: bytes


class Outgoing:
    """What goes out on one connection: the introduction, the batches from the first that is not acknowledged, and
    answers to requests between them.

    The order is strict: what leaves the spool never comes back, so a number that is left out was acknowledged before,
    or is counted as lost.
    """

    def __init__(self, spool: Spool, pulls: Pulls, complete: Callable[[], bool]) -> None:
        """complete(): nothing more will be appended."""
        self.spool, self.pulls, self.complete = spool, pulls, complete
        self._last = 0  # that was handed out
        self._given_up: int | None = None  # whole batches, before the first introduction

    def introduction(self) -> bytes:
        """An AgentMessage."""
        if self._given_up is None:
            self._given_up = self.spool.given_up
        known = netmon_pb2.Hello(acknowledged=self.spool.acknowledged)
        # The parts of one message, one after the other, are that message.
        return b"".join((*self.spool.introduction(), netmon_pb2.AgentMessage(hello=known).SerializeToString()))

    def messages(self, over: Callable[[], bool]) -> Iterator[Message]:
        """Blocks for each, until over() or everything is sent. Raises DataError: a new connection is needed."""
        while not (over() or self.is_all):
            message = self._take(lambda: over() or self.is_all, self.pulls.patience)
            if message:
                yield message

    def next(self) -> Message | None:
        """What there is to send now; does not block. Raises DataError: a new connection is needed."""
        return self._take(lambda: False, lambda: 0.0)

    @property
    def is_all(self) -> bool:
        """Whether everything is sent, and nothing will follow."""
        return self.complete() and self.spool.newest <= max(self._last, self.spool.acknowledged)

    def _take(self, leave: Callable[[], bool], patience: Callable[[], float | None]) -> Message | None:
        while batch := self.spool.after(self._last, leave, patience):
            if self.spool.given_up != self._given_up:
                raise DataError("batches were given up: it needs a new introduction")
            if batch.size <= MAX_MESSAGE_BYTES - 1024:
                self._last = batch.sequence
                return Message(batch.sequence, batch.body + batch.buckets)
            set_aside(self.spool, batch.sequence, "it is larger than a message may be")
        answer = None if leave() else self.pulls.take()
        return Message(0, answer) if answer else None

    def receive(self, news: netmon_pb2.Acknowledgement) -> Backpressure:
        """What the other end wants alongside batches; returns what it asks of them."""
        if news.HasField("request"):
            self.pulls.add_request(news.request)
            self.spool.wake()
        return Backpressure(news.bucket_ns, news.batch_ns, news.within_ns)


def set_aside(spool: Spool, sequence: int, reason: str) -> None:
    """A batch that cannot be sent: kept for a report, counted as lost, named once."""
    lost = spool.set_aside(sequence)
    if lost is not None:
        log.error("batch %d is lost (%s), and kept in %s: %s", sequence, described(lost), spool.folder.refused, reason)


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

    def run(self, on_answer: Callable[[], None], strikes: dict[int, int]) -> End:
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
