# SPDX-License-Identifier: Apache-2.0
"""A bus with TLS: each agent may publish and hear what is its host's, and nothing else. A real server and worker."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from authorities import pki, security
from collector_stream import hello
from collector_thread import collecting
from dataset_rows import stored_rows
from nats.js.api import KeyValueConfig
from nats.js.errors import APIError
from nats_server import PROGRAM, NatsServer, running
from sent_agent import Sent, check_whole, introduction
from waiting import wait_for

from collector.bus.worker import WorkerSettings
from collector.settings import ListenConfig
from netmon.agent.bus_connection import connect_by_bus
from netmon.certificates import nats_configuration
from netmon.errors import UsageError
from netmon.wire.bus import (
    BATCHES,
    Bus,
    BusSettings,
    Label,
    UnreachedError,
    batch_subject,
    hello_subject,
    inbox,
    make_streams,
    refusal,
)
from netmon.wire.secure import client_context
from netmon.wire.security import PLAIN, Identity, Role, Security

H0, H1, WORKER = security(Role.AGENT, "h0"), security(Role.AGENT, "h1"), security(Role.COLLECTOR, "c")


def server_of(directory: Path, authority: str, port: int = 0) -> NatsServer:
    if not PROGRAM.exists():
        pytest.skip("nats-server is not there: make setup-dev")
    made = pki(authority)
    part = nats_configuration([one.identity for one in made.issued()], made.folder(Identity(Role.BUS, "n")))
    return NatsServer(directory, port, cluster=part)


@contextlib.contextmanager
def protected(directory: Path) -> Iterator[NatsServer]:
    server = server_of(directory, "ours")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def stored(directory: Path) -> int:
    return len(stored_rows(directory / "data"))


def own(server: NatsServer, security: Security) -> BusSettings:
    return replace(server.settings, security=security)


def test_an_agent_and_a_worker(tmp_path: Path) -> None:
    with protected(tmp_path) as server:
        worker = WorkerSettings(own(server, WORKER), "w1", ttl_s=1.0)
        sent = Sent(tmp_path / "spool", "the bus", "s1", connect_by_bus(own(server, H0)))
        sent.spool.hello = introduction(hello(host="h0", session="s1"))
        with collecting(
            f"unix:{tmp_path}/socket", tmp_path / "data", worker=worker, listen_config=ListenConfig(WORKER)
        ):
            sent.append(20)
            sent.start()
            wait_for(lambda: len(sent.exchanges.take()) > 0)  # it may ask for the time
            sent.finish()
            wait_for(lambda: stored(tmp_path) == sent.rows)
    check_whole(tmp_path / "data", sent)


def test_another_authority_takes_over_without_a_restart_of_agent_or_worker(tmp_path: Path) -> None:
    folders = {"agent": (Role.AGENT, "h0"), "worker": (Role.COLLECTOR, "c")}

    def hand_out(authority: str) -> None:
        for name, identity in folders.items():
            shutil.copytree(pki(authority).folder(Identity(*identity)), tmp_path / name, dirs_exist_ok=True)

    hand_out("ours")
    server = server_of(tmp_path, "ours")
    server.start()
    try:
        bus = own(server, Security(tmp_path / "worker"))
        worker = WorkerSettings(bus, "w1", ttl_s=1.0)
        agent = connect_by_bus(own(server, Security(tmp_path / "agent")))
        sent = Sent(tmp_path / "spool", "the bus", "s1", agent)
        sent.spool.hello = introduction(hello(host="h0", session="s1"))
        with collecting(
            f"unix:{tmp_path}/socket", tmp_path / "data", worker=worker, listen_config=ListenConfig(bus.security)
        ):
            sent.append(20)
            sent.start()
            wait_for(lambda: stored(tmp_path) > 0)
            server.kill()
            hand_out("theirs")
            server = server_of(tmp_path, "theirs", server.port)
            server.start()
            sent.append(20)
            sent.finish()
            wait_for(lambda: stored(tmp_path) == sent.rows)
    finally:
        server.kill()
    check_whole(tmp_path / "data", sent)


def test_what_is_another_hosts_is_refused_by_the_bus(tmp_path: Path) -> None:
    async def denied(agent: Bus, trouble: list[str]) -> None:
        """h0's certificate, and whatever it may not do."""
        connection, publish = agent.client, agent.client.publish
        subjects = [
            *(batch_subject("h1"), hello_subject("h1", "s1"), f"{hello_subject('h0', 's1')}.refused"),
            *("netmon.v1.down.h1.s1", "netmon.v1.up.w1.h1.s1", f"{inbox('h1')}.x", "$JS.API.STREAM.PURGE.NETMON"),
            *("$JS.API.STREAM.DELETE.NETMON", "$JS.API.STREAM.MSG.GET.NETMON", "$JS.API.CONSUMER.CREATE.NETMON"),
            *("$JS.API.DIRECT.GET.KV_netmon-hellos.$KV.netmon-hellos.h1.s1", "$JS.API.STREAM.INFO.NETMON"),
            *("$JS.API.STREAM.INFO.KV_netmon-hellos", "netmon.v1.waiting.h1", "$KV.netmon-hellos.stream-bytes"),
        ]
        for subject in subjects:
            await publish(subject, b"forged")
        heard = [f"{BATCHES}.>", "netmon.v1.down.h1.*", "_INBOX.>", f"{inbox('h1')}.>", "$KV.netmon-hellos.>", ">"]
        for subject in heard:
            await connection.subscribe(subject)
        await connection.flush()
        waits = [subject.lower() for subject in (*subjects, *heard)]
        while waits := [one for one in waits if not any(f'"{one}"' in line.lower() for line in trouble)]:
            await asyncio.sleep(0.01)  # the test's own limit ends it

    async def scenario(server: NatsServer) -> None:
        trouble: list[str] = []

        async def note(error: Exception) -> None:
            trouble.append(str(error))

        worker = await Bus.connect(own(server, WORKER), "worker")
        await make_streams(worker)
        agent = await Bus.connect(own(server, H0), "agent", host="h0")
        agent.client._error_cb = note
        await agent.jetstream.publish(batch_subject("h0"), b"its own")
        await agent.jetstream.publish(hello_subject("h0", "s1"), b"its own")
        assert await refusal(agent, "h0", "s1") == ""
        assert await agent.most_bytes()
        await denied(agent, trouble)
        assert (await worker.jetstream.stream_info("NETMON")).state.messages == 1
        assert await worker.hosts() == {"h0"}
        for bus in (agent, worker):
            await bus.close()

    with protected(tmp_path) as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (lambda: PLAIN, "it wants TLS: give --tls DIR"),
        (lambda: security(Role.AGENT, "h0", "theirs"), "of another authority than our ca.crt"),
        (lambda: Security(pki("ours").issue(Identity(Role.AGENT, "unknown")).folder), "[Aa]uthorization|it hangs up"),
    ],
)
def test_a_stranger_is_not_let_in(tmp_path: Path, who: object, said: str) -> None:
    with protected(tmp_path) as server, pytest.raises(UnreachedError, match=said):
        asyncio.run(Bus.connect(own(server, who()), "stranger", host="h0"))


