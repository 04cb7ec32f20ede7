# SPDX-License-Identifier: Apache-2.0
"""The job stage in a process of its own: the same answers, and what happens when either process ends."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from collector_stream import Host, hello
from in_process import take
from job_news import slices
from training_traffic import Wire, ring
from waiting import wait_for

from collector.dataset.sink import ParquetSink
from collector.jobs.process import JobStageProcess
from collector.jobs.worker import JobStage
from collector.messages import HostNews, JobNews
from collector.registry import Registry
from collector.settings import Settings


@pytest.fixture
def apart():
    jobs = JobStageProcess()
    yield jobs
    jobs.close()


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_answers_as_the_stage_does_in_this_process(apart):
    wire = Wire()
    wire.train(ring("1", "2", "3"), [100] * 8)
    stage, marks = JobStage(), 0
    for news in slices(wire):
        here, there = stage.answer(news), asyncio.run(apart.exchange(news))
        assert (there.marks, there.owners, there.patterns) == (here.marks, here.owners, here.patterns)
        marks += len(there.marks)
    assert marks > 3 * 5
    assert apart.pid not in (0, os.getpid())


def test_one_that_dies_is_started_again_once(apart, caplog):
    asyncio.run(apart.exchange(HostNews()))
    first = apart.pid
    os.kill(first, signal.SIGKILL)
    assert asyncio.run(apart.exchange(HostNews())).begins_anew
    assert not asyncio.run(apart.exchange(HostNews())).begins_anew
    assert apart.pid not in (0, first)
    os.kill(apart.pid, signal.SIGKILL)
    asyncio.run(apart.exchange(HostNews()))
    assert not apart.alive
    assert asyncio.run(apart.exchange(HostNews())).marks == ()
    assert [line.rpartition("; ")[2] for line in caplog.messages] == [
        "it is started again",
        "the collector goes on without it",
    ]
    assert apart.trouble == (
        "the process that compares hosts has died twice: nothing is inferred from traffic any more",
    )


def test_it_ends_with_the_collector_and_not_before(apart):
    asyncio.run(apart.exchange(HostNews()))
    pid = apart.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    asyncio.run(apart.exchange(HostNews()))
    assert apart.pid == pid
    apart.close()
    assert gone(pid)


def test_it_ends_with_a_collector_that_is_killed():
    script = """
import asyncio, time
from collector.jobs.process import JobStageProcess
from collector.messages import HostNews, JobNews
apart = JobStageProcess()
asyncio.run(apart.exchange(HostNews()))
print(apart.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as collector:
        pid = int(collector.stdout.readline())
        assert not gone(pid)
        collector.kill()
    wait_for(lambda: gone(pid), 30)


def test_a_stage_that_takes_long_is_asked_seldom_and_viewers_are_told(tmp_path, apart):
    async def scenario():
        store = ParquetSink(tmp_path)
        registry = Registry(store, Settings(), apart)
        entry, host = await registry.open(hello(), asyncio.Event()), Host()
        rests, cpu_s = [], [0.001, 1.0, 4.0, 60.0, 0.001]

        async def answering(news):
            return JobNews(cpu_s=cpu_s.pop(0))

        apart.exchange = answering
        while cpu_s:
            take(registry, entry, host.batch())
            await registry.infer()
            told = any("hosts are compared only every" in line for line in registry.freeze().warnings)
            rests.append((registry.infer_rest_s, told))
        store.close()
        return rests

    usual, *slow, again = asyncio.run(scenario())
    assert slow == [(4.0, True), (10.0, True), (10.0, True)]
    assert max(usual, again) < (1.0, True)


def test_what_was_told_is_told_again_to_one_that_was_started_again(tmp_path, apart):
    async def scenario():
        store = ParquetSink(tmp_path)
        registry = Registry(store, Settings(), apart)
        entry, host = await registry.open(hello(), asyncio.Event()), Host()
        told = []
        exchange = apart.exchange

        async def listening(news):
            told.append([flow.flow for flow in news.flows])
            return await exchange(news)

        apart.exchange = listening
        for turn in range(4):
            take(registry, entry, host.batch())
            if turn == 2:
                os.kill(apart.pid, signal.SIGKILL)
            await registry.infer()
        store.close()
        return told

    first, second, third, fourth = asyncio.run(scenario())
    assert (len(first), second, third) == (2, [], [])
    assert sorted(fourth) == sorted(first)
