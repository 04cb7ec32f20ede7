# SPDX-License-Identifier: Apache-2.0
"""A worker's hosts on the bus: taken and released one by one; their agents get what they have to know."""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from collector.agent_checks import FailedBatchError, RefusedBatchError
from collector.bus.session import BusSession, Delivered, RefusedHelloError, StrangerError
from collector.ending import end_tasks
from collector.registry import Registry
from netmon.errors import DataError, NetmonError, WireError
from netmon.wire import netmon_pb2
from netmon.wire.bus import (
    LEAST_PAYLOAD,
    STREAM,
    Bus,
    BusError,
    batch_subject,
    clock_subject,
    down_subject,
    introduced,
    lift_refusals,
    make_streams,
    may_answer,
    name_of,
    read_label,
    refuse,
    token,
    up_subject,
    waiting_subject,
)
from netmon.wire.limits import ALIVE_EVERY_S

_log = logging.getLogger(__name__)

# --- What the bus holds for one host: every message that is not acknowledged, in the order in which it came.
#
# The stream keeps a message until it is acknowledged. The consumer that hands them out is not kept: it is
# in the servers' memory, and is made anew after any fault, which delivers everything again that is not acknowledged.

_AT_A_TIME = 16  # messages requested
_REQUEST_S, _ALIVE_S, _SILENT_S = 30.0, 3.0, 10.0
_AGAIN_S = 3600.0  # what is not acknowledged comes again: everything comes from a new consumer long before
_GONE_S = 300.0  # a consumer that nobody asks is removed
_LONGEST_NAME = 200
_OF = "~"  # stands in no token
_ANSWER_S = 5.0
_NOT_ALONE = 10100  # filtered consumer not unique on workqueue stream
_ON, _OVER = ("100",), ("404", "408")
_OVER_TEXTS = ("Batch Completed", "Message Size Exceeds MaxBytes", "Exceeded")


