# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_traffic import (
    BYTES_PER_MS,
    MS,
    SECOND,
    START,
    Wire,
    assert_same_iterations,
    both_ways,
    described,
    replay,
    ring,
)

from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import CONTROL, GRADIENT, TRAFFIC, LinkFlow

PATTERNS = {
    "ring": ring("1", "2", "3", "4"),
    "star": both_ways(("1", "2"), ("1", "3"), ("1", "4")),
    "tree": both_ways(("1", "2"), ("1", "3"), ("2", "4"), ("2", "5")),
    "clique": both_ways(("1", "2"), ("1", "3"), ("1", "4"), ("2", "3"), ("2", "4"), ("3", "4")),
    "hierarchical": [*ring("1", "2", "3"), *both_ways(("1", "4"), ("2", "5"), ("3", "6"))],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_job_its_pattern_and_its_iterations(pattern):
    wire = Wire()
    begun = wire.train(PATTERNS[pattern], [60] * 12)
    said = replay(wire, after_s=15)
    job = said.jobs["traffic-1"]
    assert len(said.jobs) == 1
    assert job.pattern == pattern
    assert job.ended
    assert set(job.members) == {f"10.0.0.{host}" for edge in PATTERNS[pattern] for host in edge}
    assert job.hosts == tuple(f"host-{member[-1]}" for member in job.members)
    assert_same_iterations(said, begun)
    assert [i.number for i in said.iterations] == list(range(12))
    assert all(i.start_ns <= i.comm_start_ns < i.comm_end_ns == max(i.received_ns) == i.end_ns for i in said.iterations)
    assert [i.start_ns for i in said.iterations[1:]] == [i.end_ns for i in said.iterations[:-1]]


def test_it_is_known_after_three_iterations():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [300] * 8)
    said = replay(wire)
    assert said.told[0] <= begun[3] + 200 * MS


def test_the_order_of_a_ring():
    wire = Wire()
    wire.train(ring("3", "1", "4", "2"), [60] * 8)
    assert replay(wire).jobs["traffic-1"].members == ("10.0.0.1", "10.0.0.4", "10.0.0.2", "10.0.0.3")


def test_bytes_and_period():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [100] * 10, volume=6_000_000)
    job = replay(wire).jobs["traffic-1"]
    assert job.bytes_per_iteration == pytest.approx(6_000_000, rel=0.001)
    assert job.period_ns == pytest.approx(np.median(np.diff(begun)), rel=0.05)


@pytest.mark.parametrize("compute_ms", [10, 400], ids=["a tenth of it quiet", "nine tenths of it quiet"])
def test_the_share_of_computing(compute_ms):
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [compute_ms] * 15, pause_ms=2)
    assert_same_iterations(replay(wire, after_s=15), begun)


def test_equal_blocks_are_not_iterations():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [120] * 10, volume=16_000_000, blocks=8, pause_ms=6)
    assert_same_iterations(replay(wire, after_s=15), begun)


def test_equal_blocks_in_step_are_mistaken_for_iterations_only_at_first():
    wire = Wire()
    flows, begun, now = [wire.flow(edge) for edge in ring("1", "2", "3")], [], 0.0
    for _ in range(20):
        begun.append(START + now)
        for _ in range(6):
            now = max(wire.send(flow, now, 1_200_000) for flow in flows) + 12 * MS
        now += 90 * MS
    said = replay(wire, after_s=15)
    late = said.starts()[said.starts() >= begun[8] - MS]
    assert set(said.jobs) == {"traffic-1"}
    assert len(late) == 12
    assert np.abs(late - begun[8:]).max() <= MS


def of_layers(wire, volumes, pause_ms, between_ms, steps=14, first_ms=0.0):
    """All-gathers forward, and backward with as many reduce-scatters; when each step began.

    between_ms: between the passes, and between steps.
    """
    flows, begun, now = [wire.flow(edge) for edge in ring("1", "2", "3")], [], first_ms * MS
    backward = [(volume, pause) for volume in volumes[::-1] for pause in (2 * pause_ms, pause_ms / 2)]
    for _ in range(steps):
        begun.append(START + now)
        for last, passed in zip(between_ms, ([(volume, pause_ms) for volume in volumes], backward), strict=True):
            for volume, pause in passed:
                now = max(wire.send(flow, now, volume) for flow in flows) + pause * MS * wire.random.normal(1, 0.05)
            now += last * MS
    return np.array(begun)


