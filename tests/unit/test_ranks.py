# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host: who they are, and marks that nobody should send."""

from dataclasses import replace

import numpy as np
import pytest
from collector_stream import MS, mark
from rank_hosts import Hosts, over, ranks, step, told

from collector.host.rank_table import DISTANT
from netmon.dl.iterations import GONE, REPEATED, STRANGER
from netmon.records import Direction, Flow, Moment, Owner, Source

START, END, ENQUEUE, WAIT = Moment.STEP_START, Moment.STEP_END, Moment.FIRST_ENQUEUE, Moment.LAST_WAIT
JOIN, LEAVE = Moment.JOIN, Moment.LEAVE
UPROBE = {"source": Source.UPROBE}


def stamps(of, times_ms, job="", rank=-1):
    """Job and iteration of rows at these times of a flow of that job and rank, or of nobody's."""
    stage = of.hosts.stage
    flows = stage.session(of.place).window.flows
    of.flow_id += 1
    owner = Owner(1, "x", "", job, rank, "socket")
    flows.describe(Flow(of.flow_id, 7, Direction.TX, "10.0.0.1", "10.0.0.2", 1, 2, 6, 0, owner))
    time_ns = np.array(times_ms) * MS
    whose = np.full(len(time_ns), of.place), np.full(len(time_ns), flows.index_of(of.flow_id))
    jobs, numbers = stage.tables.steps().stamp(*whose, time_ns)
    return [stage.tables.flows.jobs[job] for job in jobs.tolist()], numbers.tolist()


def test_marks_without_a_join_are_not_used():
    host = ranks()
    assert told(host, *step(0, 0), *step(1, 10)) == []
    assert host.unusable == {STRANGER: 4}
    assert told(host, mark(JOIN, 0, 0), *step(2, 20)) == [("train", 2, 20, 29)]


def test_a_new_process_starts_again_from_0():
    first = [mark(JOIN, 0, 0), *step(0, 0), mark(LEAVE, 0, 15)]
    second = [mark(JOIN, 0, 20, pid=11), *step(0, 30, pid=11)]
    assert told(ranks(), *first, *second) == [("train", 0, 0, 9), ("train", 0, 30, 39)]


def test_marks_heard_again_warn_of_nothing(caplog):
    host = ranks()
    marks = [mark(JOIN, 0, 0), *step(0, 0)]
    told(host, *marks)
    assert len(host.settle(1000)) == 1
    assert told(host, *marks, horizon_ms=1000) == []
    assert host.unusable == {REPEATED: 2}
    assert not caplog.messages


def test_a_process_that_is_gone_is_not_heard():
    host = ranks()
    told(host, mark(JOIN, 0, 0), *step(0, 0), mark(LEAVE, 0, 10))
    assert told(host, *step(1, 20)) == []
    assert host.unusable[GONE] == 2


def test_two_jobs_of_one_name_are_two_jobs(caplog):
    host = ranks()
    both = [m for k in range(3) for m in (*step(k, 20 * k), *step(k, 20 * k + 5, pid=11))]
    found = told(host, mark(JOIN, 0, 0), mark(JOIN, 0, 0, pid=11), *both)
    assert found == [
        (job, k, 20 * k + o, 20 * k + o + 9) for job, o in (("train", 0), ("train#2", 5)) for k in range(3)
    ]
    assert "process 11 on h0 steps as rank 0 of job 'train' while another process does" in caplog.messages[0]
    assert host.ranks.renamed == {("train", 11): "train#2"}


def test_two_jobs_of_one_name_on_two_hosts_are_two_jobs():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    assert told(first, mark(JOIN, 0, 0), *step(0, 0)) == [("train", 0, 0, 9)]
    assert told(second, mark(JOIN, 0, 0), *step(0, 0)) == [("train#2", 0, 0, 9)]
    first.ranks.release()  # its agent is cut off; the job goes on elsewhere
    assert told(hosts.ranks("h2"), mark(JOIN, 0, 0), *step(0, 20)) == [("train", 0, 20, 29)]


def test_a_child_that_only_looks_like_the_rank_changes_nothing():
    host = ranks()
    assert told(host, mark(JOIN, 0, 0), mark(JOIN, 0, 1, pid=11), *step(0, 5)) == [("train", 0, 5, 14)]
    assert host.ranks.names() == [("train", 0)]


