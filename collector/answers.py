# SPDX-License-Identifier: Apache-2.0
"""What the collector answers to those who look: snapshots, full resolution, the past, advice."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pyarrow as pa

from collector.full_resolution import arrow_stream, with_addresses
from collector.host.session import Session
from collector.live import Dataset
from collector.registry import Registry
from collector.view.frozen import Frozen
from netmon.errors import DataError, NetmonError, WireError
from netmon.version import __version__
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_TEXT
from netmon.wire.mapping import decode_selection, encode_snapshot, request_without_flows, without_names
from netmon.wire.questions import decode_wanted
from netmon.wire.security import Identity, Role

Context = Any
"""gRPC's context of a call, or what does the same: write(message), abort(code, details)."""

AHEAD = 4
"""Parts of full resolution that are requested before the first of them is read."""

MOST_ROWS = 6_000_000
"""Of one answer about the past."""

_OLDEST_S = 0.5  # a view serves again until then, if nothing has changed
_REST = 4  # × what a view takes to make: it serves so long whatever has changed, so that viewers take a fifth at most
_SHORTEST_INTERVAL_S = 0.05
_LIVE_S = 1.0  # who looks as often wants what is new
_SNAPSHOT_WITHIN_S, _PAST_WITHIN_S, _FULL_WITHIN_S = 10.0, 20.0, 60.0  # in which a part is read; else the call ends
_PAST_AT_A_TIME = 2  # answers
_PART_ROWS = 100_000  # and more, as they come out of the files


class Watching:
    """One frozen view a tick for all viewers, encoded once for all that request the same.

    Snapshots for viewers, made while there are any. A viewer that reads slowly gets the newest, never a queue.
    """

    def __init__(
        self,
        freeze: Callable[[], Frozen],
        page: Callable[[Frozen, Selection], Snapshot],
        ticks: Callable[[], int],
        watched: list[Selection],
        insecure: bool = False,
    ) -> None:
        """freeze: everything as it is now; page: what of it a viewer has requested; ticks: how often it has changed.

        watched: gets what each viewer looks at, for as long as it does.
        insecure: viewers are warned that others can read what they see.
        """
        self._freeze, self._page, self._ticks, self._insecure = freeze, page, ticks, insecure
        self._watched = watched
        self._frozen: Frozen | None = None
        self._frozen_at, self._frozen_s, self._took_s = 0, 0.0, 0.0
        self._encoded: dict[tuple[Selection, bool], netmon_pb2.Snapshot] = {}
        self._viewers = 0
        self.let_go = 0  # viewers that did not read

    def latest(self, selection: Selection, jobs_only: bool = False) -> netmon_pb2.Snapshot:
        """The newest snapshot; it is shared, and only read. jobs_only: without addresses and processes."""
        now_s, now_at, began_s = time.monotonic(), self._ticks(), time.thread_time()
        age_s = now_s - self._frozen_s
        rested = age_s >= min(_OLDEST_S, _REST * self._took_s)
        if self._frozen is None or (now_at != self._frozen_at and rested) or age_s >= _OLDEST_S:
            self._frozen, self._frozen_at, self._frozen_s, self._took_s = self._freeze(), now_at, now_s, 0.0
            self._encoded = {}
        key = selection, jobs_only
        if key not in self._encoded:
            snapshot = replace(self._page(self._frozen, selection), insecure=self._insecure, version=__version__)
            self._encoded[key] = encode_snapshot(without_names(snapshot) if jobs_only else snapshot)
            self._took_s += time.thread_time() - began_s
        return self._encoded[key]

    async def watch(self, request: netmon_pb2.WatchRequest, context: Context, jobs_only: bool = False) -> None:
        """Give one snapshot, or one per interval until the viewer goes. jobs_only: as in `latest`."""
        try:
            selection = decode_selection(request)
            selection = request_without_flows(selection) if jobs_only else selection
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        interval_s = max(request.interval_ms / 1e3, _SHORTEST_INTERVAL_S)
        self._viewers += 1
        lives = 0 < request.interval_ms <= 1e3 * _LIVE_S
        if lives:
            self._watched.append(selection)
        due_s = time.monotonic()
        try:
            while True:
                await asyncio.wait_for(context.write(self.latest(selection, jobs_only)), _SNAPSHOT_WITHIN_S)
                if not request.interval_ms:
                    return
                now_s = time.monotonic()
                due_s = max(now_s, due_s + interval_s)  # what making and sending it has taken is no rest besides
                await asyncio.sleep(due_s - now_s)
        except asyncio.TimeoutError:
            self.let_go += 1
            reason = f"no snapshot was read for {_SNAPSHOT_WITHIN_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)  # it comes when the viewer reads, if ever
        except asyncio.CancelledError:  # the collector ends, or the viewer has gone; gRPC prints it as an error of ours
            return
        finally:
            self._viewers -= 1
            if lives:
                self._watched.remove(selection)
            if not self._viewers:
                self._frozen, self._encoded = None, {}


