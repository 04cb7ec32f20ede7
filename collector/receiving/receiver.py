# SPDX-License-Identifier: Apache-2.0
"""The process that receives: gRPC's streams, who is let in, what messages hold. It ends with the collector.

As a program: DESCRIPTOR MEMORY, of a socket to the collector and of memory that both have. It keeps nothing that is not
sent again: what agents have sent waits here until the collector asks for it, and goes over as one set of columns.
"""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from collector.agent_checks import BREAK_S, check_silence, end_of, read_hello
from collector.allocator import give_back
from collector.backpressure import MOST_BATCHES, MOST_ROWS, MOST_ROWS_OF_ALL, HostLimiter, claimed_rows, weight
from collector.receiving import frames
from collector.receiving.frames import Called, CutOff, Ended, Full, HungUp, Introduced, Pipe, Received, Written
from collector.service import CollectorService, Health, NoHealth, add_health, admission_to, listen_at, stop_listening
from collector.settings import DEFAULT_RATES
from netmon.errors import NetmonError, WireError
from netmon.own_module import allow_descriptors
from netmon.records import Hello, Table
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches, decode_many
from netmon.wire.limits import COLLECTOR_OPTIONS
from netmon.wire.security import Identity

# --- One agent's stream in the receiving process: read here, judged by the collector.


_log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
_LOOK_EVERY_S = 5.0  # whether somebody is at the other end
_BURST_S = 1.0  # a stream that is slowed down may save up
_BATCH_TAG = bytes([netmon_pb2.AgentMessage.BATCH_FIELD_NUMBER << 3 | 2])
"""What a message that is a batch begins with."""


_Batch = tuple[int, netmon_pb2.AgentMessage, bytes, int]
"""Stream, message, as it came, rows that take as much memory."""


class Gathering(Protocol):
    """Where all streams' batches wait (collector.receiving.receiver.Receiver)."""

    host_limiter: HostLimiter

    def send(self, frame: object) -> None:
        """To the collector."""

    @property
    def is_crowded(self) -> bool:
        """Whether too much waits of all streams."""

    def add_message(self, stream: "ReceivedStream", data: bytes) -> None:
        """Something has come that waits to be read."""

    def read_messages(self) -> None:
        """Read all of that."""

    def add_batch(self, batch: _Batch) -> None:
        """It waits until the collector requests it."""

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
        self._unread = 0  # messages
        self._failure: DecodeError | WireError | None = None  # at one of them
        self._waits_since: float | None = time.monotonic()  # for the next message; None: one is being taken in

    # --- what the collector says

    def opened(self, session_index: int) -> None:
        """Its session is there."""
        self.session_index = session_index
        if not self._opened.done():
            self._opened.set_result(None)

    def send_state(self, state: Table) -> None:
        """A row of STREAM_STATE."""
        _, sequence, bucket_ns, batch_ns, within_ns, self._rows_per_s = state
        self._acknowledgement = netmon_pb2.Acknowledgement(
            sequence=sequence, bucket_ns=bucket_ns, batch_ns=batch_ns, within_ns=within_ns
        )
        self._due = True
        self._news.set()

    def send_request(self, data: bytes) -> None:
        """An acknowledgement with a request."""
        self._requests.append(data)
        self._news.set()

    def look(self) -> None:
        """Whether somebody is at the other end."""
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
                await self._news.wait()
                self._news.clear()
                if taking.done() and not over:
                    taking.result()
                    if self._hello is None:
                        return
                    over = True
                    await asyncio.sleep(BREAK_S)
                    self._to.read_messages()
                    if not self._failure:
                        self._to.leave(self)
                if self._failure:
                    raise self._failure
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
            # Most often it is the only one until the collector asks for all: then it is read with all others.
            self._unread += 1
            if self._is_alone(hello.host, data):
                self._to.add_message(self, data)
            else:
                self._to.read_messages()
                await self._turn(hello.host)
                self.read_message(data)
            self._waits_since = time.monotonic()
        self._waits_since = None

    def _is_alone(self, host: str, data: bytes) -> bool:
        """Whether it is a batch, and nothing else of the stream waits, nor has it to wait for anything."""
        waits = self._unread > 1 or self.waiting_batches or self._rows_per_s or self._to.is_crowded
        return not waits and data.startswith(_BATCH_TAG) and not self._to.host_limiter.wait_s(host)

    def read_message(self, data: bytes) -> None:
        """What the agent has sent; where it cannot be read, the stream ends."""
        self._unread -= 1
        if self._failure or not self._hello:
            return
        try:
            message = netmon_pb2.AgentMessage.FromString(data)
            kind = message.WhichOneof("message")
            if kind == "full":
                self._to.send(Full(self.number, data))
            elif kind == "batch":
                self._add(self._hello.host, message, data)
            else:
                raise WireError(f"a message of {self._hello.host} after its hello is not a batch")
        except (DecodeError, WireError) as error:
            self._failure = error
            self._news.set()

    def _add(self, host: str, message: netmon_pb2.AgentMessage, data: bytes) -> None:
        rows = weight(message.batch)
        self.waiting_rows += rows
        self.waiting_batches += 1
        if self._rows_per_s:
            cost_s = claimed_rows(message.batch) / self._rows_per_s
            self._free_s = max(self._free_s, time.monotonic() - _BURST_S) + cost_s
        self._to.add_batch((self.number, message, data, rows))
        self._to.host_limiter.add_batch(host, message.batch)

    async def _turn(self, host: str) -> None:
        """Wait until its next message may come; meanwhile nothing is read, and no other stream is kept waiting."""
        await self._to.drained()
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


