# SPDX-License-Identifier: Apache-2.0
"""One host's batches on their way from the bus to the registry, until it is released."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg

from collector.agent_checks import FailedBatchError, RefusedBatchError
from collector.bus.deliveries import Deliveries
from collector.bus.session import BusSession, Delivered, RefusedHelloError, StrangerError
from collector.ending import end_tasks
from collector.registry import Registry
from netmon.errors import DataError, NetmonError, WireError
from netmon.wire import netmon_pb2
from netmon.wire.bus import Bus, BusError, read_label
from netmon.wire.bus_streams import lift_refusals, refuse

Owned = Callable[[str], Awaitable[bool]]

_log = logging.getLogger(__name__)
_STRIKES = 3  # failures at one batch, after which the batch is to blame
_MOST_SESSIONS = 64  # of a host at a time
_REST_S, _LONGEST_REST_S = 0.1, 5.0


class HostIntake:
    """Lives on one event loop. What fails costs one batch or one session; what is not stored stays on the bus."""

    def __init__(self, bus: Bus, registry: Registry, host: str, worker: str, owned: Owned, news: asyncio.Event) -> None:
        """`begin` begins. owned: asks the bus whether the host is this worker's; news: set when something is stored."""
        self._bus, self._registry, self._host, self._news = bus, registry, host, news
        self._owned = owned
        self._deliveries = Deliveries(bus, host, worker)
        self.sessions: dict[str, BusSession] = {}
        self._failed: list[tuple[BusSession, NetmonError]] = []
        self._strikes: Counter[tuple[str, int]] = Counter()
        self._working: asyncio.Task[None] | None = None
        self._said = ""
        self.strange = 0  # messages that were none of an agent's

    async def begin(self) -> None:
        """Consume from now on. Raises BusError."""
        await lift_refusals(self._bus, self._host)
        await self._deliveries.begin()
        self._working = asyncio.create_task(self._work())

    def begin_again(self, why: str) -> None:
        """Everything that is not acknowledged comes again."""
        self._deliveries.interrupt(why)

    async def tend(self) -> None:
        """Once a second, and when there is news: acknowledge what is stored, let go of who is silent or over."""
        for session in list(self.sessions.values()):
            if session.session:
                session.session.behind = self._deliveries.behind
            try:
                await self._acknowledge(session)
                session.check()
                strange = await session.tend()
                if strange:
                    await self._strange(f"session {session.name} of {self._host} has not introduced itself", strange)
                over = session.over
                if over:
                    await self._bus.acknowledge([over.reply])
                    await session.forget()
                    del self.sessions[session.name]
            except BusError as error:
                _log.debug("%s", error)  # it is said where the connection is kept
            except NetmonError as error:
                self._fail(session, error)

    def quiet(self, session: str) -> bool:
        """Whether nothing of a session is being taken in, or waits to be stored."""
        return session not in self.sessions or self.sessions[session].idle

    async def drained(self) -> bool:
        """Whether everything that the bus holds of the host has been handed out. Raises BusError."""
        return await self._deliveries.drained()

    def stop(self) -> None:
        """Take nothing in any more."""
        if self._working:
            self._working.cancel()

    async def stopped(self) -> None:
        """Wait until nothing more comes in; after `stop`."""
        if self._working:
            await end_tasks([self._working])

    async def end(self, ours: bool = True) -> None:
        """After `stopped`: what is stored is acknowledged, the rest is forgotten here. Does not raise BusError.

        ours: another worker has not taken the host meanwhile.
        """
        for session in self.sessions.values():
            with contextlib.suppress(BusError):  # it comes again, and is known to be stored
                await self._acknowledge(session)
            await session.close()
        self.sessions.clear()
        await self._deliveries.end(ours)

    async def _work(self) -> None:
        rest_s = _REST_S
        while True:
            try:
                while True:
                    await self._take(await self._deliveries.next())
                    rest_s, self._said = _REST_S, ""
            except NetmonError as error:
                self._say(error)
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)
            try:
                await self._clear_failed()
                if not await self._owned(self._host):  # it is about to be lost: its new worker is not to be disturbed
                    self._deliveries.interrupt(f"another worker has {self._host}")
                    continue
                await self._deliveries.begin()
            except BusError as error:
                self._deliveries.interrupt(str(error))

    def _say(self, error: NetmonError) -> None:
        if self._bus.client.is_connected and str(error) != self._said and not isinstance(error, BusError):
            _log.warning("%s; its batches wait on the bus", error)
        self._said = str(error)

    async def _take(self, message: Msg) -> None:
        """Raises NetmonError: begin again."""
        try:
            delivered = _read(message)
        except WireError as error:
            self._count(f"a message on {message.subject} is none of an agent's: {error}", 1)
            await self._bus.acknowledge([message.reply])
            return
        session = self._session(delivered.label.session)
        try:
            await session.add(delivered)
        except StrangerError as error:
            await self._strange(str(error), [delivered])
        except RefusedBatchError as error:
            self._fail(session, error)
        except (BusError, DataError):
            raise
        except WireError as error:
            if session.session is None:  # it cannot be opened: another netmon may be able to
                session.refused = str(error)
                if isinstance(error, RefusedHelloError):
                    await refuse(self._bus, self._host, session.name, session.refused)
                self._registry.failures.notice(f"{error}; its batches stay on the bus")
            else:
                self._fail(session, error)

    def _session(self, name: str) -> BusSession:
        found = self.sessions.get(name)
        if found is None:
            if len(self.sessions) >= _MOST_SESSIONS:
                raise WireError(f"{self._host} has more than {_MOST_SESSIONS} sessions at a time")
            found = self.sessions[name] = BusSession(self._bus, self._registry, self._host, name, self._news)
        return found

    async def _acknowledge(self, session: BusSession) -> None:
        replies = list(session.stored())
        if replies:
            await self._bus.acknowledge(replies)

    def _fail(self, session: BusSession, error: NetmonError) -> None:
        """Its session begins anew, from the dataset and the bus."""
        if isinstance(error, RefusedBatchError):
            key = session.name, error.sequence
            self._strikes[key] += 1
            if not isinstance(error, FailedBatchError) or self._strikes[key] >= _STRIKES:
                del self._strikes[key]
                session.blame(error)
                self._registry.failures.notice(f"{error}; it is left out")
        self._failed.append((session, error))
        self._deliveries.interrupt(str(error))

    async def _clear_failed(self) -> None:
        failed, self._failed = self._failed, []
        for session, _ in failed:
            await session.close()
        for session in [session for session in self.sessions.values() if session.refused]:
            del self.sessions[session.name]

    async def _strange(self, why: str, messages: list[Delivered]) -> None:
        self._count(why, len(messages))
        await self._bus.acknowledge([one.reply for one in messages])

    def _count(self, why: str, count: int) -> None:
        self.strange += count
        self._registry.failures.notice(f"{why}; it is left out")


def _read(message: Msg) -> Delivered:
    """Raises WireError."""
    label = read_label(message.headers)
    try:
        decoded = netmon_pb2.AgentMessage.FromString(message.data)
    except DecodeError as error:
        raise WireError("it cannot be decoded") from error
    if label.sequence and (decoded.WhichOneof("message"), decoded.batch.sequence) != ("batch", label.sequence):
        raise WireError(f"it is not batch {label.sequence}")
    return Delivered(label, decoded, message.reply)
