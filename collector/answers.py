# SPDX-License-Identifier: Apache-2.0
"""What the collector answers to those who look: snapshots, full resolution, the past, advice."""

import asyncio
from collections import deque
from typing import Any

import grpc

from collector.full_resolution import arrow_stream, with_addresses
from collector.host.session import Session
from collector.registry import Registry
from collector.stored_past import Dataset, StoredPast
from collector.view.watching import Watching
from netmon.errors import DataError
from netmon.wire import netmon_pb2
from netmon.wire.identity import Identity, Role
from netmon.wire.limits import MAX_TEXT

# --- Full resolution for those who ask for it: a part for each host, and never more parts than one reads.


Context = Any
"""gRPC's context of a call, or what does the same: write(message), abort(code, details)."""

AHEAD = 4
"""Parts that are requested before the first of them is read."""

LET_GO_AFTER_S = 60.0
"""A reader that has not read a part until then."""


class Windows:
    """Of one collector."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def send(self, request: netmon_pb2.FullQuery, context: Context) -> None:
        """Answer a query, or end the call with the reason."""
        sessions = self._registry.recording(request.hosts)
        missing = set(request.hosts) - {session.hello.host for session in sessions}
        if missing or not sessions:
            who = ", ".join(sorted(missing)) or "any agent"
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"cannot get full resolution from {who}: it is not connected"
            )
        if request.until_ns <= request.since_ns:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a window has to end after it begins")
        rest, coming = deque(sessions), set[asyncio.Task[netmon_pb2.FullPart]]()
        try:
            while rest or coming:
                while rest and len(coming) < AHEAD:
                    coming.add(asyncio.create_task(self._part(rest.popleft(), request)))
                done, coming = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                coming |= done
                for task in done:
                    await asyncio.wait_for(context.write(task.result()), LET_GO_AFTER_S)
                    coming.discard(task)
        except DataError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except asyncio.TimeoutError:
            reason = f"no part was read for {LET_GO_AFTER_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        finally:
            for task in coming:
                task.cancel()

    async def _part(self, session: Session, request: netmon_pb2.FullQuery) -> netmon_pb2.FullPart:
        pulled = await self._registry.live.full.pull(session, request.since_ns, request.until_ns)
        rows = with_addresses(session, session.bucket_rows(pulled.rows))
        data = await asyncio.to_thread(arrow_stream, rows)
        return netmon_pb2.FullPart(host=session.hello.host, rows=data, gap=pulled.gap)


class Answers:
    """Of one collector. Who asks has been let in."""

    def __init__(self, registry: Registry, insecure: bool, stored: Dataset | None) -> None:
        """insecure: what is said may be read by others. stored: rows of the dataset; None: nobody gets them."""
        self._registry = registry
        self._watching = Watching(registry.freeze, registry.live.page, lambda: registry.live.ticks, insecure)
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
            return netmon_pb2.AdviceAnswer(document=await self._registry.live.advising.answer(request.job[:MAX_TEXT]))
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
