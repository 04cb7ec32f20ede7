# SPDX-License-Identifier: Apache-2.0
"""A worker's hosts on the bus: taken and released one by one; their agents get what they have to know."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg

from collector.bus.host import HostIntake, Owned
from collector.bus.session import BusSession
from collector.ending import end_tasks
from collector.registry import Registry
from netmon.errors import NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.bus import (
    Bus,
    BusError,
    clock_subject,
    down_subject,
    may_answer,
    name_of,
    token,
    up_subject,
    waiting_subject,
)
from netmon.wire.bus_streams import introduced, lift_refusals, make_streams
from netmon.wire.channel import ALIVE_EVERY_S

_log = logging.getLogger(__name__)

# --- Lets go of sessions whose agents were killed and never came back to say goodbye.
#
# An agent that lives introduces itself again every `bus_connection.SAYS_AGAIN_S`. An introduction that has stayed as
# it is for much longer, while nothing of its session was on the bus, is nobody's any more.

FORGET_AFTER_S = 3600.0
_LOOK_EVERY_S = 60.0


class Forgetting:
    """Of one worker. Lives on one event loop."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._quiet: dict[tuple[str, str], tuple[int, float]] = {}  # by host and session: its introduction, since when
        self._looked = time.monotonic()

    async def check(self, hosts: Mapping[str, HostIntake]) -> None:
        """Now and then; hosts: those of this worker. Raises BusError."""
        now = time.monotonic()
        if now - self._looked < min(_LOOK_EVERY_S, FORGET_AFTER_S):
            return
        self._looked = now
        found = await introduced(self._bus)
        quiet = {
            (host, session)
            for host, intake in list(hosts.items())
            for session in found.get(host, ())
            if intake.quiet(session)
        }
        self._quiet = {key: seen for key, seen in self._quiet.items() if key in quiet}
        for host, session in quiet:
            intake = hosts.get(host)
            if intake:
                await self._consider(intake, host, session)

    async def _consider(self, intake: HostIntake, host: str, session: str) -> None:
        revision, since = self._quiet.get((host, session), (0, 0.0))
        if revision and time.monotonic() - since < FORGET_AFTER_S:
            return
        hello = await self._bus.hello(host, session)
        if hello is None:
            return
        if hello[1] != revision:  # it has introduced itself again, or is seen for the first time
            self._quiet[host, session] = hello[1], time.monotonic()
        elif await intake.drained() and intake.quiet(session):
            intake.sessions.pop(session, None)
            del self._quiet[host, session]
            await self._bus.forget_hello(host, session, revision)
            await lift_refusals(self._bus, host, session)
            _log.info(f"session {session} of {host} is forgotten: nothing has been heard of its agent for a long time")


_INFER_S = 2.0  # for what the traffic reports hosts that are released
_ANSWER_EVERY_S = 2.0  # an agent that hears nothing for longer does as it likes