@pytest.mark.parametrize("at_ms", [0, 7_300_000])
def test_an_iteration_from_a_distant_past_or_future_is_not_used(at_ms):
    host = ranks()
    told(host, mark(JOIN, 0, 0), horizon_ms=7_200_000)
    assert told(host, *step(0, at_ms), horizon_ms=7_200_000) == []
    assert host.rejected.unusable == {DISTANT: 1}
    assert host.rejected.warnings == [f"h0: iterations that were not used: 1 {DISTANT}"]


def test_a_clock_that_goes_back_invents_nothing():
    host = ranks()
    marks = [mark(JOIN, 0, 0), *step(0, 1000), *step(1, 500), *step(2, 1020)]
    assert told(host, *marks) == [("train", 0, 1000, 1009), ("train", 2, 1020, 1029)]
    assert host.unusable[REPEATED] == 2


def test_a_training_that_begins_again_in_its_process_goes_on_counting():
    again = [mark(LEAVE, 1, 30), mark(JOIN, 0, 40), *step(0, 40), *step(1, 50)]
    found = told(ranks(), mark(JOIN, 0, 0), *step(0, 0), *step(1, 10), *again)
    assert [number for _, number, *_ in found] == [0, 1, 2, 3]


def enqueues(count, first_ms=0.0, **changes):
    """Iterations of 100 ms from last wait to last wait; the first one begins with its FIRST_ENQUEUE and lasts 70."""
    moments = [(ENQUEUE, 0), (WAIT, 70)]
    return [mark(m, k, first_ms + 100 * k + after, **UPROBE, **changes) for k in range(count) for m, after in moments]


def test_ranks_that_began_to_look_at_different_times_agree():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    told(first, mark(JOIN, 0, 0, **UPROBE), *enqueues(10, relative=True))
    late = {"rank": 1, "relative": True}
    found = told(second, mark(JOIN, 0, 0, **UPROBE, **late), *enqueues(6, 402.0, **late))
    assert [number for _, number, *_ in found] == [4, 5, 6, 7, 8, 9]
    assert stamps(second, [403, 950], "train", 1)[1] == [4, 9]


def test_the_last_iteration_of_a_late_rank_is_numbered_as_the_others_though_they_are_gone():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    late = {"rank": 1, "relative": True}
    told(first, mark(JOIN, 0, 0, **UPROBE), *enqueues(10), mark(LEAVE, 9, 980, **UPROBE))
    told(second, mark(JOIN, 0, 0, **UPROBE, **late), *enqueues(6, 402.0, **late), mark(LEAVE, 5, 980, **UPROBE, **late))
    first.settle(2000)
    settled = second.settle(2000)
    assert [(one.number, one.relative) for one in settled] == [(number, False) for number in range(4, 10)]


def test_a_host_that_is_heard_no_more_keeps_its_numbers_whoever_takes_its_ranks():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    late = {"rank": 1, "relative": True}
    told(first, mark(JOIN, 0, 0, **UPROBE), *enqueues(10), mark(LEAVE, 9, 980, **UPROBE))
    told(second, mark(JOIN, 0, 0, **UPROBE, **late), *enqueues(6, 402.0, **late))
    first.settle(2000)
    second.ranks.release()
    by_traffic = {"rank": 1, "relative": True, "pid": 0, "source": Source.INFERRED}
    told(first, *(replace(m, **by_traffic) for m in enqueues(6, 402.0)))
    settled = second.hosts.end(second)
    assert [(one.number, one.relative) for one in settled] == [(number, False) for number in range(4, 10)]


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_rank_whose_numbers_are_true_makes_the_others_true(cut_off):
    """Also where the host of the others was not heard for a while."""
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    told(first, mark(JOIN, 0, 0, **UPROBE, relative=True), *enqueues(5, relative=True))
    counted = [replace(m, rank=1, iteration=m.iteration + 800) for m in enqueues(5, 1.0)]
    told(second, mark(JOIN, 0, 0, rank=1, **UPROBE), *counted)
    later = [replace(m, time_ns=m.time_ns + 500 * MS, iteration=m.iteration + 5) for m in enqueues(3, relative=True)]
    if cut_off:
        first.ranks.release()
    found = told(first, *later)
    assert [number for _, number, *_ in found] == [805, 806, 807]
    assert not any(one.relative for one in first.settle(2000))


