# SPDX-License-Identifier: Apache-2.0
"""Jobs that share links: scores, shifts, drift and pairs, on traffic whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from netmon.dl.sharing.advice import JobSeen, advise, pairs
from netmon.dl.sharing.advice_text import sentences
from netmon.dl.sharing.compatibility import (
    Demand,
    LinkBytes,
    _with_hold,
    demand,
    drift,
    durations,
    fair_shares,
    fits,
    groups,
    score,
    scores_by_shift,
)

MS = 1_000_000
GBIT = 1e9


def square(job: str, period_ms: int, busy_ms: int, links=(0,), first_ms: int = 0, rate=GBIT, n=60, every_ms=0):
    """A job that computes, then transfers at `rate` in the last `busy_ms` of each iteration.

    every_ms: how long its iterations took, if that was longer.
    """
    rates = np.zeros((len(links), 256))
    rates[:, round(256 * (1 - busy_ms / period_ms)) :] = rate
    starts = (first_ms + (every_ms or period_ms) * np.arange(n + 1)) * MS
    return Demand(job, links, starts, period_ms * MS, rates, True, np.ones(len(links)))


def test_a_link_is_shared_max_min_fairly_by_flows() -> None:
    asked = np.array([[2.0, 8.0, 8.0], [1.0, 2.0, 3.0], [0.0, 12.0, 3.0]])
    shares = fair_shares(asked, np.ones(3), 10.0)
    assert shares.tolist() == [[2.0, 4.0, 4.0], [1.0, 2.0, 3.0], [0.0, 7.0, 3.0]]
    weighted = fair_shares(np.array([[9.0, 9.0]]), np.array([2.0, 1.0]), 9.0)
    assert weighted.tolist() == [[6.0, 3.0]]


def test_the_score_is_the_excess_over_capacity() -> None:
    assert score(np.array([0.0, 5.0, 10.0]), 10.0) == 1.0
    assert score(np.array([20.0, 0.0, 10.0, 10.0]), 10.0) == pytest.approx(0.75)


@pytest.mark.parametrize("apart_ms", [0, 40, 55])
def test_iterations_take_what_the_fluid_model_must_give(apart_ms: int) -> None:
    """Two jobs, 100 ms each with 40 ms of transfer: beside each other 140 ms, apart 100 ms."""
    both = [square("a", 100, 40), square("b", 100, 40)]
    took = durations(both, {0: GBIT}, np.array([[0.0, apart_ms * MS]]), 20)[0] / MS
    expected = 140 if apart_ms == 0 else 100
    assert took == pytest.approx([expected, expected], rel=0.03)


def test_a_job_alone_takes_its_own_time() -> None:
    assert durations([square("a", 100, 40)], {0: GBIT}, np.zeros((1, 1)), 10)[0, 0] / MS == pytest.approx(100, rel=0.01)


def test_the_shift_takes_two_jobs_apart() -> None:
    fit = fits([square("a", 100, 40), square("b", 100, 40)], {0: GBIT})[0]
    assert (fit.job, fit.others) == ("b", ("a",))
    assert fit.score == pytest.approx(0.6, abs=0.02)
    assert fit.best_score == pytest.approx(1.0, abs=0.01)
    assert 40 * MS <= fit.shift_ns <= 60 * MS


@pytest.mark.parametrize("first_ms", [-10, 0, 10])
def test_where_the_shifted_job_is_to_begin_does_not_hang_on_who_began_first(first_ms: int) -> None:
    """Iterations that take longer beside each other than where they are held apart: the turn is that of the latter."""
    both = [square("a", 100, 40, every_ms=140), square("b", 100, 40, every_ms=140, first_ms=first_ms)]
    fit = fits(both, {0: GBIT})[0]
    assert 40 * MS <= fit.offset_ns <= fit.hold_ns - 40 * MS


@pytest.mark.parametrize(
    ("every_ms", "gain"), [(100, 0.0), (110, 1 - 100 / 110), (140, 1 - 100 / 140), (180, 1 - 100 / 160)]
)
def test_a_shift_saves_no_more_than_the_jobs_lose(every_ms: int, gain: float) -> None:
    """40 ms of each iteration and half of that again; less where TCP has taken them apart; what else is no gain."""
    both = [square(name, 100, 40, every_ms=every_ms) for name in "ab"]
    assert fits(both, {0: GBIT})[0].gain == pytest.approx(gain, abs=0.021)  # 2 % are left to who is late


def test_jobs_that_fill_the_time_fit_only_in_part() -> None:
    fit = fits([square("a", 100, 70), square("b", 100, 70)], {0: GBIT})[0]
    assert fit.best_score == pytest.approx(0.6, abs=0.05)  # 40 of 100 ms are asked for twice at best


def test_jobs_are_held_to_no_more_than_they_can() -> None:
    fit = fits([square(name, 100, 70, every_ms=140) for name in "ab"], {0: GBIT})[0]
    assert fit.hold_ns == fit.shifted_ns > 110 * MS


def test_jobs_apart_are_left_where_they_are() -> None:
    fit = fits([square("a", 100, 40), square("b", 100, 40, first_ms=50)], {0: GBIT})[0]
    assert fit.shift_ns == 0
    assert fit.gain <= 0


def test_three_jobs_on_two_links_have_one_shift_each() -> None:
    jobs = [square("a", 120, 40), square("b", 120, 40, (0, 1)), square("c", 120, 40, (1,))]
    assert groups(jobs) == [[0, 1, 2]]
    found = fits(jobs, {0: GBIT, 1: GBIT})
    assert [fit.job for fit in found] == ["b", "c"]
    assert all(fit.best_score > 0.98 for fit in found)
    apart = (found[0].shift_ns - found[1].shift_ns) / MS % 120
    assert 40 <= apart <= 80


def test_three_jobs_on_one_link() -> None:
    found = fits([square(name, 120, 38) for name in "abc"], {0: GBIT})
    assert found[1].best_score > 0.97
    shifts = sorted([0, found[0].shift_ns // MS, found[1].shift_ns // MS])
    assert min(np.diff([*shifts, 120])) >= 36


def test_jobs_of_unlike_iterations_cannot_be_held_together() -> None:
    fit = fits([square("a", 100, 30), square("b", 170, 40)], {0: GBIT})[0]
    assert fit.hold_ns == 0
    assert fit.gain < 0.1  # they pass by each other, whatever the shift


def test_who_is_a_little_faster_is_held_to_the_other() -> None:
    jobs = [square("a", 100, 40), square("b", 96, 40)]
    fit = fits(jobs, {0: GBIT})[0]
    assert fit.hold_ns == 102 * MS
    assert fit.best_score > 0.99
    assert fit.shifted_ns / MS == pytest.approx(102, rel=0.001)
    held = _with_hold(jobs[1], 100 * MS)
    assert held.rates.mean() * 100 == pytest.approx(jobs[1].rates.mean() * 96)  # the same bytes


def test_scores_by_shift_have_their_best_where_the_fit_has_it() -> None:
    jobs = [square("a", 100, 40), square("b", 100, 40)]
    fit = fits(jobs, {0: GBIT})[0]
    shifts, scores = scores_by_shift(fit, jobs, {0: GBIT})
    assert scores[0] == pytest.approx(0.6, abs=0.02)
    assert scores[np.abs(shifts - fit.shift_ns).argmin()] == pytest.approx(scores.max(), abs=0.001)


def test_too_many_jobs_are_not_compared() -> None:
    seen = [
        JobSeen(n, np.arange(30) * 100 * MS, [], np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), {}) for n in "abcd"
    ]
    sends = np.zeros(3000)
    for begin in range(0, 3000, 100):
        sends[begin + 60 : begin + 100] = 125_000
    traffic = {0: link_bytes(("a", sends), ("b", sends)), 1: link_bytes(("c", sends), ("d", sends))}
    told = advise(seen, traffic, ["x", "y"], {0: GBIT, 1: GBIT}, (0, 3000 * MS), most=2)
    assert [share.fit.job for share in told.shares] == ["b"]
    assert told.uncompared == ("c", "d")
    assert any("2 more jobs" in line for line in sentences(told))


def test_jobs_one_after_the_other_share_nothing() -> None:
    assert fits([square("a", 100, 40), square("b", 100, 40, first_ms=5_900)], {0: GBIT}) == []


def test_jobs_that_never_share_are_told_so() -> None:
    seen = [JobSeen(n, np.arange(30) * 100 * MS, [], np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), {}) for n in "ab"]
    traffic = {0: link_bytes(("a", np.full(3000, 9.0))), 1: link_bytes(("b", np.full(3000, 9.0)))}
    assert sentences(advise(seen, traffic, ["x", "y"], {0: GBIT}, (0, 3000 * MS))) == [
        "no two of the 2 jobs share a link"
    ]


def test_a_link_without_known_capacity_is_left_out() -> None:
    assert fits([square("a", 100, 40), square("b", 100, 40)], {}) == []


def test_drift_is_told_with_its_sign_and_spread() -> None:
    beside = np.arange(50) * 100 * MS
    moving = drift(beside + 5 * MS + np.arange(50) * 2 * MS, beside)
    assert moving is not None
    assert moving.per_iteration_ns == 2 * MS
    back = drift(np.arange(50) * 98 * MS + 200 * MS, beside)
    assert back is not None
    assert back.per_iteration_ns == -2 * MS  # also where it goes round
    still = drift(beside + 7 * MS, beside)
    assert still is not None
    assert still.per_iteration_ns == 0
    assert drift(beside[:2], beside) is None


def link_bytes(*jobs: tuple[str, np.ndarray]) -> LinkBytes:
    return LinkBytes(0, MS, dict(jobs), sum((one for _, one in jobs), np.zeros(len(jobs[0][1]))))


def test_the_demand_is_that_of_an_iteration_that_met_nobody() -> None:
    ms = 10_000
    own, other = np.zeros(ms), np.zeros(ms)
    starts = [0]
    for number in range(40):  # the first half alone, 100 ms; then beside somebody, 130 ms
        length = 100 if number < 20 else 130
        begin = starts[-1] + 60
        own[begin : begin + length - 60] = 125_000 * 40 / (length - 60)
        if number >= 20:
            other[begin : begin + length - 60] = 50_000
        starts.append(starts[-1] + length)
    found = demand("a", np.array(starts) * MS, {0: link_bytes(("a", own), ("b", other))})
    assert found is not None
    assert found.alone
    assert found.period_ns == 100 * MS
    assert found.busy == pytest.approx(0.4, abs=0.02)
    assert found.intensity == pytest.approx(1.5, abs=0.1)
    assert found.rates.mean() * found.period_ns / 8e9 == pytest.approx(40 * 125_000, rel=0.01)  # its bytes
    assert demand("a", np.array(starts[:4]) * MS, {0: link_bytes(("a", own))}) is None
    assert demand("c", np.array(starts) * MS, {0: link_bytes(("a", own))}) is None


def test_what_comes_in_bursts_passes_at_the_pace_of_the_link() -> None:
    """Bytes are counted before a link's queue: a job alone never asks for more than the link has."""
    own = np.zeros(3000)
    for begin in range(0, 3000, 100):
        own[begin + 60 : begin + 100 : 4] = 4 * 125_000  # 40 ms of the link's rate, all 4 ms
    starts = np.arange(30) * 100 * MS
    traffic = {0: link_bytes(("a", own))}
    bursty, found = demand("a", starts, traffic), demand("a", starts, traffic, capacity_bps={0: GBIT})
    assert bursty is not None
    assert found is not None
    assert bursty.rates.max() > 3 * GBIT
    assert found.rates.max() <= GBIT * (1 + 1e-9)
    assert found.rates.mean() == pytest.approx(bursty.rates.mean(), rel=1e-6)
    assert durations([found], {0: GBIT}, np.zeros((1, 1)), 10)[0, 0] / MS == pytest.approx(100, rel=0.01)


