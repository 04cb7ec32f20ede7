# SPDX-License-Identifier: Apache-2.0
"""Who is asked for less when more comes than the collector can take, and that the agents hear of it."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from collector_stream import Host, hello
from collector_thread import collecting
from in_process import JobsHere
from receiver_here import receive_here
from waiting import wait_for

from collector import backpressure, registry, server
from collector.backpressure import STEPS, BackpressurePolicy, BackpressureRequest, Behind, Intake, Sending, Storing
from collector.dataset.sink import ParquetSink
from collector.receiving import client, receiver
from netmon.agent.connection import GrpcConnection, Outgoing
from netmon.agent.pressure import Backpressure
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.bench.pipeline.agents import AGENT_OPTIONS
from netmon.lab.process import Process
from netmon.records import Batch
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.netmon_pb2_grpc import CollectorStub

CALM = Storing()
NAMES = [f"s{number}" for number in range(10)]


class Load:
    """Sessions that send at a rate, and a second that passes with each decision."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates, self.now, self.policy = rates, 0.0, BackpressurePolicy()

    def decide(self, behind: float, storing: Storing = CALM, seconds: int = 1, busy: float = 0.0) -> None:
        for _ in range(seconds):
            self.now += 1
            sending = {name: Sending(rate, behind) for name, rate in self.rates.items()}
            self.policy.decide(sending, storing, self.now, busy)

    def steps(self) -> set[int]:
        orders = [self.policy.order(name) for name in self.rates]
        return {STEPS.index(BackpressureRequest(order.bucket_ns, order.batch_ns)) for order in orders}


def test_nobody_is_asked_for_anything_while_it_keeps_up() -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(0.3, seconds=100)
    assert load.steps() == {0}
    assert load.policy.coarsened == 0


def test_everybody_is_asked_where_all_send_alike() -> None:
    load = Load(dict.fromkeys(NAMES, 5_000.0))
    load.decide(2.0)
    assert load.steps() == {1}
    load.decide(2.5, seconds=3)
    assert load.steps() == {2}
    load.decide(3.0, seconds=20)
    assert load.steps() == {len(STEPS) - 1}
    assert not any(load.policy.order(name).rows_per_s for name in NAMES)


def test_a_busy_loop_gets_fewer_batches_before_anything_is_late_and_no_coarser_rows() -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(0.3, busy=0.8)
    assert load.steps() == {1}
    load.decide(0.3, busy=0.9, seconds=60)
    assert load.steps() == {2}
    load.decide(0.3, busy=0.4, seconds=60)  # fewer batches are why it is less
    assert load.steps() == {2}
    load.decide(0.1, busy=0.2, seconds=11)
    assert load.steps() == {1}


def test_rows_become_coarser_only_where_fewer_batches_do_not_help() -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(2.3, busy=0.9, seconds=20)
    assert load.steps() == {2}
    load.decide(2.7, busy=0.9)
    assert load.steps() == {3}


def test_who_catches_up_is_not_asked_for_more() -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(8.0)
    for behind in (7.0, 6.0, 5.0, 4.0, 3.0, 2.0):
        load.decide(behind)
    assert load.steps() == {1}


@pytest.mark.parametrize("storing", [Storing(full=0.3), Storing(work_s=2.0)])
def test_a_disk_that_does_not_keep_up_is_a_reason(storing: Storing) -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(0.1, storing)
    assert load.steps() == {1}


@pytest.mark.parametrize("sessions", [2, 10])
def test_who_sends_a_hundred_shares_is_asked_alone_and_slowed_alone(sessions: int) -> None:
    load = Load(dict.fromkeys(NAMES[:sessions], 500.0) | {"s0": 50_000.0})
    for _ in range(12):
        load.decide(2.0 if not load.policy.order("s0").rows_per_s else 0.1)
    greedy = load.policy.order("s0")
    assert (greedy.bucket_ns, greedy.batch_ns) == (STEPS[-1].bucket_ns, STEPS[-1].batch_ns)
    assert greedy.rows_per_s == 4 * 500
    assert {load.policy.order(name) for name in NAMES[1:sessions]} == {BackpressureRequest()}


