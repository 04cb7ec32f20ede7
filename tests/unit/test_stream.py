# SPDX-License-Identifier: Apache-2.0
"""The agent's way to the collector over a network that is cut, flaps, swallows everything or meets a hung collector.

The real spool, stream and collector; between them a relay that does what networks do.
"""

import itertools
import logging
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pandas as pd
import pytest
from collector_stream import DL_RX, DL_TX, Host, hello, rows
from collector_thread import collecting
from sent_agent import LIMIT, Sent, check_whole, introduction, put
from tcp_relay import TcpRelay
from waiting import free_port, wait_for

from collector.host.session import Session
from netmon.agent import connection, sending
from netmon.agent.connection import Outgoing, Patience
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.stream import Backoff, Worker, check_alive
from netmon.errors import KernelError
from netmon.records import BUCKET, NicSample, empty
from netmon.wire import netmon_pb2
from netmon.wire.grpc_client import Channel, Protocol, Waker


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[str, TcpRelay]]:
    """Where the collector listens, and the network before it."""
    port = free_port()
    with TcpRelay(("127.0.0.1", port)) as relay:
        yield f"127.0.0.1:{port}", relay


@pytest.mark.parametrize("reconnections", [60, pytest.param(500, marks=pytest.mark.long)])
def test_reconnections_with_batches_waiting(
    tmp_path: Path,
    network: tuple[str, TcpRelay],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reconnections: int,
) -> None:
    monkeypatch.setattr(Backoff, "after_failure", lambda self: 0.0)
    address, relay = network
    with collecting(address, tmp_path / "data"):
        sent = Sent(tmp_path / "spool", f"127.0.0.1:{relay.port}")
        sent.append(20)
        sent.start()
        for _ in range(reconnections):
            sent.append()
            before = relay.accepted
            relay.reset()
            wait_for(lambda before=before: relay.accepted > before)
        sent.append(20)
        sent.finish()
    check_whole(tmp_path / "data", sent)
    assert "refuse" not in caplog.text
    assert "never arrived" not in caplog.text


def test_a_connection_that_has_worked_and_breaks_is_not_said_to_want_tls(
    tmp_path: Path, network: tuple[str, TcpRelay], caplog: pytest.LogCaptureFixture
) -> None:
    address, relay = network
    with collecting(address, tmp_path / "data"):
        sent = Sent(tmp_path / "spool", f"127.0.0.1:{relay.port}")
        sent.append()
        sent.start()
        wait_for(lambda: sent.spool.acknowledged > 0)
        caplog.clear()  # before there is a collector, the network hangs up by itself
        relay.reset()
        wait_for(lambda: "no connection to" in caplog.text)
        sent.finish()
    assert "TLS" not in caplog.text


@pytest.mark.parametrize("what", ["cut", pytest.param("stall", marks=pytest.mark.long)])
def test_a_cut_loses_nothing(
    tmp_path: Path, network: tuple[str, TcpRelay], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "__init__", lambda self: setattr(self, "most_s", 1.5))
    address, relay = network
    with collecting(address, tmp_path / "data"):
        sent = Sent(tmp_path / "spool", f"127.0.0.1:{relay.port}")
        sent.start()
        for _ in range(3):
            sent.append(10)
            wait_for(lambda: sent.spool.acknowledged > 0)
            getattr(relay, what)()
            before = relay.accepted
            sent.append(10)
            wait_for(lambda before=before: relay.accepted > before)  # it has noticed, and tries again
            relay.heal()
            stored = sent.spool.acknowledged
            wait_for(lambda stored=stored: sent.spool.acknowledged > stored)
        sent.finish()
    check_whole(tmp_path / "data", sent)


def test_who_asks_after_the_last_word_gets_no_answer(tmp_path: Path) -> None:
    """The stream is closed then on this side: an answer would break the connection."""
    pulls = Pulls(None)
    sent = Sent(tmp_path / "spool", "localhost:1", pulls=pulls)
    stream = connection.GrpcConnection("localhost:1", Outgoing(sent.spool, pulls, lambda: True), None, 10)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, Waker() as waker, Channel(ours, Protocol("localhost"), waker) as channel:
        call = channel.protocol.open(connection.METHOD)
        stream._fill(channel, call)
        assert call.finished
        pulls.add_request(netmon_pb2.FullRequest(number=1))
        stream._fill(channel, call)
        assert not call.waiting
    sent.spool.close()


