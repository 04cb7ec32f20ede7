# SPDX-License-Identifier: Apache-2.0
"""One stream to the collector, from its beginning to its end, on a connection of its own."""

import math
import threading
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from netmon.agent.connection import Connect, End, Outgoing, set_aside
from netmon.agent.exchange import ClockExchanges, Questions
from netmon.agent.pressure import Backpressure
from netmon.errors import NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.grpc_client import BrokenError, Call, Channel, Status, Waker, connect
from netmon.wire.identity import Role
from netmon.wire.secure import client_context, in_words
from netmon.wire.security import PLAIN, Security

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

        exchanges: to which those of this connection are added; None: the time is not asked for.
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
        """Blocks until the stream has ended. heard: called when the collector answers; strikes: by batch."""
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
        """To be called now and then, from another thread: ends a stream on which nothing is heard."""
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
            message = None if call.waiting else self._outgoing.next()
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