def test_all_are_asked_where_slowing_one_is_not_enough() -> None:
    load = Load(dict.fromkeys(NAMES, 500.0) | {"s0": 50_000.0})
    load.decide(3.0, seconds=30)
    assert load.steps() == {len(STEPS) - 1}
    assert load.policy.order("s0").rows_per_s
    assert not load.policy.order("s1").rows_per_s


def test_one_agent_behind_a_slow_network_is_not_our_load() -> None:
    policy = BackpressurePolicy()
    for second in range(30):
        sending = dict.fromkeys(NAMES, Sending(200.0, 0.1)) | {"s3": Sending(200.0, 20.0)}
        policy.decide(sending, CALM, second)
    assert policy.coarsened == 0


def test_it_lets_go_one_step_at_a_time_and_later_when_that_was_too_early() -> None:
    load = Load(dict.fromkeys(NAMES, 5_000.0))
    load.decide(2.0, seconds=4)
    assert load.steps() == {2}
    load.decide(0.1, seconds=9)
    assert load.steps() == {2}
    load.decide(0.1, seconds=2)
    assert load.steps() == {1}
    load.decide(2.0, seconds=1)  # that was too early
    assert load.steps() == {2}
    load.decide(0.1, seconds=18)
    assert load.steps() == {2}
    load.decide(0.1, seconds=45)
    assert load.steps() == {0}


def test_rows_become_fine_again_where_a_busy_loop_bears_it() -> None:
    load = Load(dict.fromkeys(NAMES, 200.0))
    load.decide(5.0, seconds=10)
    assert load.steps() == {4}
    load.decide(0.7, Storing(full=0.08, work_s=0.8), busy=0.6, seconds=30)
    assert load.steps() == {2}  # and as few batches as before
    load.decide(0.7, busy=0.6, seconds=300)
    assert load.steps() == {2}


@pytest.mark.parametrize(("sessions", "batch_ns"), [(128, 0), (500, 500_000_000), (4_000, 1_000_000_000)])
def test_many_agents_send_fewer_batches_from_the_start(sessions: int, batch_ns: int) -> None:
    load = Load({f"s{number}": 200.0 for number in range(sessions)})
    load.policy.spread(sessions)
    assert {load.policy.order(name) for name in load.rates} == {BackpressureRequest(0, batch_ns)}
    load.decide(0.1)
    assert {load.policy.order(name) for name in load.rates} == {BackpressureRequest(0, batch_ns)}
    assert load.policy.coarsened == 0


def test_those_who_kept_to_their_share_are_let_go_first() -> None:
    load = Load(dict.fromkeys(NAMES, 500.0) | {"s0": 50_000.0})
    load.decide(2.0, seconds=20)
    while load.policy.order("s1") != BackpressureRequest():
        assert load.policy.order("s0").rows_per_s
        load.decide(0.1)
    load.decide(0.1, seconds=600)
    assert load.policy.order("s0") == BackpressureRequest()


def test_who_has_gone_is_forgotten() -> None:
    load = Load(dict.fromkeys(NAMES, 500.0))
    load.decide(2.0)
    del load.rates["s1"]
    load.decide(0.6)
    assert load.policy.order("s1") == BackpressureRequest()
    assert load.policy.coarsened == 9


def test_behind_is_told_by_any_clock() -> None:
    behind, year_ns = Behind(), 365 * 86_400 * 10**9
    told = [behind.processed(year_ns + second * 10**9, second + 0.2) for second in range(10)]
    assert told == pytest.approx([0.0] * 10, abs=0.02)
    assert behind.processed(year_ns + 10 * 10**9, 13.2) == pytest.approx(3.0, abs=0.02)
    assert behind.processed(year_ns + 11 * 10**9, 1_000.0) == 0.0  # it has slept


def test_a_session_waits_for_the_tick_alone() -> None:
    async def scenario() -> None:
        takes = Intake(lambda: CALM)
        takes.add_waiting("greedy", 2_000_000 - 1, 1)
        takes.add_waiting("other", 1, 1)
        await asyncio.wait_for(takes.turn("other"), 60)
        waits = asyncio.create_task(takes.turn("greedy"))
        await asyncio.sleep(0.05)
        assert not waits.done()
        takes.ticked()
        await asyncio.wait_for(waits, 60)

    asyncio.run(scenario())