@pytest.mark.parametrize("older", [False, True])
def test_no_agent_wipes_what_others_have_said(tmp_path: Path, older: bool) -> None:
    """By the header with which one message stands in the place of all."""

    async def scenario(server: NatsServer) -> None:
        worker = await Bus.connect(own(server, WORKER), "worker")
        agent = await Bus.connect(own(server, H0), "agent", host="h0")
        if older:  # it was made with the header open
            await worker.jetstream.create_key_value(KeyValueConfig(bucket="netmon-hellos", direct=True))
        await make_streams(worker)
        for subject in (hello_subject("h1", "s1"), hello_subject("h0", "s1"), batch_subject("h1")):
            await worker.jetstream.publish(subject, b"kept")
        for how in ("all", "sub"):
            for subject in (hello_subject("h0", "s2"), batch_subject("h0")):
                with pytest.raises(APIError, match="rollup"):
                    await agent.jetstream.publish(subject, b"wipe", headers={"Nats-Rollup": how})
        assert await worker.hello("h1", "s1") is not None
        assert (await worker.jetstream.stream_info("NETMON")).state.messages == 1
        assert not await make_streams(worker)
        for bus in (worker, agent):
            await bus.close()

    with protected(tmp_path) as server:
        asyncio.run(scenario(server))


