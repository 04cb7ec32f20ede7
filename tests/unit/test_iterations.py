# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise

from collector_stream import MS, mark
from hypothesis import example, given
from hypothesis import strategies as st
from lines_run import lines_run

from netmon.dl.iterations import IterationTracker, SourceMarks
from netmon.records import Moment, Source

START, END, ENQUEUE, WAIT = Moment.STEP_START, Moment.STEP_END, Moment.FIRST_ENQUEUE, Moment.LAST_WAIT
UPROBE = {"source": Source.UPROBE}


def track(*marks, leaving=False):
    tracker = IterationTracker("train", 0)
    found = []
    for one in marks:
        tracker.add(one)
        found += tracker.finished()
    return tracker, found + tracker.finished(leaving)


def spans(iterations):
    return [(i.number, i.start_ns // MS, i.end_ns // MS) for i in iterations]


def step(number, start):
    return [mark(START, number, start), mark(END, number, start + 9)]


def test_steps_are_from_start_to_end():
    tracker, found = track(*step(0, 0), *step(1, 10))
    assert spans(found) == [(0, 0, 9), (1, 10, 19)]
    assert (found[0].start_moment, found[0].end_moment, found[0].source) == (START, END, Source.HOOK)
    assert tracker.unusable == 0


def test_communication_alone_is_from_wait_to_wait():
    marks = [mark(m, k, t, **UPROBE) for k, t in ((0, 0), (1, 10), (2, 20)) for m, t in ((ENQUEUE, t), (WAIT, t + 7))]
    _, found = track(*marks)
    assert spans(found) == [(0, 0, 7), (1, 7, 17), (2, 17, 27)]
    assert [i.start_moment for i in found] == [ENQUEUE, WAIT, WAIT]


def test_where_waits_are_not_known_an_iteration_ends_with_the_next_enqueue():
    _, found = track(*(mark(ENQUEUE, k, 10 * k, **UPROBE) for k in range(3)))
    assert spans(found) == [(0, 0, 10), (1, 10, 20)]
    known = [mark(m, k, t, **UPROBE) for k, t in ((0, 0), (1, 10), (3, 30)) for m, t in ((ENQUEUE, t), (WAIT, t + 7))]
    _, found = track(*known[:4], mark(ENQUEUE, 2, 20, **UPROBE), *known[4:])
    assert spans(found) == [(0, 0, 7), (1, 7, 17), (2, 17, 30), (3, 30, 37)]


def test_a_late_rank_and_those_that_wait_for_it_are_late_in_the_same_iteration():
    """One hands its gradients over late, in whatever part of its step it was stopped: all get them at the same time."""
    begins = {0: [(0, 0), (1, 100), (2, 200), (3, 600)], 1: [(0, 0), (1, 100), (2, 500), (3, 600)]}
    durations = {}
    for rank, told in begins.items():
        ends = (70, 170, 570, 670)
        marks = [mark(*one, rank=rank, **UPROBE) for k, t in told for one in ((ENQUEUE, k, t), (WAIT, k, ends[k]))]
        _, found = track(*marks)
        durations[rank] = {one.number: (one.end_ns - one.start_ns) // MS for one in found}
    assert durations[0] == durations[1] == {0: 70, 1: 100, 2: 400, 3: 100}


def test_what_a_hook_tells_of_a_step_whose_start_was_not_heard_is_no_iteration():
    marks = [mark(ENQUEUE, 4, 3), mark(WAIT, 4, 8), mark(END, 4, 9), *step(5, 10)]
    _, found = track(*marks, leaving=True)
    assert spans(found) == [(5, 10, 19)]


def test_the_hook_wins_and_borrows_the_communication():
    marks = [mark(START, 5, 0), mark(ENQUEUE, 0, 3, **UPROBE), mark(WAIT, 0, 8, **UPROBE), mark(END, 5, 9)]
    tracker, found = track(*marks, mark(ENQUEUE, 1, 13, **UPROBE))
    assert spans(found) == [(5, 0, 9)]
    assert tracker.communication(0, 9 * MS) == (3 * MS, 8 * MS, 0)
    assert tracker.communication(100 * MS, 109 * MS) == (0, 0, 0)


def test_duplicates_invent_nothing():
    tracker, found = track(*step(0, 0), *step(0, 0), mark(START, 1, 10), mark(START, 1, 12), mark(END, 1, 19))
    assert spans(found) == [(0, 0, 9), (1, 10, 19)]
    assert tracker.unusable == 3


def test_marks_out_of_order_give_the_same():
    start, end = step(0, 0)
    assert spans(track(end, start)[1]) == [(0, 0, 9)]


def test_an_iteration_without_an_end_is_left_out():
    _, found = track(mark(START, 0, 0), *step(1, 10))
    assert spans(found) == [(1, 10, 19)]


def test_overlap_and_reversal_are_refused():
    _, found = track(*step(0, 0), *step(1, 5), mark(START, 2, 30), mark(END, 2, 20), *step(3, 40))
    assert spans(found) == [(0, 0, 9), (3, 40, 49)]


def test_a_missing_enqueue_ends_nothing():
    _, found = track(*(mark(ENQUEUE, k, 10 * k, **UPROBE) for k in (0, 1, 3, 4)))
    assert spans(found) == [(0, 0, 10), (3, 30, 40)]


def test_the_iteration_under_way():
    tracker, _ = track(*step(0, 0), *step(1, 10), mark(START, 2, 20))
    start = tracker.under_way()
    assert (start.number, start.time_ns) == (2, 20 * MS)
    tracker.add(mark(END, 2, 29))
    tracker.finished()
    assert tracker.under_way() is None


@given(st.permutations([m for k in range(4) for m in step(k, 10 * k)]), st.data())
def test_no_order_invents_an_iteration(marks, data):
    repeated = marks + data.draw(st.lists(st.sampled_from(marks), max_size=5))
    true = {(k, 10 * k, 10 * k + 9) for k in range(4)}
    found = spans(track(*repeated)[1])
    assert set(found) <= true
    assert len(found) == len(set(found))


times = st.lists(st.integers(0, 100), max_size=60)


def test_other_sources_are_scored_against_the_one_that_decides():
    moments = [(START, 0), (ENQUEUE, 3), (WAIT, 8), (END, 9)]
    hooked = [mark(moment, k, 10 * k + after) for k in range(20) for moment, after in moments]
    told = [(k, moment, after) for k in range(15) for moment, after in moments[1:3] if k != 7]
    probed = [mark(moment, k, 10 * k + 50.1 + after, **UPROBE) for k, moment, after in told]
    tracker, found = track(*hooked, *probed)
    assert len(found) == 20
    (score,) = tracker.scores()
    assert (score.source, score.reference) == (Source.UPROBE, Source.HOOK)
    assert (score.iterations, score.found, score.matched, score.error_ns) == (15, 14, 14, MS // 10)


def test_sources_that_have_all_left_are_scored_by_all_that_they_have_told():
    """As a timeline whose end was read when its process was gone."""
    hooked = [one for k in range(20) for one in step(k, 10 * k)]
    timeline = {"source": Source.TIMELINE}
    written = [
        mark(moment, k, 10 * k + after, **timeline) for k in range(20) for moment, after in ((ENQUEUE, 3), (WAIT, 8))
    ]
    tracker, _ = track(*hooked)
    tracker.leave(Source.HOOK)
    tracker.finished()
    for one in written:
        tracker.add(one)
    tracker.leave(Source.TIMELINE)
    tracker.finished(leaving=True)
    (score,) = tracker.scores()
    assert (score.source, score.reference) == (Source.TIMELINE, Source.HOOK)
    assert (score.iterations, score.found, score.matched) == (20, 20, 20)


def test_what_the_traffic_tells_does_not_stand_beside_what_the_script_tells():
    inferred = [mark(ENQUEUE, 0, 3, source=Source.INFERRED), mark(WAIT, 0, 8, source=Source.INFERRED)]
    tracker, found = track(*step(0, 0), *inferred)
    assert spans(found) == [(0, 0, 9)]
    assert tracker.communication(0, 9 * MS) == (0, 0, 0)


def test_a_pause_is_in_no_iteration():
    quiet = {"source": Source.INFERRED}
    marks = [mark(ENQUEUE, 0, 0, **quiet), mark(WAIT, 0, 8, **quiet), mark(END, 0, 8, **quiet)]
    more = [
        mark(moment, 1 + k, 500 + 10 * k + at, **quiet) for k in range(2) for moment, at in ((ENQUEUE, 0), (WAIT, 8))
    ]
    _, found = track(*marks, *more)
    assert spans(found) == [(0, 0, 8), (1, 500, 508), (2, 508, 518)]


def test_exposed_communication_is_from_the_first_wait_to_the_last():
    moments = ((START, 0), (ENQUEUE, 2), (Moment.FIRST_WAIT, 5), (WAIT, 8), (END, 9))
    tracker, (found,) = track(*(mark(moment, 0, after) for moment, after in moments))
    assert tracker.communication(found.start_ns, found.end_ns) == (2 * MS, 8 * MS, 5 * MS)
    told = found._replace(comm_start_ns=2 * MS, comm_end_ns=8 * MS, wait_start_ns=5 * MS)
    assert (told.communication_ns, told.exposed_ns) == (6 * MS, 3 * MS)
    assert (found.communication_ns, found.exposed_ns) == (-1, -1)


@given(st.permutations([m for k in range(6) for m in (*step(k, 10 * k), mark(ENQUEUE, k, 10 * k + 3, **UPROBE))]))
def test_two_sources_in_any_order_never_overlap(marks):
    _, found = track(*marks)
    edges = [edge for i in found for edge in (i.start_ns, i.end_ns)]
    assert edges == sorted(edges)
    assert all(a.number < b.number for a, b in pairwise(found))


class Suspicious(IterationTracker):
    """Looks at everything again after each mark, whatever it may have changed."""

    def add(self, one):
        self._unsure = True
        super().add(one)

    def finished(self, leaving=False):
        for marks in self._sources.values():
            marks.touched.update(marks._marks)
        self._unsure = self.ending = True
        return super().finished(leaving)


moments = st.sampled_from([START, END, ENQUEUE, WAIT, Moment.FIRST_WAIT])
told = st.tuples(moments, st.integers(0, 8), st.integers(0, 120), st.sampled_from(list(Source)))
events = st.lists(
    st.one_of(told, st.tuples(st.sampled_from(["join", "leave", "forget"]), st.sampled_from(list(Source))))
)


@given(events)
@example([(START, 1, 9, Source.TIMELINE), (WAIT, 1, 18, Source.TIMELINE), (ENQUEUE, 1, 10, Source.TIMELINE)])
@example(
    [
        (ENQUEUE, 0, 1, Source.UPROBE),
        (ENQUEUE, 1, 9, Source.UPROBE),
        (WAIT, 1, 12, Source.UPROBE),
        ("leave", Source.UPROBE),
    ]
)
def test_what_a_mark_does_not_touch_has_not_changed(told):
    quick, slow = IterationTracker("train", 0), Suspicious("train", 0)
    for of in (quick, slow):
        of.found = []
        for kind, *about in told:
            if isinstance(kind, Moment):
                number, time_ms, source = about
                of.add(mark(kind, number, time_ms, source=source))
                of.found.append((of.finished(), of.source, of.under_way(), of.unusable))
            elif kind == "forget":
                of.forget(of.finished_ns - 20 * MS)
            else:
                getattr(of, kind)(*about)
        of.found.append(of.finished(leaving=True))
    assert quick.found == slow.found


@given(st.lists(st.tuples(st.sampled_from([ENQUEUE, WAIT, Moment.FIRST_WAIT]), st.integers(0, 300)), max_size=40))
def test_the_communication_is_that_of_the_marks_in_the_iteration(told):
    marks = SourceMarks()
    for number, (moment, time_ms) in enumerate(told):
        marks.add(moment, number, time_ms * MS, 0)
    inside = [[time_ms * MS for of, time_ms in told if of == m and 100 <= time_ms <= 200] for m, _ in COMMUNICATION]
    expected = [choose(times) if times else None for times, (_, choose) in zip(inside, COMMUNICATION, strict=True)]
    assert list(marks.communication(100 * MS, 200 * MS)) == expected


COMMUNICATION = ((ENQUEUE, min), (WAIT, max), (Moment.FIRST_WAIT, min))


def test_a_mark_costs_the_same_however_many_iterations_are_open():
    def work(first, count):
        def marking():
            for number in range(first, first + count):
                tracker.add(mark(END, number, 10 * number))
                assert tracker.finished() == []

        return marking

    tracker = IterationTracker("train", 0)
    few = lines_run(work(0, 100))
    work(100, 800)()
    assert lines_run(work(900, 100)) < 1.5 * few
