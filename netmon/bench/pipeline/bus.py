# SPDX-License-Identifier: Apache-2.0
"""The simulated agents' way over a bus: the same batches, published to JetStream; and the server between them."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from nats.aio.msg import Msg

from netmon.lab.monitor import nats_server
from netmon.lab.process import Process
from netmon.wire import netmon_pb2
from netmon.wire.bus import Bus, BusSettings, Label, batch_subject, down_subject, hello_subject

_ANSWER_S = 60.0
_LOOK_S = 0.25


class BusCall:
    """What gRPC's call is to an agent: it writes messages, and reads what its worker has stored.

    All agents share one connection. A batch counts as stored when its worker says so, which it does every two seconds.
    """

    def __init__(self, bus: Bus, host: str, session: str) -> None:
        self._bus, self._host, self._session = bus, host, session
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._on_the_way: set[asyncio.Task[Any]] = set()
        self._sequence = 0
        self._failed: BaseException | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def begin(self, hello: bytes) -> None:
        await self._bus.client.subscribe(down_subject(self._host, self._session), cb=self._receive)
        await self._bus.jetstream.publish(hello_subject(self._host, self._session), hello, timeout=_ANSWER_S)

    async def write(self, message: bytes) -> None:
        """The next batch; does not wait for the bus."""
        if self._failed:
            raise asyncio.InvalidStateError(f"the bus refuses: {self._failed}")
        self._sequence += 1
        label = Label(self._session, self._sequence, self._sequence - 1)
        publishing = self._bus.jetstream.publish(
            batch_subject(self._host), message, timeout=_ANSWER_S, headers=label.headers()
        )
        task = asyncio.create_task(publishing)
        self._on_the_way.add(task)
        task.add_done_callback(self._answered)

    async def read(self) -> Any:
        return await self._said.get()

    async def done_writing(self) -> None:
        """Say that it is all; `read` comes to its end when everything is stored."""
        await asyncio.gather(*self._on_the_way, return_exceptions=True)
        label = Label(self._session, 0, self._sequence, self._sequence)
        subject = batch_subject(self._host)
        await self._bus.jetstream.publish(subject, b"", timeout=_ANSWER_S, headers=label.headers())
        self._waiting = asyncio.create_task(self._wait())

    async def code(self) -> grpc.StatusCode:
        """As gRPC's: it has ended in order."""
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        for task in (*self._on_the_way, *([self._waiting] if self._waiting else [])):
            task.cancel()

    async def _wait(self) -> None:
        """Who is over and stored is forgotten."""
        while await self._bus.hello(self._host, self._session) is not None:
            await asyncio.sleep(_LOOK_S)
        self._said.put_nowait(netmon_pb2.Acknowledgement(sequence=self._sequence))
        self._said.put_nowait(grpc.aio.EOF)

    def _answered(self, task: "asyncio.Task[Any]") -> None:
        self._on_the_way.discard(task)
        if not task.cancelled() and task.exception():
            self._failed = self._failed or task.exception()

    async def _receive(self, message: Msg) -> None:
        self._said.put_nowait(netmon_pb2.Acknowledgement.FromString(message.data))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Process, BusSettings]]:
    """A NATS server of its own, which syncs every write. Raises UnsupportedError where there is none."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "nats.conf"
    storage = json.dumps(str(folder / "nats"))
    config.write_text(
        f"listen: 127.0.0.1:{port}\nmax_payload: 20MB\njetstream {{ store_dir: {storage}, sync_interval: always }}\n"
    )
    with Process("nats", [nats_server(), "-c", str(config)], folder) as process:
        process.wait_output("Server is ready", _ANSWER_S)
        yield process, BusSettings((f"nats://127.0.0.1:{port}",))
