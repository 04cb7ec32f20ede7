# SPDX-License-Identifier: Apache-2.0
"""What the collector makes of training that nobody tells about: three hosts in a ring, seen by their traffic only."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from collector_stream import MS, TrainingAgent, clock, hello, mark, rows
from in_process import take
from test_store import Collector, read

from collector.job_exchange import build_news
from netmon.dl.understanding import Understanding
from netmon.history.dataset import not_understood
from netmon.history.judging import verdicts
from netmon.records import Batch, Direction, Flow, Moment, Owner, Source

HOSTS = 3
PERIOD_MS, SENDING_MS = 300, 150
TX, RX = 1, 2


def address(host):
    return f"198.18.0.{host % HOSTS + 1}"


def flows(host, owner):
    ends = (
        (TX, Direction.TX, host, host + 1),
        (RX, Direction.RX, host + HOSTS - 1, host + HOSTS),
    )
    return [Flow(n, 7, d, address(a), address(b), 4000 + a % HOSTS, 29500, 6, 0, owner) for n, d, a, b in ends]


def batches(host, seconds, owner=Owner(), marks=lambda first, last: (), late_s=0):  # noqa: B008 (frozen)
    """10 batches a second; each iteration sends 15 MB to the next host, the first one at 1 s. late_s: when it is known
    whose that is.
    """
    random, agent = np.random.default_rng(host), TrainingAgent()
    for number in range(10 * seconds):
        first, last = 100 * number, 100 * number + 100
        times = [t for t in range(first, last) if t >= 1000 and (t - 1000) % PERIOD_MS < SENDING_MS]
        sent = [(flow, t, 100_000 + int(random.integers(-500, 500))) for t in times for flow in (TX, RX)]
        described = flows(host, Owner() if number < 10 * late_s else owner) if number in (0, 10 * late_s) else ()
        yield Batch(number + 1, clock(last * MS), last * MS, rows(*sent), described, agent.training(marks(first, last)))


async def collect(directory, seconds, **said):
    """All hosts' batches, one after the other, and the inference now and then; returns the last snapshot."""
    collector = Collector(directory)
    registry = collector.registry
    entries = [
        await registry.open(hello(host=f"h{host}", session=f"s{host}"), asyncio.Event()) for host in range(HOSTS)
    ]
    told = {key: value if callable(value) else (lambda _, value=value: value) for key, value in said.items()}
    streams = [batches(host, seconds, **{key: of(host) for key, of in told.items()}) for host in range(HOSTS)]
    for turn, together in enumerate(zip(*streams, strict=True)):
        for entry, batch in zip(entries, together, strict=True):
            take(registry, entry, batch)
        if turn % 3 == 0:
            await registry.infer()
    snapshot = registry.snapshot(10)
    for entry in entries[1:]:
        registry.settle(entry, leaving=True)
    await collector.end(entries[0])
    return snapshot


def test_training_that_nobody_knows_is_found(tmp_path):
    snapshot = asyncio.run(collect(tmp_path, 12))
    (job,) = snapshot.jobs
    assert job.job.startswith("traffic-")
    assert (job.size, job.pattern, job.source, job.relative) == (3, "ring", Source.INFERRED, True)
    assert job.median_ns == pytest.approx(PERIOD_MS * MS, rel=0.02)
    iterations = read(tmp_path, "iterations")
    assert len(iterations) >= 3 * 30
    for _, of_rank in iterations.groupby("rank"):
        of_rank = of_rank.sort_values("iteration")
        assert (np.diff(of_rank["iteration"]) == 1).all()
        assert (of_rank["start_ns"].to_numpy()[1:] >= of_rank["end_ns"].to_numpy()[:-1]).all()
        late = of_rank.iloc[15:-1]
        # To the millisecond: its boundary is no finer, and its rows had settled.
        assert late["dl_tx_bytes"].between(0.97 * 15e6, 1.03 * 15e6).all()
        assert late["unclassified_tx_bytes"].max() == 0
    seen = read(tmp_path, "flows")
    assert set(seen["class_source"]) == {"traffic"}
    assert set(seen["class"]) == {"DL-only"}
    assert seen.groupby("host", observed=True)["rank"].nunique().to_dict() == {"h0": 1, "h1": 1, "h2": 1}
    assert sorted(seen.drop_duplicates("host")["rank"]) == [0, 1, 2]


def test_ranks_whose_steps_nobody_tells_get_them_from_the_traffic(tmp_path):
    def owner(host):
        return Owner(10, "python", "", "bert", 2 - host, "socket")

    snapshot = asyncio.run(collect(tmp_path, 8, owner=owner))
    (job,) = snapshot.jobs
    assert (job.job, job.pattern, job.source) == ("bert", "ring", Source.INFERRED)
    assert {rank.rank: rank.host for rank in job.ranks} == {0: "h2", 1: "h1", 2: "h0"}
    assert set(read(tmp_path, "flows")["class_source"]) == {"socket"}


