# SPDX-License-Identifier: Apache-2.0
"""Several workers on one bus, with real servers: what they store together is what was sent, whoever moves or dies."""

import asyncio
import contextlib
import random
import signal
import time

import pytest
from bus_cluster import Process, Working, assert_true, processes, simulated
from bus_host import wait_until
from in_process import JobsHere
from nats_server import cluster, running

import collector.server
from collector.bus.membership import Bucket
from collector.bus.worker import WorkerSettings
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.bench.specs import Load
from netmon.wire import bus

LOAD = Load(hosts=6, rows=200, flows=8, jobs=3, seconds=6)
WITHOUT_MOST_S = 3.0
HOSTS = {f"sim{number:04}" for number in range(LOAD.hosts)}


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as server:
        yield server


def run(test):
    asyncio.run(asyncio.wait_for(test, 240))


def together(hosts, *workers):
    """Whether every host has one worker, and every job has one worker."""
    held = [worker.held for worker in workers]
    if sum(map(len, held)) != hosts.load.hosts or set().union(*held) != HOSTS:
        return False
    return all(any(set(hosts.names(job)) <= own for own in held) for job in range(hosts.load.jobs))


def all_stored(hosts):
    async def none_waits():
        return await hosts.waiting() == 0

    return none_waits


def test_two_workers_store_what_was_sent_and_jobs_stay_together(server, tmp_path):
    """At first nobody knows which hosts train together: they move, while they train."""

    async def test():
        data = tmp_path / "data"
        async with (
            simulated(server.settings, LOAD) as hosts,
            Working(data, server.settings, "w1") as one,
            Working(data, server.settings, "w2") as other,
        ):
            await wait_until(lambda: one.held | other.held == HOSTS and len(one.held) == len(other.held))
            await hosts.publish(0, 10)
            await wait_until(lambda: together(hosts, one, other))
            await hosts.publish(10, hosts.spans)
            await hosts.end()
            await wait_until(all_stored(hosts))
            assert together(hosts, one, other)
            assert min(len(one.held), len(other.held)) >= 2
        assert_true(hosts.verdict(data))

    run(test())


def test_a_job_moves_while_it_trains(server, tmp_path):
    """Two workers leave in turn, and come back."""

    async def test():
        data = tmp_path / "data"
        async with simulated(server.settings, LOAD) as hosts, Working(data, server.settings, "w1") as one:
            await wait_until(lambda: one.held == HOSTS)
            await hosts.publish(0, 7)
            async with Working(data, server.settings, "w2") as other:
                publishing = asyncio.create_task(hosts.publish(7, hosts.spans, every_s=0.3))
                await wait_until(lambda: len(other.held) >= 2)
                await wait_until(lambda: together(hosts, one, other))
                await one.leave()
                await wait_until(lambda: other.held == HOSTS)
                async with Working(data, server.settings, "w1") as again:
                    await wait_until(lambda: len(again.held) >= 2)
                    await publishing
                    await hosts.end()
                    await wait_until(all_stored(hosts))
        assert_true(hosts.verdict(data))

    run(test())


def owned(hosts, worker):
    """Hosts that a worker has by the bus."""

    async def several():
        owners = (await Bucket(hosts.bus, "netmon-owners").read()).values
        own = [host for host, value in owners.items() if value.data == worker.name.encode()]
        return owners.keys() == HOSTS and len(own) >= LOAD.hosts // LOAD.jobs

    return several


def test_a_worker_that_is_killed_is_taken_over(server, tmp_path):
    async def test():
        async with simulated(server.settings, LOAD) as hosts:
            with processes(tmp_path, server.settings, "w1", "w2") as (one, other):
                for worker in (one, other):
                    await wait_until(owned(hosts, worker))
                await hosts.publish(0, 15, every_s=0.2)
                one.process.kill()
                await hosts.publish(15, hosts.spans, every_s=0.2)
                await hosts.end()
                await wait_until(all_stored(hosts))
        assert_true(hosts.verdict(tmp_path / "data"))

    run(test())


def test_a_worker_that_was_paused_stores_nothing_that_the_other_one_stores(server, tmp_path):
    async def test():
        async with simulated(server.settings, LOAD) as hosts:
            with processes(tmp_path, server.settings, "w1", "w2") as (one, other):
                for worker in (one, other):
                    await wait_until(owned(hosts, worker))
                await hosts.publish(0, 12, every_s=0.2)
                one.process.send_signal(signal.SIGSTOP)
                stopped = time.monotonic()
                try:
                    await hosts.publish(12, 18, every_s=0.1)
                    # Where it was stopped in its turn nobody can take anything until it goes on.
                    await wait_until(lambda: other.said().count("took") > 1 or time.monotonic() - stopped > 20)
                finally:
                    one.process.send_signal(signal.SIGCONT)
                await hosts.publish(18, hosts.spans, every_s=0.2)
                await hosts.end()
                await wait_until(all_stored(hosts))
        assert_true(hosts.verdict(tmp_path / "data"))

    run(test())


def test_a_worker_waits_for_most_of_the_servers_as_it_does_for_all(tmp_path, monkeypatch, caplog):
    """The one that is there cannot decide anything: it says nothing, and after some time that it cannot."""
    monkeypatch.setattr(collector.server, "_BUS_WITHIN_S", 0.0)
    monkeypatch.setattr(bus, "_ANSWER_S", 0.5)

    async def test(servers):
        settings = WorkerSettings(servers[0].settings, "w1")
        with contextlib.closing(ParquetSink(tmp_path / "data", "w1")) as sink:
            beginning = asyncio.create_task(
                collector.server._among(settings, Registry(sink, Settings(), JobsHere()), sink)
            )
            await wait_until(lambda: "waiting for it" in caplog.text or beginning.done())
            await asyncio.sleep(WITHOUT_MOST_S)
            assert not beginning.done(), beginning.exception()
            for server in servers[1:]:
                server.start()
            await (await beginning).close()

    with cluster(tmp_path) as servers:
        for server in servers[1:]:
            server.kill()
        run(test(servers))


@pytest.mark.long
def test_workers_that_are_killed_again_and_again_lose_nothing(server, tmp_path):
    """At any moment: while hosts are taken, released, written or acknowledged."""
    load = Load(hosts=6, rows=200, flows=8, jobs=3, seconds=12)
    chance = random.Random(1)

    async def test():
        async with simulated(server.settings, load) as hosts:
            with processes(tmp_path, server.settings, "w1", "w2") as started:
                publishing = asyncio.create_task(hosts.publish(0, hosts.spans, every_s=0.8))
                while not publishing.done():
                    await asyncio.sleep(chance.uniform(1, 5))
                    victim = chance.randrange(2)
                    started[victim].process.kill()
                    started[victim].process.wait()
                    started[victim] = Process(tmp_path, server.settings, started[victim].name)
                await publishing
                await hosts.end()
                await wait_until(all_stored(hosts), 120)
        assert_true(hosts.verdict(tmp_path / "data"))

    run(test())
