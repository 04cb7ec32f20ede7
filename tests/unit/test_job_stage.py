# SPDX-License-Identifier: Apache-2.0
"""What the job stage knows, and that it forgets what is over."""

import asyncio
import gc
import weakref
from dataclasses import replace

import numpy as np
from collector_stream import Host, hello
from in_process import JobsHere, take
from job_news import SLICE_MS, slices
from lines_run import lines_run
from training_traffic import MS, Wire, ring

from collector.dataset.sink import ParquetSink
from collector.jobs.worker import JobStage
from collector.messages import ONSET_UPDATE, HostNews, session_of
from collector.registry import Registry
from collector.settings import Settings
from netmon.dl.inference import live


def test_a_stage_forgets_sessions_that_are_over():
    wire = Wire()
    wire.train(ring("1", "2", "3"), [100] * 8)
    stage, last = JobStage(), 0
    for news in slices(wire):
        stage.answer(news)
        last = news.horizon_ns
    inferring, clocks = stage._inferring, stage._clocks
    places = {session_of(flow) for flow in inferring._flows}
    onsets = np.zeros(len(inferring._flows), ONSET_UPDATE)
    onsets["flow"] = sorted(inferring._flows)
    stage.answer(HostNews(onsets=onsets, horizon_ns=last))
    assert (len(places), len(clocks._ends), len(clocks._ends.pairs), len(clocks._ends.links())) == (3, 6, 3, 3)
    stage.answer(HostNews(ended=[min(places)], horizon_ns=last + 10**9))
    assert (len(inferring._flows), len(clocks._ends), len(clocks._ends.pairs), len(clocks._ends.links())) == (
        4,
        4,
        1,
        1,
    )
    stage.answer(HostNews(ended=sorted(places)[1:], horizon_ns=last + 2 * 10**9))
    stage.answer(HostNews(horizon_ns=last + 3 * 10**9))
    assert (inferring._flows, inferring._sessions, inferring._jobs) == ({}, {}, {})
    assert (len(clocks._ends), clocks._ends.pairs, clocks._corrections, clocks._coarse) == (0, [], {}, {})
    stage.answer(HostNews(horizon_ns=last + 60 * 10**9))
    inference = inferring._inference
    schedule, verdicts = inference._looking, inference._verdicts
    for known in (inference._flows, inference._hosts, inference._bursts, inference._reported, inference._jobs):
        assert not known
    for known in (schedule.looks, schedule._lively, schedule._of_ends, schedule._edges, schedule._next):
        assert not known
    for known in (verdicts._between, verdicts._toward, verdicts._volume, verdicts._reported, verdicts._known):
        assert not known


def turn_with(flows: int) -> int:
    """Lines that a turn takes with so many flows of one host that have paused and gone on, and are silent now."""
    wire = Wire()
    for number in range(flows):
        flow = wire.flow(("1", str(2 + number // 2)) if number % 2 else (str(2 + number // 2), "1"))
        for time_ms in (5, 600, 1200):
            wire.send(flow, (time_ms + number % 50) * MS, 5_000 + 17 * number, rate=5_000 + 17 * number)
    stage, last = JobStage(), 0
    for news in slices(wire):
        stage.answer(news)
        last = news.horizon_ns
    return lines_run(lambda: stage.answer(HostNews(horizon_ns=last + SLICE_MS * MS)))


def test_a_turn_has_an_end():
    """However many flows might be looked at."""
    assert turn_with(800) < 3 * turn_with(100)


def test_flows_of_jobs_that_tell_their_iterations_are_looked_at_less(monkeypatch):
    looks = []
    for marked in (frozenset(), frozenset({"a"})):
        looked = []
        monkeypatch.setattr(live, "repetition", lambda rows, now_ns, looked=looked: looked.append(now_ns))
        wire = Wire()
        for ends in (("1", "2"), ("2", "1")):
            flow = wire.flow(ends)
            for number in range(200):
                wire.send(flow, (5 + 200 * number) * MS, 1_000_000 + 17_000 * number, rate=50_000_000)
        stage = JobStage()
        for news in slices(wire):
            flows = [flow._replace(job="a", rank=session_of(flow.flow)) for flow in news.flows]
            stage.answer(replace(news, flows=flows, marked=marked))
        looks.append(len(looked))
    assert 0 < 4 * looks[1] < looks[0]  # the longer it is known, the less


def test_nothing_holds_a_session_that_is_over(tmp_path):
    async def scenario():
        store = ParquetSink(tmp_path)
        registry = Registry(store, Settings(), JobsHere())
        host = Host()
        entry = await registry.open(hello(), asyncio.Event())
        for _ in range(20):
            take(registry, entry, host.batch())
            await registry.infer()
        kept = weakref.ref(entry)
        registry.settle(entry, leaving=True)
        await registry.flush()
        await registry.discard(entry)
        del entry
        registry.tick()  # viewers see the sessions of the last one, and the job stage is told
        assert not len(registry._stage._answer.__self__)
        await registry.infer()  # the job stage is told
        gc.collect()
        store.close()
        return kept()

    assert asyncio.run(scenario()) is None
