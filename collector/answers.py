# SPDX-License-Identifier: Apache-2.0
"""What the collector answers to those who look: snapshots, full resolution, the past, advice."""

from typing import Any

import grpc

from collector.full_windows import Windows
from collector.registry import Registry
from collector.stored_past import Dataset, StoredPast
from collector.view.watching import Watching
from netmon.errors import DataError
from netmon.wire import netmon_pb2
from netmon.wire.identity import Identity, Role
from netmon.wire.limits import MAX_TEXT

Context = Any
"""gRPC's context of a call, or what does the same: write(message), abort(code, details)."""


class Answers:
    """Of one collector. Who asks has been let in."""

    def __init__(self, registry: Registry, insecure: bool, stored: Dataset | None) -> None:
        """insecure: what is said may be read by others. stored: rows of the dataset; None: nobody gets them."""
        self._registry = registry
        self._watching = Watching(registry.freeze, registry.page, lambda: registry.ticks, insecure)
        self._windows = Windows(registry)
        self._past = StoredPast(stored)

    async def watch(self, request: netmon_pb2.WatchRequest, identity: Identity | None, context: Context) -> None:
        """Give one snapshot, or one per interval until the viewer goes."""
        await self._watching.watch(request, context, jobs_only=identity is not None and identity.role is Role.JOBS)

    async def full(self, request: netmon_pb2.FullQuery, context: Context) -> None:
        """Full resolution of a window that has passed, from the agents."""
        await self._windows.send(request, context)

    async def past(self, request: netmon_pb2.PastQuery, context: Context) -> None:
        """Rows of the dataset."""
        await self._past.send(request, context)

    async def advise(self, request: netmon_pb2.AdviceQuery, context: Context) -> netmon_pb2.AdviceAnswer:
        """What could be done about jobs that share links."""
        try:
            return netmon_pb2.AdviceAnswer(document=await self._registry.advising.answer(request.job[:MAX_TEXT]))
        except DataError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        raise AssertionError("an aborted call goes on")

    async def answer(self, method: str, data: bytes, identity: Identity | None, context: Context) -> None:
        """A method of proto/netmon.proto, by its name; what it gives is written to the context."""
        if method == "Watch":
            await self.watch(netmon_pb2.WatchRequest.FromString(data), identity, context)
        elif method == "Full":
            await self.full(netmon_pb2.FullQuery.FromString(data), context)
        elif method == "Past":
            await self.past(netmon_pb2.PastQuery.FromString(data), context)
        else:
            await context.write(await self.advise(netmon_pb2.AdviceQuery.FromString(data), context))
