# SPDX-License-Identifier: Apache-2.0
"""A viewer's stream: how old the snapshot is that it has."""

import math
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType

import grpc
import numpy as np

from netmon.views import OVERVIEW, Selection
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.snapshots import encode_selection

INTERVAL_MS = 500
EVERYTHING = Selection(flows=20)
ASKED = {"top": replace(OVERVIEW, flows=200, steps_ns=5_000_000_000), "all": EVERYTHING}
"""As `netmon top` asks while somebody looks at its overview, or for every host, link and rank."""

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True)
class Seen:
    """Ages in s. age: of the newest snapshot at the moment when the next one comes, that is at its oldest.

    data: of the newest rows in a snapshot when it comes, median of the hosts in it; most: of the host that lags most.
    """

    snapshots: int
    age_median_s: float
    age_most_s: float
    data_median_s: float
    data_most_s: float
    bytes: int  # of the largest


class Viewer:
    """A thread that watches until its context ends."""

    def __init__(self, address: str, asked: Selection = EVERYTHING) -> None:
        """address: the collector's; asked: of it, with every snapshot."""
        self._address, self._asked = address, asked
        self._thread = threading.Thread(target=self._watch, name="viewer", daemon=True)
        self._over = threading.Event()
        self._call: grpc.Call | None = None
        self._came: list[tuple[float, float, float, float, int]] = []  # when, made when, ages, bytes

    def begin(self) -> None:
        """What has been seen until now does not count."""
        self._came = []

    def seen(self) -> Seen:
        """Since `begin`."""
        if not self._came:
            return Seen(0, math.nan, math.nan, math.nan, math.nan, 0)
        when, made, median, most, size = np.array(self._came, np.float64).T
        ages = np.append(when[1:], time.time()) - made
        ages = ages if len(ages) > 1 else ages[:1]
        return Seen(
            len(when),
            float(np.median(ages)),
            float(ages.max()),
            float(np.median(median)),
            float(most.max()),
            int(size.max()),
        )

    def __enter__(self) -> "Viewer":
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop watching."""
        self._over.set()
        if self._call:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        request = encode_selection(self._asked, INTERVAL_MS)
        while not self._over.is_set():
            with grpc.insecure_channel(self._address, options=_OPTIONS) as channel:
                call = self._call = CollectorStub(channel).Watch(request)  # type: ignore[no-untyped-call]
                try:
                    for snapshot in call:
                        self._take(snapshot)
                except grpc.RpcError:
                    self._over.wait(0.2)

    def _take(self, snapshot: netmon_pb2.Snapshot) -> None:
        now = time.time()
        ages = [host.age_ns / 1e9 for host in snapshot.hosts] or [0.0]
        late = now - snapshot.time_ns / 1e9
        figures = float(np.median(ages)) + late, max(*ages, snapshot.totals.oldest_ns / 1e9) + late
        self._came.append((now, snapshot.time_ns / 1e9, *figures, snapshot.ByteSize()))
