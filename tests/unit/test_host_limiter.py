# SPDX-License-Identifier: Apache-2.0
"""What one host may use of the collector: honest agents never notice, a flood waits with its sender."""

import asyncio
from pathlib import Path

import pytest
from authorities import pki, security
from collector_stream import Host, hello
from in_process import JobsHere
from test_collector_server import FAST

from collector import backpressure, service
from collector import registry as sessions
from collector.backpressure import HostLimiter
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.service import Admission, NotAdmittedError
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch
from netmon.wire.secure import Watched
from netmon.wire.security import Identity, Role
from netmon.wire.tables import TABLES


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(backpressure.time, "monotonic_ns", lambda: round(moment[0] * 1e9))
    return moment


def test_an_hour_of_batches_at_once_is_taken_in_as_it_comes(now: list[float]) -> None:
    one, own = encode_batch(Host().batch()), HostLimiter()
    for _ in range(7200):
        own.add_batch("h0", one)
    assert own.wait_s("h0") == 0


@pytest.mark.parametrize(
    "flood",
    [
        netmon_pb2.Batch(tables=netmon_pb2.Tables(rows=[50_000])),  # flows
        netmon_pb2.Batch(tables=netmon_pb2.Tables(rows=[0, 50_000])),  # marks
        netmon_pb2.Batch(tables=netmon_pb2.Tables(rows=[(1 << 32) - 1] * len(TABLES))),
        netmon_pb2.Batch(buckets=netmon_pb2.Buckets(rows=1 << 18)),
        netmon_pb2.Batch(buckets=netmon_pb2.Buckets(rows=(1 << 32) - 1)),  # which it claims
        netmon_pb2.Batch(tables=netmon_pb2.Tables(rows=[0, 0, 4096])),  # of the ledger
        netmon_pb2.Batch(),
    ],
)
def test_a_flood_waits_and_nobody_else_does(now: list[float], flood: netmon_pb2.Batch) -> None:
    own = HostLimiter()
    for _ in range(100_000):
        own.add_batch("evil", flood)
        if own.wait_s("evil"):
            break
    assert own.wait_s("evil") > 0 == own.wait_s("h0")
    now[0] += 60
    assert own.wait_s("evil") == 0


def test_sessions_of_one_host_do_not_take_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_OF_HOST", 3)

    async def scenario() -> None:
        sink = ParquetSink(tmp_path)
        registry = Registry(sink, FAST, JobsHere())
        for number in range(3):
            await registry.open(hello(host="evil", session=f"s{number}"), asyncio.Event())
        with pytest.raises(WireError, match="session s9 is refused: evil has 3 sessions already"):
            await registry.open(hello(host="evil", session="s9"), asyncio.Event())
        await registry.open(hello(host="evil", session="s1"), asyncio.Event())  # it connects again
        await registry.open(hello(host="h0", session="other"), asyncio.Event())
        sink.close()

    asyncio.run(scenario())


class Call:
    """A call's context, as far as it tells who calls."""

    def __init__(self, identity: Identity) -> None:
        self._uri = identity.uri.encode()
        self._certificate = (pki("ours").folder(identity) / "tls.crt").read_bytes()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": [self._uri], "x509_pem_cert": [self._certificate]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()


def test_calls_of_one_identity_are_counted_while_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(service.MOST_AT_A_TIME, "view", 2)
    monkeypatch.setitem(service.MOST_OF_ALL, "view", 3)
    folder = security(Role.COLLECTOR, "c").tls
    assert folder
    own = Admission(Watched(folder))
    ann, bob = Call(Identity(Role.FULL, "ann")), Call(Identity(Role.JOBS, "wall"))
    with own.admit(ann, "view", service.VIEWERS):
        with own.admit(ann, "view", service.VIEWERS):
            with (
                pytest.raises(NotAdmittedError, match="viewer ann has 2 calls of this kind already"),
                own.admit(ann, "view", service.VIEWERS),
            ):
                pass
            with (
                own.admit(bob, "view", service.VIEWERS),
                pytest.raises(NotAdmittedError, match="there are 3 calls"),
                own.admit(bob, "view", service.VIEWERS),
            ):
                pass
        with own.admit(ann, "view", service.VIEWERS):
            pass
    assert not own._calls