def test_what_one_host_publishes_takes_no_batch_from_another(tmp_path: Path) -> None:
    """Before h0 sends a batch, h1 has published whatever h0's headers will be; the bus sorts out what it knows."""

    async def attack(server: NatsServer) -> None:
        worker = await Bus.connect(own(server, WORKER), "worker")
        await make_streams(worker)
        attacker = await Bus.connect(own(server, H1), "attacker", host="h1")
        for number in range(1, 41):
            headers = Label("s1", number, number - 1, number - 1).headers()
            headers |= {"Nats-Msg-Id": f"s1/{number}/{number - 1}"}
            await attacker.jetstream.publish(batch_subject("h1"), b"", headers=headers)
        for bus in (attacker, worker):
            await bus.close()

    with protected(tmp_path) as server:
        asyncio.run(attack(server))
        sent = Sent(tmp_path / "spool", "the bus", "s1", connect_by_bus(own(server, H0)))
        sent.append(40)
        sent.start()
        wait_for(lambda: sent.spool.acknowledged == 40)
        worker = WorkerSettings(own(server, WORKER), "w1", ttl_s=1.0)
        with collecting(
            f"unix:{tmp_path}/socket", tmp_path / "data", worker=worker, listen_config=ListenConfig(WORKER)
        ):
            sent.finish()
            wait_for(lambda: asyncio.run(waiting(server)) == 0)
    check_whole(tmp_path / "data", sent)


async def waiting(server: NatsServer) -> int:
    bus = await Bus.connect(own(server, WORKER), "test")
    found = (await bus.jetstream.stream_info("NETMON")).state.messages
    await bus.close()
    return found


def test_a_server_without_tls_is_told_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server, pytest.raises(UnreachedError, match="it speaks no TLS there"):
        asyncio.run(Bus.connect(own(server, H0), "agent", host="h0"))


def test_plaintext_stays_on_this_machine() -> None:
    settings = BusSettings(("nats://127.0.0.1:4222", "nats://10.0.0.1:4222"))
    with pytest.raises(UsageError, match=r"cannot connect to the bus at nats://10\.0\.0\.1:4222 without encryption"):
        asyncio.run(Bus.connect(settings, "agent", host="h0"))


def test_a_worker_answers_to_inboxes_only(tmp_path: Path) -> None:
    """Who asks for the time does not choose where a worker publishes."""

    async def scenario(server: NatsServer) -> None:
        agent = await nats.connect(
            server.settings.servers[0], tls=client_context(H0.tls, Role.AGENT), inbox_prefix=inbox("h0")
        )
        answer = None
        while answer is None:
            with contextlib.suppress(nats.errors.NoRespondersError):  # the worker begins
                answer = await agent.request("netmon.v1.clock.w1", b"", timeout=60)
        for _ in range(20):
            await agent.publish("netmon.v1.clock.w1", b"", reply=batch_subject("h1"))
        assert (await agent.request("netmon.v1.clock.w1", b"", timeout=10)).data
        await agent.close()
        worker = await Bus.connect(own(server, WORKER), "worker")
        assert (await worker.jetstream.stream_info("NETMON")).state.messages == 0
        await worker.close()

    with protected(tmp_path) as server:
        worker = WorkerSettings(own(server, WORKER), "w1", ttl_s=1.0)
        socket = tmp_path / "socket"
        with collecting(f"unix:{socket}", tmp_path / "data", worker=worker, listen_config=ListenConfig(WORKER)):
            wait_for(socket.exists)
            asyncio.run(scenario(server))
