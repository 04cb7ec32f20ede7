# SPDX-License-Identifier: Apache-2.0
"""One agent's stream in the receiving process: read here, judged by the collector."""

import asyncio
import logging
import time
from typing import Any, Protocol

import grpc

from collector.agent_checks import read_hello
from collector.host_limiter import HostLimiter
from collector.intake import MOST_BATCHES, MOST_ROWS, weight
from collector.receiving.frames import CutOff, Ended, Full, Introduced
from collector.stream_ends import BREAK_S, check_silence, end_of
from netmon.errors import NetmonError, WireError
from netmon.records import Hello, Table
from netmon.wire import netmon_pb2
from netmon.wire.identity import Identity

_log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
_LOOK_EVERY_S = 5.0  # whether somebody is at the other end
_BURST_S = 1.0  # a stream that is slowed down may save up


class Gathering(Protocol):
    """Where all streams' batches wait (collector.receiving.receiver.Receiver)."""

    host_limiter: HostLimiter

    def send(self, frame: object) -> None:
        """To the collector."""

    def add(self, stream: "ReceivedStream", message: netmon_pb2.AgentMessage, data: bytes, rows: int) -> None:
        """A batch waits for the collector to ask for it. rows: that take as much memory."""

    def leave(self, stream: "ReceivedStream") -> None:
        """It has ended: reported after what it has sent."""

    def drop(self, stream: "ReceivedStream") -> None:
        """It is cut off: what waits of it comes again."""

    async def room(self) -> None:
        """Wait until not too much waits of all streams."""

    async def drained(self) -> None:
        """Wait until the collector has taken most of what was sent to it."""


class ReceivedStream:
    """From its first message to its end."""

    def __init__(self, number: int, gathering: Gathering, context: Context, identity: Identity | None) -> None:
        """`serve` does the work. identity: whose agent it is; None: it may be anybody's."""
        self.number, self._to, self._context, self._identity = number, gathering, context, identity
        self.session_index = -1
        self.waiting_rows = self.waiting_batches = 0
        self.taken = asyncio.Event()  # what waited of it
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hello: Hello | None = None
        self._news = asyncio.Event()
        self._acknowledgement = netmon_pb2.Acknowledgement()
        self._due = True  # it is to be written
        self._requests: list[bytes] = []
        self._ended: Ended | None = None
        self._rows_per_s = self._free_s = 0.0
        self._waits_since: float | None = time.monotonic()  # for the next message; None: one is being taken in

    # --- what the collector says

    def opened(self, session_index: int) -> None:
        """Its session is there."""
        self.session_index = session_index
        if not self._opened.done():
            self._opened.set_result(None)

    def send_state(self, state: Table) -> None:
        """A row of STREAM_STATE."""
        _, sequence, bucket_ns, batch_ns, self._rows_per_s = state
        self._acknowledgement = netmon_pb2.Acknowledgement(sequence=sequence, bucket_ns=bucket_ns, batch_ns=batch_ns)
        self._due = True
        self._news.set()

    def send_request(self, data: bytes) -> None:
        """An acknowledgement with a request."""
        self._requests.append(data)
        self._news.set()

    def end(self, how: Ended) -> None:
        """It is over."""
        self._ended = how
        self._news.set()

    # --- its call

    async def serve(self) -> None:
        """Until the agent has said its last word, or the connection breaks, or the collector ends it.

        Raises DecodeError.
        """
        taking = asyncio.create_task(self._take())
        taking.add_done_callback(lambda _: self._news.set())
        over = False
        try:
            while not self._ended:
                await self._write()
                await self._wait()
                if taking.done() and not over:
                    taking.result()
                    if self._hello is None:
                        return
                    over = True
                    await asyncio.sleep(BREAK_S)
                    self._to.leave(self)
                self._check()
            await self._write()
        except NetmonError as error:
            taking.cancel()
            _log.warning(error)
            self._cut_off()
            await self._context.abort(*end_of(error))
        except BaseException:  # above all: gRPC has cancelled us, because the connection is broken
            taking.cancel()
            self._cut_off()
            raise
        taking.cancel()
        self._to.drop(self)
        if self._ended and self._ended.how:
            await self._context.abort(*self._ended.how)

    def _cut_off(self) -> None:
        self._to.drop(self)
        if self._hello:
            self._to.send(CutOff(self.number))

    async def _wait(self) -> None:
        timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
        self._news.clear()

    def _check(self) -> None:
        if self._waits_since is not None:
            host = self._hello.host if self._hello and self._opened.done() else ""
            check_silence(host, time.monotonic() - self._waits_since)

    async def _write(self) -> None:
        requests, self._requests = self._requests, []
        for data in requests:
            await self._context.write(data)
        if self._due:
            self._due = False
            await self._context.write(self._acknowledgement.SerializeToString())

    async def _take(self) -> None:
        first = await self._read()
        self._waits_since = None
        if first is None:
            return
        opening = netmon_pb2.AgentMessage.FromString(first)
        self._hello = hello = read_hello(opening, self._identity)
        await self._to.host_limiter.turn(hello.host)
        self._to.host_limiter.add_hello(hello.host, opening.hello)
        self._to.send(Introduced(self.number, hello))
        await self._to.drained()
        await self._opened
        self._waits_since = time.monotonic()
        while (data := await self._read()) is not None:
            self._waits_since = None
            message = netmon_pb2.AgentMessage.FromString(data)
            kind = message.WhichOneof("message")
            if kind == "full":
                self._to.send(Full(self.number, data))
                await self._to.drained()
            elif kind == "batch":
                await self._turn(hello.host)
                self._add(message, data)
                self._to.host_limiter.add_batch(hello.host, message.batch)
            else:
                raise WireError(f"a message of {hello.host} after its hello is not a batch")
            self._waits_since = time.monotonic()
        self._waits_since = None

    def _add(self, message: netmon_pb2.AgentMessage, data: bytes) -> None:
        rows = weight(message.batch)
        self.waiting_rows += rows
        self.waiting_batches += 1
        if self._rows_per_s:
            cost_s = message.batch.buckets.rows / self._rows_per_s
            self._free_s = max(self._free_s, time.monotonic() - _BURST_S) + cost_s
        self._to.add(self, message, data, rows)

    async def _turn(self, host: str) -> None:
        """Wait until its next batch may come; meanwhile nothing is read, and no other stream is kept waiting."""
        await self._to.host_limiter.turn(host)
        while self.waiting_rows > MOST_ROWS or self.waiting_batches >= MOST_BATCHES:
            self.taken.clear()
            await self.taken.wait()
        if self._rows_per_s and (rest_s := self._free_s - time.monotonic()) > 0:
            await asyncio.sleep(rest_s)
        await self._to.room()

    async def _read(self) -> bytes | None:
        data: Any = await self._context.read()
        return None if data is grpc.aio.EOF else data