class Deliveries:
    """One consumer, of one worker. Lives on one event loop."""

    def __init__(self, bus: Bus, host: str, worker: str) -> None:
        """`begin` makes the consumer. Its name is this worker's: who has lost the host asks in vain."""
        self._bus, self._host = bus, host
        self.name = consumer_name(host, worker)
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self.name}"
        self._subscription: Subscription | None = None
        self._come: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._requested = 0  # messages that may still come
        self._handed_out = 0  # by the consumer, that have come
        self._left = 0  # that it had not handed out when the last one came
        self._received_s = 0.0
        self._broken = ""

    async def begin(self) -> None:
        """From the oldest message that is not acknowledged; nobody else consumes them then. Raises BusError."""
        await self._unsubscribe()
        self._come.clear()
        self._requested, self._handed_out, self._left, self._broken = 0, 0, 0, ""
        subject = batch_subject(self._host)
        with self._bus.errors(f"consume {subject} from"):
            with contextlib.suppress(NotFoundError):
                await self._bus.jetstream.delete_consumer(STREAM, self.name)
            consumer = ConsumerConfig(
                durable_name=self.name,
                filter_subject=subject,
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=_AGAIN_S,
                max_ack_pending=-1,
                max_deliver=-1,
                mem_storage=True,
                inactive_threshold=_GONE_S,
            )
            try:
                await self._bus.jetstream.add_consumer(STREAM, consumer)
            except APIError as error:
                if error.err_code != _NOT_ALONE:
                    raise
                await self._remove_others()
                await self._bus.jetstream.add_consumer(STREAM, consumer)
            inbox = self._bus.client.new_inbox()
            self._subscription = await self._bus.client.subscribe(
                inbox, cb=self._came, pending_bytes_limit=0, pending_msgs_limit=0
            )
            self._inbox = inbox

    async def _remove_others(self) -> None:
        """Of a worker that is gone, or does not know yet that it has lost the host."""
        stem, first, names = consumer_name(self._host), 0, [""]
        while names:
            request = json.dumps({"offset": first}).encode()
            answer = await self._bus.client.request(f"$JS.API.CONSUMER.NAMES.{STREAM}", request, timeout=_ANSWER_S)
            names = json.loads(answer.data).get("consumers") or []
            first += len(names)
            for name in names:
                if name == stem or name.startswith(f"{stem}{_OF}"):
                    with contextlib.suppress(NotFoundError):
                        await self._bus.jetstream.delete_consumer(STREAM, name)

    async def next(self) -> Msg:
        """The next message. Raises BusError: `begin` again, also after `interrupt`."""
        while True:
            if self._broken:
                raise BusError(self._broken)
            if self._come:
                return self._come.popleft()
            self._news.clear()
            if not self._requested:
                await self._request_more()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), _ALIVE_S)
            if time.monotonic() - self._received_s > _SILENT_S:
                self._broken = f"the bus says nothing about {self._host} for {_SILENT_S:g} s"

    @property
    def behind(self) -> bool:
        """Whether messages wait that have not been handed out, as far as is known without asking."""
        return bool(self._come or self._left)

    async def drained(self) -> bool:
        """Whether there is nothing that has not been handed out. Raises BusError."""
        with self._bus.errors("query"):
            info = await self._bus.jetstream.consumer_info(STREAM, self.name)
        return not (info.num_pending or self._come or self._broken)

    def interrupt(self, why: str) -> None:
        """Whoever waits in `next` begins again."""
        self._broken = self._broken or why
        self._news.set()

    async def end(self, ours: bool) -> None:
        """The consumer goes if it is ours, what it has handed out stays on the bus. Does not raise."""
        await self._unsubscribe()
        if not ours:
            return
        with contextlib.suppress(Exception):
            if self._bus.client.is_connected:
                await self._bus.jetstream.delete_consumer(STREAM, self.name)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription:
            with contextlib.suppress(Exception):  # the connection may be gone
                await subscription.unsubscribe()

    async def _request_more(self) -> None:
        request = {
            "batch": _AT_A_TIME,
            "max_bytes": 2 * LEAST_PAYLOAD,
            "expires": int(_REQUEST_S * 1e9),
            "idle_heartbeat": int(_ALIVE_S * 1e9),
        }
        self._requested, self._received_s = _AT_A_TIME, time.monotonic()
        with self._bus.errors("query"):
            await self._bus.client.publish(self._subject, json.dumps(request).encode(), self._inbox)

    async def _came(self, message: Msg) -> None:
        self._received_s = time.monotonic()
        status = (message.headers or {}).get("Status")
        if not status:
            self._handed_out += 1
            # What the consumer has handed out while the connection was gone is not handed out again by itself.
            about = message.metadata
            self._left = about.num_pending
            if about.sequence.consumer == self._handed_out:
                self._come.append(message)
                self._requested = max(0, self._requested - 1)
            else:
                self._broken = self._broken or f"messages of {self._host} got lost on their way"
        elif status not in _ON:
            text = (message.headers or {}).get("Description", "")
            self._requested = 0
            if status not in _OVER and not any(phrase in text for phrase in _OVER_TEXTS):
                self._broken = self._broken or f"the consumer of {self._host} is gone: {status} {text}"
        self._news.set()


def consumer_name(host: str, worker: str = "") -> str:
    """HOST~WORKER; a host's name that is too long stands there as a number. Without a worker, how all of it begin."""
    name = token(host)
    stem = name if len(name) <= _LONGEST_NAME else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{stem}{_OF}{token(worker)}" if worker else stem


Owned = Callable[[str], Awaitable[bool]]

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
                session.lost.add(error.sequence)  # it is not taken in again
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
            _log.info(f"session {session} of {host} is forgotten: its agent has been silent for a long time")


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
        """Make what is missing on the bus, serve the time, receive answers, report what is stored. Raises BusError."""
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
                with self._bus.errors("notify an agent on"):
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
