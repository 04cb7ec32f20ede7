# SPDX-License-Identifier: Apache-2.0
"""Jobs as viewers see them."""

import time

import numpy as np
from iteration_tables import iteration_rows

from collector.host.iteration_rows import Accounted
from collector.view.job_views import JobFacts, Jobs
from netmon.dl.account import Tally
from netmon.dl.iterations import Iteration
from netmon.records import Moment, Source
from netmon.views import Cause, SourceScore, Verdict

MS = 1_000_000


def iteration(number, rank=0, duration_ms=100, start_ms=None, name="train", size=2):
    start = 100 * number if start_ms is None else start_ms
    bounds = start * MS, (start + duration_ms) * MS, Moment.STEP_START, Moment.STEP_END
    return Iteration(name, rank, size, number, *bounds, Source.HOOK, 1000, False, 0)


def stands_out(jobs, one):
    return len(jobs.standing_out(iteration_rows([(0, one)]))) == 1


def tally(cross_rx=0, sent=0):
    return Tally(sent, *([0] * 11), "backup" if cross_rx else "", 0, cross_rx, 0, cross_rx > 0)


def ended(jobs, host, one):
    jobs.add_ended({0: host}, iteration_rows([(0, one)]))


def accounted(jobs, one, account):
    columns = {name: np.array([value]) for name, value in account._asdict().items()}
    jobs.add_accounts(Accounted(iteration_rows([(0, one)]), columns))


def warnings(jobs):
    return [line for facts in jobs.facts() for line in facts.stopped]


def with_ranks(*counts):
    jobs = Jobs(0)
    for rank, count in enumerate(counts):
        for number in range(count):
            ended(jobs, f"h{rank}", iteration(number, rank))
            accounted(jobs, iteration(number, rank), tally())
    return jobs


def test_nothing_is_slow_before_five_iterations_of_each_rank_are_known():
    assert not stands_out(with_ranks(8, 3), iteration(3, 1, duration_ms=300))
    jobs = with_ranks(8)
    assert stands_out(jobs, iteration(8, duration_ms=300))
    ended(jobs, "h1", iteration(0, 1, duration_ms=300))  # a rank that is heard later
    assert not stands_out(jobs, iteration(0, 1, duration_ms=300))
    assert stands_out(with_ranks(8, 5), iteration(5, 1, duration_ms=300))
    assert stands_out(with_ranks(30, 3), iteration(30, duration_ms=300))  # the other one has stopped


def test_what_stands_out_is_measured_by_iterations_without_foreign_traffic():
    jobs = with_ranks(8, 8)
    for number in range(8, 30):
        for rank in (0, 1):
            ended(jobs, f"h{rank}", slow := iteration(number, rank, duration_ms=130))
            accounted(jobs, slow, tally(cross_rx=1000))
            assert stands_out(jobs, slow)


def test_a_job_that_has_changed_its_pace_is_measured_by_what_it_is_then():
    jobs = with_ranks(30, 30)
    for number in range(30, 40):
        for rank in (0, 1):
            ended(jobs, f"h{rank}", slower := iteration(number, rank, duration_ms=150))
            accounted(jobs, slower, tally())
    assert stands_out(jobs, iteration(40, duration_ms=150))
    jobs.judged(Verdict("train", 30, 0, 1, 150 * MS, 100 * MS, 50 * MS, Cause.CHANGE))
    assert not stands_out(jobs, iteration(40, duration_ms=150))
    assert stands_out(jobs, iteration(40, duration_ms=190))


def test_a_rank_that_vanishes_is_said():
    assert warnings(with_ranks(12, 11)) == []
    assert warnings(with_ranks(12, 2)) == ["rank 1 of job 'train' on h1: no iteration since 1"]


def test_a_job_that_begins_again_shows_its_new_iterations():
    jobs = with_ranks(30, 30)
    for rank in (0, 1):
        ended(jobs, f"h{rank}", iteration(0, rank, start_ms=9000))
    (view,) = jobs.views()
    assert (view.iteration, len(view.durations_ns)) == (0, 1)


def test_the_last_verdicts_are_shown_newest_first():
    jobs = with_ranks(12, 12)
    verdicts = [Verdict("train", number, 0, 200 * MS, 200 * MS, 100 * MS, 100 * MS) for number in range(8)]
    for verdict in verdicts:
        jobs.judged(verdict)
    jobs.judged(Verdict("nobody", 1, 0, 1, 1, 1, 0))
    (view,) = jobs.views()
    assert view.verdicts == tuple(reversed(verdicts[-5:]))


def test_an_incident_in_which_a_job_ends_does_not_go_on_for_ever(monkeypatch):
    jobs = with_ranks(12, 12)
    now = time.time_ns() // MS
    for rank in (0, 1):
        ended(jobs, f"h{rank}", iteration(12, rank, 200, now - 200))
    jobs.judged(Verdict("train", 12, (now - 200) * MS, now * MS, 200 * MS, 100 * MS, 100 * MS, Cause.CROSS, "iperf3"))
    assert [one.ongoing for view in jobs.views() for one in view.incidents] == [True]
    monkeypatch.setattr(time, "monotonic", lambda of=time.monotonic: of() + 61)
    monkeypatch.setattr(time, "time_ns", lambda of=time.time_ns: of() + 61_000 * MS)
    assert [one.ongoing for view in jobs.views() for one in view.incidents] == [False]


