# SPDX-License-Identifier: Apache-2.0
"""Incidents, of verdicts: what belongs together, what does not, and the line that says it."""

import random
from dataclasses import replace
from typing import Any

from snapshot_example import example

from netmon.dl.verdict.incidents import (
    GAP_NS,
    GAP_STEPS,
    LATELY_NS,
    Incidents,
    incidents,
    line,
    of_verdict,
    parts,
    remedy,
    who,
)
from netmon.records import Direction
from netmon.views import Cause, Incident, RankTimes, Snapshot, Verdict
from netmon.wire.mapping import incident_without_names, without_names

MS, S = 1_000_000, 1_000_000_000
USUAL = 400 * MS


def verdict(number: int, cause: Cause = Cause.CROSS, culprit: str = "iperf3", **more: Any) -> Verdict:
    """On a step of 700 ms that should take 400; steps begin a second apart."""
    start = number * S
    name = {Cause.CROSS: "cross_ns", Cause.STRAGGLER: "late_ns", Cause.UNKNOWN: "unknown_ns"}.get(cause, "compute_ns")
    rest = {name: 300 * MS, "confidence": 0.9} | more
    return Verdict("ring", number, start, start + 700 * MS, 700 * MS, USUAL, 300 * MS, cause, culprit, "h0", **rest)


def clock(ns: int) -> str:
    return f"{ns // S}"


def test_slow_steps_with_one_culprit_are_one_incident() -> None:
    [one] = incidents([verdict(number) for number in (10, 11, 12, 14, 17)])
    assert (one.first, one.last, one.steps, one.lost_ns) == (10, 17, 5, 1500 * MS)
    assert (one.since_ns, one.until_ns) == (10 * S, 17 * S + 700 * MS)
    assert (one.baseline_ns, one.ratio) == (USUAL, 1.75)
    assert one.confidence == 0.9


