# SPDX-License-Identifier: Apache-2.0
"""Who calls the collector by way of the receiving process, as those who answer see it: like gRPC's own context."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from collector.receiving.frames import Answer
from collector.stream_ends import End

_log = logging.getLogger(__name__)


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

    async def ended(self, answering: Awaitable[None]) -> End | None:
        """What gRPC is to be told once it has been answered; None: all went in order."""
        try:
            await answering
        except _AbortedError:
            return self._how
        except asyncio.CancelledError:
            return End(grpc.StatusCode.CANCELLED, "the caller has gone")
        except Exception as error:  # this call is over, as with gRPC itself, and not who serves the others
            _log.exception("a call could not be answered")
            return End(grpc.StatusCode.UNKNOWN, f"it could not be answered: {type(error).__name__}")
        return None