def test_a_job_that_follows_another_on_the_same_hosts_has_its_own_name(tmp_path):
    """The traffic seems to go on, on other connections."""

    async def scenario():
        collector = Collector(tmp_path)
        registry = collector.registry
        entries = [
            await registry.open(hello(host=f"h{host}", session=f"s{host}"), asyncio.Event()) for host in range(HOSTS)
        ]
        owners = [[Owner(10, "python", "", job, host, "socket") for host in range(HOSTS)] for job in ("bert", "gpt")]
        streams = [batches(host, 20, owner=owners[0][host]) for host in range(HOSTS)]
        for turn, together in enumerate(zip(*streams, strict=True)):
            for host, (entry, batch) in enumerate(zip(entries, together, strict=True)):
                if turn >= 100:
                    batch.buckets["flow_id"] += 2
                if turn == 100:
                    new = [replace(flow, flow_id=flow.flow_id + 2) for flow in flows(host, owners[1][host])]
                    batch = replace(batch, flows=[replace(flow, src_port=5000 + flow.src_port) for flow in new])
                take(registry, entry, batch)
            if turn % 3 == 0:
                await registry.infer()
        for entry in entries[1:]:
            registry.settle(entry, leaving=True)
        await collector.end(entries[0])

    asyncio.run(scenario())
    iterations = read(tmp_path, "iterations").sort_values("start_ns")
    late = iterations[iterations["start_ns"] > iterations["start_ns"].iloc[-1] - 4_000 * MS]
    assert set(late["job"]) == {"gpt"}
    assert set(iterations["job"]) == {"bert", "gpt"}


def test_what_others_tell_is_better_and_the_traffic_is_scored(tmp_path):
    def owner(host):
        return Owner(10, "python", "", "bert", host, "socket")

    def marks(host):
        def between(first, last):
            if first == 0:
                yield mark(Moment.JOIN, 0, 0, job="bert", rank=host, size=HOSTS)
            for time_ms in range(max(first, 900), last):
                number, phase = divmod(time_ms - 900, PERIOD_MS)
                moments = {0: Moment.STEP_START, 98: Moment.FIRST_ENQUEUE, 251: Moment.LAST_WAIT, 298: Moment.STEP_END}
                if phase in moments:
                    yield mark(moments[phase], number, time_ms, job="bert", rank=host, size=HOSTS)

        return between

    snapshot = asyncio.run(collect(tmp_path, 10, owner=owner, marks=marks))
    (job,) = snapshot.jobs
    (score,) = job.scores
    assert (job.source, job.pattern) == (Source.HOOK, "ring")
    assert (score.source, score.reference) == (Source.INFERRED, Source.HOOK)
    assert score.iterations > 3 * 15
    assert score.f1 == pytest.approx(1, abs=0.03)
    assert score.error_ns <= 5 * MS
    assert set(read(tmp_path, "iterations")["source"]) == {"hook"}


@pytest.mark.parametrize("process", ["python", "rsync"])
def test_when_it_is_known_whose_the_traffic_is_the_job_without_a_name_is_over(tmp_path, process):
    """On a slow host that takes longer than the traffic needs to be understood."""

    def owner(host):
        return Owner(10, process, "", "bert" if process == "python" else "", host, "socket")

    snapshot = asyncio.run(collect(tmp_path, 16, owner=owner, late_s=8))
    iterations = read(tmp_path, "iterations").sort_values("start_ns")
    late = iterations[iterations["start_ns"] > iterations["start_ns"].iloc[0] + 9_000 * MS]
    if process == "python":
        assert [job.job for job in snapshot.jobs] == ["bert"]
        assert set(late["job"]) == {"bert"}
    else:
        assert snapshot.jobs == ()
        assert late.empty


def test_a_known_process_is_not_taken_for_training(tmp_path):
    snapshot = asyncio.run(collect(tmp_path, 8, owner=Owner(10, "rsync", source="socket")))
    assert snapshot.jobs == ()
    assert set(read(tmp_path, "flows")["class"]) == {"cross"}


def test_a_job_whose_flows_are_several_jobs_marks_nothing(tmp_path):
    """What looks like one job is wrong where its processes say that they train in two."""

    def owner(host):
        return Owner(10, "python", "", "gpt" if host == 2 else "bert", host, "socket")

    snapshot = asyncio.run(collect(tmp_path, 8, owner=owner))
    assert all(not job.pattern and not len(job.durations_ns) for job in snapshot.jobs)
    assert not (tmp_path / "iterations").exists()
    assert set(read(tmp_path, "flows")["class_source"]) == {"socket"}


