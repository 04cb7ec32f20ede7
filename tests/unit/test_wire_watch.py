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
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.mapping import decode_selection, encode_snapshot
from netmon.wire.netmon_pb2_grpc import CollectorServicer, add_CollectorServicer_to_server
from netmon.wire.watch import ONE_SNAPSHOT, Outage, UnreachableError, follow, watch

TEN = Selection(flows=10)


class Snapshots(CollectorServicer):
    """Answers Watch with the example, over and over."""

    def __init__(self) -> None:
        self.asked: list[Selection] = []

    def Watch(  # noqa: N802
        self, request: netmon_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.Snapshot]:
        self.asked.append(decode_selection(request))
        yield encode_snapshot(example())
        while request.interval_ms and context.is_active():
            time.sleep(request.interval_ms / 1000)
            yield encode_snapshot(example())


def serve(path: Path, answers: Snapshots | None = None) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(4))
    add_CollectorServicer_to_server(answers or Snapshots(), server)
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
    snapshots = list(watch(f"unix:{socket}", ONE_SNAPSHOT, TEN))
    assert [snapshot.time_ns for snapshot in snapshots] == [example().time_ns]


def test_an_interval_is_a_stream_that_can_be_left(socket: Path) -> None:
    stream = watch(f"unix:{socket}", 10, TEN)
    assert all(isinstance(next(stream), Snapshot) for _ in range(3))


def test_nobody_there_is_one_clear_line(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    with pytest.raises(UnreachableError) as caught:
        next(watch(address, ONE_SNAPSHOT, TEN))
    reason = f"cannot reach the collector at {address}: no answer there; is `netmon collector` running?"
    assert str(caught.value) == reason
    assert isinstance(caught.value, NetmonError)


def test_following_begins_with_an_error_where_nobody_is(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        next(follow(f"unix:{tmp_path}/nobody.sock", 10, lambda: TEN))


def test_following_goes_on_after_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "collector.sock"
    server = serve(path)
    updates = follow(f"unix:{path}", 10, lambda: TEN, retry_s=0.05)
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


def test_what_is_asked_for_may_change_while_following(tmp_path: Path) -> None:
    answers = Snapshots()
    server = serve(tmp_path / "collector.sock", answers)
    asked = [TEN]
    updates = follow(f"unix:{tmp_path}/collector.sock", 10, lambda: asked[0], retry_s=0.05)
    try:
        assert isinstance(next(updates), Snapshot)
        asked[0] = Selection(hosts=("h0", "h1"), jobs=("resnet",), most_links=8, links_from=16)
        assert all(isinstance(next(updates), Snapshot) for _ in range(3))
    finally:
        updates.close()
        server.stop(0).wait()
    assert answers.asked == [TEN, asked[0]]