def test_a_collector_that_comes_back_gets_the_rest(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    sent = Sent(tmp_path / "spool", address)
    sent.start()
    for _ in range(3):
        sent.append(15)
        with collecting(address, tmp_path / "data"):
            stored = sent.spool.acknowledged
            wait_for(lambda stored=stored: sent.spool.acknowledged > stored)
            sent.append(15)
    with collecting(address, tmp_path / "data"):
        sent.finish()
    check_whole(tmp_path / "data", sent)


@pytest.mark.parametrize("agent", ["lives", "was killed"])
def test_rows_of_flows_that_are_over_reach_a_collector_that_never_heard_of_them(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LOOK_AGAIN_S", 0.2)
    address = f"127.0.0.1:{free_port()}"
    sent = Sent(tmp_path / "spool", address)
    with collecting(address, tmp_path / "data"):
        sent.start()
        sent.append(15)
        wait_for(lambda: sent.spool.acknowledged > 0)
    sent.append(5)
    sent.spool.end_flows([DL_TX, DL_RX])
    sent.append(1, lambda batch: replace(batch, buckets=empty(BUCKET)))
    waiting = 200 * (20 - sent.spool.acknowledged)
    lost = sent.lost
    if agent == "was killed":
        sent.finish(0)
        sent = Sent(tmp_path / "spool", address, "s2")
        sent.start()
    with collecting(address, tmp_path / "other"):
        wait_for(lambda: not list((tmp_path / "spool").glob("s1*")) or agent == "lives")
        sent.finish()
    buckets = pd.read_parquet(tmp_path / "other/buckets")
    assert len(buckets) == waiting
    assert (lost.tolist(), sent.lost.tolist(), sent.leftovers.lost) == ([], [], 0)


def test_a_refused_batch_is_lost_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    address = f"127.0.0.1:{free_port()}"
    sent = Sent(tmp_path / "spool", address)
    sent.append(10)
    wrong = rows((DL_TX, 10**7, 1))  # 10,000 s ahead
    sent.append(1, lambda batch: replace(batch, buckets=wrong))
    sent.append(10)
    sent.rows -= 1
    with collecting(address, tmp_path / "data"):
        sent.start()
        sent.finish()
    assert len(pd.read_parquet(tmp_path / "data/buckets")) == sent.rows
    assert sent.lost["packets"].tolist() == [1]
    assert caplog.text.count("batch 11 is lost (1 packets, 67 B)") == 1
    (kept,) = (tmp_path / "spool/refused").iterdir()
    message = netmon_pb2.AgentMessage.FromString(kept.read_bytes())
    assert (message.batch.sequence, message.batch.buckets.rows) == (11, 1)


def test_what_a_refused_batch_describes_is_introduced(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    sent = Sent(tmp_path / "spool", address)
    wrong = rows((DL_TX, 10**7, 1))
    sent.append(1, lambda batch: replace(batch, buckets=wrong))
    sent.append(10)
    sent.rows -= 1
    with collecting(address, tmp_path / "data"):
        sent.start()
        sent.finish()
    assert len(pd.read_parquet(tmp_path / "data/buckets")) == sent.rows
    assert sent.lost["packets"].tolist() == [1]


def test_a_batch_at_which_the_collector_fails_is_lost_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, tries = Session.add_counters, []

    def fails(session: Session, sequence: int, samples: Sequence[NicSample]) -> None:
        real(session, sequence, samples)  # half of the work is done
        if sequence == 10:
            tries.append(sequence)
            raise IndexError("a fault of the collector's")

    monkeypatch.setattr(Session, "add_counters", fails)
    address = f"127.0.0.1:{free_port()}"
    sent = Sent(tmp_path / "spool", address)
    sent.append(20)
    with collecting(address, tmp_path / "data"):
        sent.start()
        sent.finish()
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert not buckets.duplicated(["flow_id", "bucket_start_ns"]).any()
    assert len(tries) == 3
    assert len(buckets) == sent.rows - 200
    assert int(sent.lost["packets"].sum()) == 200
    assert caplog.text.count("batch 10 is lost") == 1


def leave_behind(directory: Path, session: str, batches: int) -> int:
    spool = Spool(SpoolFolder(directory), session, LIMIT, print)
    spool.hello = introduction(hello(session=session))
    host, count = Host(), 0
    for _ in range(batches):
        batch = host.batch()
        count += len(batch.buckets)
        put(spool, batch)
    spool.close()
    return count


def test_what_was_left_behind_is_sent_beside_the_living_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "_LOOK_AGAIN_S", 0.2)
    directory, address = tmp_path / "spool", f"127.0.0.1:{free_port()}"
    good = leave_behind(directory, "good", 30)
    (directory / "empty.spool").write_bytes(b"")
    (directory / "torn.spool").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    leave_behind(directory, "mute", 5)
    with sqlite3.connect(directory / "mute.spool") as mute:
        mute.execute("DELETE FROM session")
    mute.close()
    leave_behind(directory, "alien", 5)
    with sqlite3.connect(directory / "alien.spool") as alien:
        other = introduction(hello(session="alien", schema_version=99))
        alien.execute("UPDATE session SET hello = ?", (other,))
    alien.close()
    leave_behind(directory, "future", 5)
    with sqlite3.connect(directory / "future.spool") as future:
        future.execute("PRAGMA user_version = 7")
    future.close()
    sent = Sent(directory, address, "live")
    sent.append(20)
    with collecting(address, tmp_path / "data"):
        sent.start()
        wait_for(lambda: [path.name for path in directory.glob("*.spool")] == ["live.spool"])
        sent.append(20)
        sent.finish()
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert buckets.groupby("session", observed=True).size().to_dict() == {"good": good, "live": sent.rows}
    pending = {path.stem for path in (directory / "refused").glob("*.spool")}
    assert pending == {"torn", "mute", "alien", "future"}
    assert sent.leftovers.lost == 4
    for name in pending:
        errors = [r for r in caplog.records if r.name == "netmon.agent.sending" and r.levelno == logging.ERROR]
        lines = [error for error in errors if name in error.getMessage()]
        assert len(lines) == 1, name


def test_a_collector_that_ends_every_stream_is_not_asked_often(tmp_path: Path) -> None:
    """It fails with a code that says nothing of the batch: the agent waits longer and longer."""
    calls = []

    class Failing(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.stream_stream_rpc_method_handler(self.fail) if "Stream" in details.method else None

        def fail(self, messages: object, context: grpc.ServicerContext) -> Iterator[bytes]:
            calls.append(time.monotonic())
            yield b""
            raise RuntimeError

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Failing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sent = Sent(tmp_path / "spool", f"127.0.0.1:{port}")
    sent.append(3)
    sent.start()
    wait_for(lambda: len(calls) == 6)
    sent.finish(0.5)
    server.stop(0).wait()
    pauses = [after - before for before, after in itertools.pairwise(calls)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0), strict=False))
    assert [path.name for path in (tmp_path / "spool").glob("*.spool")] == ["s1.spool"]


def test_a_peer_that_accepts_and_says_nothing_is_left_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sent = Sent(tmp_path / "spool", f"127.0.0.1:{mute.getsockname()[1]}")
        sent.append(3)
        sent.start()
        for _ in range(3):
            mute.accept()[0].close()
        sent.finish(0.5)


def test_backoff_is_bounded() -> None:
    backoff = Backoff(1.0)
    waits = [backoff.after_failure() for _ in range(10)]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (0.2, 0.4, 0.8, *7 * [1.0]), strict=True))
    backoff.reset()
    assert backoff.after_failure() <= 0.2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_the_agent() -> None:
    class Dying(Worker):
        def work(self) -> None:
            raise ValueError("of this")

    worker = Dying("stream")
    worker.start()
    worker.join()
    with pytest.raises(KernelError, match="thread 'stream' has ended: ValueError: of this"):
        check_alive([worker])


def test_the_method_is_the_contracts() -> None:
    (stream,) = (m for m in netmon_pb2.DESCRIPTOR.services_by_name["Collector"].methods if m.name == "Stream")
    assert f"/{stream.containing_service.full_name}/{stream.name}" == connection.METHOD
