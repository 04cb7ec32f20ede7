# SPDX-License-Identifier: Apache-2.0
"""One stream to the collector, from its beginning to its end, on a channel of its own."""

import threading
import time
from collections.abc import Callable, Iterator

import grpc

from netmon.agent.connection import Connect, End, Outgoing, set_aside
from netmon.agent.exchange import ClockExchanges, Questions
from netmon.agent.pressure import Backpressure
from netmon.errors import DataError, NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.channel import AGENT_OPTIONS
from netmon.wire.identity import Role
from netmon.wire.secure import in_words, open_channel
from netmon.wire.security import PLAIN, Security

METHOD = "/netmon.Collector/Stream"
SEQUENCE_KEY = "netmon-sequence"
"""Trailing metadata: the batch at which a collector ended the stream."""

_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
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
        self._questions: Questions | None = None
        self._over = threading.Event()
        self._call: grpc.Call | None = None
        self._answered = False
        self._answered_s = time.monotonic()
        self._why = ""  # we ended it
        self._silent = False
        self.backpressure = Backpressure()

    def run(self, heard: Callable[[], None], strikes: dict[int, int]) -> End:
        """Blocks until the stream has ended. heard: called when the collector answers; strikes: by batch."""
        try:
            channel = open_channel(self._address, self._security, AGENT_OPTIONS, Role.AGENT)
        except NetmonError as error:  # the files may be renewed any moment
            return End(str(error))
        with channel:
            # Bytes as they are: a batch is serialised once, when it is made.
            stream: grpc.StreamStreamMultiCallable[bytes, netmon_pb2.Acknowledgement] = channel.stream_stream(
                METHOD, response_deserializer=netmon_pb2.Acknowledgement.FromString
            )
            self._call = call = stream(self._messages())
            self._questions = Questions(channel, self._exchanges) if self._exchanges else None
            try:
                for message in call:
                    self._answered_s = time.monotonic()
                    if not self._answered:
                        self._answered = True
                        heard()
                    self._take(message)
                return End(self._why or ("" if self._outgoing.complete() else "it ended the stream"), self._answered)
            except grpc.RpcError as error:
                return self._ended(error, strikes)
            finally:
                self._over.set()
                self.backpressure = Backpressure()
                if self._questions:
                    self._questions.end()
                self._pulls.clear()
                self._spool.wake()

    def check(self) -> None:
        """To be called now and then, from another thread: ends a stream on which nothing is heard."""
        if self._questions:
            self._questions.check()
        if time.monotonic() - self._answered_s > self._silent_s:
            self._silent = True
            self.end(f"it has not answered for {self._silent_s:.0f} s")

    def end(self, why: str) -> None:
        """From any thread; `run` returns soon."""
        self._why = self._why or why
        self._over.set()
        self._spool.wake()
        if self._call:
            self._call.cancel()

    def _take(self, message: netmon_pb2.Acknowledgement) -> None:
        """What the collector says."""
        self._spool.acknowledge(message.sequence)
        self.backpressure = self._outgoing.receive(message)

    def _messages(self) -> Iterator[bytes]:
        try:
            yield self._outgoing.introduction()
            for message in self._outgoing.messages(self._over.is_set):
                yield message.data
        except DataError as error:
            self.end(str(error))

    def _ended(self, error: grpc.RpcError, strikes: dict[int, int]) -> End:
        code, details = error.code(), error.details() or ""
        if self._why:
            return End(self._why, self._answered, silent=self._silent)
        # Whoever has answered has wanted no other TLS: a connection that breaks then is no more than that.
        words = "" if self._answered else in_words(details, self._security, self._address)
        reason = words or f"{code.name.lower()}: {details}"
        at = next((int(m.value) for m in error.trailing_metadata() or () if m.key == SEQUENCE_KEY), 0)
        if at:
            strikes[at] = strikes.get(at, 0) + 1
            if code is grpc.StatusCode.INVALID_ARGUMENT or strikes[at] >= _STRIKES:
                del strikes[at]
                set_aside(self._spool, at, details)
                return End("", self._answered)
        return End(reason, self._answered, refused=code in _REFUSED and not at)