def test_what_jobs_did_alone_is_not_how_they_share() -> None:
    """b trains alone while a pauses; only what they did beside each other since counts."""
    a, b = (square(name, 100, 40) for name in "ab")
    alone, pause, both = 100 * np.arange(10), np.array([3000]), 4000 + 140 * np.arange(20)
    a = replace(a, starts_ns=np.concatenate([alone, both]) * MS)
    b = replace(b, starts_ns=np.concatenate([pause, 3100 + 100 * np.arange(9), both]) * MS)
    [fit] = fits([a, b], {0: GBIT})
    assert fit.shared_ns == pytest.approx(140 * MS, rel=0.01)
    assert fit.others_shared_ns[0] == pytest.approx(140 * MS, rel=0.01)


def test_jobs_that_were_tied_by_a_third_one_need_not_have_met() -> None:
    jobs = [
        square("a", 100, 30, n=40),
        square("b", 100, 30, (0, 1), n=120),
        square("c", 100, 30, (1,), first_ms=6000, n=60),
    ]
    assert [fit.job for fit in fits(jobs, {0: GBIT, 1: GBIT})] == ["b", "c"]


def test_the_slow_pair_is_named_and_what_others_do_not_need() -> None:
    ends = [(f"rank {n} (h{n})", f"rank {(n + 1) % 4} (h{(n + 1) % 4})") for n in range(4)]
    sent = np.full((4, 10), 5e6)
    busy = np.full((4, 10), 20.0 * MS)
    busy[2] = 40 * MS
    communication, duration = np.full(10, 41.0 * MS), np.full(10, 100.0 * MS)
    found = pairs("a", ends, sent, busy, communication, duration)
    assert [pair.slow for pair in found] == [True, False, False, False]
    assert found[0].source == "rank 2 (h2)"
    assert found[0].to_be_had_bps == 0
    assert found[1].to_be_had_bps == pytest.approx(5e6 * 8 / 0.02 * (1 - 20 / 41))
    assert pairs("a", [], np.zeros((0, 10)), np.zeros((0, 10)), communication, duration) == []


