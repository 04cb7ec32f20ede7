# SPDX-License-Identifier: Apache-2.0
"""Full resolution for those who ask for it: a part for each host, and never more parts than one reads."""

import asyncio
from collections import deque
from typing import Any

import grpc

from collector.entry import Entry
from collector.full_resolution import arrow_stream, with_addresses
from collector.registry import Registry
from netmon.errors import DataError
from netmon.wire import netmon_pb2

Context = grpc.aio.ServicerContext[Any, Any]

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
        entries = self._registry.recording(request.hosts)
        missing = set(request.hosts) - {entry.session.hello.host for entry in entries}
        if missing or not entries:
            who = ", ".join(sorted(missing)) or "any agent"
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"cannot get full resolution from {who}: it is not connected"
            )
        if request.until_ns <= request.since_ns:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a window has to end after it begins")
        rest, coming = deque(entries), set[asyncio.Task[netmon_pb2.FullPart]]()
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

    async def _part(self, entry: Entry, request: netmon_pb2.FullQuery) -> netmon_pb2.FullPart:
        pulled = await self._registry.full.pull(entry, request.since_ns, request.until_ns)
        rows = with_addresses(entry.session, entry.session.bucket_rows(pulled.rows))
        data = await asyncio.to_thread(arrow_stream, rows)
        return netmon_pb2.FullPart(host=entry.session.hello.host, rows=data, gap=pulled.gap)