def test_nobody_is_silent_while_nothing_comes_of_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    now, takes = {"s": 100.0}, Intake(lambda: CALM)
    monkeypatch.setattr("collector.backpressure.time.monotonic", lambda: now["s"])

    def lives(*seconds: float) -> None:
        for now["s"] in seconds:
            takes.add_waiting("lives", 1, 1)

    takes.add_waiting("dead", 1, 1)
    lives(100.5, 101.5, 102.5)
    assert takes.silent_s(100.0) == 2.5
    now["s"] = 120.0  # we were stopped
    assert (takes.silent_s(100.0), takes.silent_s(102.5)) == (2.5, 0.0)
    lives(120.0)
    assert takes.silent_s(100.0) == 0.0
    lives(121.0)
    assert (takes.silent_s(100.0), takes.silent_s(121.0)) == (1.0, 0.0)


def test_who_connects_is_requested_fewer_batches_before_anybody_has_sent_one() -> None:
    takes = Intake(lambda: CALM)
    for number in range(500):
        takes.joined(f"s{number}")
    assert takes.order("s0") == BackpressureRequest(0, 500_000_000)
    for number in range(400):
        takes.left(f"s{number}")
    assert takes.order("s499") == BackpressureRequest()
    for number in range(400):
        takes.add_waiting(f"s{number}", 1, 1)
    assert takes.order("s499") == BackpressureRequest(0, 500_000_000)


class OneAgent:
    """An agent's stream by hand."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.host, self.messages = Host(), list[netmon_pb2.AgentMessage]()
        self.messages.append(netmon_pb2.AgentMessage(hello=encode_hello(hello())))
        self.call = CollectorStub(channel).Stream(self._give(), wait_for_ready=True)

    def _give(self):
        while True:
            while not self.messages:
                time.sleep(0.01)
            yield self.messages.pop(0)

    def send(self) -> None:
        batch: Batch = self.host.batch()
        self.messages.append(netmon_pb2.AgentMessage(batch=encode_batch(batch)))

    def asked(self) -> tuple[int, int]:
        told = next(self.call)
        return told.bucket_ns, told.batch_ns


def test_a_collector_that_is_late_tells_its_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "_DECIDE_EVERY_S", 0.0)
    monkeypatch.setattr(BackpressurePolicy, "LATE_S", 0.5)
    address = f"unix:{tmp_path}/socket"
    with collecting(address, tmp_path / "data"), grpc.insecure_channel(address) as channel:
        agent = OneAgent(channel)
        agent.send()
        assert agent.asked() == (0, 0)
        time.sleep(1)
        agent.send()  # 100 ms of the host's time after the first
        wait_for(lambda: agent.asked() == (STEPS[1].bucket_ns, STEPS[1].batch_ns))
        agent.call.cancel()


def test_an_agent_hears_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "order", lambda self, session: STEPS[-1])
    spool = Spool(SpoolFolder(tmp_path / "spool"), "s1", 1 << 20, lambda lost: None)
    spool.hello = netmon_pb2.AgentMessage(hello=encode_hello(hello())).SerializeToString()
    address = f"unix:{tmp_path}/socket"
    connection = GrpcConnection(address, Outgoing(spool, Pulls(None), lambda: False), None, 60)
    with collecting(address, tmp_path / "data"), grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        seen: list[Backpressure] = []
        take = connection._take

        def taking(message: netmon_pb2.Acknowledgement) -> None:
            take(message)
            seen.append(connection.backpressure)
            if connection.backpressure.bucket_ns:
                connection.end("seen")

        monkeypatch.setattr(connection, "_take", taking)
        connection.run(lambda: None, {})
    assert seen[-1] == Backpressure(STEPS[-1].bucket_ns, STEPS[-1].batch_ns)
    assert connection.backpressure == Backpressure()
    spool.close()


def test_agents_that_ask_whether_it_lives_are_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is late says nothing meanwhile, and reads several pings as if they had been sent at once."""
    receive_here(monkeypatch)
    late = dict(receiver.COLLECTOR_OPTIONS) | {"grpc.http2.min_recv_ping_interval_without_data_ms": 60_000}
    monkeypatch.setattr(receiver, "COLLECTOR_OPTIONS", tuple(late.items()))
    monkeypatch.setattr(client, "ALIVE_EVERY_S", 6)
    eager = dict(AGENT_OPTIONS) | {"grpc.keepalive_time_ms": 20}  # gRPC makes it one a second
    address = f"unix:{tmp_path}/socket"
    with collecting(address, tmp_path / "data"), grpc.insecure_channel(address, options=[*eager.items()]) as channel:
        agent = OneAgent(channel)
        for _ in range(2):
            agent.asked()
        agent.call.cancel()


