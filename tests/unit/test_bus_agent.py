# SPDX-License-Identifier: Apache-2.0
"""The agent's way to a bus that is cut, full, slow, gone or comes back empty: real spool, stream, server and worker."""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import nats
import pytest
from collector_stream import MS, UTC, S, hello
from collector_thread import collecting
from dataset_rows import stored_rows
from nats_server import NatsServer, running
from sent_agent import Sent, check_whole, introduction
from tcp_relay import TcpRelay
from waiting import wait_for

from collector import agent_checks
from collector.backpressure import STEPS, TRAINING_NS, Intake
from collector.bus import session as bus_session
from collector.bus.worker import WorkerSettings
from netmon.agent import bus_connection, sending
from netmon.agent.bus_connection import BusConnection, connect_by_bus
from netmon.agent.connection import Patience
from netmon.agent.pressure import Backpressure
from netmon.agent.recorder import Pulls, Recorder, in_memory
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.stream import Backoff
from netmon.records import Batch
from netmon.wire import netmon_pb2
from netmon.wire.bus import Bus, BusSettings, batch_subject, make_streams
from netmon.wire.questions import get_full
from netmon.wire.security import read_servers
from netmon.wire.watch import UnreachableError


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as server:
        yield server


def agent(directory: Path, where: BusSettings, session: str = "s1") -> Sent:
    return Sent(directory / "spool", where.name, session, connect_by_bus(where))


def working(directory: Path, server: NatsServer):
    return collecting(
        f"unix:{directory}/socket", directory / "data", worker=WorkerSettings(server.settings, "w1", ttl_s=1.0)
    )


def test_batches_are_stored_once_and_the_time_is_told(tmp_path, server):
    sent = agent(tmp_path, server.settings)
    with working(tmp_path, server):
        sent.append(30)
        sent.start()
        sent.append(30)
        wait_for(lambda: len(sent.exchanges.take()) > 0)
        sent.finish()
        wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)
    assert sent.spool.acknowledged == 60


async def made(server: NatsServer) -> None:
    bus = await Bus.connect(server.settings, "test")
    await make_streams(bus)
    await bus.close()


def stored(directory: Path) -> int:
    return len(stored_rows(directory / "data"))


def test_a_network_that_breaks_with_batches_on_the_way_loses_nothing(tmp_path, server, monkeypatch):
    monkeypatch.setattr(Backoff, "after_failure", lambda self: 0.0)
    with TcpRelay(("127.0.0.1", server.port)) as relay, working(tmp_path, server):
        sent = agent(tmp_path, BusSettings((f"nats://127.0.0.1:{relay.port}",)))
        sent.append(40)
        sent.start()
        for _ in range(40):
            sent.append(2)
            before = relay.accepted
            relay.reset()
            wait_for(lambda before=before: relay.accepted > before)
        sent.finish()
    check_whole(tmp_path / "data", sent)


def test_a_bus_that_swallows_everything_is_given_up_and_tried_again(tmp_path, server, monkeypatch):
    monkeypatch.setattr(Patience, "__init__", lambda self: setattr(self, "most_s", 1.5))
    with TcpRelay(("127.0.0.1", server.port)) as relay, working(tmp_path, server):
        sent = agent(tmp_path, BusSettings((f"nats://127.0.0.1:{relay.port}",)))
        sent.start()
        sent.append(10)
        wait_for(lambda: sent.spool.acknowledged == 10)
        before = relay.accepted
        relay.stall()
        sent.append(10)
        wait_for(lambda: relay.accepted > before)
        relay.heal()
        wait_for(lambda: sent.spool.acknowledged == 20)
        sent.finish()
        wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)


def test_a_bus_that_answers_late_holds_nothing_up(tmp_path, server):
    """A hundred answers take as long as one: many batches are on the way at a time."""
    with TcpRelay(("127.0.0.1", server.port)) as relay, working(tmp_path, server):
        sent = agent(tmp_path, BusSettings((f"nats://127.0.0.1:{relay.port}",)))
        sent.start()
        sent.append()
        wait_for(lambda: sent.spool.acknowledged == 1)
        connections, relay.answers_after_s = relay.accepted, 0.5
        sent.append(100)
        wait_for(lambda: sent.spool.acknowledged == 101)
        assert relay.accepted == connections  # it was not given up
        sent.finish()
        wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)


def test_a_full_bus_is_said_once_and_batches_wait_in_the_spool(tmp_path, caplog):
    caplog.set_level(logging.INFO, "netmon.agent")
    with running(tmp_path, most_bytes=20_000) as server:
        asyncio.run(filled(server))
        sent = agent(tmp_path, server.settings)
        sent.append(12)
        sent.start()
        wait_for(lambda: "maximum bytes exceeded" in caplog.text)
        before = sent.spool.acknowledged
        time.sleep(1)  # it tries again and again
        assert sent.spool.acknowledged <= before + 2 < 12
        assert caplog.text.count("does not take batches") == 1
        with working(tmp_path, server):
            wait_for(lambda: sent.spool.acknowledged == 12)
            sent.finish()
            wait_for(lambda: stored(tmp_path) == sent.rows)  # that the bus has them all is no more than that
        check_whole(tmp_path / "data", sent)


