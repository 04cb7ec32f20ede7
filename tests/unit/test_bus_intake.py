# SPDX-License-Identifier: Apache-2.0
"""A worker takes hosts in from a real JetStream server: what is stored is acknowledged, what is not comes again."""

import asyncio
import contextlib
from collections import Counter

import pytest
from bus_host import Publisher, changed, wait_until, waiting, working
from collector_stream import Host
from dataset_rows import stored_rows
from nats_server import running

from collector import registry
from collector.bus import intake, session
from collector.bus.intake import Deliveries
from netmon.wire.bus import Bus, Label, make_streams

BATCHES = 12


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as server:
        yield server


def stored(data):
    """Batches of a host's 100 ms, by the rows of them that are in the dataset; nothing may be there twice."""
    rows = stored_rows(data)
    if not len(rows):
        return Counter()
    rows["ms"] = (rows["bucket_start_ns"] - rows["bucket_start_ns"].min() + 500_000) // 1_000_000
    assert not rows.duplicated(["host", "session", "flow_id", "ms"]).any()
    return Counter(rows["ms"] // 100 + 1)


def whole(count=BATCHES):
    return Counter(dict.fromkeys(range(1, count + 1), 200))


@contextlib.asynccontextmanager
async def publisher(settings, count=BATCHES):
    bus = await Bus.connect(settings, "agent")
    await make_streams(bus)
    sender = Publisher(bus)
    sender.make(count)
    await sender.introduce()
    try:
        yield sender
    finally:
        await sender.bus.close()


def run(test):
    asyncio.run(asyncio.wait_for(test, 240))


def test_what_is_stored_is_acknowledged_and_the_rest_waits(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            for sequence in range(1, BATCHES):
                await sender.send(sequence)
            async with working(tmp_path / "data", server.settings) as worker:
                assert await worker.intake.hosts() == {"h0"}
                await worker.intake.take("h0")
                assert worker.intake.taken_hosts() == {"h0"}
                await wait_until(lambda: sum(stored(tmp_path / "data").values()) > 5 * 200)
                await sender.send(BATCHES)
                await sender.end()
                await wait_until(waiting(sender.bus))
                assert stored(tmp_path / "data") == whole()
                await wait_until(lambda: not worker.intake._hosts["h0"].sessions)
                assert await sender.bus.hello("h0", "s1") is None  # it is over

    run(test())


@pytest.mark.parametrize("release", [True, False])
def test_the_next_worker_goes_on_where_one_has_stopped(server, tmp_path, release):
    async def test():
        async with publisher(server.settings) as sender:
            data = tmp_path / "data"
            for sequence in range(1, 9):
                await sender.send(sequence)
            async with working(data, server.settings, "w1", release) as worker:
                await worker.intake.take("h0")
                await wait_until(lambda: sum(stored(data).values()) > 3 * 200)
            before = (await sender.bus.jetstream.stream_info("NETMON")).state.messages
            assert before > 0  # of the rank's open iteration at least
            for sequence in range(9, BATCHES + 1):
                await sender.send(sequence)
            await sender.end()
            async with working(data, server.settings, "w2") as worker:
                await worker.intake.take("h0")
                await wait_until(waiting(sender.bus))
            assert stored(data) == whole()

    run(test())


def test_what_gets_lost_with_a_connection_comes_again(server, tmp_path, monkeypatch):
    """Handed out by the consumer, and never seen: what comes next says that all before it is on the bus."""
    came, handed_out = Deliveries._came, []

    async def lose(self, message):
        if not (message.headers or {}).get("Status"):
            handed_out.append(message)
        if not 4 <= len(handed_out) <= 7:
            await came(self, message)

    monkeypatch.setattr(Deliveries, "_came", lose)

    async def test():
        async with publisher(server.settings) as sender, working(tmp_path / "data", server.settings) as worker:
            for sequence in range(1, BATCHES + 1):
                await sender.send(sequence, known=sequence - 1)
            await sender.end()
            await worker.intake.take("h0")
            await wait_until(waiting(sender.bus))
            assert stored(tmp_path / "data") == whole()
            assert len(handed_out) > BATCHES + 1

    run(test())


def test_who_has_lost_a_host_and_does_not_know_keeps_nothing_from_its_new_worker(server, tmp_path):
    """As one that was busy for longer than others wait for a word of it."""

    async def test():
        async with (
            publisher(server.settings) as sender,
            working(tmp_path / "before", server.settings, "w1") as before,
            working(tmp_path / "after", server.settings, "w2") as after,
        ):
            await before.intake.take("h0")
            await wait_until(lambda: before.intake._hosts["h0"]._deliveries._requested)
            before.has_lost.add("h0")
            await after.intake.take("h0")
            for sequence in range(1, BATCHES + 1):
                await sender.send(sequence)
            await sender.end()
            await wait_until(waiting(sender.bus))
            consumers = await sender.bus.jetstream.consumers_info("NETMON")
            assert [consumer.name for consumer in consumers] == ["h0~w2"]
            assert not before.intake._hosts["h0"].sessions
        assert stored(tmp_path / "after") == whole()

    run(test())


def test_batches_that_come_out_of_order_or_twice_are_stored_once_and_in_order(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            data = tmp_path / "data"
            async with working(data, server.settings) as worker:
                await worker.intake.take("h0")
                for sequence in (1, 2, 5, 4, 6):  # 3 was refused by the bus
                    await sender.send(sequence)
                await asyncio.sleep(0.5)
                assert worker.intake._hosts["h0"].sessions["s1"].session.queued == 2
                for sequence in (3, 4, 5, 6, 7, 8):
                    await sender.send(sequence, known=2)
                await sender.send(8, previous=6, known=6)  # not recognised as the same by the bus
                await sender.send(10, previous=8, known=8)  # 9 was given up
                for sequence in range(11, BATCHES + 1):
                    await sender.send(sequence)
                await sender.end()
                await wait_until(waiting(sender.bus))
            found = whole()
            del found[9]
            assert stored(data) == found

    run(test())


def test_what_is_none_of_an_agent_s_costs_nothing_but_itself(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            data = tmp_path / "data"
            async with working(data, server.settings) as worker:
                await worker.intake.take("h0")
                await sender.send(1)
                await sender.bus.jetstream.publish("netmon.v1.batch.h0", b"no label")
                await sender.publish(b"no message", Label("s1", 2, 1))
                await sender.publish(sender.batches[4], Label("s1", 3, 2))  # another batch than it says
                await sender.publish(sender.batches[0], Label("s7", 1, 0))  # nobody has introduced it
                other = Publisher(sender.bus, host="h0", session="s8")
                await other.introduce(changed(sender.hello, host="h1", session="s8"))
                await other.publish(sender.batches[0], Label("s8", 1, 0))
                for sequence in range(2, BATCHES + 1):
                    # The bus has had the ids of 2 and 3.
                    await sender.send(sequence, previous=sequence - 2 if sequence in (2, 3) else None)
                await sender.end()
                await wait_until(waiting(sender.bus))
                assert worker.intake._hosts["h0"].strange == 5
                notices = worker.registry.failures.notices
                assert any("s7 of h0 has not introduced itself" in line for line in notices)
                assert any("s8 of h0 is another one's" in line for line in notices)
            assert stored(data) == whole()

    run(test())


def test_two_agents_that_claim_one_host_are_both_stored_and_named(server, tmp_path):
    async def test():
        many = 60  # an agent that follows another one sends for some seconds what that has left behind
        async with publisher(server.settings, many) as first:
            second = Publisher(first.bus, session="s2", clock=Host().batch().clock)
            second.make(many)
            await second.introduce()
            async with working(tmp_path / "data", server.settings) as worker:
                await worker.intake.take("h0")
                for sequence in range(1, many + 1):
                    for sender in (second, first):
                        await sender.send(sequence)
                line = "two agents say that they are h0: sessions s1 and s2; only the second is shown"
                await wait_until(lambda: line in worker.registry.failures.notices)
                for sender in (first, second):
                    await sender.end()
                await wait_until(waiting(first.bus))
        rows = stored_rows(tmp_path / "data")
        assert rows["session"].astype(str).value_counts().to_dict() == {"s1": many * 200, "s2": many * 200}

    run(test())


def test_an_agent_of_another_schema_is_refused_by_name_and_its_batches_stay(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            await sender.introduce_as_schema(99)
            await sender.send(1)
            async with working(tmp_path / "data", server.settings) as worker:
                await worker.intake.take("h0")
                await wait_until(lambda: any("schema version 99" in line for line in worker.registry.failures.notices))
            assert (await sender.bus.jetstream.stream_info("NETMON")).state.messages == 1

    run(test())


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(intake, "FORGET_AFTER_S", 1.0)
    monkeypatch.setattr(session, "SILENT_S", 0.5)
    monkeypatch.setattr(registry, "_SILENT_AFTER_S", 0.5)
    monkeypatch.setattr(registry, "_LEAVE_AFTER_S", 1.0)


@pytest.mark.usefixtures("impatient")
def test_who_was_killed_is_forgotten_when_all_that_it_left_is_stored(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            bus, data = sender.bus, tmp_path / "data"
            for sequence in range(1, BATCHES + 1):
                await sender.send(sequence)
            alive = Publisher(bus, host="h1", session="s2")
            await alive.introduce()
            async with working(data, server.settings) as worker:
                for host in ("h0", "h1"):
                    await worker.intake.take(host)

                async def forgotten():
                    await alive.introduce()  # as one that lives does now and then
                    return await bus.hello("h0", "s1") is None

                await wait_until(forgotten)
                assert stored(data) == whole()
                assert (await bus.jetstream.stream_info("NETMON")).state.messages == 0
                assert await worker.intake.hosts() == {"h1"}
                assert not worker.intake._hosts["h0"].sessions
                await wait_until(waiting_for(bus, "h1", "s2"))

    run(test())


def waiting_for(bus, host, session):
    """→ whether a session that introduces itself no more is forgotten."""

    async def gone():
        return await bus.hello(host, session) is None

    return gone


@pytest.mark.usefixtures("impatient")
def test_who_has_left_something_on_the_bus_is_not_forgotten(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            await sender.introduce_as_schema(99)
            await sender.send(1)
            other = Publisher(sender.bus, host="h0", session="s2")
            await other.introduce()
            async with working(tmp_path / "data", server.settings) as worker:
                await worker.intake.take("h0")
                await wait_until(waiting_for(sender.bus, "h0", "s2"))
                assert await sender.bus.hello("h0", "s1") is not None

    run(test())


def test_a_batch_that_breaks_the_contract_is_left_out_alone(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            data = tmp_path / "data"
            sender.spoil(5)
            async with working(data, server.settings) as worker:
                await worker.intake.take("h0")
                for sequence in range(1, BATCHES + 1):
                    await sender.send(sequence)
                await sender.end()
                await wait_until(waiting(sender.bus))
                assert any("batch 5 of h0" in line for line in worker.registry.failures.notices)
            found = whole()
            del found[5]
            assert stored(data) == found

    run(test())


def test_an_agent_that_is_silent_is_no_load(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender, working(tmp_path / "data", server.settings) as worker:
            await worker.intake.take("h0")
            for sequence in (1, 2, 3):
                await sender.send(sequence)
            await asyncio.sleep(2.5)
            assert worker.registry.intake._backpressure.coarsened == 0

    run(test())


def test_a_bus_that_is_gone_or_comes_back_empty_is_taken_up_again(server, tmp_path):
    async def test():
        async with publisher(server.settings) as sender:
            data = tmp_path / "data"
            async with working(data, server.settings) as worker:
                await worker.intake.take("h0")
                for sequence in (1, 2, 3):
                    await sender.send(sequence)
                await sender.bus.close()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                sender.bus = await Bus.connect(server.settings, "agent")
                for sequence in (4, 5, 6):
                    await sender.send(sequence, known=sequence - 1)
                taken_up = worker.intake._hosts["h0"].sessions["s1"]
                await wait_until(lambda: taken_up.session and taken_up.session.queued == 6)
                await sender.bus.close()
                await asyncio.to_thread(server.kill)
                server.wipe()
                await asyncio.to_thread(server.start)
                sender.bus = await Bus.connect(server.settings, "agent")
                await wait_until(lambda: any("come back empty" in line for line in worker.registry.failures.notices))
                await sender.introduce()
                for sequence in range(8, BATCHES + 1):  # the bus had acknowledged 7, and lost it
                    await sender.send(sequence, known=7)
                await sender.end()
                await wait_until(waiting(sender.bus))
            found = whole()
            del found[7]
            assert stored(data) == found

    run(test())