@pytest.mark.parametrize(
    ("count", "pause_ms", "step_ms"), [(12, 4, 30), (24, 2, 60), (40, 4, 30), (48, 4, 12), (64, 6, 100)]
)
def test_layers_are_not_steps_however_many_they_are(count, pause_ms, step_ms):
    wire = Wire()
    begun = of_layers(wire, [1_200_000] * count, pause_ms, (0, step_ms))
    said = replay(wire, after_s=15)
    assert_same_iterations(said, begun[: len(said.starts())])  # the last one is not over yet
    assert len(said.starts()) >= len(begun) - 1


def test_steps_begin_where_the_flows_began_though_ranks_compute_for_longest_in_the_midst():
    wire = Wire()
    volumes = np.random.default_rng(1).integers(200_000, 3_000_000, 16).tolist()
    begun = of_layers(wire, volumes, 5, (60, 5), first_ms=3_000)  # the hosts were watched before
    assert_same_iterations(replay(wire, after_s=15, watched=True), begun)


@pytest.mark.parametrize("longer", [(5,), (20,), (5, 40), (3, 60, 61)])
def test_a_job_of_short_steps_is_found_though_some_took_longer(longer):
    wire = Wire()
    compute_ms = wire.random.normal(20, 2, 300)
    compute_ms[[*longer]] = 2_000
    begun = wire.train(ring("1", "2", "3"), compute_ms, volume=600_000, blocks=1)
    assert_same_iterations(replay(wire, after_s=15), begun)


def test_long_pauses_of_a_busy_host_are_not_those_between_steps():
    wire = Wire()
    compute_ms = np.full(100, 50)
    compute_ms[[2, 9, 26, 38, 39, 60, 85, 97]] = 130
    begun = wire.train(ring("1", "2"), compute_ms, volume=1_000_000, blocks=1)
    said = replay(wire, after_s=15)
    assert set(said.jobs) == {"traffic-1"}
    assert_same_iterations(said, begun[-len(said.starts()) :])
    assert len(said.starts()) >= 60


def test_drift_a_pause_and_another_batch_size():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [*np.linspace(60, 90, 10), *([4000] + [60] * 5), *[180] * 8])
    said = replay(wire, after_s=15)
    assert set(said.jobs) == {"traffic-1"}
    assert_same_iterations(said, begun)


def test_another_model_goes_on_as_the_same_job():
    wire = Wire()
    edges = ring("1", "2", "3")
    flows = [wire.flow(edge) for edge in edges]
    begun, now = [], 0.0
    for volume in [4_000_000] * 8 + [7_000_000] * 8:
        begun.append(START + now)
        now = max(wire.send(flow, now, volume) for flow in flows) + 80 * MS
    said = replay(wire, after_s=15)
    assert set(said.jobs) == {"traffic-1"}
    starts = said.starts()
    assert np.isin(begun[:8], starts).all()
    assert np.isin(begun[8:], starts).all()
    assert said.jobs["traffic-1"].bytes_per_iteration == pytest.approx(7_000_000, rel=0.01)


def test_the_end_of_a_job_and_a_new_one():
    wire = Wire()
    first = wire.train(ring("1", "2", "3"), [60] * 10)
    second = wire.train(ring("1", "2", "3"), [90] * 10, begin_ms=30_000, port=41_000, volume=5_000_000)
    said = replay(wire, after_s=15)
    assert_same_iterations(said, first, "traffic-1")
    assert_same_iterations(said, second, "traffic-2")
    assert all(job.ended for job in said.jobs.values())


def test_a_job_that_goes_on_after_a_long_pause():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [60] * 8 + [20_000] + [60] * 6)
    said = replay(wire, after_s=15)
    assert set(said.jobs) == {"traffic-1"}
    assert_same_iterations(said, begun)
    assert said.iterations[8].start_ns == said.iterations[8].comm_start_ns