def test_a_batch_for_which_there_was_no_room_is_not_passed_by_the_next_one(tmp_path, monkeypatch):
    """The connection ends while it waits, and there is room for the next one."""
    has_room, queried = BusConnection._has_room, []

    async def none_for_the_third(self, size):
        queried.append(size)
        if len(queried) == 3:
            self.end("it has no room")
            return False
        return await has_room(self, size)

    monkeypatch.setattr(BusConnection, "_has_room", none_for_the_third)
    with running(tmp_path) as server:
        asyncio.run(made(server))
        sent = agent(tmp_path, server.settings)
        sent.append(12)
        sent.start()
        with working(tmp_path, server):
            wait_for(lambda: sent.spool.acknowledged == 12)
            sent.finish()
            wait_for(lambda: stored(tmp_path) == sent.rows)
        check_whole(tmp_path / "data", sent)


async def filled(server: NatsServer) -> None:
    """By somebody else."""
    bus = await Bus.connect(server.settings, "test")
    await make_streams(bus)
    for _ in range(1000):
        try:
            await bus.jetstream.publish(batch_subject("other"), b"x" * 100)
        except nats.js.errors.APIError:
            break
    await bus.close()


@pytest.mark.parametrize("bounds", [{"most_bytes": 40_000}, {"most_batches": 25}])
def test_one_host_does_not_fill_the_bus_for_another(tmp_path, caplog, bounds):
    caplog.set_level(logging.INFO, "netmon.agent")
    with running(tmp_path, **bounds) as server:
        asyncio.run(made(server))
        large, small = (agent(tmp_path / host, server.settings, host) for host in ("h0", "h1"))
        small.spool.hello = introduction(hello(host="h1", session="h1"))
        large.append(60)
        large.start()
        wait_for(lambda: "one host may" in caplog.text or "per subject" in caplog.text)
        small.append(15)
        small.start()
        wait_for(lambda: small.spool.acknowledged == 15)
        assert 5 < large.spool.acknowledged < 50  # the rest is in its spool
        assert len(caplog.text.splitlines()) < 10
        with working(tmp_path, server):
            wait_for(lambda: large.spool.acknowledged == 60)
            for one in (large, small):
                one.finish()
            wait_for(lambda: stored(tmp_path) == large.rows + small.rows)
        for one in (large, small):
            check_whole(tmp_path / "data", one)


def test_a_bus_that_comes_back_empty_gets_what_the_spool_has(tmp_path, server, caplog):
    caplog.set_level(logging.INFO)
    sent = agent(tmp_path, server.settings)
    with working(tmp_path, server):
        sent.start()
        sent.append(20)
        wait_for(lambda: stored(tmp_path) > 0 and sent.spool.acknowledged == 20)
        caplog.clear()
        server.kill()
        wait_for(lambda: "batches wait" in caplog.text)
        sent.append(20)
        server.wipe()
        server.start()
        wait_for(lambda: sent.spool.acknowledged == 40)
        assert "has come back empty" in caplog.text
        said = [line.partition("no connection")[2] for line in caplog.text.splitlines() if "batches wait" in line]
        assert len(said) == len(set(said))  # each reason once
        sent.finish()
        # What the bus had acknowledged and the worker had not taken in yet is lost; of the spool's nothing is.
        wait_for(lambda: last_rows(tmp_path, 2000) == 20 * 200)


def last_rows(directory: Path, from_ms: int) -> int:
    """Of the buckets from so many ms after the first on; nothing may be there twice."""
    rows = stored_rows(directory / "data")
    assert not rows.duplicated(["flow_id", "bucket_start_ns"]).any()
    return int((rows["bucket_start_ns"] - UTC >= from_ms * 1_000_000 - 500_000).sum())


def test_what_an_agent_that_was_killed_left_behind_is_sent_by_the_next(tmp_path, server, monkeypatch):
    monkeypatch.setattr(sending, "_LOOK_AGAIN_S", 0.2)
    earlier = agent(tmp_path, BusSettings(("nats://127.0.0.1:9",)))
    earlier.append(25)
    earlier.spool.close()
    with working(tmp_path, server):
        sent = agent(tmp_path, server.settings, "s2")
        sent.start()
        wait_for(lambda: stored(tmp_path) == earlier.rows)
        sent.finish()
    check_whole(tmp_path / "data", earlier)


def test_batches_that_the_bus_has_but_whose_agent_died_before_it_heard_so_are_stored_once(
    tmp_path, server, monkeypatch
):
    monkeypatch.setattr(sending, "_LOOK_AGAIN_S", 0.2)
    with TcpRelay(("127.0.0.1", server.port)) as relay:
        asyncio.run(made(server))
        earlier = agent(tmp_path, BusSettings((f"nats://127.0.0.1:{relay.port}",)))
        earlier.start()
        earlier.append()
        wait_for(lambda: earlier.spool.acknowledged == 1)
        relay.answers_after_s = 3600.0
        earlier.append(24)
        wait_for(lambda: asyncio.run(on_the_bus(server)) == 25)
        earlier.stream.finish(0)  # as if killed: no answer has come
        relay.cut()
        assert earlier.spool.acknowledged == 1
        earlier.finish()
    sent = agent(tmp_path, server.settings, "s2")
    sent.start()
    wait_for(lambda: "s1" not in SpoolFolder(tmp_path / "spool").left_behind())  # every batch has gone out again
    with working(tmp_path, server):
        sent.finish()
        wait_for(lambda: stored(tmp_path) == earlier.rows)
        wait_for(lambda: asyncio.run(on_the_bus(server)) == 0)
    check_whole(tmp_path / "data", earlier)


