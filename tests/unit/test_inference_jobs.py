# SPDX-License-Identifier: Apache-2.0
"""Several jobs at once, and what may be one job or two."""

import numpy as np
import pytest
from training_traffic import MS, START, Wire, assert_same_iterations, replay, ring, spared


@pytest.mark.parametrize("second", [ring("4", "5", "6"), ring("3", "4", "5")], ids=["apart", "on a shared host"])
def test_two_jobs_at_once(second):
    wire = Wire()
    one = wire.train(ring("1", "2", "3"), [70] * 20)
    other = wire.train(second, [110] * 16, volume=5_000_000, begin_ms=35, port=41_000)
    said = replay(wire, after_s=15)
    assert {job.members for job in said.jobs.values()} == {
        ("10.0.0.1", "10.0.0.2", "10.0.0.3"),
        tuple(f"10.0.0.{edge[0]}" for edge in second),
    }
    named = {job.members[0]: job.name for job in said.jobs.values()}
    assert_same_iterations(said, one, named["10.0.0.1"])
    assert_same_iterations(said, other, named[f"10.0.0.{second[0][0]}"])


def centre_first(wire, compute_ms, iterations, volume=2_000_000):
    """A star in which the sums leave when all gradients have come."""
    up, down = ([wire.flow(edge) for edge in edges] for edges in ([("2", "1"), ("3", "1")], [("1", "2"), ("1", "3")]))
    begun, now = [], 0.0
    for _ in range(iterations):
        starts = [now + wire.random.uniform(0, 2) * MS for _ in up]
        begun.append(START + min(starts))
        summed = max(wire.send(flow, at, volume) for flow, at in zip(up, starts, strict=True))
        now = max(wire.send(flow, summed, volume) for flow in down) + compute_ms * MS
    return begun


@pytest.mark.parametrize("compute_ms", [95, 65, 61, 60])
def test_two_jobs_of_near_periods_on_one_host(compute_ms):
    wire = Wire()
    one = wire.train(ring("1", "2"), [60] * 80, volume=2_000_000, blocks=1)
    other = wire.train(ring("1", "3"), [compute_ms] * 80, volume=2_000_000, blocks=1, begin_ms=11, port=41_000)
    said = replay(wire, after_s=15)
    named = {job.members: job.name for job in said.jobs.values()}
    assert set(named) == {("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.3")}
    assert_same_iterations(said, one, named["10.0.0.1", "10.0.0.2"])
    assert_same_iterations(said, other, named["10.0.0.1", "10.0.0.3"])


def test_nothing_is_told_of_what_may_be_one_job_or_two():
    wire = Wire()
    wire.train(ring("1", "2"), [60] * 12, volume=2_000_000, blocks=1, jitter_ms=0)
    wire.train(ring("1", "3"), [60] * 12, volume=2_000_000, blocks=1, jitter_ms=0)
    assert not replay(wire).jobs


def test_a_star_shows_at_once_that_it_is_one_job():
    wire = Wire()
    begun = centre_first(wire, 80, 5)
    said = replay(wire)
    assert said.jobs["traffic-1"].pattern == "star"
    assert said.told[0] <= begun[3] + 400 * MS


def test_a_job_that_turns_out_to_be_two_ends_and_both_go_on():
    """They begin in step, as if on purpose, and then one of them slows down."""
    wire = Wire()
    centre_first(wire, 60, 40)
    after = max(int(table["time_ns"].max()) - START for table in wire.tables)
    flows = {tuple(flow.src[-1] + flow.dst[-1]): number for number, flow in enumerate(wire.flows[::2])}
    begun = {"2": [], "3": []}
    for host, compute_ms in (("2", 60), ("3", 75)):
        pair = [flows["1", host], flows[host, "1"]]
        now = after + compute_ms * MS
        for _ in range(80):
            begun[host].append(START + now)
            ends = [
                wire.send((2 * number, 2 * number + 1), now + wire.random.uniform(0, 2) * MS, 2_000_000)
                for number in pair
            ]
            now = max(ends) + compute_ms * MS
    said = replay(wire, after_s=15)
    assert len(said.jobs) == 3
    named = {job.members: job.name for job in said.jobs.values()}
    for host in begun:
        found = said.starts(named["10.0.0.1", f"10.0.0.{host}"])
        assert len(found) > 40
        assert (np.abs(np.subtract.outer(found, begun[host])).min(axis=1) <= 3 * MS).mean() > 0.95


def test_a_job_is_followed_for_a_quarter_of_an_hour_and_a_checkpoint_makes_no_longer_steps():
    wire = Wire()
    compute_ms = wire.random.normal(200, 8, 2_400)
    compute_ms[::20] = 3_000
    begun = wire.train(ring("1", "2", "3"), compute_ms, volume=600_000)
    said = replay(wire, slice_ms=400)
    assert len(said.jobs) == 1
    assert_same_iterations(said, begun[:-1])


def test_flows_that_are_spared_are_looked_at_again_after_as_long_as_they_were_old():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), [300] * 40)
    inference = spared(wire)
    first_ns, found = int(begun[0]), []
    for slice_ms in range(400, 6_000, 200):  # too early the first time
        now_ns = first_ns + slice_ms * MS
        found += [now_ns for job in inference.advance(now_ns).jobs]
    assert found
    assert found[0] <= first_ns + 3_200 * MS


def test_of_flows_that_are_spared_the_last_bursts_suffice():
    wire = Wire()
    begun = wire.train(ring("1", "2", "3"), wire.random.normal(60, 3, 1_200), volume=600_000)
    inference = spared(wire)
    started, kept = [], []
    for now_ns in range(int(begun[0]), int(begun[-1]), 400 * MS):
        started += [iteration.comm_start_ns for iteration in inference.advance(now_ns).iterations]
        kept.append(max(map(len, inference._bursts.values()), default=0))
    assert max(kept) > 300
    assert max(kept[-100:]) < 200
    late = np.array(begun)[-300:-100]
    assert (np.abs(np.subtract.outer(late, np.array(started))).min(axis=1) <= 3 * MS).all()