def test_a_broken_inference_stops_nothing_else(tmp_path, monkeypatch, caplog):
    def broken(*_):
        raise ValueError("no")

    monkeypatch.setattr("collector.jobs.worker.Inference.advance", broken)
    snapshot = asyncio.run(collect(tmp_path, 2))
    assert snapshot.warnings == ("nothing is inferred from traffic any more: ValueError('no')",)
    assert len(caplog.messages) == 1
    assert len(read(tmp_path, "buckets"))


def test_a_bucket_table_is_told_in_milliseconds(tmp_path):
    async def scenario():
        collector = Collector(tmp_path)
        entry = await collector.registry.open(hello(), asyncio.Event())
        first = next(batches(0, 1))
        take(collector.registry, entry, replace(first, buckets=rows((TX, 3, 10), (TX, 3, 5), (RX, 3, 7), (TX, 4, 0))))
        updates = collector.registry._job_exchange.updates[entry]
        news = build_news([updates], [updates], [])
        assert news.payload["payload_bytes"].tolist() == [15, 7]
        assert sorted(flow.direction for flow in news.flows) == [Direction.RX, Direction.TX]
        collector.store.close()

    asyncio.run(scenario())


def steps_of(host, understanding, source):
    """Marks of the host's rank, whose agent says at the beginning how far its calls are understood."""

    moments = (
        (Moment.STEP_START, Moment.STEP_END) if source is Source.HOOK else (Moment.FIRST_ENQUEUE, Moment.LAST_WAIT)
    )
    bounds = dict(zip((98, 251), moments, strict=True))

    def between(first, last):
        about = {"job": "bert", "rank": host, "size": HOSTS}
        if first == 0:
            for one in {Source.UPROBE, source}:
                yield mark(Moment.JOIN, understanding if one is Source.UPROBE else 0, 0, source=one, **about)
        for time_ms in range(max(first, 900), last):
            number, phase = divmod(time_ms - 900, PERIOD_MS)
            if phase in (98, 251):
                yield mark(bounds[phase], number, time_ms, source=source, **about)

    return between


@pytest.mark.parametrize(
    ("understanding", "source", "told"),
    [
        (Understanding.UNDERSTOOD, Source.UPROBE, {"uprobe"}),
        (Understanding.NOT_UNDERSTOOD, Source.UPROBE, set()),
        (Understanding.NOT_UNDERSTOOD, Source.HOOK, {"hook"}),  # the script says what a step is
    ],
)
def test_steps_that_are_not_understood_are_no_facts(tmp_path, caplog, understanding, source, told):
    """It is enough that one rank's agent says so."""
    owners = {host: Owner(10, "python", "", "bert", host, "socket") for host in range(HOSTS)}
    state = {host: understanding if host == 0 else Understanding.UNDERSTOOD for host in range(HOSTS)}
    marks = {host: steps_of(host, state[host], source) for host in range(HOSTS)}
    snapshot = asyncio.run(collect(tmp_path, 8, owner=owners.get, marks=marks.get))
    stored = (tmp_path / "iterations").exists()
    assert (set(read(tmp_path, "iterations")["source"]) if stored else set()) == told
    (job,) = snapshot.jobs
    assert job.not_understood == (not told)
    line = "job bert: this job's steps are not understood"
    assert [line in snapshot.warnings, sum(line in one for one in caplog.messages)] == [not told, int(not told)]
    assert set(read(tmp_path, "flows")["traffic"]) == {"gradient" if told else "unexplained"}
    rows_of = read(tmp_path, "buckets")
    assert set(rows_of["class"]) == {"DL-only"}
    assert (rows_of["iteration"] >= 0).any() == bool(told)
    assert not (tmp_path / "verdicts").exists()
    if not told:
        assert [*verdicts(tmp_path)] == []
        assert not_understood(tmp_path) == ["bert"]


@pytest.mark.parametrize("understanding", [Understanding.UNDECIDED, Understanding.NOT_UNDERSTOOD])
def test_the_traffic_does_not_know_better_than_calls(tmp_path, understanding):
    def joins(host):
        about = {"job": "bert", "rank": host, "size": HOSTS, "source": Source.UPROBE}
        return lambda first, last: () if first else [mark(Moment.JOIN, understanding, 0, **about)]

    owners = {host: Owner(10, "python", "", "bert", host, "socket") for host in range(HOSTS)}
    asyncio.run(collect(tmp_path, 8, owner=owners.get, marks=joins))
    assert not (tmp_path / "iterations").exists()