def test_what_a_rank_says_next_tells_when_it_is_through():
    wire = Wire()
    edges = ring("1", "2", "3")
    flows = [wire.flow(edge) for edge in edges]
    now, through = 0.0, []
    for _ in range(10):
        end = max(wire.send(flow, now, 4_000_000) for flow in flows)
        through.append([START + end + lag * MS for lag in (3, 5, 40)])
        for flow, at in zip(flows, (3, 5, 40), strict=True):
            for k in range(at, 60):
                wire.send(flow, end + k * MS, 100)
        now = end + 80 * MS
    iterations = replay(wire, after_s=15).iterations
    late = np.array([i.received_ns for i in iterations]) - np.array(through[: len(iterations)])
    assert len(iterations) == 10
    assert np.abs(late[:, :2]).max() <= MS
    assert np.abs(late[:, 2] + 40 * MS).max() <= MS  # too long after: it says nothing


def test_what_is_short_or_much_between_two_members_is_not_their_control_traffic():
    wire = Wire()
    wire.train(ring("1", "2", "3"), [80] * 12)
    short = [wire.flow(("1", "2"), 46_000 + k) for k in range(30)]
    for k, flow in enumerate(short):
        wire.send(flow, 700 * MS + k * 20 * MS, 30_000)
    crowd = [wire.flow(("2", "3"), 47_000 + k) for k in range(50)]
    for k in range(100):
        wire.send(crowd[k % 50], 500 * MS + k * 10 * MS, 60_000)
    said = replay(wire)
    assert not [flow for pair in short + crowd for flow in pair if flow in said.verdicts]


def test_fine_buckets_change_nothing():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [80] * 10, blocks=1)
    said = replay(wire, after_s=15, resolution_ns=10_000)
    assert_same_iterations(said, begun)


def test_a_stalled_link_and_a_lost_segment():
    wire = Wire()
    edges = ring("1", "2", "3")
    flows = [wire.flow(edge) for edge in edges]
    begun, now = [], 0.0
    for iteration in range(14):
        begun.append(START + now)
        rates = [BYTES_PER_MS, BYTES_PER_MS, BYTES_PER_MS * (0.2 if iteration % 2 else 0.6)]
        ends = []
        for flow, rate in zip(flows, rates, strict=True):
            part = int(4_000_000 * wire.random.uniform(0.1, 0.8))
            at = wire.send(flow, now, part, rate)
            at += 200 * MS if iteration % 3 == 0 else 0  # TCP's least retransmission timeout
            ends.append(wire.send(flow, at, 4_000_000 - part, rate))
        now = max(ends) + 60 * MS
    assert_same_iterations(replay(wire, after_s=15), begun)


def test_cross_traffic_is_nobodys():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [80] * 20)
    steady, burst = wire.flow(("4", "1"), 50_000), wire.flow(("4", "1"), 50_001)
    wire.send(steady, 0, 30_000_000, 20_000)
    for interval in range(300):
        wire.send(burst, interval * 10 * MS, 36_000)
    for k in range(200):
        wire.send(
            wire.flow(("4", "2"), 51_000 + k),
            wire.random.uniform(0, 3) * SECOND,
            int(wire.random.pareto(1.2) * 5000) + 100,
        )
    said = replay(wire, after_s=15)
    assert_same_iterations(said, begun)
    assert set(said.verdicts) == set(range(6))


def test_gradients_control_and_neither():
    wire = Wire()
    wire.train(ring("1", "2", "3"), [80] * 12)
    heartbeat, bulk = wire.flow(("2", "1"), 45_000), wire.flow(("1", "2"), 45_001)
    for k in range(1000):
        wire.send(heartbeat, k * MS, 100)
    wire.send(bulk, 0, 40_000_000, 40_000)
    said = replay(wire)
    assert [said.verdicts[flow] for flow in range(6)] == [
        *(("traffic-1", member, GRADIENT) for member in (0, 1, 1, 2, 2, 0)),
    ]
    assert [said.verdicts.get(flow) for flow in heartbeat] == [("traffic-1", 1, CONTROL), ("traffic-1", 0, CONTROL)]
    assert [said.verdicts.get(flow) for flow in bulk] == [None, None]


def test_one_watched_end_is_enough():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [80] * 10)
    wire.tables = [table[table["flow"] % 2 == 0] for table in wire.tables]  # senders only
    assert_same_iterations(replay(wire, after_s=15), begun)


@pytest.mark.parametrize("edges", [[("1", "2")], [("1", "2"), ("3", "2")], [("1", "2"), ("2", "3")]])
def test_what_only_goes_one_way_is_no_job(edges):
    wire = Wire()
    wire.train(edges, [80] * 12)
    said = replay(wire, after_s=15)
    assert not said.jobs
    assert not said.iterations
    assert not said.verdicts