def test_an_agent_of_another_schema_is_told_so_and_publishes_nothing_until_somebody_understands_it(
    tmp_path, server, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "netmon.agent")
    asyncio.run(made(server))
    sent = agent(tmp_path, server.settings)
    opening = netmon_pb2.AgentMessage.FromString(sent.spool.hello)
    opening.hello.schema_version = 99
    sent.spool.hello = opening.SerializeToString()
    sent.append(5)
    sent.start()
    with working(tmp_path, server):
        wait_for(lambda: "(hello of h0: schema version 99" in caplog.text)  # the agent says so
        sent.append(20)
        before = asyncio.run(on_the_bus(server))
        time.sleep(1.5)  # it asks again and again
        assert asyncio.run(on_the_bus(server)) == before <= 6
        assert caplog.text.count("batches wait") == 1
    for module in (agent_checks, bus_session):  # the next worker has been made for such agents
        monkeypatch.setattr(module, "SCHEMA_VERSION", 99)
    with working(tmp_path, server):
        wait_for(lambda: sent.spool.acknowledged == 25)
        sent.finish()
        wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)


def test_full_resolution_is_pulled_over_the_bus(tmp_path, server):
    recorder = Recorder(in_memory(1 << 16), MS, 600 * S, 10**9, 0)

    def recorded(batch: Batch) -> Batch:
        recorder.add(batch.buckets, batch.horizon_ns)
        return batch

    sent = Sent(tmp_path / "spool", server.settings.name, "s1", connect_by_bus(server.settings), Pulls(recorder))
    with working(tmp_path, server):
        sent.start()
        sent.append(30, recorded)
        wait_for(lambda: stored(tmp_path) > 0 and sent.spool.acknowledged == 30)
        since, until = UTC + 700 * MS, UTC + 2_150 * MS
        parts = []

        def pulled() -> bool:
            sent.append(1, recorded)  # who says nothing for long is not connected
            with contextlib.suppress(UnreachableError):
                parts.extend(get_full(f"unix:{tmp_path}/socket", ["h0"], since, until))
            return bool(parts)

        wait_for(pulled)
        sent.finish()
        wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)
    live = stored_rows(tmp_path / "data")
    live = live[(live["bucket_start_ns"] >= since) & (live["bucket_start_ns"] < until)]
    rows = parts[0].rows.to_pandas()
    assert (parts[0].gap, len(rows), len(live)) == ("", 2 * 1450, 2 * 1450)
    full, streamed = (table.groupby("flow_id")["wire_bytes"].sum().to_dict() for table in (rows, live))
    assert full == streamed


async def on_the_bus(server: NatsServer) -> int:
    """Batches that wait there."""
    bus = await Bus.connect(server.settings, "test")
    found = (await bus.jetstream.stream_info("NETMON")).state.messages
    await bus.close()
    return found


def test_an_agent_hears_what_it_is_asked_for(tmp_path, server, monkeypatch):
    monkeypatch.setattr(Intake, "order", lambda self, session: STEPS[2])
    monkeypatch.setattr(bus_connection, "_BACKPRESSURE_VALID_S", 4.0)
    sent = agent(tmp_path, server.settings)
    sent.append(5)
    sent.start()
    with working(tmp_path, server):
        wait_for(lambda: sent.stream.backpressure == Backpressure(0, STEPS[2].batch_ns, TRAINING_NS))
    wait_for(lambda: sent.stream.backpressure == Backpressure())  # nobody asks any more
    sent.finish()


@pytest.mark.parametrize("says", [b"", b"-ERR 'no'\r\n", b"\x00" * 4096, b"INFO {}\r\n", b"INFO not json\r\n"])
def test_nothing_that_a_server_does_ends_the_agent(tmp_path, says):
    listener = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def answer() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            accepted.append(one)
            one.sendall(says)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    sent = agent(tmp_path, BusSettings((f"nats://127.0.0.1:{listener.getsockname()[1]}",)))
    sent.append(3)
    sent.start()
    wait_for(lambda: len(accepted) >= 2)
    assert sent.stream.is_alive()
    assert sent.spool.acknowledged == 0
    sent.finish(0.1)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for one in accepted:
        one.close()


def test_servers_that_take_too_little_are_said_to():
    with pytest.raises(Exception, match="no server's address"):
        read_servers("http://bus")
    assert read_servers("a:4222,tls://b") == ("nats://a:4222", "tls://b")


def test_who_has_no_bus_needs_no_nats():
    program = "import sys, netmon.agent.agent, collector.server; assert 'nats' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
