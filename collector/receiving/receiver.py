# SPDX-License-Identifier: Apache-2.0
"""The process that receives: gRPC's streams, who is let in, what messages hold. It ends with the collector.

As a program: DESCRIPTOR, of a socket to the collector. It keeps nothing that is not sent again: what agents have sent
waits here until the collector asks for it, and goes over as one set of columns.
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
from collections import defaultdict
from typing import Any

import grpc

from collector.allocator import give_back
from collector.health import Health, NoHealth, add_health
from collector.host_limiter import HostLimiter
from collector.intake import MOST_ROWS_OF_ALL
from collector.listening import admission_to, listen_at, stop_listening
from collector.receiving import frames
from collector.receiving.frames import Called, HungUp, Received, Written
from collector.receiving.pipe import Pipe
from collector.receiving.streams import Context, ReceivedStream
from collector.service import CollectorService
from collector.settings import DEFAULT_RATES
from netmon.errors import NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches, decode_many
from netmon.wire.channel import COLLECTOR_OPTIONS
from netmon.wire.identity import Identity

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
        self._waiting: dict[int, list[tuple[netmon_pb2.AgentMessage, bytes, int]]] = defaultdict(list)  # by stream
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
        following = asyncio.create_task(self._health.follow(lambda: self._why_not))
        gc.freeze()
        gc.set_threshold(*_LOOKED_OVER)
        while not isinstance(frame := await self._pipe.receive(), frames.Stop):
            self._receive(frame)
        following.cancel()
        await stop_listening(server, frame.grace_s)

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

    def add(self, stream: ReceivedStream, message: netmon_pb2.AgentMessage, data: bytes, rows: int) -> None:
        self._waiting[stream.number].append((message, data, rows))
        self._rows += rows
        if self._rows > MOST_ROWS_OF_ALL:
            self._room.clear()

    def leave(self, stream: ReceivedStream) -> None:
        self._left.append(stream.number)

    def drop(self, stream: ReceivedStream) -> None:
        for _, _, rows in self._waiting.pop(stream.number, ()):
            self._taken(rows)

    async def room(self) -> None:
        if not self._room.is_set():
            await self._room.wait()

    def _taken(self, rows: int) -> None:
        self._rows -= rows
        if self._rows <= MOST_ROWS_OF_ALL:
            self._room.set()

    def _give(self) -> None:
        """All that waits, to the collector."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        left, self._left = self._left, []
        gone = [number for number in waiting if number not in self._streams]
        for number in gone:
            del waiting[number]
        streams = sorted(waiting, key=lambda number: (self._streams[number].session_index, number))
        batches = [(number, *one) for number in streams for one in waiting[number]]
        for number in streams:
            stream = self._streams[number]
            stream.waiting_rows = stream.waiting_batches = 0
            stream.taken.set()
        self._rows = 0
        self._room.set()
        many, batches, failed = _read([(number, message, data, rows) for number, message, data, rows in batches])
        self.send(
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


_Batch = tuple[int, netmon_pb2.AgentMessage, bytes, int]


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


async def _serve(descriptor: int) -> None:
    pipe = await Pipe.open(socket.socket(fileno=descriptor))
    try:
        await Receiver(pipe, await pipe.receive()).serve()
    except EOFError:
        return
    except NetmonError as error:
        pipe.send(frames.Listening(str(error), type(error).__name__))
        with contextlib.suppress(OSError, EOFError):
            await pipe.receive()


def main(descriptor: int) -> None:
    """Serve the collector that holds the other end of this socket; returns never.

    Signals that end the collector do not end it: there may be last words to tell.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_back()
    logging.basicConfig(level=logging.INFO, format="netmon: %(message)s")
    asyncio.run(_serve(descriptor))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
