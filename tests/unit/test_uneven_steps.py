# SPDX-License-Identifier: Apache-2.0
"""Steps that carry other bytes each time, as those of a mixture of experts, from traffic alone."""

from itertools import permutations

import numpy as np
import pytest
from training_traffic import MS, START, Wire, assert_same_iterations, replay, ring

RATE = 2_000_000  # bytes per ms


class Experts:
    """Ranks that send each other as many tokens as a router says, there and back in both passes, and sum gradients."""

    def __init__(self, wire, *groups, layers=2, shared=1_500_000, own_connections=False, optimizer_ms=0, loss_ms=0):
        self.wire, self.layers, self.shared = wire, layers, shared
        self.optimizer_ms, self.loss_ms = optimizer_ms, loss_ms
        self.pairs = {edge: wire.flow(edge) for group in groups for edge in permutations(group, 2)}
        members = [member for group in groups for member in group]
        sums = ring(*members)
        self.sums = [wire.flow(edge, 41_000) if own_connections else self.pairs[edge] for edge in sums]
        self.now, self.longest = 0.0, 1.05  # × the computing before an exchange
        self.late_ms = dict.fromkeys(members, 0)

    def exchange(self, compute_ms, stalled_ms=0):
        """Compute, then send to everybody."""
        start = self.now + (compute_ms * self.wire.random.uniform(1, self.longest) + stalled_ms) * MS
        sizes = self.wire.random.uniform(20_000, 600_000, len(self.pairs)).astype(int).tolist()
        ends = [
            self.wire.send(flow, start + (self.late_ms[a] + self.wire.random.uniform(0, 0.5)) * MS, size, RATE)
            - self.late_ms[a] * MS
            for ((a, _), flow), size in zip(self.pairs.items(), sizes, strict=True)
        ]
        self.now = max(ends)
        return START + start

    def train(self, steps, compute_ms=10, stalls=0.0):
        """Returns when each step began to send."""
        begun = []
        for _ in range(steps):
            stalled = self.wire.random.uniform(0, 1, 4 * self.layers) < stalls
            forward = [self.exchange(compute_ms, 80 * bool(each)) for each in stalled[: 2 * self.layers]]
            begun.append(forward[0])
            self.now += self.loss_ms * MS
            for each in stalled[2 * self.layers :]:
                self.exchange(compute_ms, 80 * bool(each))
            if self.shared:
                late = [self.late_ms[a] * MS for a in self.late_ms]
                ends = [
                    self.wire.send(flow, self.now + after, self.shared, RATE) - after
                    for flow, after in zip(self.sums, late, strict=True)
                ]
                self.now = max(ends)
            self.now += self.optimizer_ms * MS
        return begun


def groups_of(said, job="traffic-1"):
    return {(group.kind, tuple(member[-1] for member in group.members)) for group in said.jobs[job].groups}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="the sum stands out"),
        pytest.param({"shared": 0, "optimizer_ms": 25}, id="the optimizer does"),
        pytest.param({"shared": 0, "optimizer_ms": 60, "loss_ms": 25}, id="the optimizer does more than the loss"),
        pytest.param({"layers": 12, "optimizer_ms": 15}, id="many layers"),
    ],
)
def test_steps_of_experts_are_counted(options):
    wire = Wire()
    begun = Experts(wire, "1234", **options).train(40)
    said = replay(wire, after_s=15, watched=True)
    assert_same_iterations(said, begun)
    assert groups_of(said) == {("expert", ("1", "2", "3", "4"))}
    assert said.jobs["traffic-1"].pattern == "clique"
    assert {traffic for _, _, traffic in said.verdicts.values()} == {"gradient"}


def test_ranks_that_are_never_silent_together():
    wire = Wire()
    experts = Experts(wire, "1234")
    experts.late_ms = {"1": 0, "2": 6, "3": 12, "4": 18}
    begun = experts.train(40)
    said = replay(wire, after_s=15, watched=True)
    assert_same_iterations(said, begun)


def test_a_forward_pass_is_no_exchange_after_which_steps_end():
    """Its pauses are half as long as those of the backward pass, during which each layer's gradients are summed."""
    wire = Wire()
    experts, ends = Experts(wire, "123", own_connections=True), []
    for _ in range(40):
        for _ in range(12):
            experts.exchange(8)
        for number in range(12):
            experts.exchange(17)
            if number % 2:
                experts.now = max(wire.send(flow, experts.now, 600_000, RATE) for flow in experts.sums)
        ends.append(START + experts.now)
        experts.now += 15 * MS
    said = replay(wire, after_s=15, watched=True)
    found = np.array([i.end_ns for i in said.iterations])
    assert len(found) == len(ends)
    assert np.abs(found - np.array(ends)).max() < 30 * MS


