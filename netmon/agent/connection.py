# SPDX-License-Identifier: Apache-2.0
"""One stream to the collector, from its beginning to its end, on a channel of its own."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from netmon.agent.carried import described
from netmon.agent.exchange import ClockExchanges, Questions
from netmon.agent.pressure import Asked
from netmon.agent.pulls import Pulls
from netmon.agent.spool import Spool
from netmon.errors import DataError
from netmon.wire import netmon_pb2
from netmon.wire.channel import AGENT_OPTIONS, MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

METHOD = "/netmon.Collector/Stream"
SEQUENCE_KEY = "netmon-sequence"
"""Trailing metadata: the batch at which a collector ended the stream."""

_MOST_SILENT_S = 60.0
_STRIKES = 3  # failures of the collector at one batch, after which the batch is to blame


@dataclass(frozen=True)
class End:
    """How a connection ended. refused: the collector will not have the session as it is; silent: we gave it up."""

    reason: str  # empty: in order
    answered: bool = False
    refused: bool = False
    silent: bool = False


class Patience:
    """How long a collector may be silent: longer when one turned out to be slow rather than gone."""

    def __init__(self) -> None:
        """Ten times the interval at which it says that it is alive."""
        self.most_s = 10.0

    def lost(self) -> None:
        """A stream was given up for its silence, and the collector answered on the next."""
        self.most_s = min(_MOST_SILENT_S, 2 * self.most_s)


class Connection:
    """Sends a spool's batches in their order, from the first that is not acknowledged.

    The order is strict: what leaves the spool never comes back, so a number that is left out was acknowledged before,
    or is counted as lost.
    """

    def __init__(
        self,
        address: str,
        spool: Spool,
        pulls: Pulls,
        exchanges: ClockExchanges | None,
        complete: Callable[[], bool],
        silent_s: float,
    ) -> None:
        """complete(): nothing more will be appended. silent_s: so long a collector may say nothing.

        exchanges: to which those of this connection are added; None: the time is not asked for.
        """
        self._address, self._spool, self._complete = address, spool, complete
        self._pulls, self._exchanges, self._silent_s = pulls, exchanges, silent_s
        self._questions: Questions | None = None
        self._over = threading.Event()
        self._call: grpc.Call | None = None
        self._answered = False
        self._heard = time.monotonic()
        self._why = ""  # we ended it
        self._silent = False
        self.asked = Asked()

    def run(self, heard: Callable[[], None], strikes: dict[int, int]) -> End:
        """Blocks until the stream has ended. heard: called when the collector answers; strikes: by batch."""
        with grpc.insecure_channel(self._address, options=AGENT_OPTIONS) as channel:
            # Bytes as they are: a batch is serialised once, when it is made.
            stream: grpc.StreamStreamMultiCallable[bytes, netmon_pb2.Acknowledgement] = channel.stream_stream(
                METHOD, response_deserializer=netmon_pb2.Acknowledgement.FromString
            )
            self._call = call = stream(self._messages())
            self._questions = Questions(channel, self._exchanges) if self._exchanges else None
            try:
                for message in call:
                    self._heard = time.monotonic()
                    if not self._answered:
                        self._answered = True
                        heard()
                    self._take(message)
                return End(self._why or ("" if self._complete() else "it ended the stream"), self._answered)
            except grpc.RpcError as error:
                return self._ended(error, strikes)
            finally:
                self._over.set()
                self.asked = Asked()
                if self._questions:
                    self._questions.end()
                self._pulls.clear()
                self._spool.wake()

    def check(self) -> None:
        """To be called now and then, from another thread: ends a stream on which nothing is heard."""
        if self._questions:
            self._questions.check()
        if time.monotonic() - self._heard > self._silent_s:
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
        self.asked = Asked(message.bucket_ns, message.batch_ns)
        if message.HasField("request"):
            self._pulls.ask(message.request)
            self._spool.wake()

    def _messages(self) -> Iterator[bytes]:
        known = netmon_pb2.Hello(acknowledged=self._spool.acknowledged)
        given_up, last = self._spool.given_up, 0
        try:
            opening = self._spool.introduction()
        except DataError as error:
            return self.end(str(error))
        # The parts of one message, one after the other, are that message.
        yield b"".join((*opening, netmon_pb2.AgentMessage(hello=known).SerializeToString()))
        while not self._over.is_set():
            try:
                batch = self._spool.after(last, functools.partial(self._leave, last), self._pulls.patience)
            except DataError as error:
                return self.end(str(error))
            if batch is None and self._leave(last):
                return None
            if batch is None:
                answer = self._pulls.take()
                if answer:
                    yield answer
                continue
            if self._spool.given_up != given_up:
                return self.end("batches were given up: it needs a new introduction")
            if batch.size > MAX_MESSAGE_BYTES - 1024:
                set_aside(self._spool, batch.sequence, "it is larger than a message may be")
                continue
            last = batch.sequence
            yield batch.body + batch.buckets
        return None

    def _leave(self, last: int) -> bool:
        return self._over.is_set() or (self._complete() and self._spool.newest <= last)

    def _ended(self, error: grpc.RpcError, strikes: dict[int, int]) -> End:
        code, details = error.code(), error.details() or ""
        if self._why:
            return End(self._why, self._answered, silent=self._silent)
        reason = f"{code.name.lower()}: {details}"
        at = next((int(m.value) for m in error.trailing_metadata() or () if m.key == SEQUENCE_KEY), 0)
        if at:
            strikes[at] = strikes.get(at, 0) + 1
            if code is grpc.StatusCode.INVALID_ARGUMENT or strikes[at] >= _STRIKES:
                del strikes[at]
                set_aside(self._spool, at, details)
                return End("", self._answered)
        return End(reason, self._answered, refused=code is grpc.StatusCode.INVALID_ARGUMENT and not at)


def set_aside(spool: Spool, sequence: int, reason: str) -> None:
    """A batch that cannot be sent: kept for a report, counted as lost, named once."""
    lost = spool.set_aside(sequence)
    if lost is not None:
        log.error("batch %d is lost (%s), and kept in %s: %s", sequence, described(lost), spool.folder.refused, reason)
