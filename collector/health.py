# SPDX-License-Identifier: Apache-2.0
"""Whether the collector lives, and whether it takes rows now: gRPC's health service, for probes and load balancers.

Two names: "" serves as long as the collector does, "netmon.Collector" as long as it takes in what agents send.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

SERVICE = "netmon.Collector"
"""As in netmon.proto."""

_EVERY_S = 1.0
_MOST_WATCHERS = 32


class Health(Protocol):
    """One collector's."""

    async def follow(self, why_not: Callable[[], str]) -> None:
        """Until it is cancelled. why_not(): why it takes nothing in now; empty: it does."""

    async def leave(self) -> None:
        """It takes nothing in any more."""


class NoHealth:
    """Without the library."""

    async def follow(self, why_not: Callable[[], str]) -> None:
        """Until it is cancelled."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Does nothing."""


def add_health(server: grpc.aio.Server) -> Health:
    """Beside the other services of a server that has not started; without the library nobody answers."""
    try:
        from grpc_health.v1 import health, health_pb2
    except ImportError:
        return NoHealth()
    response = health_pb2.HealthCheckResponse

    class Servicer(health.aio.HealthServicer):  # type: ignore[misc]
        """The library's, with a bound: who watches holds a call open."""

        watchers = 0

        async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 (the contract's name)
            if self.watchers >= _MOST_WATCHERS:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already: ask now and then")
            self.watchers += 1
            try:
                await super().Watch(request, context)
            finally:
                self.watchers -= 1

    def read(data: bytes) -> Any:
        """What cannot be read asks for a service that nobody has."""
        try:
            return health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            return health_pb2.HealthCheckRequest(service="?")

    servicer = Servicer()
    check = grpc.unary_unary_rpc_method_handler(servicer.Check, read, response.SerializeToString)
    watch = grpc.unary_stream_rpc_method_handler(servicer.Watch, read, response.SerializeToString)
    handlers = grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check, "Watch": watch})
    server.add_generic_rpc_handlers((handlers,))

    class HealthService:
        async def follow(self, why_not: Callable[[], str]) -> None:
            serves = None
            while True:
                if serves is not (now := not why_not()):
                    serves = now
                    await servicer.set(SERVICE, response.SERVING if now else response.NOT_SERVING)
                await asyncio.sleep(_EVERY_S)

        async def leave(self) -> None:
            await servicer.enter_graceful_shutdown()

    return HealthService()
