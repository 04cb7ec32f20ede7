# SPDX-License-Identifier: Apache-2.0
"""The calls of proto/netmon.proto, where gRPC is served in this process."""

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from collector.admission import AGENTS, ALL, VIEWERS, Admission
from collector.answers import Answers
from collector.registry import Registry
from collector.stream import AgentStream
from netmon.wire import netmon_pb2, netmon_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class CollectorService(netmon_pb2_grpc.CollectorServicer):
    """The calls of proto/netmon.proto."""

    def __init__(self, registry: Registry, admission: Admission, streams: bool, answers: Answers) -> None:
        """Serve the sessions of a registry.

        streams: agents may connect, and do not come by the bus. answers: for those who look.
        """
        self._registry, self._admission, self._streams, self._answers = registry, admission, streams, answers

    async def Stream(  # noqa: N802 (the contract's name)
        self, request_iterator: AsyncIterator[netmon_pb2.AgentMessage], context: Context
    ) -> None:
        """Take in one agent's stream."""
        if not self._streams:
            line = "this collector takes agents in by the bus: use --bus instead of --collector"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, line)
        async with self._admission.admitted(context, "stream", AGENTS) as identity:
            await AgentStream(self._registry, context, identity).serve()

    async def Full(  # noqa: N802 (the contract's name)
        self, request: netmon_pb2.FullQuery, context: Context
    ) -> None:
        """Full resolution of a window that has passed, from the agents."""
        async with self._admission.admitted(context, "window", ALL):
            await self._answers.full(request, context)

    async def Past(  # noqa: N802 (the contract's name)
        self, request: netmon_pb2.PastQuery, context: Context
    ) -> None:
        """Rows of the dataset."""
        async with self._admission.admitted(context, "window", ALL):
            await self._answers.past(request, context)

    async def Clock(  # noqa: N802 (the contract's name)
        self, request_iterator: AsyncIterator[netmon_pb2.ClockProbe], context: Context
    ) -> None:
        """Tell the time to an agent, as often as it asks."""
        async with self._admission.admitted(context, "clock", AGENTS):
            async for probe in request_iterator:
                received = time.time_ns()
                echo = netmon_pb2.ClockEcho(number=probe.number, received_ns=received)
                echo.sent_ns = time.time_ns()
                await context.write(echo)

    async def Watch(  # noqa: N802 (the contract's name)
        self, request: netmon_pb2.WatchRequest, context: Context
    ) -> None:
        """Give one snapshot, or one per interval until the viewer goes."""
        async with self._admission.admitted(context, "view", VIEWERS) as identity:
            await self._answers.watch(request, identity, context)

    async def Advise(  # noqa: N802 (the contract's name)
        self, request: netmon_pb2.AdviceQuery, context: Context
    ) -> netmon_pb2.AdviceAnswer:
        """What could be done about jobs that share links."""
        async with self._admission.admitted(context, "view", VIEWERS):
            return await self._answers.advise(request, context)
        raise AssertionError("an aborted call goes on")
