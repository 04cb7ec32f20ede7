# SPDX-License-Identifier: Apache-2.0
"""Everybody who looks: one frozen view a tick for all, encoded once for all that ask for the same."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc

from collector.view.frozen import Frozen
from netmon.errors import WireError
from netmon.version import __version__
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.snapshots import decode_selection, encode_snapshot, request_without_flows, without_names

_OLDEST_S = 0.5  # a view serves again until then, if nothing has changed
_REST = 4  # × what a view takes to make: it serves so long whatever has changed, so that viewers take a fifth at most
_SHORTEST_INTERVAL_S = 0.05
_LET_GO_AFTER_S = 10.0  # a viewer that has not read the last snapshot until then

Context = grpc.aio.ServicerContext[Any, Any]


class Watching:
    """Snapshots for viewers, made while there are any. A viewer that reads slowly gets the newest, never a queue."""

    def __init__(
        self,
        freeze: Callable[[], Frozen],
        page: Callable[[Frozen, Selection], Snapshot],
        ticks: Callable[[], int],
        insecure: bool = False,
    ) -> None:
        """freeze: everything as it is now; page: what of it a viewer has asked for; ticks: how often it has changed.

        insecure: viewers are warned that others can read what they see.
        """
        self._freeze, self._page, self._ticks, self._insecure = freeze, page, ticks, insecure
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
        due_s = time.monotonic()
        try:
            while True:
                await asyncio.wait_for(context.write(self.latest(selection, jobs_only)), _LET_GO_AFTER_S)
                if not request.interval_ms:
                    return
                now_s = time.monotonic()
                due_s = max(now_s, due_s + interval_s)  # what making and sending it has taken is no rest besides
                await asyncio.sleep(due_s - now_s)
        except asyncio.TimeoutError:
            self.let_go += 1
            reason = f"no snapshot was read for {_LET_GO_AFTER_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)  # it comes when the viewer reads, if ever
        except asyncio.CancelledError:  # the collector ends, or the viewer has gone; gRPC prints it as an error of ours
            return
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._frozen, self._encoded = None, {}