def test_a_missed_first_cycle_is_made_up_for():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    told(first, mark(JOIN, 0, 0, **UPROBE), *enqueues(3, 100.0))  # it missed the one from 0 to 100 ms
    found = told(second, mark(JOIN, 0, 0, rank=1, **UPROBE), *enqueues(4, 1.0, rank=1))
    assert [number for _, number, *_ in found] == [0, 1, 2, 3]
    told(first)
    assert stamps(first, [150, 350], "train", 0)[1] == [1, 3]


def test_a_job_of_one_rank_says_so():
    host = ranks()
    told(host, mark(JOIN, 0, 0, size=1), *step(0, 0, size=1))
    assert [one.size for one in host.settle(1000)] == [1]


@pytest.mark.parametrize("after", [1, 3])
def test_when_the_hook_stops_the_uprobes_go_on(after):
    """Nothing overlaps, nothing comes twice, and the numbers go on."""
    hooked = [m for k in range(5) for m in (mark(START, k, 100 * k + 5), mark(END, k, 100 * k + 104))]
    probed = enqueues(12, 25.0, relative=True)
    left = [mark(LEAVE, 4, 505)] if after == 1 else []  # its connection breaks, or it only falls silent
    marks = sorted([*hooked, *left, *probed], key=lambda one: one.time_ns)
    host = ranks()
    found = told(host, mark(JOIN, 0, 0), mark(JOIN, 0, 0, **UPROBE), *marks)
    assert [number for _, number, *_ in found] == list(range(12))
    assert host.ranks.scores() == ([], [])  # nothing is held against what has stopped
    edges = [edge for *_, start, end in found for edge in (start, end)]
    assert edges == sorted(edges)


def test_what_the_traffic_tells_late_does_not_come_beside_what_the_process_told():
    host = ranks()
    told(host, mark(JOIN, 0, 0), *step(0, 0), *step(1, 10), mark(LEAVE, 1, 20))
    host.settle(1000)
    traffic = {"pid": 0, "source": Source.INFERRED}
    late = [mark(moment, k, 10 * k + at, **traffic) for k in range(5) for moment, at in ((ENQUEUE, 2), (WAIT, 8))]
    found = told(host, *late, horizon_ms=1000)
    assert [(start, end) for *_, start, end in found] == [(28, 38), (38, 48)]


@pytest.mark.parametrize(("each_ms", "stands_in"), [(3, False), (10, True)])
def test_traffic_that_pauses_within_a_step_does_not_stand_in_for_a_process_that_waits(each_ms, stands_in):
    host = ranks()
    told(host, mark(JOIN, 0, 0), *(one for k in range(6) for one in step(k, 10 * k)))
    traffic = {"pid": 0, "source": Source.INFERRED}
    times = [(k, 70 + each_ms * k) for k in range(9)]
    shown = [mark(moment, k, ms + at, **traffic) for k, ms in times for moment, at in ((ENQUEUE, 1), (WAIT, 2))]
    told(host, *shown[:10])
    assert bool(told(host, *shown[10:])) == stands_in


def test_what_the_traffic_tells_late_does_not_make_a_rank_train_that_has_left():
    host, times = ranks(), [5, 500, 1500]
    told(host, mark(JOIN, 0, 0), *step(0, 0))
    assert stamps(host, times)[0] == ["train", "train", "train"]
    told(host, mark(LEAVE, 0, 1000))
    assert stamps(host, times)[0] == ["train", "train", ""]
    host.settle(1100)
    assert host.ranks.names() == []
    late = [mark(moment, 7, time, pid=0, source=Source.INFERRED) for moment, time in ((START, 900), (END, 990))]
    told(host, *late, horizon_ms=1100)
    assert (host.ranks.names(), host.ranks.stepping_jobs()) == ([("train", 0)], set())
    assert stamps(host, times) == (["", "", ""], [-1, -1, -1])


def test_a_source_whose_last_words_come_with_its_leaving_is_scored():
    """As a timeline that was read when its process was gone; traffic that is understood later changes nothing."""
    host, timeline, traffic = ranks(), {"source": Source.TIMELINE}, {"pid": 0, "source": Source.INFERRED}
    told(host, mark(JOIN, 0, 0), mark(JOIN, 0, 0, **timeline), *(m for k in range(5) for m in step(k, 10 * k)))
    told(host, mark(LEAVE, 4, 51))
    written = [mark(moment, k, 10 * k + at, **timeline) for k in range(5) for moment, at in ((ENQUEUE, 1), (WAIT, 8))]
    told(host, *written, mark(LEAVE, 4, 48, **timeline), horizon_ms=600)
    host.settle(600)
    for _ in range(2):
        present, ((job, score),) = host.ranks.scores()
        assert (present, host.ranks.stepping_jobs(), job) == ([], set(), "train")
        assert (score.source, score.reference, score.found, score.matched) == (Source.TIMELINE, Source.HOOK, 5, 5)
        told(host, *(mark(moment, 7, at, **traffic) for moment, at in ((START, 900), (END, 990))), horizon_ms=600)
        host.settle(1_000_000)


