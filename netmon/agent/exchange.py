# SPDX-License-Identifier: Apache-2.0
"""Asks the collector for its time, again and again: the material from which the collector aligns this host's clock."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

import grpc

from netmon.records import ClockExchange
from netmon.wire import netmon_pb2

log = logging.getLogger(__name__)

METHOD = "/netmon.Collector/Clock"

BURST = 4  # the first question after a rest pays for waking everybody up
_REST_S, _LONGEST_REST_S = 1.0, 2.0
_IDLE_REST_S = 4.0  # as long as there are no rows whose time anybody wants to know
_AS_GOOD = 1.5  # a burst whose best answer took at most so much longer than the best one lately: rest longer
_GOOD = 1.2  # the same of an answer that is good enough to be the burst's last
_LATELY = 24  # bursts
_EAGER_REST_S = 0.05
_EAGER_BURSTS = 20  # after a connection: no row is to be stored before the first estimate
_RETRY_S = 1.0
_REFUSED_RETRY_S = 60.0
_MOST_WAITING = 512


class ClockExchanges:
    """One per agent: a few questions at a time, a few dozen bytes each; one to four a second, on an idle host fewer.

    The fewer, the quieter it is: an answer that came as fast as any says all that can be known for a while.
    """

    def __init__(self) -> None:
        self._waiting: deque[ClockExchange] = deque(maxlen=_MOST_WAITING)
        self._warned = False
        self._asker: threading.Event | None = None
        self.idle = False
        """Whether the host has nothing to report, and so no use for a clock that is known to the microsecond."""

    def take(self) -> list[ClockExchange]:
        """The exchanges since the last call, at most 512, oldest first; does not block."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def add(self, exchange: ClockExchange) -> None:
        """From any thread."""
        self._waiting.append(exchange)

    def hurry(self) -> None:
        """What was learnt holds no more, as after a sleep of the host: whoever asks does so at once."""
        if self._asker:
            self._asker.set()

    def set_waker(self, asker: threading.Event) -> None:
        """Who rests until then; set: it has rested enough."""
        self._asker = asker

    def warn(self) -> None:
        """Once, however often it connects."""
        if not self._warned:
            self._warned = True
            log.warning("the collector does not tell the time: it is older than this agent")


class Pace:
    """How long to rest after each burst of questions, as long as one connection lasts."""

    def __init__(self) -> None:
        self._best: deque[int] = deque(maxlen=_LATELY)  # of each burst, ns
        self._rest_s = _REST_S
        self._bursts = 0

    def enough(self, took: int) -> bool:
        """Whether an answer that took so many ns is as good as a burst can bring."""
        return len(self._best) == _LATELY and took <= _GOOD * min(self._best)

    def rest_s(self, took: Sequence[int], idle: bool) -> float:
        """After a burst whose answers took so many ns; idle: the host has nothing to report."""
        self._bursts += 1
        self._best.append(min(took))
        as_good = self._best[-1] <= _AS_GOOD * min(self._best)
        more = as_good and len(self._best) == _LATELY
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S) if more else _REST_S
        if self._bursts <= _EAGER_BURSTS:
            return _EAGER_REST_S
        return _IDLE_REST_S if idle else self._rest_s


class Questions:
    """They are asked on one channel, beside what else it carries, until `end`.

    The thread is the one that gRPC has for the questions of a stream: it sleeps between two bursts, and nobody waits
    for an answer then.
    """

    def __init__(self, channel: grpc.Channel, exchanges: ClockExchanges) -> None:
        """Begins to ask as soon as the channel is connected."""
        self._exchanges = exchanges
        self._stream: grpc.StreamStreamMultiCallable[bytes, netmon_pb2.ClockEcho] = channel.stream_stream(
            METHOD, response_deserializer=netmon_pb2.ClockEcho.FromString
        )
        self._ended, self._rested = threading.Event(), threading.Event()
        exchanges.set_waker(self._rested)
        self._again_s = 0.0
        self._begin()

    def check(self) -> None:
        """To be called now and then: asks again where a stream has ended."""
        if not self._call.is_active() and not self._again_s:
            refused = self._call.code() is grpc.StatusCode.UNIMPLEMENTED
            if refused:
                self._exchanges.warn()
            self._again_s = time.monotonic() + (_REFUSED_RETRY_S if refused else _RETRY_S)
        if self._again_s and time.monotonic() >= self._again_s and not self._ended.is_set():
            self._begin()

    def end(self) -> None:
        """From any thread, any number of times."""
        self._ended.set()
        self._rested.set()
        self._call.cancel()

    def _begin(self) -> None:
        self._again_s, called = 0.0, threading.Event()
        self._call = self._stream(self._queries(called), wait_for_ready=True)
        called.set()

    def _queries(self, called: threading.Event) -> Iterator[bytes]:
        """Bursts of questions, the answers of which are read here, until the stream ends."""
        called.wait()
        call, number, pace = self._call, 0, Pace()
        while not self._ended.is_set():
            took = []
            for _ in range(BURST):
                number += 1
                question = netmon_pb2.ClockProbe(number=number).SerializeToString()
                sent = time.monotonic_ns()
                yield question
                echo = _answer(call)
                received = time.monotonic_ns()
                if echo is None or echo.number != number:
                    return
                self._exchanges.add(ClockExchange(sent, echo.received_ns, echo.sent_ns, received))
                took.append(received - sent)
                if pace.enough(took[-1]):
                    break
            if self._rested.wait(pace.rest_s(took, self._exchanges.idle)):
                self._rested.clear()


def _answer(call: Iterator[netmon_pb2.ClockEcho]) -> netmon_pb2.ClockEcho | None:
    """Blocks until it comes; None where the stream has ended."""
    try:
        return next(call, None)
    except grpc.RpcError:
        return None
