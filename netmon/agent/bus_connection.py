# SPDX-License-Identifier: Apache-2.0
"""One connection to the bus: batches go out many at a time, and the spool forgets what the bus has acknowledged.

What that promises is the servers' to keep: a batch that JetStream has acknowledged is on the disks of as many servers
as the stream has replicas, if they sync what they write (sync_interval: always).
"""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import nats
from google.protobuf.message import DecodeError
from nats.aio.msg import Msg
from nats.js.api import PubAck

from netmon.agent.connection import Connect, End, Message, Outgoing
from netmon.agent.exchange import BURST, ClockExchanges, Pace
from netmon.agent.pressure import Backpressure
from netmon.errors import NetmonError
from netmon.records import ClockExchange
from netmon.wire import netmon_pb2
from netmon.wire.bus import (
    Bus,
    BusError,
    BusSettings,
    Label,
    batch_subject,
    clock_subject,
    down_subject,
    error_text,
    hello_subject,
    reason_of,
    refusal,
    refusal_subject,
)

_log = logging.getLogger(__name__)

# --- How much of the bus one host may take while workers are away or slow: the rest is for all others.
#
# The servers bound the number of a host's batches (`netmon.wire.bus.BusSettings.most_batches`), the agent their
# bytes: it knows what it has published, and the bus how many batches of the host are still there, which are the
# latest ones. What does not fit stays in the spool, and is streamed coarser as soon as it is late.

SHARE = 1 / 4
"""Of what the stream may hold."""


class BusShare:
    """Of one agent, over all its sessions and connections. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: deque[int] = deque()  # of batches that may be on the bus, oldest first
        self._bytes = 0
        self._most: float = 0  # bytes; 0: any
        self._said = False

    def learn(self, stream_bytes: int | None) -> None:
        """What the stream may hold; None, or not above 0: anything."""
        with self._lock:
            self._most = SHARE * stream_bytes if stream_bytes and stream_bytes > 0 else 0

    def fits(self, size: int) -> bool:
        """Whether a batch may be published now; one always may."""
        with self._lock:
            return not self._most or not self._bytes or self._bytes + size <= self._most

    def report_full(self, host: str) -> None:
        """There is no room; once, until there has been for all."""
        with self._lock:
            if not self._said:
                self._said = True
                _log.warning(
                    "%s has %d bytes waiting on the bus, as much as one host may; batches wait", host, self._bytes
                )

    def published(self, size: int) -> None:
        """A batch is on its way."""
        with self._lock:
            self._sizes.append(size)
            self._bytes += size
            if not self._most:
                self._keep(0)

    def waiting(self, batches: int) -> None:
        """So many of the host's are on the bus, or on their way."""
        with self._lock:
            self._keep(batches)

    def _keep(self, batches: int) -> None:
        while len(self._sizes) > batches:
            self._bytes -= self._sizes.popleft()
        self._said &= bool(self._sizes)


# --- Asks the worker that has this host for its time, over the bus.

_ANSWER_S = 2.0
_AGAIN_S = 1.0


async def exchange_clocks(bus: Bus, worker: Callable[[], str], exchanges: ClockExchanges) -> None:
    """Until it is cancelled. worker(): its name; empty: nobody is known to have this host."""
    number, pace, before = 0, Pace(), ""
    while True:
        worker_name, took = worker(), []
        if worker_name != before:
            before, pace = worker_name, Pace()
        try:
            for _ in range(BURST if worker_name else 0):
                number += 1
                probe = netmon_pb2.ClockProbe(number=number).SerializeToString()
                sent = time.monotonic_ns()
                answer = await bus.client.request(clock_subject(worker_name), probe, timeout=_ANSWER_S)
                received = time.monotonic_ns()
                echo = netmon_pb2.ClockEcho.FromString(answer.data)
                if echo.number == number:
                    exchanges.add(ClockExchange(sent, echo.received_ns, echo.sent_ns, received))
                    took.append(received - sent)
                    if pace.enough(took[-1]):
                        break
        except (nats.errors.Error, asyncio.TimeoutError, DecodeError, OSError):
            took.clear()
        await asyncio.sleep(pace.rest_s(took, exchanges.idle) if took else _AGAIN_S)


# --- bus connection


MOST_ON_THE_WAY, MOST_BYTES_ON_THE_WAY = 64, 8 << 20
"""Batches that are published and not acknowledged."""

_BACKPRESSURE_VALID_S = 10.0  # a worker that says nothing for so long asks for nothing
SAYS_AGAIN_S = 600.0
"""So often an agent introduces itself again although nothing has changed: who does not for long is dead."""

_REFRESH_S = 10.0  # a changed introduction is published again after so long at the earliest
_REFRESH_RATE = 50_000  # and no more bytes a second of it than this
_LONGEST_S = 3600.0  # for the answer to a batch; `check` looks at it before
_LOOK_AGAIN_S = 0.05, 1.0  # for our share of the bus: at first, and at most; each time twice as long
_WORD_S = 5.0  # for an answer that everything else waits for