def test_an_elastic_job_gives_its_ranks_out_anew():
    """Rank 0 of three dies; the others' agents tell of it one after the other, and a new process joins."""
    hosts = Hosts()
    a, b, c, d = (hosts.ranks(host) for host in "abcd")
    joined = [mark(JOIN, 0, 0, rank=r, size=3, **UPROBE) for r in range(3)]
    for rank, host in enumerate((a, b, c)):
        assert len(told(host, joined[rank], *enqueues(5, rank=rank, size=3))) == 5

    def again(rank, size, first, count, at_ms):
        later = [replace(m, iteration=m.iteration + first) for m in enqueues(count, at_ms, rank=rank, size=size)]
        return [mark(JOIN, 0, at_ms - 100, rank=rank, size=size, **UPROBE), *later]

    def left(rank):
        return mark(LEAVE, 4, 480, rank=rank, size=3, **UPROBE)

    # c, which was rank 2, is rank 1 now; b still is that, as far as is known
    assert told(c, left(2), *again(1, 2, 5, 4, 2000)) == []
    assert told(b, left(1), *again(0, 2, 5, 4, 2000)) == []
    assert told(a, left(0)) == []
    for host in (b, c):
        assert told(host) == [("train", k, max(2000, 1470 + 100 * k), 1570 + 100 * k) for k in (5, 6, 7, 8)]
    # the next one counts from its own beginning
    told(b, mark(LEAVE, 8, 2380, rank=0, size=2, **UPROBE), *again(0, 3, 9, 4, 4000))
    told(d, *again(2, 3, 0, 4, 4000))
    told(c, mark(LEAVE, 8, 2380, rank=1, size=2, **UPROBE), *again(1, 3, 9, 4, 4000))
    for host, rank, number in ((b, 0, 13), (d, 2, 4), (c, 1, 13)):
        told(host, *again(rank, 3, number, 1, 4400)[1:])
    assert [stamps(host, [4250], "train", rank)[1] for host, rank in ((b, 0), (d, 2), (c, 1))] == [[11]] * 3
    assert not any("another job" in line for host in (a, b, c, d) for line in host.rejected.warnings)


def test_what_a_worker_does_first_is_stored_when_its_number_is_known_and_after_three_seconds_at_the_latest():
    """It counts from its own beginning, and one moment together with another rank does not say from which one."""
    hosts = Hosts()
    first, second, third = (hosts.ranks(host) for host in ("h0", "h1", "h2"))

    def stored(host, rank, numbers, horizon_ms):
        """Iterations of 100 ms that begin with number 0 at 2.5 s, in a batch."""
        marks = [m for m in enqueues(numbers.stop, 2500, rank=rank, size=3) if m.iteration >= numbers.start]
        if host is first:
            marks = [replace(m, iteration=m.iteration + 25) for m in marks]
        elif not numbers.start:
            marks.insert(0, mark(JOIN, 0, 2490, rank=rank, size=3, **UPROBE))
        return [one.number for one in over(host.hear(marks, horizon_ms))]

    assert len(over(first.hear([mark(JOIN, 0, 0, size=3, **UPROBE), *enqueues(25, size=3)], 2490))) == 25
    assert stored(second, 1, range(1), 2580) == stored(third, 2, range(1), 2585) == []
    assert stored(first, 0, range(1), 2590) == [25]
    assert stored(second, 1, range(1, 10), 3500) == []
    assert stored(first, 0, range(1, 10), 3510) == [*range(26, 35)]
    assert second.place not in hosts.ended, "nor is it shown or judged before"
    assert stored(second, 1, range(10, 11), 3590) == [*range(25, 36)]
    assert [one.number for one in hosts.ended[second.place]] == [*range(25, 36)]
    assert stored(third, 2, range(0), 5500) == []
    assert stored(third, 2, range(0), 5580) == [0]  # of the others nothing has been heard since
    assert not [line for host in (first, second, third) for line in host.rejected.warnings]