def test_what_comes_after_the_end_has_begun_is_not_taken_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = ParquetSink(tmp_path)
        taking = registry.Registry(store, registry.Settings(), JobsHere())
        await asyncio.wait_for(taking.flushing.room(), 60)
        taking.flushing.close_intake()
        assert await taking.flush()  # which makes room otherwise
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(taking.flushing.room(), 0.05)
        store.close()

    asyncio.run(scenario())


def test_a_disk_that_hangs_does_not_keep_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_END_WITHIN_S", 0.1)
    hangs, abandoned = threading.Event(), threading.Event()
    write = ParquetSink.write
    monkeypatch.setattr(ParquetSink, "write", lambda *args: (hangs.wait(60), write(*args))[-1])

    async def scenario() -> None:
        stop, address = asyncio.Event(), f"unix:{tmp_path}/socket"

        def abandon() -> None:
            abandoned.set()
            hangs.set()  # the program would end here

        task = asyncio.create_task(
            server.serve(registry.Settings(listen=address, data=tmp_path / "data"), stop, abandon)
        )
        async with grpc.aio.insecure_channel(address) as channel:
            call = CollectorStub(channel).Stream(wait_for_ready=True)
            await call.write(netmon_pb2.AgentMessage(hello=encode_hello(hello())))
            await call.write(netmon_pb2.AgentMessage(batch=encode_batch(Host().batch())))
            await call.read()
            stop.set()
            await asyncio.wait_for(task, 60)

    asyncio.run(scenario())
    assert abandoned.is_set()


_BUSY = """
import sys, time
from collector import registry, server
from netmon.cli import main
server._OVER_WITHIN_S = 0.5
registry.Registry.receive = lambda *args: (print("busy", flush=True), time.sleep(600))
sys.exit(main(sys.argv[1:]))
"""


def test_a_tick_that_does_not_end_does_not_keep_the_collector(tmp_path: Path) -> None:
    arguments = ["collector", "--listen", f"unix:{tmp_path}/socket", "--data", str(tmp_path / "data")]
    command = [sys.executable, "-c", _BUSY, *arguments]
    with Process("collector", command, tmp_path, notify=tmp_path / "notify") as collector:
        collector.wait_ready(60)
        collector.wait_output("busy", 60)
        assert collector.end(seconds=60) == 0
        assert "are over, and not all is stored" in collector.output()


def test_who_leaves_at_the_same_time_is_stored_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents, written = 30, []
    write = ParquetSink.write
    monkeypatch.setattr(ParquetSink, "write", lambda *args: (written.append(1), time.sleep(0.3), write(*args))[-1])

    async def leave(stub: CollectorStub, number: int) -> int:
        name = f"h{number}"
        messages = [netmon_pb2.AgentMessage(hello=encode_hello(hello(host=name, session=name)))]
        messages.append(netmon_pb2.AgentMessage(batch=encode_batch(Host().batch())))
        told = [message.sequence async for message in stub.Stream(iter(messages), wait_for_ready=True)]
        return told[-1]

    async def scenario() -> list[int]:
        stop, address = asyncio.Event(), f"unix:{tmp_path}/socket"
        settings = registry.Settings(listen=address, data=tmp_path / "data", flush_ns=60_000_000_000)
        task = asyncio.create_task(server.serve(settings, stop))
        async with grpc.aio.insecure_channel(address) as channel:
            stub = CollectorStub(channel)
            told = await asyncio.gather(*(leave(stub, number) for number in range(agents)))
        stop.set()
        await task
        return told

    assert asyncio.run(scenario()) == [1] * agents
    assert len(written) < agents // 2
