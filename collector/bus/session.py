# SPDX-License-Identifier: Apache-2.0
"""One session of a host on the bus: its introduction, its batches in their order, and which of them are stored."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from collector.agent_checks import read_hello
from collector.host.session import Session
from collector.registry import Connection, Registry
from netmon.errors import WireError
from netmon.records import SCHEMA_VERSION, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import misunderstanding
from netmon.wire.bus import Bus, Label

# --- The batches of one session, in their order again.
#
# An agent publishes many at a time. Where one is refused, or gets lost with its connection, those behind it may be on
# the bus before it comes again. Every batch says which one goes before it (`previous`) and up to which the bus had
# acknowledged all when it was sent (`acknowledged`): what lies below that does not come later, so that no time has to
# pass until a gap is known to be one.

MOST_WAITING = 1_024
"""Batches: far more than an agent has on the way at a time."""

T = TypeVar("T")


class InOrder(Generic[T]):
    """Of one session. Labels of batches in, as the bus has them; batches out, ascending, each once."""

    def __init__(self, stored: int) -> None:
        """stored: the rows of every batch up to there are in the dataset; what is missing of those does not come.

        One that does come is given out: an iteration, or the ledger, may need what it says alongside its rows.
        """
        self.last = 0  # that was given out
        self._known = stored  # nothing up to there comes later
        self._waiting: dict[int, tuple[Label, T]] = {}

    @property
    def waiting(self) -> int:
        """Batches that wait for one before them."""
        return len(self._waiting)

    def add(self, label: Label, what: T) -> Iterator[T]:
        """A batch has come; what may be taken in now. One that was given out before is not given out again."""
        self._known = max(self._known, label.acknowledged)
        if label.sequence > self.last:
            waiting = self._waiting.get(label.sequence)
            # Sent again without the batch that went before it, which was given up.
            if waiting is None or label.previous < waiting[0].previous:
                self._waiting[label.sequence] = label, what
        yield from self._ready(len(self._waiting) > MOST_WAITING)

    def give_up(self) -> Iterator[T]:
        """What is missing does not come: returns everything that waits."""
        while self._waiting:
            yield from self._ready(anyhow=True)

    def _ready(self, anyhow: bool) -> Iterator[T]:
        while self._waiting:
            first = min(self._waiting)
            if not anyhow and self._waiting[first][0].previous > max(self.last, self._known):
                return
            anyhow = False
            self.last = max(self.last, first)
            yield self._waiting.pop(first)[1]


SILENT_S = 10.0
"""An agent that lives sends every second; a later message connects it again."""

_QUIET_S = 2.5  # an agent sends more often, also one that is requested few batches
_UNKNOWN_S = 5.0  # for an introduction that is still to come
_MISSING_S = 600.0  # for a batch that goes before one that is there, of an agent that says nothing more
_MOST_PARKED = 256


class StrangerError(WireError):
    """A message is none of an agent of this host."""


class RefusedHelloError(WireError):
    """An introduction that this netmon does not understand."""


@dataclass(frozen=True)
class Delivered:
    """A message as the bus has handed it out. reply: where to acknowledge it."""

    label: Label
    message: netmon_pb2.AgentMessage
    reply: str


class BusSession:
    """`add` takes messages in, `stored` says which of them need not come again."""

    def __init__(self, bus: Bus, registry: Registry, host: str, name: str, news: asyncio.Event) -> None:
        """Nothing has come. news: set when there is something to acknowledge or to send."""
        self._bus, self._registry, self._news = bus, registry, news
        self.host, self.name = host, name
        self.connection: Connection | None = None
        self.refused = ""  # why it is not taken in; what comes of it stays on the bus
        self.lost: set[int] = set()  # batches that are not to be taken in again
        self.session: Session | None = None  # also when it is not connected any more
        self._order: InOrder[Delivered] | None = None
        self._replies: dict[int, list[str]] = {}  # of batches that are not stored yet
        self._parked: list[Delivered] = []  # until it is known who it is
        self._since = time.monotonic()
        self._waits_since: float | None = time.monotonic()  # None: a message is being taken in
        self._end: Delivered | None = None  # its last word
        self._leaving: asyncio.Task[bool] | None = None
        self._revision = 0  # of the introduction

    async def add(self, delivered: Delivered) -> None:
        """Take a message in; waits until there is room. Raises BusError, NetmonError; StrangerError."""
        if self.refused:
            return
        self._waits_since = None
        try:
            await self._add(delivered)
        finally:
            self._waits_since = time.monotonic()

    async def _add(self, delivered: Delivered) -> None:
        if self._parked or not await self._introduced(delivered):
            self._parked.append(delivered)
            if len(self._parked) > _MOST_PARKED:
                self._since -= _UNKNOWN_S
            return
        assert self._order
        label = delivered.label
        if not label.sequence:
            self._end = delivered
            for ready in self._order.give_up():
                await self._process(ready)
            if self.connection and not self._leaving:
                self._leaving = asyncio.create_task(self.connection.leave(complete=True))
                self._leaving.add_done_callback(lambda _: self._news.set())
            return
        self._replies.setdefault(label.sequence, []).append(delivered.reply)
        for ready in self._order.add(label, delivered):
            await self._process(ready)

    async def _process(self, ready: Delivered) -> None:
        connection, sequence = self.connection, ready.label.sequence
        if connection is None:
            return
        if sequence in self.lost:
            self._replies.pop(sequence, None)
            await self._bus.acknowledge([ready.reply])
            return
        await connection.room()
        if connection is self.connection and connection.takes:
            await connection.process(ready.message)

    async def _introduced(self, delivered: Delivered) -> bool:
        """Whether it is known who it is, and taken in. Raises NetmonError."""
        if self.connection and self.connection.current and not self.connection.session.broken:
            return True
        found = await self._bus.hello(self.host, self.name)
        if found is None:
            return False
        self._revision = found[1]
        if not delivered.label.sequence and self.session is None:  # everything else of it was stored before
            self._order = InOrder(delivered.label.previous)
            return True
        hello = self._read(found[0])
        known = self.session
        self.connection = await Connection.open(self._registry, hello, self._news)
        self.session = self.connection.session
        if self._order is None or known is not self.session:
            self._order = InOrder(self.session.complete_before)
        return True

    def _read(self, data: bytes) -> Hello:
        try:
            message = netmon_pb2.AgentMessage.FromString(data)
        except DecodeError as error:
            raise StrangerError(f"the introduction of session {self.name} of {self.host} cannot be read") from error
        known = message.WhichOneof("message") == "hello" and not misunderstanding(message.hello, SCHEMA_VERSION)
        try:
            hello = read_hello(message)
        except WireError as error:
            raise RefusedHelloError(str(error)) from error
        if known and (hello.host, hello.session) != (self.host, self.name):
            raise StrangerError(f"the introduction of session {self.name} of {self.host} is another one's")
        return replace(hello, acknowledged=0)  # it may have been written long ago

    # --- now and then

    def stored(self) -> Iterator[str]:
        """Where to acknowledge what has been stored since the last call."""
        if self.session is None:
            return
        for sequence in [sequence for sequence in self._replies if sequence <= self.session.acknowledge]:
            yield from self._replies.pop(sequence)

    def check(self) -> None:
        """Raise RefusedBatchError, FailedSessionError: it has to begin anew."""
        if self.connection:
            self.connection.check()
        if self._leaving and self._leaving.done() and not self._leaving.cancelled():
            error = self._leaving.exception()
            if error:
                self._leaving = None
                raise error

    async def tend(self) -> list[Delivered]:
        """Once a second. What nobody has introduced: to be acknowledged and forgotten. As `add`."""
        now = time.monotonic()
        if self._parked:
            first = self._parked[0]
            if await self._introduced(first):
                parked, self._parked = self._parked, []
                for one in parked:
                    await self._add(one)
            elif now - self._since > _UNKNOWN_S:
                parked, self._parked, self._since = self._parked, [], now
                return parked
            return []
        self._since = now
        quiet_s = now - self._waits_since if self._waits_since is not None else 0.0
        if quiet_s > _QUIET_S:  # nothing waits for us: that it is late is not our load
            self._registry.intake.left(self.name)
        if self.connection and quiet_s > SILENT_S and not self._end:
            connection, self.connection = self.connection, None
            await connection.leave(complete=False)
        if self._order and self._order.waiting and quiet_s > _MISSING_S:
            for ready in self._order.give_up():
                await self._process(ready)
        return []

    @property
    def over(self) -> Delivered | None:
        """Its last word, where everything is stored."""
        left = not self._leaving or self._leaving.done()
        return self._end if left and not (self._replies or self._parked) else None

    @property
    def idle(self) -> bool:
        """Its agent is not connected, and nothing of it waits here or, because it is refused, on the bus."""
        waiting = self._order is not None and self._order.waiting
        waits = self._replies or self._parked or self._end or waiting or self.refused
        return self.connection is None and self._waits_since is not None and not waits

    async def forget(self) -> None:
        """It is over. Raises BusError."""
        if self._revision:
            await self._bus.forget_hello(self.host, self.name, self._revision)

    async def close(self) -> None:
        """Whatever is not stored comes again."""
        if self._leaving:
            self._leaving.cancel()
        session, self.connection, self._order, self.session = self.session, None, None, None
        self._replies.clear()
        self._parked.clear()
        self._end = self._leaving = None
        if session:
            await self._registry.discard(session)
