# SPDX-License-Identifier: Apache-2.0
"""The Watch client against a real gRPC server on a Unix socket."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from snapshot_example import example

from netmon.errors import NetmonError
from netmon.views import Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorServicer, add_CollectorServicer_to_server
from netmon.wire.snapshots import encode_snapshot
from netmon.wire.watch import ONE_SNAPSHOT, Outage, UnreachableError, follow, watch


class Snapshots(CollectorServicer):
    """Answers Watch with the example, over and over."""

    def Watch(  # noqa: N802
        self, request: netmon_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.Snapshot]:
        yield encode_snapshot(example())
        while request.interval_ms and context.is_active():
            time.sleep(request.interval_ms / 1000)
            yield encode_snapshot(example())


def serve(path: Path) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(2))
    add_CollectorServicer_to_server(Snapshots(), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "collector.sock"
    server = serve(path)
    yield path
    server.stop(0).wait()


def test_interval_0_is_one_snapshot(socket: Path) -> None:
    snapshots = list(watch(f"unix:{socket}", ONE_SNAPSHOT, 10))
    assert [snapshot.time_ns for snapshot in snapshots] == [example().time_ns]


def test_an_interval_is_a_stream_that_can_be_left(socket: Path) -> None:
    stream = watch(f"unix:{socket}", 10, 10)
    assert all(isinstance(next(stream), Snapshot) for _ in range(3))


def test_nobody_there_is_one_clear_line(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    with pytest.raises(UnreachableError) as caught:
        next(watch(address, ONE_SNAPSHOT, 10))
    reason = f"cannot reach the collector at {address}: no answer there; is `netmon collector` running?"
    assert str(caught.value) == reason
    assert isinstance(caught.value, NetmonError)


def test_following_begins_with_an_error_where_nobody_is(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        next(follow(f"unix:{tmp_path}/nobody.sock", 10, 10))


def test_following_goes_on_after_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "collector.sock"
    server = serve(path)
    updates = follow(f"unix:{path}", 10, 10, retry_s=0.05)
    assert isinstance(next(updates), Snapshot)
    server.stop(0).wait()
    outages = [update for _, update in zip(range(10), updates, strict=False) if isinstance(update, Outage)]
    assert outages
    assert len({outage.since_ns for outage in outages}) == 1
    server = serve(path)
    try:
        assert any(isinstance(update, Snapshot) for _, update in zip(range(100), updates, strict=False))
    finally:
        updates.close()
        server.stop(0).wait()