def test_random_traffic_both_ways_is_no_job():
    wire = Wire()
    for edge in both_ways(("1", "2"), ("2", "3")):
        flow, now = wire.flow(edge), 0.0
        for _ in range(60):
            now = wire.send(flow, now + wire.random.exponential(60) * MS, int(wire.random.exponential(1e6)) + 2000)
    assert not replay(wire, after_s=15).jobs


def test_nothing_at_all():
    inference = Inference()
    findings = inference.advance(START)
    assert not findings.jobs
    inference.add(np.empty(0, TRAFFIC))
    assert not inference.advance(START + SECOND).iterations
    assert not inference.advance(START).iterations  # the past


def test_rows_of_unknown_flows_and_late_rows_do_no_harm():
    inference = Inference()
    inference.describe(1, LinkFlow("h", "eth0", 1, "10.0.0.1", "10.0.0.2", 1, 2, 6))
    inference.advance(START + SECOND)
    for flow, time_ns in ((7, START), (1, START + 2 * SECOND), (1, START)):
        inference.add(np.array([(time_ns, flow, 5000)], TRAFFIC))
    assert not inference.advance(START + 3 * SECOND).jobs


def test_a_forgotten_job_has_ended():
    wire = Wire()
    wire.train(ring("1", "2"), [80] * 8)
    inference = described(wire)
    inference.add(np.concatenate(wire.tables))
    last = max(int(table["time_ns"].max()) for table in wire.tables)
    findings = inference.advance(last + 50 * MS)
    assert [job.ended for job in findings.jobs] == [False]
    assert len(findings.iterations) == 7
    inference.forget(range(len(wire.flows)))
    findings = inference.advance(last + 100 * MS)
    assert [job.ended for job in findings.jobs] == [True]
    assert [i.number for i in findings.iterations] == [7]
    assert not inference.advance(last + 200 * MS).jobs


def test_numbers_of_forgotten_flows_are_used_again():
    wire, inference = Wire(), Inference()
    jobs = set()
    for port, begin_ms, last in ((40_000, 0, []), (41_000, 6_000, [7])):  # the first job's last is told after its end
        first = len(wire.tables)
        wire.train(ring("1", "2"), [80] * 8, begin_ms=begin_ms, port=port)
        rows = np.concatenate(wire.tables[first:])
        rows["flow"] %= 4
        for number in range(4):
            inference.describe(number, wire.flows[number])
        inference.add(rows)
        findings = inference.advance(int(rows["time_ns"].max()) + 50 * MS)
        assert [i.number for i in findings.iterations] == [*last, *range(7)]
        jobs |= {job.name for job in findings.jobs if not job.ended}
        inference.forget(range(4))
    assert len(jobs) == 2, "the first one ends with the advance in which the second is found"


def test_a_job_has_the_same_name_whoever_finds_it_and_whatever_else_there_is():
    alone, beside = Wire(), Wire()
    beside.train(ring("7", "8"), [45] * 20, port=39_000)
    for wire in (alone, beside):
        wire.train(ring("1", "2", "3"), [80] * 20)
    (name,) = replay(alone).names
    others = replay(beside).names
    assert len(others) == 2
    assert name in others


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_traffic_is_taken(data):
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    count, spread = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 2000))
    inference = Inference()
    for number, (a, b) in enumerate(both_ways(("1", "2"), ("2", "3"))):
        inference.describe(number, LinkFlow(a, "eth0", number % 2, a, b, 1, 2, 6))
    for begin in range(0, 5000, 500):
        rows = np.zeros(count, TRAFFIC)
        rows["time_ns"] = START + (begin + random.integers(0, spread, count)) * MS
        rows["flow"] = random.integers(0, 5, count)
        rows["payload_bytes"] = random.choice([0, 100, 1448, 5000, 10**6], count)
        inference.add(rows)
        findings = inference.advance(START + (begin + 500) * MS)
        assert all(i.start_ns <= i.comm_end_ns <= i.end_ns for i in findings.iterations)
        if random.random() < 0.1:
            inference.forget([int(random.integers(0, 4))])


def test_slices_do_not_matter():
    wire = Wire()
    wire.train(ring("1", "2", "3"), [80] * 12)
    fine, coarse = (replay(wire, slice_ms, after_s=15) for slice_ms in (50, 1000))
    assert fine.iterations == coarse.iterations
