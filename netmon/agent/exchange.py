# SPDX-License-Identifier: Apache-2.0
"""The host's clocks, and the collector's time, queried again and again: by them the collector aligns this host."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from netmon.kernel.timekeeping import ClockState, clock_state, kernel_state
from netmon.records import ClockExchange, ClockSample
from netmon.wire import netmon_pb2
from netmon.wire.grpc_client import BrokenError, Call, Channel

_TRIES = 5
_LOOK_S = 30.0


class Clock:
    """Samples both clocks; a thread of its own asks now and then who keeps UTC, which may take seconds."""

    def __init__(self) -> None:
        """Begin with what the kernel says; `start` asks the others."""
        self._state = kernel_state("")
        self._stop = threading.Event()
        self._looking = threading.Thread(target=self._look, name="timekeeping", daemon=True)

    def start(self) -> None:
        """To be called once, when threads may be started."""
        self._looking.start()

    def finish(self) -> None:
        """Ends the thread, without waiting for it."""
        self._stop.set()

    def sample(self) -> ClockSample:
        """Both clocks, read together: the closest of a few tries.

        error_ns bounds the reading, utc_error_ns how far the host's UTC may be off.
        """
        mono, utc, error = min((_read() for _ in range(_TRIES)), key=lambda reading: reading[2])
        state = self._current()
        if not state.synchronised:
            return ClockSample(mono, utc, error)
        return ClockSample(mono, utc, error, max(1, state.error_ns), state.discipline)

    def _current(self) -> ClockState:
        # The kernel's bound grows from second to second; chrony's is as old as the last look.
        state = self._state
        return state if state.source == "chrony" else kernel_state(state.discipline)

    def _look(self) -> None:
        while True:
            self._state = clock_state()
            if self._stop.wait(_LOOK_S):
                return


def _read() -> tuple[int, int, int]:
    """mono, UTC, and half of the time that the reading took, rounded up."""
    before = time.monotonic_ns()
    utc = time.time_ns()
    after = time.monotonic_ns()
    return (before + after) // 2, utc, (after - before + 1) // 2


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
        self.ring: Callable[[], None] = lambda: None
        """Wakes whoever asks; from any thread, must not block."""
        self.hurried = False
        """What was learnt holds no more; whoever asks takes it back."""
        self.idle = False
        """Whether the host has nothing to report, and so no use for a clock that is known to the microsecond."""

    def take(self) -> list[ClockExchange]:
        """The exchanges since the last call, at most 512, oldest first; does not block."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def add(self, exchange: ClockExchange) -> None:
        """From any thread."""
        self._waiting.append(exchange)

    def hurry(self) -> None:
        """As after a sleep of the host: whoever asks does so at once."""
        self.hurried = True
        self.ring()

    def warn(self) -> None:
        """Once, however often it connects."""
        if not self._warned:
            self._warned = True
            log.warning("the collector does not report the time: it is older than this agent")


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
    """Time requests, sent on one channel with everything else, in its thread."""

    def __init__(self, channel: Channel, exchanges: ClockExchanges) -> None:
        """Nothing is requested before `send_request`."""
        self._channel, self._exchanges = channel, exchanges
        self._call: Call | None = None
        self._pace, self._took = Pace(), list[int]()
        self._number = self._sent_ns = 0
        self.due_s = 0.0
        """When to send the next request (mono); infinite: an answer is awaited."""

    def send_request(self) -> None:
        """The next question, if it is time for it and nothing else is on its way. Raises BrokenError."""
        if self._exchanges.hurried and self.due_s < math.inf:
            self._exchanges.hurried, self.due_s = False, 0.0
        if time.monotonic() < self.due_s or self._channel.protocol.out:
            return
        if self._channel.protocol.leaving:
            self.due_s = math.inf
            return
        if self._call is None:
            self._call, self._pace, self._took = self._channel.protocol.open(METHOD), Pace(), []
        self._number += 1
        self._call.send(netmon_pb2.ClockProbe(number=self._number).SerializeToString())
        self._channel.protocol.fill()
        self._sent_ns, self.due_s = time.monotonic_ns(), math.inf
        self._channel.send()

    def take_response(self) -> None:
        """What has been answered. Raises BrokenError."""
        while self._call and self._call.messages:
            try:
                echo = netmon_pb2.ClockEcho.FromString(self._call.messages.popleft())
            except DecodeError:
                raise BrokenError("internal: what it says is no time") from None
            if echo.number == self._number and self.due_s == math.inf:
                self._take(echo, self._channel.received_ns)
            else:
                self._give_up(_RETRY_S)
        if self._call and self._call.status:
            refused = self._call.status.code == "unimplemented"
            if refused:
                self._exchanges.warn()
            self._give_up(_REFUSED_RETRY_S if refused else _RETRY_S)

    def _take(self, echo: netmon_pb2.ClockEcho, received_ns: int) -> None:
        self._exchanges.add(ClockExchange(self._sent_ns, echo.received_ns, echo.sent_ns, received_ns))
        self._took.append(received_ns - self._sent_ns)
        if len(self._took) < BURST and not self._pace.enough(self._took[-1]):
            self.due_s = 0.0
            return
        self.due_s = time.monotonic() + self._pace.rest_s(self._took, self._exchanges.idle)
        self._took = []

    def _give_up(self, rest_s: float) -> None:
        """Another call, in a while."""
        if self._call:
            self._channel.protocol.cancel(self._call)
        self._call, self.due_s = None, time.monotonic() + rest_s