class Answers:
    """Of one collector. Who asks has been let in."""

    def __init__(self, registry: Registry, insecure: bool, stored: Dataset | None) -> None:
        """insecure: what is said may be read by others. stored: rows of the dataset; None: nobody gets them."""
        self._registry, self._stored = registry, stored
        self._watching = Watching(
            registry.freeze, registry.live.page, lambda: registry.live.ticks, registry.live.watched, insecure
        )
        self._past_turns = asyncio.Semaphore(_PAST_AT_A_TIME)

    async def answer(self, method: str, data: bytes, identity: Identity | None, context: Context) -> None:
        """A method of proto/netmon.proto, by its name; what it gives is written to the context."""
        if method == "Watch":
            jobs_only = identity is not None and identity.role is Role.JOBS
            await self._watching.watch(netmon_pb2.WatchRequest.FromString(data), context, jobs_only)
        elif method == "Full":
            await self._full(netmon_pb2.FullQuery.FromString(data), context)
        elif method == "Past":
            await self._past(netmon_pb2.PastQuery.FromString(data), context)
        else:
            await self._advise(netmon_pb2.AdviceQuery.FromString(data), context)

    async def _full(self, request: netmon_pb2.FullQuery, context: Context) -> None:
        """Full resolution of a window that has passed, a part for each host, and never more parts than one reads."""
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
                    coming.add(asyncio.create_task(self._full_part(rest.popleft(), request)))
                done, coming = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                coming |= done
                for task in done:
                    await asyncio.wait_for(context.write(task.result()), _FULL_WITHIN_S)
                    coming.discard(task)
        except DataError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except asyncio.TimeoutError:
            reason = f"no part was read for {_FULL_WITHIN_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        finally:
            for task in coming:
                task.cancel()

    async def _full_part(self, session: Session, request: netmon_pb2.FullQuery) -> netmon_pb2.FullPart:
        pulled = await self._registry.live.full.pull(session, request.since_ns, request.until_ns)
        rows = with_addresses(session, session.bucket_rows(pulled.rows))
        data = await asyncio.to_thread(arrow_stream, rows)
        return netmon_pb2.FullPart(host=session.hello.host, rows=data, gap=pulled.gap)

    async def _past(self, request: netmon_pb2.PastQuery, context: Context) -> None:
        """Rows of the dataset, read alongside everything else, a bounded part at a time."""
        if self._stored is None:
            line = "this collector does not serve its dataset"
            await context.abort(grpc.StatusCode.NOT_FOUND, line)
            return
        try:
            wanted = decode_wanted(request)
            async with self._past_turns:
                coming, sent = self._stored.batches(wanted), 0
                while (part := await asyncio.to_thread(_part, coming)) is not None:
                    rows, data = part
                    sent += rows
                    if sent > MOST_ROWS:
                        line = f"these are more than {MOST_ROWS:,} rows of {wanted.table}: request less time"
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, line)
                    await asyncio.wait_for(context.write(netmon_pb2.PastPart(rows=data)), _PAST_WITHIN_S)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NetmonError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except (ValueError, TypeError, OverflowError) as error:  # Arrow's are among them
            why = str(error).splitlines()[0][:MAX_TEXT]
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot read {wanted.table} so: {why}")
        except asyncio.TimeoutError:
            reason = f"no part was read for {_PAST_WITHIN_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    async def _advise(self, request: netmon_pb2.AdviceQuery, context: Context) -> None:
        """What could be done about jobs that share links."""
        try:
            document = await self._registry.live.advising.answer(request.job[:MAX_TEXT])
        except DataError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        else:
            await context.write(netmon_pb2.AdviceAnswer(document=document))


def _part(coming: Iterator[pa.RecordBatch]) -> tuple[int, bytes] | None:
    """The next part, and its number of rows; None: there is none."""
    batches, rows = [], 0
    for batch in coming:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= _PART_ROWS:
            break
    if not batches:
        return None
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    return rows, arrow_stream(table)