def test_stalls_cost_no_step():
    wire = Wire()
    begun = Experts(wire, "123").train(60, stalls=0.03)
    said = replay(wire, after_s=15, watched=True)
    assert_same_iterations(said, begun)


@pytest.mark.parametrize("options", [{}, {"shared": 0, "optimizer_ms": 60}], ids=["by bytes", "by pauses"])
def test_they_are_followed_when_more_has_been_sent_than_is_kept(options):
    wire = Wire()
    experts = Experts(wire, "123", **options)
    experts.longest = 1.5
    begun = experts.train(500)
    said = replay(wire, slice_ms=400, after_s=15, watched=True)
    assert len(said.jobs) == 1
    assert_same_iterations(said, begun)


def test_steps_are_told_by_their_bytes_where_all_becomes_slow():
    """Flows without sums pause for longest while these go on; when others wait for a slow link, they pause so, too."""
    wire = Wire()
    experts = Experts(wire, "1234", shared=20_000_000)
    begun = experts.train(20) + experts.train(60, stalls=0.3)
    said = replay(wire, after_s=15, watched=True)
    starts = said.starts()
    assert (np.abs(np.subtract.outer(np.array(begun), starts)).min(axis=1) <= MS).mean() > 0.95
    assert len(starts) <= len(begun)


def test_a_landmark_that_is_missed_costs_a_step():
    wire = Wire()
    experts = Experts(wire, "1234")
    before = experts.train(20)
    experts.shared = 0
    without = experts.train(1)
    experts.shared = 1_500_000
    after = experts.train(20)
    said = replay(wire, after_s=15, watched=True)
    near = np.abs(np.subtract.outer(np.array(before + without + after), said.starts())).min(axis=1) <= MS
    assert near.mean() > 0.9
    assert len(said.iterations) <= len(near)


def test_a_job_that_has_ended_goes_on_as_the_same():
    wire = Wire()
    experts = Experts(wire, "1234")
    begun = experts.train(20)
    experts.now += 30_000 * MS
    again = experts.train(20)
    said = replay(wire, after_s=15, watched=True)
    assert len(said.jobs) == 1
    assert_same_iterations(said, begun + again)


@pytest.mark.parametrize("groups", [("1234", "5678"), ("12", "34"), ("1234",)], ids=["of four", "of two", "one"])
def test_groups_of_experts_belong_to_the_job_that_sums_their_gradients(groups):
    wire = Wire()
    begun = Experts(wire, *groups, own_connections=True).train(60)
    said = replay(wire, after_s=15, watched=True)
    assert len(said.jobs) == 1
    everybody = tuple("".join(groups))
    kind = "expert" if len(groups[0]) > 2 else "unknown"
    assert groups_of(said) == {("data", everybody), *((kind, tuple(group)) for group in groups)}
    assert len(said.iterations) == len(begun)
    assert len(said.verdicts) == len(wire.flows)


def requests(wire, members):
    """Somebody asks all others, who answer."""
    flows, now = {edge: wire.flow(edge) for edge in permutations(members, 2)}, 0.0
    while now < 20_000 * MS:
        asking = wire.random.choice(list(members))
        for other in members:
            if other != asking:
                wire.send(flows[asking, other], now, 20_000)
                wire.send(flows[other, asking], now + 5 * MS, int(wire.random.lognormal(13, 1)), RATE)
        now += (15 + wire.random.exponential(60)) * MS


def shuffles(wire, members):
    """Everybody sends to everybody, some times in a row."""
    flows, now = [wire.flow(edge) for edge in permutations(members, 2)], 0.0
    while now < 20_000 * MS:
        for _ in range(wire.random.integers(3, 9)):
            for flow in flows:
                wire.send(flow, now + wire.random.uniform(0, 2) * MS, int(wire.random.lognormal(12.5, 0.5)), RATE)
            now += (20 + wire.random.exponential(5)) * MS
        now += wire.random.exponential(200) * MS


def at_random(wire, members):
    for edge in permutations(members, 2):
        flow, now = wire.flow(edge), 0.0
        while now < 20_000 * MS:
            now = wire.send(flow, now, int(wire.random.lognormal(12, 1.5)), RATE) + wire.random.exponential(300) * MS


@pytest.mark.parametrize(
    ("sends", "members", "seed"),
    [
        *((sends, "1234", seed) for sends in (requests, shuffles, at_random) for seed in range(3)),
        (shuffles, "123", 5),
        (shuffles, "123456", 3),
    ],
)
def test_what_is_not_as_often_in_each_step_is_no_training(sends, members, seed):
    wire = Wire(seed)
    sends(wire, members)
    assert not replay(wire, watched=True).jobs