class BusIntake:
    """Between `start` and `close`; lives on one event loop."""

    def __init__(self, bus: Bus, registry: Registry, worker: str, owned: Owned) -> None:
        """worker: its name, of which there is one on the bus; owned: asks the bus whether a host is this worker's."""
        self._bus, self._registry, self._worker, self._owned = bus, registry, worker, owned
        self._hosts: dict[str, HostIntake] = {}
        self._news = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self._answered: dict[tuple[str, str], float] = {}  # by host and session: when
        self._mending = asyncio.Lock()
        self._forgetting = Forgetting(bus)

    async def start(self) -> None:
        """Make what is missing on the bus, tell the time, hear answers, say what is stored. Raises BusError."""
        await make_streams(self._bus)
        with self._bus.errors("listen on"):
            await self._bus.client.subscribe(clock_subject(self._worker), cb=self._answer_time)
            await self._bus.client.subscribe(waiting_subject("*"), queue="workers", cb=self._answer_waiting)
            await self._bus.client.subscribe(f"netmon.v1.up.{token(self._worker)}.>", cb=self._receive)
        self._bus.when_back(self._back)
        self._working = [asyncio.create_task(self._tend_for_ever())]

    def stop(self) -> None:
        """Take nothing in any more."""
        for host in self._hosts.values():
            host.stop()

    async def close(self) -> None:
        await self.release(*self._hosts)
        await end_tasks(self._working)

    def abandon(self) -> None:
        """Leave everything as it is: nothing more is stored or acknowledged of what has come."""
        self.stop()
        self._hosts.clear()

    async def take(self, host: str) -> None:
        """Take in what the bus holds of a host and what comes. Raises BusError."""
        if host in self._hosts:
            return
        intake = self._hosts[host] = HostIntake(self._bus, self._registry, host, self._worker, self._owned, self._news)
        try:
            await intake.begin()
        except BaseException:
            del self._hosts[host]
            raise

    async def release(self, *hosts: str) -> None:
        """Store what has settled of these hosts, acknowledge it, and forget them: another worker may take them then.

        All else stays on the bus for that one, above all what an iteration needs that has not ended. What only the
        traffic shows is requested before: it is not sent again what is stored.
        """
        released = [self._hosts[host] for host in hosts if host in self._hosts]
        for intake in released:
            intake.stop()
        await asyncio.gather(*(intake.stopped() for intake in released))
        if released:
            await settle_pending(self._registry)
            await self._registry.flush()
        for host in hosts:
            self._hosts.pop(host, None)
        await asyncio.gather(*(intake.end() for intake in released))

    async def lose(self, host: str) -> None:
        """Another worker has taken it: forget it."""
        intake = self._hosts.pop(host, None)
        if intake:
            intake.stop()
            await intake.stopped()
            await intake.end(ours=False)

    async def hosts(self) -> frozenset[str]:
        """Every host that has introduced itself, or of which batches wait. Raises BusError."""
        return await self._bus.hosts()

    def taken_hosts(self) -> frozenset[str]:
        return frozenset(self._hosts)

    # --- now and then

    async def _tend_for_ever(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), ALIVE_EVERY_S)
            self._news.clear()
            for host in list(self._hosts.values()):
                try:
                    await host.tend()
                    for session in host.sessions.values():
                        await self._answer(session)
                except BusError as error:
                    _log.debug("%s", error)
                except Exception as error:  # of one host
                    self._registry.failures.notice(f"cannot tend a host: {type(error).__name__}: {error}", error)
            try:
                await self._forgetting.check(self._hosts)
            except BusError as error:
                _log.debug("%s", error)

    async def _answer(self, session: BusSession) -> None:
        """What its agent has to know, now and then and when there is a request."""
        connection, key, now = session.connection, (session.host, session.name), time.monotonic()
        if connection is None or not connection.current:
            self._answered.pop(key, None)
            return
        if connection.session.requests or now - self._answered.get(key, 0.0) > _ANSWER_EVERY_S:
            self._answered[key] = now
            for news in connection.acknowledgements():
                news.worker = self._worker
                reply = up_subject(self._worker, *key)
                with self._bus.errors("tell an agent on"):
                    await self._bus.client.publish(down_subject(*key), news.SerializeToString(), reply)

    async def _receive(self, message: Msg) -> None:
        """An answer of an agent, to a request for full resolution."""
        try:
            host, session = map(name_of, message.subject.split(".")[-2:])
            answer = netmon_pb2.AgentMessage.FromString(message.data)
            found = self._hosts[host].sessions[session].connection
            if found and answer.WhichOneof("message") == "full":
                await found.process(answer)
        except (KeyError, DecodeError):
            return
        except NetmonError as error:
            self._registry.failures.notice(str(error))

    async def _answer_time(self, message: Msg) -> None:
        received = time.time_ns()
        if not may_answer(message):
            return
        with contextlib.suppress(DecodeError, BusError), self._bus.errors("answer on"):
            probe = netmon_pb2.ClockProbe.FromString(message.data)
            echo = netmon_pb2.ClockEcho(number=probe.number, received_ns=received)
            echo.sent_ns = time.time_ns()
            await self._bus.client.publish(message.reply, echo.SerializeToString())

    async def _answer_waiting(self, message: Msg) -> None:
        """To an agent, of its own host's batches."""
        if not may_answer(message):
            return
        with contextlib.suppress(BusError), self._bus.errors("answer on"):
            count = await self._bus.waiting(name_of(message.subject.rpartition(".")[2]))
            await self._bus.client.publish(message.reply, str(count).encode())

    async def _back(self) -> None:
        """The connection was gone: nobody knows what got through."""
        await self.mend()
        for host in self._hosts.values():
            host.begin_again("the bus is back")

    async def mend(self) -> None:
        """Make what is missing on the bus, and say what that means."""
        async with self._mending:
            try:
                emptied = await make_streams(self._bus)
            except BusError as error:
                _log.warning("%s", error)
                return
            if emptied:
                where = self._bus.settings.name
                self._registry.failures.notice(
                    f"the bus at {where} has come back empty: what it had and nobody had stored is lost"
                )


async def settle_pending(registry: Registry) -> None:
    """Settle what is due of everything that has been reported until now, also by the traffic, as far as there is
    time."""
    registry.tick()
    await asyncio.wait([asyncio.create_task(registry.infer())], timeout=_INFER_S)
    registry.tick()