def test_acknowledgements_are_no_slow_pair() -> None:
    ends = [("rank 0", "rank 1"), ("rank 1", "rank 2"), ("rank 2", "rank 0"), ("rank 1", "rank 0")]
    sent = np.full((4, 10), 5e6)
    sent[3] = 15_000
    busy = np.full((4, 10), 20.0 * MS)
    found = pairs("a", ends, sent, busy, np.full(10, 41.0 * MS), np.full(10, 100.0 * MS))
    assert len(found) == 3
    assert not any(pair.slow for pair in found)


def test_advice_says_the_shift_and_when_it_would_not_last() -> None:
    def seen(job: str, starts: np.ndarray) -> JobSeen:
        return JobSeen(job, starts, [], np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), {0: 1})

    def told(second_ms: int) -> list[str]:
        ms = 12_000
        a, b = np.zeros(ms), np.zeros(ms)
        begins_a = np.concatenate([np.arange(0, 2000, 100), np.arange(2000, 7000, 140)])  # alone, then shared
        begins_b = np.arange(2000, 7000, second_ms)
        for begin in begins_a:
            a[begin + 60 : begin + 100] += 125_000
        for begin in begins_b:
            b[begin + 60 : begin + 100] += 125_000
        for begin in range(8000, 11_000, 100):  # b alone
            b[begin + 60 : begin + 100] += 125_000
        starts_b = np.concatenate([begins_b, np.arange(8000, 11_000, 100)])
        return sentences(
            advise(
                [seen("a", begins_a * MS), seen("b", starts_b * MS)],
                {0: link_bytes(("a", a), ("b", b))},
                ["h0 eth0 tx"],
                {0: GBIT},
                (0, ms * MS),
            )
        )

    assert told(140)[0].startswith("start job b ")
    assert "h0 eth0 tx" in told(140)[0]
    assert "drift" in told(133)[0]
