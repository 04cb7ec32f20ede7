# SPDX-License-Identifier: Apache-2.0
"""Asks the collector for its time, again and again: the material from which the collector aligns this host's clock."""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import grpc

from netmon.records import ClockExchange
from netmon.wire import netmon_pb2, netmon_pb2_grpc

log = logging.getLogger(__name__)

_BURST = 4  # the first question after a rest pays for waking everybody up
_REST_S, _LONGEST_REST_S = 0.5, 2.0
_AS_GOOD = 1.5  # a burst whose best answer took at most so much longer than the best one lately: rest longer
_LATELY = 24  # bursts
_EAGER_REST_S = 0.05
_EAGER_BURSTS = 20  # after a connection: no row is to be stored before the first estimate
_RETRY_S = 1.0
_REFUSED_RETRY_S = 60.0
_MOST_WAITING = 512
_OPTIONS = (
    # A connection of its own: a question must not queue behind a batch.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


class ClockExchanges(threading.Thread):
    """One thread per agent: a few questions at a time, a few dozen bytes each; two to eight a second.

    The fewer, the quieter it is: an answer that came as fast as any says all that can be known for a while.

    Both ends read and write through grpc.aio: what its layers take is then alike in both directions and cancels.
    """

    def __init__(self, address: str) -> None:
        """address: of the collector, HOST:PORT or unix:PATH."""
        super().__init__(name="exchange", daemon=True)
        self._address = address
        self._waiting: deque[ClockExchange] = deque(maxlen=_MOST_WAITING)
        self._began = threading.Event()
        self._end: Callable[[], object] = lambda: None

    def take(self) -> list[ClockExchange]:
        """The exchanges since the last call, at most 512, oldest first; does not block."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def run(self) -> None:
        """Asks until `finish`."""
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._ask())

    def finish(self, timeout_s: float) -> None:
        """Ends the thread and waits for it at most so long."""
        if self.is_alive() and self._began.wait(timeout_s):
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self._end()
            self.join(timeout_s)

    async def _ask(self) -> None:
        asking = asyncio.current_task()
        assert asking
        self._end = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, asking.cancel)
        self._began.set()
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            stub = netmon_pb2_grpc.CollectorStub(channel)  # type: ignore[no-untyped-call]
            while True:
                retry_s = _RETRY_S
                try:
                    await self._converse(stub.Clock(wait_for_ready=True))
                except asyncio.InvalidStateError:
                    pass  # grpc.aio's word for a stream that ended between two bursts
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        log.warning("the collector at %s tells no time: it is older than this agent", self._address)
                        retry_s = _REFUSED_RETRY_S
                await asyncio.sleep(retry_s)

    async def _converse(self, call: "grpc.aio.StreamStreamCall[netmon_pb2.ClockProbe, netmon_pb2.ClockEcho]") -> None:
        """Bursts of questions until the connection ends. Raises AioRpcError."""
        number, rest_s = 0, _REST_S
        best: deque[int] = deque(maxlen=_LATELY)  # of each burst, ns
        try:
            while True:
                took = []
                for _ in range(_BURST):
                    number += 1
                    exchange = await _exchange(call, number)
                    if exchange is None:
                        return
                    self._waiting.append(exchange)
                    took.append(exchange.agent_received_ns - exchange.agent_sent_ns)
                best.append(min(took))
                as_good = best[-1] <= _AS_GOOD * min(best)
                rest_s = min(2 * rest_s, _LONGEST_REST_S) if as_good and len(best) == _LATELY else _REST_S
                await asyncio.sleep(_EAGER_REST_S if number <= _BURST * _EAGER_BURSTS else rest_s)
        finally:
            call.cancel()


async def _exchange(
    call: "grpc.aio.StreamStreamCall[netmon_pb2.ClockProbe, netmon_pb2.ClockEcho]", number: int
) -> ClockExchange | None:
    """One question and its answer; None where the collector has ended the stream or answers another question."""
    probe = netmon_pb2.ClockProbe(number=number)
    sent = time.monotonic_ns()
    await call.write(probe)
    echo = await call.read()
    received = time.monotonic_ns()
    if not isinstance(echo, netmon_pb2.ClockEcho) or echo.number != number:
        return None
    return ClockExchange(sent, echo.received_ns, echo.sent_ns, received)
