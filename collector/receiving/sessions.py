# SPDX-License-Identifier: Apache-2.0
"""One agent's stream at the collector's end: its connection, and what its agent is sent."""

import asyncio
import logging
from collections.abc import Callable, Iterator

import grpc
from google.protobuf.message import DecodeError

from collector.agent_checks import FailedBatchError, FailedSessionError
from collector.backpressure import BackpressureRequest
from collector.connection import Connection
from collector.entry import Entry
from collector.registry import Registry
from collector.stream_ends import End, end_of
from netmon.errors import DataError, NetmonError
from netmon.records import Hello
from netmon.wire import netmon_pb2

_log = logging.getLogger(__name__)
_SILENT_S = 2.5  # a quarter of what agents bear; each word costs both ends as much as a batch


class _News(asyncio.Event):
    """Tells when it is set."""

    def __init__(self, notice: Callable[[], None]) -> None:
        super().__init__()
        self._notice = notice

    def set(self) -> None:
        self._notice()


class AnotherError(NetmonError):
    """The session has connected again."""


class RemoteStream:
    """From its hello to its end."""

    def __init__(self, number: int, registry: Registry, notice: Callable[[], None]) -> None:
        """notice: called when there is something to report."""
        self.number, self._registry = number, registry
        self._news = _News(notice)
        self._connection: Connection | None = None
        self._sent_s, self._requested = 0.0, BackpressureRequest()

    async def open(self, hello: Hello) -> None:
        self._connection = await Connection.open(self._registry, hello, hello.acknowledged, self._news)

    @property
    def connection(self) -> Connection:
        """Once it is open."""
        assert self._connection
        return self._connection

    @property
    def entry(self) -> Entry:
        """As the registry has it."""
        return self.connection.entry

    @property
    def session_index(self) -> int:
        """Of its session in the host stage."""
        return self.entry.session.index

    @property
    def takes(self) -> bool:
        """Whether what comes is taken in."""
        entry = self.entry
        return self.connection.current and not (entry.broken or entry.refused)

    def check(self) -> None:
        """As Connection.check; AnotherError."""
        if not self.connection.current:
            raise AnotherError(f"session {self.entry.session.hello.session} has connected again")
        self.connection.check()

    def answer(self, data: bytes) -> None:
        """A FullAnswer has come. Raises WireError, DecodeError."""
        message = netmon_pb2.AgentMessage.FromString(data)
        if self.takes:
            self._registry.full.answer(self.entry, message.full)

    def state_row(self, now_s: float) -> tuple[int, int, int, int, float]:
        """A row of STREAM_STATE, that goes out now."""
        self._sent_s, self._requested = now_s, self._order()
        order = self._requested
        return self.number, self.entry.acknowledge, order.bucket_ns, order.batch_ns, order.rows_per_s

    def overdue(self, now_s: float) -> bool:
        """Whether its agent has heard nothing for a while, or is requested something else than it has heard."""
        return now_s - self._sent_s >= _SILENT_S or self._order() != self._requested

    def _order(self) -> BackpressureRequest:
        return self._registry.intake.order(self.entry.session.hello.session)

    def requests(self) -> Iterator[bytes]:
        """Acknowledgements with what its agent is requested besides."""
        if self.entry.requests:
            for news in self.connection.acknowledgements():
                if news.HasField("request"):
                    yield news.SerializeToString()

    async def leave(self, complete: bool) -> bool:
        return await self.connection.leave(complete)

    async def fail(self, error: Exception) -> None:
        """It is cut off, because of this."""
        if self._connection:
            await self._connection.leave(complete=False)
            if isinstance(error, FailedBatchError):
                await self._registry.discard(self.entry)

    @staticmethod
    def log_error(error: Exception) -> None:
        """In the log."""
        if not isinstance(error, (FailedBatchError, FailedSessionError, AnotherError)):  # which are in the log
            _log.log(logging.ERROR if isinstance(error, DataError) else logging.WARNING, error)

    @staticmethod
    def end_of(error: Exception) -> End:
        """The status for gRPC."""
        if isinstance(error, AnotherError):
            return End(grpc.StatusCode.ABORTED, str(error))
        if isinstance(error, DecodeError):
            return End(grpc.StatusCode.INVALID_ARGUMENT, "a message cannot be read")
        assert isinstance(error, NetmonError)
        return end_of(error)