@dataclass
class _Sent:
    sequence: int
    size: int
    at_s: float
    done: bool = False


def connect_by_bus(settings: BusSettings) -> Connect:
    """Each time a connection of its own."""
    share = BusShare()
    return lambda outgoing, exchanges, silent_s: BusConnection(settings, outgoing, exchanges, silent_s, share)


class BusConnection:
    """A netmon.agent.connection.Connection. `run`'s thread has the event loop; another one reads the spool."""

    def __init__(
        self,
        settings: BusSettings,
        outgoing: Outgoing,
        exchanges: ClockExchanges | None,
        silent_s: float,
        share: BusShare,
    ) -> None:
        """silent_s: so long the bus may leave a batch unanswered. exchanges: None: the time is not requested.

        share: of the bus, for all connections of the host.
        """
        self._share = share
        self._settings, self._outgoing, self._spool = settings, outgoing, outgoing.spool
        self._exchanges, self._silent_s = exchanges, silent_s
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._room = threading.Condition()
        self._sent: deque[_Sent] = deque()  # oldest first
        self._bytes = self._on_the_way = 0  # read from the spool, and not acknowledged
        self._answers: set[asyncio.Task[PubAck]] = set()
        self._previous = 0
        self._answered = self._silent = self._refused = False
        self._why = ""
        self._on_answer: Callable[[], None] = lambda: None
        self._answered_s = 0.0  # when a worker has said something
        self._worker, self._up = "", ""
        self.backpressure = Backpressure()

    def run(self, on_answer: Callable[[], None], strikes: dict[int, int]) -> End:
        """Blocks until the connection has ended. on_answer: called when a batch is acknowledged."""
        self._on_answer = on_answer
        try:
            asyncio.run(self._work())
        except NetmonError as error:
            self._why = self._why or str(error)
        except Exception as error:  # whatever a server does ends no agent
            self._why = self._why or f"{type(error).__name__}: {error}"
        finally:
            self._over.set()
            self.backpressure = Backpressure()
            self._outgoing.pulls.clear()
            self._spool.wake()
        return End(self._why, self._answered, refused=self._refused, silent=self._silent)

    def check(self) -> None:
        """To be called now and then, from another thread: gives up a bus that does not answer."""
        now = time.monotonic()
        with self._room:
            late = bool(self._sent) and now - self._sent[0].at_s > self._silent_s
        if late:
            self._silent = True
            self.end(f"it has not acknowledged for {self._silent_s:.0f} s")
        if self._answered_s and now - self._answered_s > _BACKPRESSURE_VALID_S:
            self.backpressure = Backpressure()

    def end(self, why: str) -> None:
        """From any thread; `run` returns soon."""
        self._why = self._why or why
        self._over.set()
        self._spool.wake()
        with self._room:
            self._room.notify_all()
        loop, ended = self._loop, self._ended
        if loop and ended:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(ended.set)

    # --- on the event loop

    async def _work(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        opening = await asyncio.to_thread(self._outgoing.introduction)
        hello = netmon_pb2.AgentMessage.FromString(opening).hello
        self._host, self._session = hello.host, hello.session
        name = f"netmon agent of {self._host}"
        bus = self._bus = await Bus.connect(self._settings, name, gone=self.end, host=self._host)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._introduce(opening)
            self._answered = True
            with bus.errors("listen on"):
                await bus.client.subscribe(down_subject(self._host, self._session), cb=self._receive)
                await bus.client.subscribe(refusal_subject(self._host, self._session), cb=self._receive_refusal)
            refused = await refusal(bus, self._host, self._session)
            if refused:
                return self._be_refused(refused)
            self._share.learn(await bus.most_bytes())
            tasks.append(asyncio.create_task(self._refresh()))
            if self._exchanges:
                tasks.append(asyncio.create_task(exchange_clocks(bus, lambda: self._worker, self._exchanges)))
            await self._publish_all()
        finally:
            self._over.set()
            self._spool.wake()
            leaving = [*tasks, *self._answers]
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await bus.close()

    async def _introduce(self, opening: bytes) -> None:
        with self._bus.errors("introduce the agent to"):
            await self._bus.jetstream.publish(hello_subject(self._host, self._session), opening, timeout=_WORD_S)
        self._introduced, self._said_s = self._spool.hello, time.monotonic()

    async def _refresh(self) -> None:
        """A worker that takes the host over begins with the introduction."""
        rest_s = _REFRESH_S
        while True:
            await asyncio.sleep(rest_s)
            if self._spool.hello is not self._introduced or time.monotonic() - self._said_s > SAYS_AGAIN_S:
                try:
                    opening = await asyncio.to_thread(self._outgoing.introduction)
                    await self._introduce(opening)
                except BusError as error:
                    return self.end(str(error))
                rest_s = max(_REFRESH_S, len(opening) / _REFRESH_RATE)

    async def _publish_all(self) -> None:
        """Until everything is acknowledged, or the connection ends."""
        assert self._ended
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        reading = threading.Thread(target=self._read, args=(queue,), name="spool", daemon=True)
        reading.start()
        ended = asyncio.create_task(self._ended.wait())
        try:
            while True:
                coming = asyncio.create_task(queue.get())
                await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    return
                message = coming.result()
                if message is None:
                    break
                await self._publish(message)
                if self._over.is_set():  # it may be that it was not published: the next one may not go before it
                    return
            while self._sent and not ended.done():
                await asyncio.wait((ended,), timeout=0.01)
            if not ended.done() and not self._sent and self._outgoing.complete():
                await self._say_goodbye()
        finally:
            ended.cancel()
            self._over.set()
            self._spool.wake()
            with self._room:
                self._room.notify_all()
            await asyncio.to_thread(reading.join)

    async def _publish(self, message: Message) -> None:
        with self._bus.errors("publish to"):
            if not message.sequence:
                if self._up:
                    await self._bus.client.publish(self._up, message.data)
                return
            previous, self._previous = self._previous, message.sequence
            if not await self._has_room(len(message.data)):
                return
            self._share.published(len(message.data))
            known = self._spool.acknowledged
            label = Label(self._session, message.sequence, max(previous, known), known)
            sent = _Sent(message.sequence, len(message.data), time.monotonic())
            with self._room:
                self._sent.append(sent)
            # nats-py's publish_async never hears of an error (2.16).
            publishing = self._bus.jetstream.publish(
                batch_subject(self._host), message.data, timeout=_LONGEST_S, headers=label.headers()
            )
            answer = asyncio.create_task(publishing)
            self._answers.add(answer)
            answer.add_done_callback(functools.partial(self._answer, sent))

    async def _has_room(self, size: int) -> bool:
        """Waits until workers have taken enough of this host's batches off the bus; False: the connection has ended."""
        rest_s, longest_s = _LOOK_AGAIN_S
        while not self._share.fits(size):
            waiting = await self._bus.query_waiting(self._host)
            if waiting is not None:
                self._share.waiting(waiting + len(self._answers))
            if not self._share.fits(size):
                self._share.report_full(self._host)
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, longest_s)
            if self._over.is_set():
                return False
        return True

    def _answer(self, sent: _Sent, answer: "asyncio.Task[PubAck]") -> None:
        """The bus has it, or will not have it."""
        self._answers.discard(answer)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self.end(f"it does not take batches: {error_text(error)}")
            return
        sent.done, last = True, 0
        with self._room:
            while self._sent and self._sent[0].done:
                done = self._sent.popleft()
                self._bytes -= done.size
                self._on_the_way -= 1
                last = done.sequence
            self._room.notify_all()
        if last:
            self._spool.acknowledge(last)
            self._on_answer()

    async def _say_goodbye(self) -> None:
        last = self._spool.acknowledged
        if last:
            label = Label(self._session, 0, last, last)
            with self._bus.errors("say goodbye to"):
                headers = label.headers()
                await self._bus.jetstream.publish(batch_subject(self._host), b"", timeout=_WORD_S, headers=headers)

    async def _receive(self, message: Msg) -> None:
        """What the worker says that has this host."""
        try:
            news = netmon_pb2.Acknowledgement.FromString(message.data)
        except DecodeError:  # it is a stranger's
            return
        self._answered_s = time.monotonic()
        self._worker, self._up = news.worker, message.reply
        self.backpressure = self._outgoing.receive(news)

    async def _receive_refusal(self, message: Msg) -> None:
        self._be_refused(reason_of(message.data))

    def _be_refused(self, why: str) -> None:
        """No worker takes the session in: what is published would only fill the bus."""
        self._refused = True
        self.end(why)

    # --- in the thread that reads the spool

    def _read(self, queue: "asyncio.Queue[Message | None]") -> None:
        assert self._loop
        try:
            for message in self._outgoing.messages(self._over.is_set):
                with self._room:
                    while not self._over.is_set() and not self._fits(len(message.data)):
                        self._room.wait()
                    if message.sequence:
                        self._bytes += len(message.data)
                        self._on_the_way += 1
                self._loop.call_soon_threadsafe(queue.put_nowait, message)
            self._loop.call_soon_threadsafe(queue.put_nowait, None)
        except Exception as error:
            self.end(str(error))

    def _fits(self, size: int) -> bool:
        few = self._on_the_way < MOST_ON_THE_WAY
        return self._on_the_way == 0 or (few and self._bytes + size <= MOST_BYTES_ON_THE_WAY)
