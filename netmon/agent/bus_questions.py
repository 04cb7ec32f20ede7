# SPDX-License-Identifier: Apache-2.0
"""Asks the worker that has this host for its time, over the bus."""

import asyncio
import time
from collections.abc import Callable

import nats
from google.protobuf.message import DecodeError

from netmon.agent.exchange import BURST, ClockExchanges, Pace
from netmon.records import ClockExchange
from netmon.wire import netmon_pb2
from netmon.wire.bus import Bus, clock_subject

_ANSWER_S = 2.0
_AGAIN_S = 1.0


async def ask_for_the_time(bus: Bus, worker: Callable[[], str], exchanges: ClockExchanges) -> None:
    """Until it is cancelled. worker(): its name; empty: nobody is known to have this host."""
    number, pace, before = 0, Pace(), ""
    while True:
        asked, took = worker(), []
        if asked != before:
            before, pace = asked, Pace()
        try:
            for _ in range(BURST if asked else 0):
                number += 1
                probe = netmon_pb2.ClockProbe(number=number).SerializeToString()
                sent = time.monotonic_ns()
                answer = await bus.client.request(clock_subject(asked), probe, timeout=_ANSWER_S)
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