_LOOKED_OVER = (50_000, 20, 20)  # as the collector's


class _Call:
    """Somebody who waits for answers of the collector."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes | frames.Ended] = asyncio.Queue()


class Receiver:
    """Of one collector; lives on one event loop."""

    def __init__(self, pipe: Pipe, listen: frames.Listen) -> None:
        """`serve` does the work."""
        self._pipe, self._listen = pipe, listen
        self._rates = DEFAULT_RATES
        self.host_limiter = HostLimiter(lambda: self._rates)
        self._numbers = itertools.count(1)
        self._streams: dict[int, ReceivedStream] = {}
        self._calls: dict[int, _Call] = {}
        self._unread: list[tuple[ReceivedStream, bytes]] = []
        self._waiting: dict[int, list[_Batch]] = defaultdict(list)  # by stream
        self._rows = 0  # that wait
        self._room = asyncio.Event()
        self._room.set()
        self._left: list[int] = []
        self._health: Health = NoHealth()
        self._why_not = ""
        self._leaving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until the collector says stop, or is gone (EOFError). Raises NetmonError where it cannot listen."""
        admission = admission_to(self._listen.address, self._listen.listen_config)
        server = grpc.aio.server(options=COLLECTOR_OPTIONS)
        serve_stream = self._stream if self._listen.streams else None
        server.add_generic_rpc_handlers((CollectorService(admission, serve_stream, self._request),))
        self._health = add_health(server)
        listen_at(server, self._listen.address, self._listen.listen_config, admission)
        await server.start()
        self.send(frames.Listening())
        concurrent = [asyncio.create_task(work) for work in (self._health.follow(lambda: self._why_not), self._look())]
        gc.freeze()
        gc.set_threshold(*_LOOKED_OVER)
        while not isinstance(frame := await self._pipe.receive(), frames.Stop):
            self._receive(frame)
        for task in concurrent:
            task.cancel()
        await stop_listening(server, frame.grace_s)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for stream in self._streams.values():
                stream.look()

    def _receive(self, frame: Any) -> None:
        if isinstance(frame, frames.Give):
            self._rates = frame.rates
            self._give()
        elif isinstance(frame, frames.StreamStates):
            for state in frame.streams.tolist():
                if stream := self._streams.get(state[0]):
                    stream.send_state(state)
        elif isinstance(frame, frames.Serves):
            self._why_not = frame.why_not
            if frame.leaving:
                self._leaving = asyncio.create_task(self._health.leave())
        elif isinstance(frame, frames.Answer):
            if call := self._calls.get(frame.call):
                call.answers.put_nowait(frame.data)
        elif isinstance(frame, frames.Opened):
            if stream := self._streams.get(frame.stream):
                stream.opened(frame.session)
        elif isinstance(frame, frames.AgentRequest):
            if stream := self._streams.get(frame.stream):
                stream.send_request(frame.data)
        elif isinstance(frame, frames.Ended):
            if stream := self._streams.get(frame.number):
                stream.end(frame)
            elif call := self._calls.get(frame.number):
                call.answers.put_nowait(frame)

    # --- what streams bring

    def send(self, frame: object) -> None:
        self._pipe.send(frame)

    async def drained(self) -> None:
        with contextlib.suppress(OSError):  # the collector is gone, and so are we in a moment
            await self._pipe.drained()

    def add_message(self, stream: ReceivedStream, data: bytes) -> None:
        self._unread.append((stream, data))

    def read_messages(self) -> None:
        unread, self._unread = self._unread, []
        for stream, data in unread:
            stream.read_message(data)

    def add_batch(self, batch: _Batch) -> None:
        number, _, _, rows = batch
        self._waiting[number].append(batch)
        self._rows += rows
        if self._rows > MOST_ROWS_OF_ALL:
            self._room.clear()

    def leave(self, stream: ReceivedStream) -> None:
        self._left.append(stream.number)

    def drop(self, stream: ReceivedStream) -> None:
        self._unread = [one for one in self._unread if one[0] is not stream]
        for _, _, _, rows in self._waiting.pop(stream.number, ()):
            self._taken(rows)

    @property
    def is_crowded(self) -> bool:
        return not self._room.is_set()

    async def room(self) -> None:
        await self._room.wait()

    def _taken(self, rows: int) -> None:
        self._rows -= rows
        if self._rows <= MOST_ROWS_OF_ALL:
            self._room.set()

    def _give(self) -> None:
        """All that waits, to the collector."""
        self.read_messages()
        waiting, self._waiting = self._waiting, defaultdict(list)
        left, self._left = self._left, []
        streams = [self._streams[number] for number in waiting if number in self._streams]
        streams.sort(key=lambda stream: (stream.session_index, stream.number))
        for stream in streams:
            stream.waiting_rows = stream.waiting_batches = 0
            stream.taken.set()
        self._rows = 0
        self._room.set()
        many, batches, failed = _read([one for stream in streams for one in waiting[stream.number]])
        self._pipe.send_large(
            Received(
                many,
                [number for number, _, _, _ in batches],
                [message.batch.sequence for _, message, _, _ in batches],
                [data for _, _, data, _ in batches],
                failed,
                left,
            )
        )

    # --- what is called

    async def _stream(self, context: Context, identity: Identity | None) -> None:
        """An agent's."""
        number = next(self._numbers)
        stream = self._streams[number] = ReceivedStream(number, self, context, identity)
        try:
            await stream.serve()
        finally:
            del self._streams[number]

    async def _request(self, method: str, request: bytes, identity: Identity | None, context: Context) -> None:
        number, call = next(self._numbers), _Call()
        self._calls[number] = call
        self.send(Called(number, method, request, identity))
        over = False
        try:
            while not isinstance(answer := await call.answers.get(), frames.Ended):
                await context.write(answer)
                self.send(Written(number))
            over = True
            if answer.how:
                await context.abort(*answer.how)
        finally:
            del self._calls[number]
            if not over:
                self.send(HungUp(number))