def test_a_long_pause_ends_one() -> None:
    far = 12 + max(GAP_STEPS + 2, GAP_NS // S + 2)
    first, second = incidents([verdict(11), verdict(12), verdict(far)])
    assert (first.last, second.first) == (12, far)


def test_steps_that_take_longer_than_the_gap_are_counted() -> None:
    slow = [replace(verdict(n), start_ns=n * 20 * S, end_ns=n * 20 * S + 15 * S) for n in (1, 3, 7, 12)]
    assert [(one.first, one.last) for one in incidents(slow)] == [(1, 7), (12, 12)]


def test_two_culprits_are_two_incidents() -> None:
    found = incidents([verdict(n, culprit=("iperf3", "rsync")[n % 2]) for n in range(10, 20)])
    assert {(one.culprit, one.steps) for one in found} == {("iperf3", 5), ("rsync", 5)}


def test_what_nobody_knows_belongs_to_its_neighbours() -> None:
    steps = [verdict(9, Cause.UNKNOWN, ""), *(verdict(n) for n in range(10, 20)), verdict(20, Cause.UNKNOWN, "")]
    [one] = incidents(steps)
    assert (one.cause, one.first, one.last, one.steps) == (Cause.CROSS, 9, 20, 12)
    [alone] = incidents([verdict(50, Cause.UNKNOWN, "")])
    assert alone.cause == Cause.UNKNOWN


def test_a_step_that_weighs_two_causes_differently_is_no_incident_of_its_own() -> None:
    other = verdict(13, Cause.STRAGGLER, "rank 1", rank=1, late_ns=180 * MS, cross_ns=120 * MS)
    [one] = incidents([*(verdict(n) for n in (10, 11, 12, 14)), other])
    assert (one.steps, {part.name for part in one.lost}) == (5, {"cross", "late"})


def test_a_single_step_of_another_cause_stays() -> None:
    late = verdict(13, Cause.STRAGGLER, "rank 1", rank=1)
    found = incidents([*(verdict(n) for n in (10, 11, 12, 14)), late])
    assert [(one.cause, one.steps) for one in found] == [(Cause.CROSS, 4), (Cause.STRAGGLER, 1)]


def test_what_is_no_slower_is_none() -> None:
    faster = replace(verdict(40, Cause.CHANGE, ""), duration_ns=200 * MS, excess_ns=-200 * MS)
    assert incidents([faster, replace(verdict(41), baseline_ns=0, excess_ns=0)]) == []


def test_the_order_in_which_verdicts_come_changes_nothing() -> None:
    chance = random.Random(3)
    steps = [verdict(n, *chance.choice([(Cause.CROSS, "iperf3"), (Cause.UNKNOWN, "")])) for n in range(0, 400, 2)]
    steps = [one for one in steps if chance.random() < 0.7]
    expected = incidents(steps)
    of_job = Incidents()
    while steps:  # a late one comes after some newer ones
        of_job.add(steps.pop(min(chance.randrange(3), len(steps) - 1)))
    assert [(one.since_ns, one.steps) for one in of_job.found()] == [(one.since_ns, one.steps) for one in expected]


def test_none_is_lost_and_none_counted_twice() -> None:
    chance = random.Random(5)
    causes = [(Cause.CROSS, "iperf3"), (Cause.STRAGGLER, "rank 1"), (Cause.UNKNOWN, ""), (Cause.CHANGE, "")]
    steps = [verdict(n, *chance.choice(causes)) for n in sorted(chance.sample(range(5_000), 2_000))]
    found = incidents(steps)
    assert sum(one.steps for one in found) == len(steps)
    assert sum(one.lost_ns for one in found) == sum(one.excess_ns for one in steps)


def test_one_goes_on_while_a_next_step_could_be_one_of_it() -> None:
    steps = [verdict(10), verdict(11)]
    assert [one.ongoing for one in incidents(steps, {"ring": (12 * S, 12)})] == [True]
    assert [one.ongoing for one in incidents(steps, {"ring": (60 * S, 60)})] == [False]
    assert [one.ongoing for one in incidents(steps)] == [False]
    assert [one.ongoing for one in incidents(steps, {"ring": (12 * S, 12)}, 12 * S + LATELY_NS)] == [False]


def test_each_slow_step_is_of_one_incident():
    steps = [*(verdict(n) for n in (10, 11, 12, 14)), verdict(13, Cause.UNKNOWN, ""), verdict(40, Cause.CHANGE, "")]
    found = incidents(steps)
    assert [of_verdict(found, one) for one in steps] == [found[0]] * 5 + [found[1]]
    assert of_verdict(found, replace(steps[0], job="another")) is None
    assert of_verdict(found, verdict(20)) is None


def one_of(**more: Any) -> Incident:
    ends: dict[str, Any] = {"culprit_user": "root", "sender": "h2", "receiver": "h0", "interface": "eth0"} | more
    [one] = incidents([verdict(n, **ends) for n in range(10, 45)], {"ring": (45 * S, 45)})
    return one


def test_the_line() -> None:
    assert line(one_of(), clock) == "ring 1.8 × slower since 10: iperf3 (root, h2) → h0; 35 steps, 10.5 s lost"
    over = replace(one_of(), ongoing=False)
    assert line(over, clock, "bert").startswith("bert 1.8 × slower 10 to 44: iperf3")
    nobody = one_of(culprit_user="", sender="", receiver="", direction=Direction.TX)
    assert "iperf3 out of h0; 35" in line(nobody, clock)
    late = incidents([verdict(3, Cause.STRAGGLER, "rank 1", rank=1)])[0]
    assert line(late, clock) == "ring 1.8 × slower at 3: rank 1 (h0) was late; 1 step, 300 ms lost"


def test_a_mixed_one_says_its_parts() -> None:
    one = one_of(cross_ns=180 * MS, late_ns=120 * MS)
    assert parts(one) == "60 % cross traffic, 40 % late ranks"
    assert line(one, clock).endswith("10.5 s lost (60 % cross traffic, 40 % late ranks)")
    assert parts(one_of()) == ""


def test_a_hundred_thousand() -> None:
    found = incidents(verdict(n * 30) for n in range(100_000))
    assert {one.steps for one in found} == {1}
    assert len(found) == 100_000


def test_who_sees_no_names_sees_what_and_where() -> None:
    [one] = incidents([verdict(10, culprit_user="root", sender="198.51.100.7", receiver="h0", interface="eth0")])
    assert remedy(one) == "limit iperf3 on 198.51.100.7, or move it off eth0 of h0"
    hidden = incident_without_names(one)
    assert who(hidden) == "cross traffic into h0"
    assert remedy(hidden) == "limit that traffic, or move it off eth0 of h0"
    told = repr(without_names(snapshot_with(one)))
    assert not [word for word in ("iperf3", "root", "198.51") if word in told]


def snapshot_with(one: Incident) -> Snapshot:
    slow = verdict(10, culprit_user="root", sender="198.51.100.7", ranks=(RankTimes(0, "h0", 1, stalled_by="iperf3"),))
    shown = example()
    return replace(shown, flows=(), jobs=(replace(shown.jobs[0], verdicts=(slow,), incidents=(one,)),))


def test_every_cause_says_what_to_do() -> None:
    for cause in Cause:
        assert remedy(replace(incidents([verdict(1)])[0], cause=cause))
