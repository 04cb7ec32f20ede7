# SPDX-License-Identifier: Apache-2.0
"""The calls of proto/netmon.proto. Messages come as bytes, and are decoded once it is known who sends them."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from collector.admission import AGENTS, ALL, VIEWERS, Admission
from netmon.wire import netmon_pb2
from netmon.wire.identity import Identity, Role

Context = grpc.aio.ServicerContext[Any, Any]
ServeStream = Callable[[Context, Identity | None], Awaitable[None]]
Answer = Callable[[str, bytes, Identity | None, Context], Awaitable[None]]

_SERVICE = netmon_pb2.DESCRIPTOR.services_by_name["Collector"].full_name
_CALLS: dict[str, tuple[str, tuple[Role, ...], type[Message]]] = {
    "Watch": ("view", VIEWERS, netmon_pb2.WatchRequest),
    "Advise": ("view", VIEWERS, netmon_pb2.AdviceQuery),
    "Full": ("window", ALL, netmon_pb2.FullQuery),
    "Past": ("window", ALL, netmon_pb2.PastQuery),
}
"""What is answered: kind of call, for whom, what is asked."""


class CollectorService(grpc.GenericRpcHandler):
    """Handlers for a gRPC server."""

    def __init__(self, admission: Admission, serve_stream: ServeStream | None, answer: Answer) -> None:
        """serve_stream: one agent's; raises DecodeError. None: agents come by the bus.

        answer(method, request, …): what is asked can be decoded.
        """
        self._admission, self._serve_stream, self._answer = admission, serve_stream, answer
        self._handlers: dict[str, Any] = {
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream, response_serializer=_serialised),
            "Clock": grpc.stream_stream_rpc_method_handler(self._clock, response_serializer=_serialised),
        }
        for method in _CALLS:

            async def answered(request: bytes, context: Context, method: str = method) -> None:
                await self._call(method, request, context)

            self._handlers[method] = grpc.unary_stream_rpc_method_handler(answered, response_serializer=_serialised)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """See gRPC."""
        service, _, method = details.method.strip("/").partition("/")
        return self._handlers.get(method) if service == _SERVICE else None

    async def _stream(self, _: Any, context: Context) -> None:
        if self._serve_stream is None:
            line = "this collector takes agents in by the bus: use --bus instead of --collector"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, line)
        async with self._admission.admitted(context, "stream", AGENTS) as identity:
            await self._serve_stream(context, identity)

    async def _clock(self, _: Any, context: Context) -> None:
        """Tell the time to an agent, as often as it asks."""
        async with self._admission.admitted(context, "clock", AGENTS):
            while (data := await context.read()) is not grpc.aio.EOF:
                received = time.time_ns()
                echo = netmon_pb2.ClockEcho(received_ns=received)
                echo.number = netmon_pb2.ClockProbe.FromString(data).number
                echo.sent_ns = time.time_ns()
                await context.write(echo)

    async def _call(self, method: str, request: bytes, context: Context) -> None:
        what, roles, kind = _CALLS[method]
        async with self._admission.admitted(context, what, roles) as identity:
            kind.FromString(request)
            await self._answer(method, request, identity, context)


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
