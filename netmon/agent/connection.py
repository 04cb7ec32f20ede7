# SPDX-License-Identifier: Apache-2.0
"""The seam between a spool and whoever takes its batches: one connection, from its beginning to its end.

There are two kinds: a gRPC stream to a collector (`GrpcConnection`), where an acknowledgement says that a batch is in
the dataset, and NATS JetStream (`bus_connection`), where it says that the bus keeps the batch until a worker has
stored it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from netmon.agent.exchange import ClockExchanges, Questions
from netmon.agent.pressure import Backpressure
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool, described
from netmon.errors import DataError, NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.grpc_client import BrokenError, Call, Channel, Status, Waker, connect
from netmon.wire.limits import MAX_MESSAGE_BYTES
from netmon.wire.secure import client_context, in_words
from netmon.wire.security import PLAIN, Role, Security

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
        """Blocks until it has ended. on_answer: called at each answer; strikes: by batch. Does not raise."""

    def check(self) -> None:
        """To be called now and then, from another thread: ends a connection on which nothing is received."""

    def end(self, why: str) -> None:
        """From any thread; `run` returns soon."""


Connect = Callable[[Outgoing, ClockExchanges | None, float], Connection]
"""(what goes out, where the time exchanges go (None: they are not requested), the longest silence in s) → one."""


class Patience:
    """How long a collector may be silent: longer when one turned out to be slow rather than gone."""

    def __init__(self) -> None:
        """Ten times the interval at which it says that it is alive."""
        self.most_s = 10.0

    def lost(self) -> None:
        """A stream was given up for its silence, and the collector answered on the next."""
        self.most_s = min(_MOST_SILENT_S, 2 * self.most_s)


# --- One stream to the collector, from its beginning to its end, on a connection of its own.

METHOD = "/netmon.Collector/Stream"
SEQUENCE_KEY = "netmon-sequence"
"""Trailing metadata: the batch at which a collector ended the stream."""

_REFUSED = ("invalid_argument", "permission_denied")
_MOST_DIGITS = 20  # of a batch's number
_STRIKES = 3  # failures of the collector at one batch, after which the batch is to blame


def connect_by_grpc(address: str, security: Security = PLAIN) -> Connect:
    """address: HOST:PORT or unix:PATH."""
    return lambda outgoing, exchanges, silent_s: GrpcConnection(address, outgoing, exchanges, silent_s, security)


class GrpcConnection:
    """A netmon.agent.connection.Connection."""

    def __init__(
        self,
        address: str,
        outgoing: Outgoing,
        exchanges: ClockExchanges | None,
        silent_s: float,
        security: Security = PLAIN,
    ) -> None:
        """silent_s: so long a collector may say nothing.

        exchanges: to which those of this connection are added; None: the time is not requested.
        """
        self._address, self._security, self._outgoing = address, security, outgoing
        self._spool, self._pulls = outgoing.spool, outgoing.pulls
        self._exchanges, self._silent_s = exchanges, silent_s
        self._over = threading.Event()
        self._waker: Waker | None = None
        self._answered = False
        self._answered_s = time.monotonic()
        self._why = ""  # we ended it
        self._silent = False
        self.backpressure = Backpressure()

    def run(self, on_answer: Callable[[], None], strikes: dict[int, int]) -> End:
        """Blocks until the stream has ended. on_answer: called when the collector answers; strikes: by batch."""
        with Waker() as self._waker:
            self._spool.ring = self._waker.wake
            if self._exchanges:
                self._exchanges.ring = self._waker.wake
            try:
                with self._connected(self._waker) as channel:
                    status = self._talk(channel, on_answer)
            except BrokenError as error:
                return self._broken(str(error))
            except NetmonError as error:  # files that may be renewed any moment, or batches that are given up
                return self._end(str(error))
            finally:
                self._over.set()
                self.backpressure = Backpressure()
                self._pulls.clear()
        return self._ended(status, strikes)

    def check(self) -> None:
        """To be called now and then, from another thread: ends a stream on which nothing is received."""
        if time.monotonic() - self._answered_s > self._silent_s:
            self._silent = True
            self.end(f"it has not answered for {self._silent_s:.0f} s")

    def end(self, why: str) -> None:
        """From any thread; `run` returns soon."""
        self._why = self._why or why
        self._over.set()
        if self._waker:
            self._waker.wake()

    def _connected(self, waker: Waker) -> Channel:
        """Raises NetmonError."""
        folder = self._security.folder(self._address, "connect to")
        context = None
        if folder:
            context = client_context(folder, Role.AGENT)
            context.set_alpn_protocols(["h2"])
        return connect(self._address, context, waker, self._over.is_set)

    def _talk(self, channel: Channel, on_answer: Callable[[], None]) -> Status:
        """Until the call has ended, or we end it. Raises BrokenError, DataError."""
        call = channel.protocol.open(METHOD)
        call.send(self._outgoing.introduction())
        questions = Questions(channel, self._exchanges) if self._exchanges else None
        while not self._over.is_set():
            more = self._fill(channel, call)
            if questions:
                questions.send_request()
            channel.wait(0.0 if more else self._rest_s(channel, call, questions))
            while call.messages:
                self._take_response(call.messages.popleft(), on_answer)
            if questions:
                questions.take_response()
            if call.status:
                return call.status
        return Status("cancelled", self._why, {})

    def _fill(self, channel: Channel, call: Call) -> bool:
        """With what there is to send, but with no more than is on its way soon: it may be given up yet.

        Whether more can go at once.
        """
        while channel.protocol.fill():
            message = None if call.waiting or call.finished else self._outgoing.next()
            if message is None:
                if self._outgoing.is_all and not call.waiting:
                    call.finish()
                    channel.protocol.fill()
                channel.send()
                return False
            call.send(message.data)
        channel.send()
        return not channel.protocol.out

    def _rest_s(self, channel: Channel, call: Call, questions: Questions | None) -> float:
        """Until there is something to do that nobody wakes us for."""
        if channel.protocol.out:
            return math.inf
        patience_s = None if call.waiting else self._pulls.patience()
        question_s = questions.due_s - time.monotonic() if questions else math.inf
        return min(math.inf if patience_s is None else patience_s, question_s)

    def _take_response(self, data: bytes, on_answer: Callable[[], None]) -> None:
        """Raises BrokenError."""
        self._answered_s = time.monotonic()
        if not self._answered:
            self._answered = True
            on_answer()
        try:
            self._take(netmon_pb2.Acknowledgement.FromString(data))
        except DecodeError:
            raise BrokenError("internal: what it says is no acknowledgement") from None

    def _take(self, message: netmon_pb2.Acknowledgement) -> None:
        """What the collector says."""
        self._spool.acknowledge(message.sequence)
        self.backpressure = self._outgoing.receive(message)

    def _broken(self, reason: str) -> End:
        # Whoever has answered has wanted no other TLS: a connection that breaks then is no more than that.
        words = "" if self._answered else in_words(reason, self._security, self._address)
        return self._end(words or reason)

    def _end(self, reason: str) -> End:
        return End(self._why or reason, self._answered, silent=self._silent)

    def _ended(self, status: Status, strikes: dict[int, int]) -> End:
        code, details, metadata = status
        if self._why or code == "ok":
            return self._end("" if self._outgoing.complete() else "it ended the stream")
        at = metadata.get(SEQUENCE_KEY, "")
        sequence = int(at) if at.isdecimal() and len(at) < _MOST_DIGITS else 0
        if not sequence:
            return End(f"{code}: {details}", self._answered, refused=code in _REFUSED)
        strikes[sequence] = strikes.get(sequence, 0) + 1
        if code == "invalid_argument" or strikes[sequence] >= _STRIKES:
            del strikes[sequence]
            set_aside(self._spool, sequence, details)
        return End("", self._answered)
