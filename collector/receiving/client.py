# SPDX-License-Identifier: Apache-2.0
"""The collector's end of the way to the process that receives for it: what comes is taken in once a tick."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NoReturn

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from collector.agent_checks import End, FailedBatchError, FailedSessionError, RefusedBatchError, end_of
from collector.answers import Answers
from collector.backpressure import BackpressureRequest
from collector.ending import end_tasks
from collector.host.session import Session
from collector.receiving import frames
from collector.receiving.frames import Answer, Listen, Listening, Pipe, Received, Stop
from collector.registry import Came, Connection, Registry
from netmon.dl.grouped import starts
from netmon.errors import CertificateError, DataError, NetmonError, UnsupportedError, UsageError
from netmon.own_module import own_module
from netmon.records import Hello
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import filter_batches
from netmon.wire.limits import ALIVE_EVERY_S, FEW_THREADS

_log = logging.getLogger(__name__)

# --- One agent's stream at the collector's end: its connection, and what its agent is sent.


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
        self._connection = await Connection.open(self._registry, hello, self._news)

    @property
    def connection(self) -> Connection:
        """Once it is open."""
        assert self._connection
        return self._connection

    @property
    def session(self) -> Session:
        return self.connection.session

    def check(self) -> None:
        """As Connection.check; AnotherError."""
        if not self.connection.current:
            raise AnotherError(f"session {self.session.hello.session} has connected again")
        self.connection.check()

    def answer(self, data: bytes) -> None:
        """A FullAnswer has come. Raises WireError, DecodeError."""
        message = netmon_pb2.AgentMessage.FromString(data)
        if self.connection.takes:
            self._registry.live.full.answer(self.session, message.full)

    def state_row(self, now_s: float) -> tuple[int, int, int, int, int, float]:
        """A row of STREAM_STATE, that goes out now."""
        self._sent_s, self._requested = now_s, self.connection.order
        order = self._requested
        request = order.bucket_ns, order.batch_ns, order.within_ns, order.rows_per_s
        return self.number, self.session.acknowledge, *request

    def overdue(self, now_s: float) -> bool:
        """Whether its agent has received nothing for a while, or is requested something else than it has received."""
        return now_s - self._sent_s >= _SILENT_S or self.connection.order != self._requested

    def requests(self) -> Iterator[bytes]:
        """Acknowledgements with what its agent is requested besides."""
        if self.session.requests:
            for news in self.connection.acknowledgements():
                if news.HasField("request"):
                    yield news.SerializeToString()

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


_log = logging.getLogger(__name__)

# --- What has come on all streams, into the registry: in one tick, where each batch has its turn in its session.


def take(registry: Registry, received: Received, streams: Mapping[int, RemoteStream]) -> None:
    """Take it in; what is not fresh, or of a stream that is over, is left out."""
    many, careful = received.many, registry.careful
    number = np.array(received.streams, np.int64)
    first = starts(number)
    rows = np.append(0, np.cumsum(np.bincount(many.rows["batch"], minlength=len(number))))
    good, came = np.zeros(len(number), np.bool_), list[Came]()

    def accept(session: Session, begin: int, end: int) -> None:
        good[begin:end] = True
        horizon_ns, count = int(many.heads["horizon_ns"][end - 1]), int(rows[end] - rows[begin])
        came.append(Came(session, received.sequences[begin:end], count, horizon_ns, received.raw[begin:end]))

    for begin, end in pairwise([*first.tolist(), len(number)]):
        stream = streams.get(received.streams[begin])
        if stream is None or not stream.connection.takes:
            continue
        session = stream.session
        if not careful and session.accept_run(received.sequences[begin:end]):
            accept(session, begin, end)
        else:
            for index in range(begin, end):  # one by one
                if session.takes and _is_fresh(registry, received, session, index):
                    accept(session, index, index + 1)
        registry.check_host_clock(session, int(many.heads["utc_ns"][end - 1]))
    for stream_number, raw, trouble in received.failed:
        stream = streams.get(stream_number)
        if stream and stream.connection.takes:
            stream.session.refuse(registry.failures.at_message(stream.session, raw, RuntimeError(trouble)))
    many = many if good.all() else filter_batches(many, good)
    if not careful:
        registry.receive(came, many)
        return
    for index, one in enumerate(came):
        if not one.session.broken:  # by a batch before it
            registry.receive([one], filter_batches(many, np.arange(len(came)) == index))


def _is_fresh(registry: Registry, received: Received, session: Session, index: int) -> bool:
    """Whether a batch is; refused, or the session broken, where it is not what it should be."""
    many, sequence = received.many, received.sequences[index]
    try:
        if session.accept(sequence):
            return True
        if index in many.refused:
            raise RefusedBatchError(sequence, session.hello.host, many.refused[index])
        session.describe_again(sequence, lambda: (flow for batch, flow in many.flows if batch == index))
    except RefusedBatchError as error:
        session.refuse(error)
    except Exception as error:
        session.refuse(registry.failures.at_message(session, received.raw[index], error))
    return False


# --- The receiving process, as the collector starts, hears and ends it.

_KINDS: dict[str, type[NetmonError]] = {
    kind.__name__: kind for kind in (UsageError, CertificateError, UnsupportedError)
}
_LATER_S = 1.0  # than the grace of those who are still connected


class ReceivingProcess:
    """It ends with this one, however that ends: it sees that the pipe is closed."""

    def __init__(self, process: "subprocess.Popen[bytes]", pipe: Pipe) -> None:
        """`start` makes one."""
        self._process, self._pipe = process, pipe

    @classmethod
    async def start(cls, listen: Listen) -> "ReceivingProcess":
        """Start one that listens. Raises UsageError, CertificateError, UnsupportedError where it cannot."""
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("received", os.MFD_CLOEXEC)
        with theirs:
            given = theirs.fileno(), memory
            program = own_module("collector.receiving.receiver", *given)
            program["env"] = {"GRPC_EXPERIMENTS": FEW_THREADS, **program["env"]}
            process = subprocess.Popen(**program, stdin=subprocess.DEVNULL, pass_fds=given)
        started = cls(process, await Pipe.open(ours, memory))
        started.send(listen)
        try:
            answer: Listening = await started.receive()
        except BaseException as error:
            started.kill()
            if isinstance(error, EOFError):
                raise UnsupportedError(f"cannot listen on {listen.address}: the receiving process has ended") from None
            raise
        if answer.trouble:
            started.kill()
            raise _KINDS.get(answer.kind, UnsupportedError)(answer.trouble)
        return started

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, frame: object) -> None:
        """Does not block."""
        self._pipe.send(frame)

    async def drained(self) -> None:
        """As Pipe.drained; does not raise."""
        with contextlib.suppress(OSError):
            await self._pipe.drained()

    async def receive(self) -> Any:
        """The next frame. Raises EOFError where the process has ended."""
        return await self._pipe.receive()

    async def stop(self, grace_s: float) -> None:
        """End it; who is still connected is cut off after so long."""
        self.send(Stop(grace_s))
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, grace_s + _LATER_S)
        self.kill()

    def kill(self) -> int:
        """End it now; its status."""
        self._pipe.close()
        self._process.kill()
        return self._process.wait()


# --- Who calls the collector by way of the receiving process, as those who answer see it: like gRPC's own context.


class _AbortedError(Exception):
    """The call has been ended with a status."""


class CalledContext:
    """One answer is on its way at a time, so that who reads slowly gets the newest, and never a queue."""

    def __init__(self, number: int, send: Callable[[object], None], task: "asyncio.Task[Any] | None") -> None:
        """task: which answers."""
        self._number, self._send, self._task = number, send, task
        self._how: End | None = None
        self._written = asyncio.Event()

    async def write(self, message: Message) -> None:
        """Give an answer, and wait until gRPC has it."""
        self._written.clear()
        self._send(Answer(self._number, message.SerializeToString()))
        await self._written.wait()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with this status; raises what `ended` expects."""
        self._how = End(code, details)
        raise _AbortedError

    def written(self) -> None:
        """The answer is on its way."""
        self._written.set()

    def hang_up(self) -> None:
        """Whoever called has gone."""
        if self._task:
            self._task.cancel()

    async def ended(self, response: Awaitable[None]) -> End | None:
        """The status for gRPC once all is answered; None: in order."""
        try:
            await response
        except _AbortedError:
            return self._how
        except asyncio.CancelledError:
            return End(grpc.StatusCode.CANCELLED, "the caller has gone")
        except Exception as error:  # this call is over, as with gRPC itself, and not who serves the others
            _log.exception("a call could not be answered")
            return End(grpc.StatusCode.UNKNOWN, f"it could not be answered: {type(error).__name__}")
        return None


