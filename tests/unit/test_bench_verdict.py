# SPDX-License-Identifier: Apache-2.0
"""The campaign's plan, and how what was told is held against what was done."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from netmon.bench.result import show
from netmon.bench.specs import VerdictSpec
from netmon.bench.verdict.campaign import Undisturbed, VerdictResult, measure
from netmon.bench.verdict.plan import KINDS, PER_RUN, in_turn, plan, typical_iteration_ns
from netmon.bench.verdict.predictions import Rerun, RerunResult, plan_reruns, plan_shifts
from netmon.bench.verdict.scoring import IncidentsFound, score
from netmon.bench.verdict.simulated import GOODPUT, Squeeze, judge_one, phases, scenario, simulate, transfer
from netmon.cli import main
from netmon.dl.classify import ring_bytes
from netmon.dl.verdict import judge
from netmon.errors import DataError
from netmon.lab.record import Truth

MS = 1_000_000
USUAL = 100 * MS


def test_every_planned_run_can_be_done_and_the_same_seed_plans_the_same(tmp_path):
    specs = plan(45, 7, ("ring", "horovod", "ddp"), tmp_path)
    for spec in specs:
        spec.check()
    assert specs == plan(45, 7, ("ring", "horovod", "ddp"), tmp_path)
    assert specs != plan(45, 8, ("ring", "horovod", "ddp"), tmp_path)
    assert [spec.trainer for spec in specs] == ["ring", "horovod", "ddp", "ring", "horovod"]
    injections = [each for spec in specs for each in spec.injections]
    assert len(injections) == 45
    counts = [sum(each.kind == kind for each in injections) for kind in KINDS]
    assert max(counts) - min(counts) <= 1
    assert all(len(spec.injections) <= PER_RUN for spec in specs)


def test_a_changed_batch_size_is_the_last_of_its_run(tmp_path):
    kinds = ("batch", "gc", "late")
    specs = plan(30, 7, ("ddp",), tmp_path, kinds)
    of_runs = [[each.kind for each in spec.injections] for spec in specs]
    assert sorted(kind for run in of_runs for kind in run) == sorted(kinds * 10)
    assert all(run.count("batch") == 1 and run[-1] == "batch" for run in of_runs)
    for spec in specs:
        spec.check()
        assert spec.iterations >= spec.injections[-1].at + 15


def test_a_change_counts_where_it_began_and_only_there():
    def outcome(changed, at):
        durations = np.array([USUAL] * 5 + [changed] * 5)
        ends = np.cumsum(durations)
        change = injected("batch", "change", int(ends[4]), int(ends[-1]))
        truth = Truth("ring", "ring", ends - durations, ends, durations, (change,))
        (found,) = score("run", truth, [told(at, "change", durations)])[0]
        return found.outcome

    assert outcome(1.5 * USUAL, 5) == "right"
    assert outcome(1.5 * USUAL, 7) == "missed"
    assert outcome(1.1 * USUAL, 5) == "no effect"


def test_an_iteration_that_two_injections_met_is_no_measure_of_either():
    durations = np.array([USUAL] * 5 + [1.4 * USUAL, 1.6 * USUAL] + [USUAL] * 5)
    ends = np.cumsum(durations)
    loss = injected("loss", "loss", int(ends[4]) + 1, int(ends[6]) - 1)
    late = injected("late", "straggler", int(ends[5]) + 1, int(ends[6]) - 1, rank=1)
    truth = Truth("ring", "ring", ends - durations, ends, durations, (loss, late))
    outcomes, _ = score("run", truth, [told(5, "loss", durations, rank=1), told(6, "straggler", durations, rank=1)])
    assert [(each.kind, each.outcome) for each in outcomes] == [("loss", "right"), ("late", "no effect")]


def test_an_iteration_that_exchanges_more_is_held_against_one_that_exchanges_as_much():
    def outcome(more):
        sent = np.array([10, 9, 10, 11, 8, 12, 10, 10 + more, 10, 9, 11, 10]) * 1_000_000
        durations = (USUAL + (sent - 10_000_000) * 0.05 * USUAL / 1_000_000).astype(np.int64)
        durations[7] = 1.6 * USUAL
        ends = np.cumsum(durations)
        loss = injected("loss", "loss", int(ends[6]) + 1, int(ends[7]) - 1)
        truth = Truth("ring", "ring", ends - durations, ends, durations, (loss,), None, sent)
        [found] = score("run", truth, [])[0]
        return found.outcome, round(found.excess_ns / USUAL, 2)

    assert outcome(more=0) == ("missed", 0.6)
    assert outcome(more=5) == ("missed", 0.35)
    assert outcome(more=8) == ("no effect", 0.2)


def injected(kind, cause, begin, end, **more):
    blank = {"host": "", "hosts": [], "rank": None, "processes": [], "job": ""}
    return {**blank, "kind": kind, "cause": cause, "start_ns": begin, "end_ns": end, **more}


def told(number, cause, durations, **more):
    """A verdict on an iteration of a run with these durations."""
    end = int(np.cumsum(durations)[number])
    blank = {"culprit": "", "host": "", "rank": -1, "direction": "", "reported_ns": end + 500 * MS}
    duration = int(durations[number])
    return {
        **blank,
        "job": "ring",
        "iteration": number,
        "start_ns": end - duration,
        "end_ns": end,
        "duration_ns": duration,
        "baseline_ns": USUAL,
        "excess_ns": duration - USUAL,
        "cause": cause,
        **more,
    }


@pytest.fixture
def run():
    """Ten iterations, of which the fourth and the eighth take three times as long."""
    durations = np.full(10, USUAL)
    durations[[3, 7]] = 3 * USUAL
    end = np.cumsum(durations)
    stop = injected("stop", "straggler", int(end[2]) + MS, int(end[2]) + 200 * MS, rank=1, host="h1", hosts=["h1"])
    cross = injected("cross", "cross", int(end[6]) + MS, int(end[7]), hosts=["h2", "h0"], processes=["iperf3"])
    nothing = injected("nothing", "", int(end[4]) + MS, int(end[5]))
    return Truth("ring", "ring", end - durations, end, durations, (stop, nothing, cross)), durations


def outcome_of(run, *verdicts):
    outcomes, accusations = score("run", run[0], verdicts)
    return [each.outcome for each in outcomes], accusations, outcomes


def test_a_right_verdict_is_right(run):
    late = told(3, "straggler", run[1], rank=1, late_ns=180 * MS)
    cross = told(7, "cross", run[1], culprit="iperf3", host="h0", cross_ns=200 * MS)
    outcomes, accusations, all_of_it = outcome_of(run, late, cross)
    assert (outcomes, accusations) == (["right", "right", "right"], [])
    assert all_of_it[0].share_error == pytest.approx(0.1)
    assert all_of_it[0].judged_after_ns == 500 * MS


def test_wrong_ones_are_told_apart(run):
    other_rank = told(3, "straggler", run[1], rank=2)
    wrong = told(7, "unknown", run[1])
    assert outcome_of(run, other_rank, wrong)[0] == ["wrong culprit", "right", "wrong cause"]
    assert outcome_of(run)[0] == ["missed", "right", "missed"]


def test_accusing_the_network_of_a_stopped_rank_counts_twice(run):
    accused = told(3, "cross", run[1], culprit="iperf3", host="h0")
    outcomes, accusations, _ = outcome_of(run, accused)
    assert outcomes[0] == "wrong cause"
    assert [each.injected for each in accusations] == [("stop",)]


def test_accusing_the_network_of_what_nobody_did(run):
    (accusation,) = outcome_of(run, told(5, "cross", run[1]), told(1, "straggler", run[1]))[1]
    assert accusation.injected == ("nothing",)


@pytest.mark.parametrize(
    ("cause", "timeouts", "usually", "lost"),
    [("loss", 2, 0, 1), ("loss", 0, 0, 0), ("loss", 2, 2, 0), ("cross", 2, 0, 0)],
)
def test_of_packets_that_nobody_dropped_on_purpose_tcp_is_the_witness(run, cause, timeouts, usually, lost):
    truth = replace(run[0], timeouts=np.where(np.arange(10) == 5, timeouts, usually))
    accusations = score("run", truth, [told(5, cause, run[1])])[1]
    assert [each.lost for each in accusations] == [lost]
    result = VerdictResult(1)
    result.add([], accusations, 1)
    assert (result.document()["false_accusations"], result.document()["losses_not_injected"]) == (1 - lost, lost)


def test_where_tcp_knows_of_lost_packets_the_iteration_is_no_measure_of_what_was_done(run):
    lost = told(3, "loss", run[1])
    assert outcome_of(run, lost)[0][0] == "wrong cause"
    outcomes, (accusation,) = score("run", replace(run[0], timeouts=np.eye(10, dtype=int)[3]), [lost])
    assert (outcomes[0].outcome, accusation.lost) == ("no effect", True)


def test_what_is_lost_is_sent_again_in_the_next_iteration(run):
    truth, durations = run
    ends = np.cumsum(durations)
    loss = injected("loss", "loss", int(ends[5]), int(ends[6]) - 2 * MS, host="h0", direction="tx")
    truth = Truth("ring", "ring", truth.start_ns, truth.end_ns, truth.lasted_ns, (loss,))
    assert score("run", truth, [told(7, "loss", durations)])[1] == []
    assert len(score("run", truth, [told(8, "loss", durations), told(7, "cross", durations)])[1]) == 2


def test_what_did_not_hurt_is_not_asked_for(run):
    truth, durations = run
    quiet = injected("cross", "cross", int(np.cumsum(durations)[4]), int(np.cumsum(durations)[5]))
    truth = Truth("ring", "ring", truth.start_ns, truth.end_ns, truth.lasted_ns, (quiet,))
    outcomes, accusations = score("run", truth, [])
    assert [each.outcome for each in outcomes] == ["no effect"]
    result = VerdictResult(1)
    result.add(outcomes, accusations, 0)
    out = io.StringIO()
    show(result, Console(file=out, width=140))
    assert "1 took less than 1.3 × the baseline; the longest 1.00 ×" in " ".join(out.getvalue().split())


def test_of_what_lasts_for_seconds_every_iteration_counts_that_it_made_long():
    durations = np.where(np.isin(np.arange(30), range(10, 18)), 3 * USUAL, USUAL)
    end = np.cumsum(durations)
    slow = injected("slow-link", "slow_link", int(end[9]), int(end[17]), host="h1", hosts=["h1"])
    truth = Truth("ring", "ring", end - durations, end, durations, (slow,))
    outcomes, _ = score("run", truth, [told(number, "slow_link", durations, host="h1") for number in (10, 17)])
    assert [each.outcome for each in outcomes] == ["right", *["missed"] * 6, "right"]
    assert IncidentsFound.of(outcomes) == IncidentsFound(1, 1, 1, 1, 1)


def test_what_others_take_as_long_for_shows_no_cause(run):
    _, durations = run
    durations = np.where(np.isin(np.arange(10), (2, 4, 7)), 2 * USUAL, USUAL)
    end = np.cumsum(durations)
    stop = injected("stop", "straggler", int(end[6]) + MS, int(end[7]), rank=1)
    outcomes, _ = score("run", Truth("ring", "ring", end - durations, end, durations, (stop,)), [])
    assert [each.outcome for each in outcomes] == ["no effect"]
    result = VerdictResult(1)
    result.add(outcomes, [], 0)
    assert result.left_out["stop"].as_undisturbed == 1


def test_the_result_is_printed_and_is_a_document(run):
    truth, durations = run
    result = VerdictResult(1)
    verdicts = [told(3, "straggler", durations, rank=1, late_ns=190 * MS), told(7, "loss", durations, host="h0")]
    result.add(*score("run", truth, verdicts), len(verdicts))
    assert result.confusion == {
        "straggler": {"straggler": 1},
        "nothing": {"nothing": 1},
        "cross": {"loss": 1},
    }
    document = json.loads(json.dumps(result.document()))
    assert document["right_cause_share"] == 0.5
    assert document["right_culprit_share"] == 1
    assert document["incidents"] == {"made": 2, "right": 1, "within_a_step": 1, "lasting": 0, "lasting_right": 0}
    assert document["reported_after_s"]["p99"] == pytest.approx(0.5)
    assert document["left_out"]["nothing"] == {
        "count": 1,
        "done": False,
        "as_undisturbed": 0,
        "most": 1.0,
        "judged": {},
    }
    out = io.StringIO()
    show(result, Console(file=out, width=100))
    assert "left out: nothing" in out.getvalue()
    assert "wrong cause: cross" in out.getvalue()
    show(VerdictResult(0), Console(file=out, width=100))


def test_what_is_told_of_iterations_that_nothing_was_done_to(run):
    truth, durations = run
    found = Undisturbed()
    found.add(truth, [told(number, "straggler", durations, confidence=0.4) for number in (1, 3, 4)])
    assert (found.iterations, found.words()) == (len(truth.undisturbed), f"1 of {len(truth.undisturbed)}: 1 straggler")
    assert found.document()["judged"] == {"straggler": {"count": 1, "surest": 0.4}}


def test_a_link_moves_what_it_has_to_whatever_squeezes_it():
    for pattern, ranks in (("ring", 4), ("tree", 7), ("star", 5), ("clique", 3)):
        parts = phases(pattern, ranks, 1e7)
        plain = transfer(5e6, parts, 1e9, None)
        assert plain.payload[:, -1] == pytest.approx(sum(parts))
        squeeze = Squeeze(2, plain.end_ns / 2, plain.end_ns, 0.2)
        squeezed = transfer(5e6, parts, 1e9, squeeze)
        assert squeezed.payload[:, -1] == pytest.approx(sum(parts))
        assert squeezed.end_ns >= plain.end_ns
        first, buckets = squeezed.in_buckets(1_000_000)
        assert first == 5
        assert buckets.sum(axis=1) == pytest.approx(sum(parts))
        assert (buckets <= 1e9 / 8e3 * GOODPUT + 1).all()


def test_a_ring_takes_as_long_as_equation_3_1_says():
    moved = transfer(0.0, phases("ring", 4, 1e6), 1e9, None)
    assert moved.end_ns == pytest.approx(2 * 3 / 4 * 1e6 * 8 / GOODPUT)
    moved = transfer(0.0, phases("ring", 4, 1e6), 1e9, Squeeze(3, 0.0, 1e12, 0.25))
    assert moved.end_ns == pytest.approx(4 * 2 * 3 / 4 * 1e6 * 8 / GOODPUT)


@pytest.mark.parametrize("seed", range(24))
def test_simulated_causes_are_told(seed):
    its = scenario(seed)
    if its.ranks > 12:
        its = replace(its, ranks=12, victim=its.victim % 12, unseen=-1)  # soon over
    outcome = judge_one(its)
    assert outcome == judge_one(its)
    if its.cause == "slow_link":  # not always to be told from its traffic alone
        assert outcome.judged in ("slow_link", "unknown", "nothing")
    else:
        assert outcome.outcome in ("right", "no effect")
        assert outcome.share_error is None or outcome.share_error < 0.1


@pytest.mark.parametrize(
    ("seed", "cause"),
    [(31_337_000_268, "slow_link"), (2_718_000_014, "host"), (400_854, "host")],
    ids=["of a tree, whose receivers get more from others", "of few cores, late by a wait", "a star's quota"],
)
def test_simulated_causes_that_once_were_not_told(seed, cause):
    outcome = judge_one(scenario(seed))
    assert (outcome.cause, outcome.judged, outcome.outcome) == (cause, cause, "right")


def test_simulated_ones_count_like_those_of_the_lab():
    done = []
    spec = VerdictSpec(lab=0, simulated=4, seed=0)
    result = measure(spec, lambda count, of, text: done.append(count))
    assert len(result.outcomes) == 4
    assert done == [0, 1, 2, 3]
    assert result.accusations == []


def test_a_rerun_is_a_run_with_one_culprit_for_long(tmp_path):
    specs = plan_reruns(6, 3, ("ring", "ddp"), tmp_path)
    for spec in specs:
        spec.check()
        (culprit,) = spec.injections
        assert culprit.kind in ("cross", "job")
        assert culprit.duration_ns > 10 * typical_iteration_ns(spec)
    assert len({spec.data for spec in specs}) == 6


def test_predictions_are_held_against_what_was_measured():
    result = RerunResult(3)
    result.done += [
        Rerun("one", "ring", "cross", 100e6, 100e6, 300e6, 100e6, 103e6, 9),
        Rerun("two", "ddp", "job", 110e6, 100e6, 300e6, 100e6, 90e6, 9),
        Rerun("three", "ddp", "cross", 100e6, 100e6, 110e6, 100e6, None, 1),
    ]
    document = json.loads(json.dumps(result.document()))
    assert document["predicted"] == 2
    assert document["within_5_percent"] == 1
    assert (document["alike"], document["alike_within_5_percent"]) == (1, 1)  # of runs that differ nothing can be held
    assert document["error"]["median"] == pytest.approx(0.065)
    out = io.StringIO()
    show(result, Console(file=out, width=100))
    assert "2 of 3 predicted" in out.getvalue()


def test_the_command_judges_tables_without_root(capsys):
    assert main(["bench", "verdict", "--lab", "0", "--simulated", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["injections"] == 2
    assert document["counterfactual"]["configurations"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--lab", "0", "--simulated", "0"], "cannot judge nothing"),
        (["--lab", "0", "--kinds", "fire"], "cannot inject 'fire'"),
    ],
)
def test_what_cannot_be_judged(options, reason, capsys):
    assert main(["bench", "verdict", *options]) != 0
    assert reason in capsys.readouterr().err


def test_one_that_fails_does_not_end_the_others_and_ctrl_c_does():
    def do(number):
        if number == 1:
            raise DataError("cannot")
        if number == 3:
            raise KeyboardInterrupt
        done.append(number)

    done, failed, over = [], [], []
    assert in_turn({str(n): n for n in range(5)}, do, failed, over.append)
    assert (done, failed, over) == ([0, 2], ["1: cannot"], [0, 1, 2, 3])
    assert not in_turn({"0": 0}, do, failed)


def test_pairs_that_are_shifted_cost_each_other_a_third_and_can_stand_apart(tmp_path):
    """On a port that serves senders in turn, both wait for as long as the shorter transfer takes."""
    for jobs in plan_shifts(8, 5, tmp_path):
        transfers = [8e9 * ring_bytes(len(job.ring), job.parameters) / job.rate_bps for job in jobs]
        periods = [job.compute_ns + transfer for job, transfer in zip(jobs, transfers, strict=True)]
        assert periods[0] == pytest.approx(periods[1], rel=1e-4)
        assert 1 + min(transfers) / periods[0] >= 1.3
        assert sum(transfers) < 0.85 * periods[0]
        assert all(job.fair for job in jobs)


def test_what_would_have_been_lies_within_its_interval():
    """Beside the culprit another rank is late; the interval is 90 %, and no wider than it has to be."""
    inside, half = [], []
    for seed in range(1000, 1160):
        its = scenario(seed)
        if its.cause in ("cross", "other_job"):
            its = replace(its, ranks=min(its.ranks, 3), victim=its.victim % min(its.ranks, 3), unseen=-1, also_late=0.1)
            made = simulate(its)
            verdict = judge("simulated", made.steps, made.link_totals, made.number)
            low, high = verdict.counterfactual_low_ns, verdict.counterfactual_high_ns
            if verdict.cause.name.lower() == its.cause and made.excess_ns > 0.2 * made.baseline_ns:
                inside.append(low <= made.without_ns <= high)
                half.append((high - low) / 2 / made.without_ns)
    assert len(inside) >= 30
    assert np.mean(inside) >= 0.9
    assert np.median(half) <= 0.015