def _read(batches: list[_Batch]) -> tuple[ManyBatches, list[_Batch], list[tuple[int, bytes, str]]]:
    """All of them as columns; where reading fails at some, those are left out and reported."""
    try:
        return decode_many([message.batch for _, message, _, _ in batches]), batches, []
    except Exception:
        good, failed = list[_Batch](), list[tuple[int, bytes, str]]()
        for one in batches:
            try:
                decode_many([one[1].batch])
                good.append(one)
            except Exception as error:
                failed.append((one[0], one[2], f"{type(error).__name__}: {error}"))
        return decode_many([message.batch for _, message, _, _ in good]), good, failed


async def _serve(descriptor: int, memory: int) -> None:
    pipe = await Pipe.open(socket.socket(fileno=descriptor), memory)
    try:
        await Receiver(pipe, await pipe.receive()).serve()
    except EOFError:
        return
    except NetmonError as error:
        pipe.send(frames.Listening(str(error), type(error).__name__))
        with contextlib.suppress(OSError, EOFError):
            await pipe.receive()


def main(descriptor: int, memory: int) -> None:
    """Serve the collector that holds the other end of this socket, and the same memory; returns never.

    Signals that end the collector do not end it: there may be a last report to send.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_back()
    allow_descriptors()
    logging.basicConfig(level=logging.INFO, format="netmon: %(message)s")
    asyncio.run(_serve(descriptor, memory))
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