def test_a_rival_that_has_not_stepped_since_is_waited_for_but_not_for_ever():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    told(first, mark(JOIN, 0, 0), *step(0, 0))
    assert told(second, mark(JOIN, 0, 0), *step(0, 20), *step(1, 30)) == []
    assert told(second, *step(2, 20_000), horizon_ms=15_000) == [
        ("train#2", k, start, start + 9) for k, start in ((0, 20), (1, 30), (2, 20_000))
    ]


def test_a_job_that_is_known_by_its_traffic_only_gives_way():
    hosts = Hosts()
    first, second = (hosts.ranks(host) for host in ("h0", "h1"))
    traffic = {"pid": 0, "source": Source.INFERRED, "size": 3}
    marks = [mark(moment, k, 10 * k + at, **traffic) for k in range(3) for moment, at in ((ENQUEUE, 2), (WAIT, 8))]
    assert len(told(first, *marks)) == 3
    assert told(second, mark(JOIN, 0, 20), *step(0, 25)) == [("train", 0, 25, 34)]
    assert told(first, mark(ENQUEUE, 3, 32, **traffic), mark(WAIT, 3, 38, **traffic)) == []


def test_what_the_traffic_tells_of_a_process_that_has_left_is_not_counted_as_unusable():
    host = ranks()
    told(host, mark(JOIN, 0, 0, **UPROBE), *enqueues(3), mark(LEAVE, 2, 270, **UPROBE))
    traffic = {"pid": 0, "source": Source.INFERRED}
    late = [mark(moment, k, 100 * k + at, **traffic) for k in range(4) for moment, at in ((ENQUEUE, 2), (WAIT, 69))]
    assert told(host, *late) == []
    assert host.rejected.warnings == []


def test_with_two_sources_the_first_that_tells_of_the_new_size_ends_the_old_one():
    """The probes see the job set up anew before the script marks anything; a new process has then the third rank."""
    hosts = Hosts()
    host, other = (hosts.ranks(name) for name in ("h0", "h1"))
    two, three = {"size": 2}, {"size": 3}
    hooked = [m for k in range(3) for m in step(k, 100 * k, **two)]
    told(host, mark(JOIN, 0, 0, **two), mark(JOIN, 0, 0, **two, **UPROBE), *hooked, *enqueues(3, 1.0, **two))
    anew = [mark(LEAVE, 2, 290, **two, **UPROBE), mark(JOIN, 0, 1000, **three, **UPROBE)]
    hooked = [m for k in range(3, 6) for m in step(k, 100 * k + 800, **three)]
    again = [mark(LEAVE, 3, 1050, **two), mark(JOIN, 0, 1050, **three), *hooked]
    found = told(host, *anew, *again)
    assert found == [("train", k, 100 * k + 800, 100 * k + 809) for k in (3, 4, 5)]
    joined = {"rank": 2, "size": 3}
    steps = [m for k in range(3) for m in step(k, 100 * k + 1101, **joined)]
    told(other, mark(JOIN, 0, 1100, **joined), *steps)
    assert stamps(other, [1305], "train", 2)[1] == [5]
    assert not any("another job" in line for line in (*host.rejected.warnings, *other.rejected.warnings))


@pytest.mark.parametrize("together", [True, False])
def test_claims_hear_of_all_steps_before_somebody_else_claims(together):
    """The second process steps while the first one does: what came before its claim counts, in one batch or in many."""
    host = ranks()
    marks = [
        *(mark(JOIN, 0, 0), mark(JOIN, 0, 0, pid=11), mark(START, 0, 0), mark(START, 0, 5, pid=11)),
        *(mark(END, 0, 9), mark(END, 0, 14, pid=11)),
    ]
    found = told(host, *marks) if together else [one for m in marks for one in told(host, m)]
    assert sorted(found) == [("train", 0, 0, 9), ("train#2", 0, 5, 14)]


def test_a_rank_that_has_not_stepped_yet_holds_back_its_join():
    """Its first step may be told late."""
    host = ranks()

    def needed():
        return host.hosts.stage.tables.needed_since(host.place)

    told(host)
    assert needed() is None
    told(host, mark(JOIN, 0, 5, **UPROBE))
    assert needed() == 5 * MS
    told(host, mark(LEAVE, 0, 6, **UPROBE))
    assert needed() is None