# --- in a process of its own


_GATHER_S = 0.05  # news for agents go over together
_AGAIN_S = 1.0  # after the process has died
_NO_ANSWER_S = 20.0
_MOST_LEAD_S = 0.3  # by which what has come is requested before it is taken in


class ReceiverClient:
    """Between `start` and `close`; lives on one event loop."""

    def __init__(self, registry: Registry, answers: Answers, listen: frames.Listen) -> None:
        """answers: for who watches."""
        self._registry, self._answers, self._listen = registry, answers, listen
        self._process: ReceivingProcess | None = None
        self._streams: dict[int, RemoteStream] = {}
        self._calls: dict[int, CalledContext] = {}
        self._due: set[int] = set()  # streams with news
        self._news = asyncio.Event()
        self._given: asyncio.Future[frames.Received | None] | None = None
        self._requested_s = self._lead_s = self._pause_s = 0.0  # of the request; what an answer takes; the last rest
        self._tasks: set[asyncio.Task[object]] = set()
        self._for_ever: list[asyncio.Task[object]] = []  # without these nothing is received any more
        self._closing = False

    @property
    def pid(self) -> int:
        """Of the process; 0: none runs."""
        return self._process.pid if self._process else 0

    @property
    def _takes(self) -> bool:
        """Whether what agents send comes here, and is taken in."""
        return self._listen.streams and self._registry.flushing.open

    async def start(self) -> None:
        """Listen. Raises as ReceivingProcess.start."""
        self._process = await ReceivingProcess.start(self._listen)
        self._for_ever = [self._begin(self._receive_all()), self._begin(self._send_states())]

    async def tick(self) -> float:
        """Take in what has come, and settle what is due; returns for how long (s) it has waited for the process."""
        for task in self._for_ever:
            if task.done() and not self._closing:
                task.result()
        begun = time.monotonic()
        received = await self._give() if self._takes else None
        waited_s = time.monotonic() - begun
        if received is None:
            self._registry.tick()
            return waited_s
        if self._pause_s < self._lead_s:  # what comes until then is read alongside the tick
            self._request()
        take(self._registry, received, self._streams)
        for number in received.left:
            if stream := self._streams.get(number):
                self._begin(self._leave(stream))
        return waited_s

    async def rest(self, pause_s: float) -> None:
        """Between two ticks; towards its end what has come is requested, so that the tick need not wait for it."""
        self._pause_s, lead_s = pause_s, min(self._lead_s, pause_s)
        await asyncio.sleep(pause_s - lead_s)
        if self._takes:
            self._request()
        await asyncio.sleep(lead_s)

    async def follow(self, why_not: Callable[[], str]) -> None:
        """As Health.follow."""
        while True:
            self._send(frames.Serves(why_not()))
            await asyncio.sleep(ALIVE_EVERY_S)

    async def leave(self) -> None:
        """As Health.leave."""
        self._send(frames.Serves("", leaving=True))

    async def close(self, grace_s: float) -> None:
        """What is stored is acknowledged, then the process ends; who is still connected is cut off after so long."""
        self._closing = True
        self._send_state(list(self._streams))
        if self._process:
            await self._process.stop(grace_s)
        await end_tasks(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        """What fails in one stream or call is said, and costs no other."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            line = f"something of the receiving process was not taken in: {type(error).__name__}: {error}"
            self._registry.failures.notice(line, error if isinstance(error, Exception) else None)

    def _send(self, frame: object) -> None:
        if self._process:
            self._process.send(frame)

    def _request(self) -> None:
        """For what has come; one answer is on its way at a time."""
        if self._given is None and self._process:
            self._given = asyncio.get_running_loop().create_future()
            self._requested_s = time.monotonic()
            self._send(frames.Give(self._registry.host_limiter.rates()))

    async def _give(self) -> frames.Received | None:
        """None: nobody answers."""
        self._request()
        if self._given is None:
            return None
        try:
            return await asyncio.wait_for(self._given, _NO_ANSWER_S)
        except asyncio.TimeoutError:
            _log.warning(f"the receiving process has not answered for {_NO_ANSWER_S:.0f} s")
            if self._process:
                self._process.kill()
            return None
        finally:
            self._given = None

    # --- what comes

    async def _receive_all(self) -> None:
        while True:
            try:
                while self._process:
                    self._receive(await self._process.receive())
            except EOFError:
                if self._closing:
                    return
                await self._died()

    async def _died(self) -> None:
        """All streams are cut off, and connect again: to its successor."""
        process, self._process = self._process, None
        status = process.kill() if process else None
        if self._given and not self._given.done():
            self._given.set_result(None)
        _log.warning(
            f"the receiving process has ended (status {status}); it is started again, and agents connect again"
        )
        streams, self._streams = list(self._streams.values()), {}
        self._due.clear()
        for stream in streams:
            await stream.connection.leave(complete=False)
        for call in self._calls.values():
            call.hang_up()
        while self._process is None and not self._closing:
            try:
                self._process = await ReceivingProcess.start(self._listen)
            except NetmonError as error:
                _log.error(error)
                await asyncio.sleep(_AGAIN_S)

    def _receive(self, frame: object) -> None:
        if isinstance(frame, frames.Received):
            if self._given and not self._given.done():
                took_s = time.monotonic() - self._requested_s
                self._lead_s = min(_MOST_LEAD_S, (self._lead_s + took_s) / 2)
                self._given.set_result(frame)
        elif isinstance(frame, frames.Introduced):
            self._begin(self._open(frame))
        elif isinstance(frame, frames.CutOff):
            if stream := self._streams.pop(frame.stream, None):
                self._begin(stream.connection.leave(complete=False))
        elif isinstance(frame, frames.Full):
            if stream := self._streams.get(frame.stream):
                try:
                    stream.answer(frame.data)
                except (NetmonError, DecodeError) as error:
                    self._end(stream, error)
        elif isinstance(frame, frames.Called):
            self._begin(self._answer(frame))
        elif isinstance(frame, frames.Written):
            if call := self._calls.get(frame.call):
                call.written()
        elif isinstance(frame, frames.HungUp) and (call := self._calls.get(frame.call)):
            call.hang_up()

    async def _open(self, introduced: frames.Introduced) -> None:
        number = introduced.stream
        stream = RemoteStream(number, self._registry, self._noticing(number))
        try:
            await stream.open(introduced.hello)
        except NetmonError as error:
            stream.log_error(error)
            self._send(frames.Ended(number, stream.end_of(error)))
            return
        except Exception:
            self._send(frames.Ended(number, End(grpc.StatusCode.INTERNAL, "the collector has failed at the hello")))
            raise
        self._streams[number] = stream
        self._send(frames.Opened(number, stream.session.index))
        self._notice(number)

    async def _leave(self, stream: RemoteStream) -> None:
        """It has said its last word, and all of it has been taken in."""
        try:
            stream.check()
            await stream.connection.leave(complete=True)
        except NetmonError as error:
            self._end(stream, error)
            return
        self._send_state([stream.number])
        self._streams.pop(stream.number, None)
        self._send(frames.Ended(stream.number))

    async def _answer(self, called: frames.Called) -> None:
        context = self._calls[called.call] = CalledContext(called.call, self._send, asyncio.current_task())
        try:
            how = await context.ended(self._answers.answer(called.method, called.data, called.identity, context))
        finally:
            del self._calls[called.call]
        self._send(frames.Ended(called.call, how))

    # --- what is sent

    def _noticing(self, number: int) -> Callable[[], None]:
        return lambda: self._notice(number)

    def _notice(self, number: int) -> None:
        self._due.add(number)
        self._news.set()

    async def _send_states(self) -> None:
        everybody_s = 0.0
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), ALIVE_EVERY_S)
            await asyncio.sleep(_GATHER_S)
            self._news.clear()
            due, self._due = self._due, set()
            now = time.monotonic()
            if now - everybody_s >= ALIVE_EVERY_S:
                everybody_s = now
                due |= {number for number, stream in self._streams.items() if stream.overdue(now)}
            self._send_state(due)

    def _send_state(self, numbers: Iterable[int]) -> None:
        states, now_s = [], time.monotonic()
        for number in numbers:
            stream = self._streams.get(number)
            if stream is None:
                continue
            try:
                stream.check()
            except NetmonError as error:
                self._end(stream, error)
                continue
            for data in stream.requests():
                self._send(frames.AgentRequest(number, data))
            states.append(stream.state_row(now_s))
        if states:
            self._send(frames.StreamStates(np.array(states, frames.STREAM_STATE)))

    def _end(self, stream: RemoteStream, error: NetmonError | DecodeError) -> None:
        """Its agent gets the reason, and connects again."""
        self._streams.pop(stream.number, None)
        stream.log_error(error)
        self._send(frames.Ended(stream.number, stream.end_of(error)))
        self._begin(stream.connection.cut_off(error))