def test_an_elastic_job_shows_the_ranks_that_it_has():
    jobs = with_ranks(12, 12, 12)
    for number in range(12, 30):
        for rank in (0, 1):
            ended(jobs, f"h{rank}", iteration(number, rank))
            accounted(jobs, iteration(number, rank), tally())
    (view,) = jobs.views()
    assert (view.size, [rank.rank for rank in view.ranks]) == (2, [0, 1])
    assert warnings(jobs) == []


def test_a_job_all_of_whose_ranks_are_beyond_its_size_is_shown():
    """No honest agent says so."""
    jobs = Jobs(0)
    for rank in (5, 7):
        ended(jobs, f"h{rank}", iteration(3, rank, size=2))
    (view,) = jobs.views()
    assert (view.size, view.iteration, len(view.durations_ns)) == (2, 3, 1)


def test_a_job_whose_ranks_below_its_size_have_long_stopped_is_shown():
    jobs = Jobs(0)
    ended(jobs, "h0", iteration(0, 0, size=1))
    for number in range(20_000):
        ended(jobs, "h7", iteration(number, 7, size=1))
    (view,) = jobs.views()
    assert view.last_ns > 0


def test_a_source_that_has_left_is_not_scored_any_more():
    jobs = with_ranks(3, 3)
    one = SourceScore(Source.UPROBE, Source.HOOK, 10, 9, 9, 5)
    jobs.take_scores([("train", one)], {"train"})
    assert jobs.views()[0].scores
    jobs.take_scores([], {"train"})
    assert jobs.views()[0].scores == ()


def test_scores_of_all_ranks_are_one_and_stay_when_the_ranks_are_gone():
    jobs = with_ranks(3, 3)
    one = SourceScore(Source.INFERRED, Source.HOOK, 10, 9, 9, 5)
    for scores in ([("train", one), ("train", one), ("other", one)], []):
        jobs.take_scores(scores, ())
        (view,) = jobs.views()
        assert view.scores == (SourceScore(Source.INFERRED, Source.HOOK, 20, 18, 18, 5),)


def test_no_job_is_hidden_and_one_that_is_long_over_goes(monkeypatch):
    jobs = Jobs(0)
    for number in range(100):
        ended(jobs, "h0", iteration(1)._replace(job=f"job-{number:03}"))
    assert len(jobs.views()) == len(jobs.facts()) == 100
    later = time.monotonic() + 3601
    monkeypatch.setattr(time, "monotonic", lambda: later)
    ended(jobs, "h0", iteration(1))
    assert [view.job for view in jobs.views()] == ["train"]
    assert jobs.forgotten == 0


def test_a_job_of_many_ranks_keeps_bounded_tables():
    jobs = Jobs(0)
    hosts = {rank: f"h{rank}" for rank in range(1000)}
    columns = {name: np.repeat([value], 1000) for name, value in tally()._asdict().items()}
    for number in range(30):
        rows = iteration_rows([(rank, iteration(number, rank)._replace(size=1000)) for rank in hosts])
        jobs.add_ended(hosts, rows)
        jobs.add_accounts(Accounted(rows, columns))
    (view,) = jobs.views()
    assert (view.size, view.iteration, len(view.ranks)) == (1000, 29, 1000)
    assert 16 <= len(view.durations_ns) <= 30
    assert stands_out(jobs, iteration(30, duration_ms=121))
    assert not stands_out(jobs, iteration(31, duration_ms=119))


def test_what_is_kept_of_a_job_is_its_last_iterations():
    jobs = with_ranks(1300, 1300)
    (view,) = jobs.views()
    assert len(view.durations_ns) == 500
    assert view.iteration == 1299
    assert jobs.facts() == [JobFacts("train", frozenset({"h0", "h1"}), 2, 0, (), "train")]


def called(rank, name, job="train"):
    return iteration(0, rank, name=job)._replace(job_name=name)


def test_jobs_that_people_call_the_same_are_told_apart():
    jobs = Jobs(0)
    for job in ("10.0.0.1:9994", "10.0.0.1:9995"):
        ended(jobs, "h0", called(0, "train.py@node3", job))
    assert [view.name for view in jobs.views()] == [
        "train.py@node3 [10.0.0.1:9994]",
        "train.py@node3 [10.0.0.1:9995]",
    ]
    ended(jobs, "h0", called(0, "bert (Slurm 7)", "10.0.0.1:9995")._replace(number=1))
    assert [view.name for view in jobs.views()] == ["train.py@node3", "bert (Slurm 7)"]
    assert [fact.name for fact in jobs.facts()] == ["train.py@node3", "bert (Slurm 7)"]


def test_the_lowest_rank_says_what_a_job_is_called():
    jobs = Jobs(0)
    for rank, name in ((2, "c"), (0, "a"), (1, "b"), (2, "c")):
        ended(jobs, f"h{rank}", called(rank, name))
    assert [view.name for view in jobs.views()] == ["a"]


def test_a_job_that_nobody_has_named_is_called_what_its_ranks_have_in_common():
    jobs = Jobs(0)
    ended(jobs, "h0", called(0, ""))
    assert [view.name for view in jobs.views()] == ["train"]
