# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.numbering import JobNumbers, RankEvents, Trust, number_jobs
from netmon.dl.step_alignment import Events, StepMoment, best_shifts, combined, nearest, period, score
from netmon.records import Source
from netmon.views import SourceScore

MS = 1_000_000


def align(numbers: JobNumbers, rank: int, trust: Trust, events: dict[StepMoment, Events], error_ns: int) -> bool:
    """Of one rank; whether used numbers moved."""
    return number_jobs([(numbers, RankEvents(rank, trust, events, error_ns))])[0].moved


def events(first, count, start_ms=0.0, period_ms=100.0, jitter=()):
    """Numbers from `first` on, one per period."""
    late = np.resize(np.array([*jitter, 0.0]), count)
    times = (start_ms + period_ms * np.arange(count) + late) * MS
    return Events(np.arange(first, first + count), times.astype(np.int64))


def ends(*args, **kwargs):
    return {StepMoment.END: events(*args, **kwargs)}


def shift_between(reference, other):
    (found,) = best_shifts([{StepMoment.END: reference}], [{StepMoment.END: other}])
    return found


def test_the_same_moment_is_the_same_iteration():
    assert shift_between(events(0, 10), events(0, 5, start_ms=303)) == (3, 5, 5)
    assert shift_between(events(40, 3), events(7, 1, start_ms=98)) == (34, 1, 1)
    assert shift_between(events(0, 10), events(0, 5, start_ms=5000)) is None
    assert shift_between(Events.none(), events(0, 1)) is None


def test_a_period_is_known_across_gaps():
    assert period(Events(np.array([0, 1, 5, 6]), np.array([0, 100, 500, 600]))) == 100
    assert period(events(3, 1)) == float("inf")


@given(
    st.integers(-1000, 1000),
    st.integers(0, 15),
    st.lists(st.floats(-20, 20), min_size=1, max_size=20),
    st.sets(st.integers(0, 19), max_size=8),
)
def test_jitter_and_missing_iterations_do_not_change_the_shift(shift, begin, jitter, missing):
    reference, whole = events(0, 40), events(begin - shift, 20, start_ms=100 * begin, jitter=jitter)
    kept = np.array([place not in missing for place in range(20)])
    found = shift_between(reference, Events(whole.number[kept], whole.time_ns[kept]))
    assert found is not None
    assert found.shift == shift


def test_one_moment_of_each_rank_does_not_tell_which_iteration_it_is():
    """Agents begin to look one after the other: the first moments that two of them tell may be an iteration apart."""
    assert shift_between(events(0, 1), events(0, 1, start_ms=100)) is None
    numbers = JobNumbers()
    for heard in (1, 2):
        align(numbers, 0, Trust.RELATIVE, ends(0, heard), 0)
        align(numbers, 1, Trust.RELATIVE, ends(0, heard, start_ms=100), 0)
    assert numbers.shift(1) == 1


def test_the_first_rank_heard_counts_for_all():
    numbers = JobNumbers()
    align(numbers, 1, Trust.RELATIVE, ends(0, 10), 0)
    align(numbers, 0, Trust.RELATIVE, ends(0, 1, start_ms=501), 0)
    assert [numbers.shift(rank) for rank in (0, 1)] == [5, 0]
    assert numbers.relative(0)
    assert numbers.relative(1)


def test_a_true_number_makes_all_true():
    numbers = JobNumbers()
    align(numbers, 0, Trust.RELATIVE, ends(0, 10), 0)
    align(numbers, 1, Trust.RELATIVE, ends(0, 8, start_ms=200), 0)
    assert not align(numbers, 2, Trust.COUNTED, ends(805, 5, start_ms=501), 0)
    assert [numbers.shift(rank) for rank in (0, 1, 2)] == [800, 802, 0]
    align(numbers, 0, Trust.RELATIVE, ends(0, 11), 0)
    assert not numbers.relative(0)


def test_what_the_script_says_is_not_changed():
    numbers = JobNumbers()
    align(numbers, 0, Trust.NUMBERED, ends(0, 10), 0)
    align(numbers, 1, Trust.NUMBERED, ends(3, 10), 0)
    assert numbers.shift(1) == 0


def test_wrong_early_evidence_is_corrected():
    numbers = JobNumbers()
    align(numbers, 0, Trust.RELATIVE, ends(0, 1), 0)
    align(numbers, 1, Trust.RELATIVE, ends(0, 1, start_ms=101), 0)
    assert numbers.shift(1) == 0  # the other had said no more than that
    align(numbers, 0, Trust.RELATIVE, ends(0, 6), 0)
    assert align(numbers, 1, Trust.RELATIVE, ends(0, 5, start_ms=101), 0)
    assert numbers.shift(1) == 1


@pytest.mark.parametrize(("error_ms", "shift"), [(0, 4), (20, 4), (30, 0)])
def test_clocks_that_differ_too_much_prove_nothing(error_ms, shift):
    numbers = JobNumbers()
    align(numbers, 0, Trust.RELATIVE, ends(0, 10), 0)
    align(numbers, 1, Trust.RELATIVE, ends(0, 5, start_ms=400), error_ms * MS)
    assert numbers.shift(1) == shift


def test_the_count_goes_on_without_the_rank_that_began_it():
    numbers = JobNumbers()
    align(numbers, 0, Trust.RELATIVE, ends(0, 10), 0)
    align(numbers, 1, Trust.RELATIVE, ends(0, 6, start_ms=400), 0)
    numbers.forget(0)
    align(numbers, 0, Trust.RELATIVE, ends(0, 3, start_ms=700), 0)
    assert [numbers.shift(rank) for rank in (0, 1)] == [7, 4]
    numbers.forget(0)
    numbers.forget(1)
    assert len(numbers) == 0


def test_a_true_number_stays_true_when_who_knew_it_is_gone():
    numbers = JobNumbers()
    align(numbers, 0, Trust.COUNTED, ends(0, 10), 0)
    align(numbers, 1, Trust.RELATIVE, ends(0, 6, start_ms=400), 0)
    numbers.forget(0)
    assert not numbers.relative(1)
    align(numbers, 2, Trust.RELATIVE, ends(0, 3, start_ms=701), 0)
    assert [numbers.shift(rank) for rank in (1, 2)] == [4, 7]
    assert not numbers.relative(2)


def test_a_stored_shift_is_taken_up():
    numbers = JobNumbers()
    numbers.resume(1, Trust.RELATIVE, 5)
    align(numbers, 1, Trust.RELATIVE, ends(20, 3), 0)
    align(numbers, 0, Trust.RELATIVE, ends(0, 3), 0)
    assert [numbers.shift(rank) for rank in (0, 1)] == [25, 5]
    assert numbers.state(0) == (Trust.RELATIVE, 25)


def all_beats(one):
    return dict.fromkeys(StepMoment, Events.none()) | {StepMoment.BEGIN: one}


def test_a_source_is_scored_in_the_time_that_both_cover():
    true = all_beats(events(0, 100))
    late = score(Source.INFERRED, Source.HOOK, all_beats(events(7, 60, start_ms=2004)), true)
    assert late == SourceScore(Source.INFERRED, Source.HOOK, 60, 60, 60, 4 * MS)
    assert late.f1 == 1
    half = score(Source.INFERRED, Source.HOOK, all_beats(events(0, 50, period_ms=200)), true)
    assert (half.found, half.matched) == (50, 50)
    assert half.f1 == pytest.approx(2 / 3, abs=0.01)
    assert score(Source.INFERRED, Source.HOOK, all_beats(Events.none()), true) is None
    assert combined([late, late, half])[0].iterations == 2 * late.iterations + half.iterations


def one_shift(reference, other):
    """The same of one pair, event by event."""
    if not len(reference.time_ns) or not len(other.time_ns):
        return None
    place = nearest(reference.time_ns, other.time_ns)
    half = min(one_period(reference), one_period(other)) / 2
    near = np.abs(reference.time_ns[place] - other.time_ns) < half
    if not near.any() or not np.isfinite(half):
        return None
    shifts, votes = np.unique((reference.number[place] - other.number)[near], return_counts=True)
    return int(shifts[votes.argmax()]), int(votes.max()), int(votes.sum())


def one_period(of):
    steps, times = np.diff(of.number), np.diff(of.time_ns)
    known = steps > 0
    return float(np.median(times[known] / steps[known])) if known.any() else float("inf")


counts = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 200)), max_size=12).map(
    lambda told: Events(
        np.array([number for number, _ in told], np.int64), np.sort(np.array([time for _, time in told], np.int64))
    )
)


@given(st.lists(counts, min_size=1, max_size=3), st.lists(counts, max_size=8), st.data())
def test_many_pairs_are_compared_as_each_alone(references, others, data):
    pairs = [(data.draw(st.sampled_from(references)), other) for other in others]
    found = best_shifts([{StepMoment.END: one} for one, _ in pairs], [{StepMoment.END: other} for _, other in pairs])
    assert found == [one_shift(*pair) for pair in pairs]
    assert [period(of) for of in others] == [one_period(of) for of in others]


tells = st.tuples(
    *(st.integers(0, 1), st.integers(0, 4), st.sampled_from(list(Trust))),
    *(st.integers(0, 5), st.integers(1, 8), st.integers(0, 5), st.sampled_from([0, 30 * MS])),
)


@given(st.lists(tells, max_size=30))
def test_what_is_told_together_is_decided_in_its_order(told):
    together, alone = ([JobNumbers(), JobNumbers()] for _ in range(2))
    news = [
        (job, RankEvents(rank, trust, ends(first, count, start_ms=100 * start), error))
        for job, rank, trust, first, count, start, error in told
    ]
    decided = number_jobs([(together[job], events) for job, events in news])
    for (job, events), one in zip(news, decided, strict=True):
        assert align(alone[job], *events) == one.moved
        assert alone[job].shift(events.rank) == one.shift
    for one, other in zip(together, alone, strict=True):
        assert [one.state(r) for r in range(5)] == [other.state(r) for r in range(5)]
        assert [one.relative(r) for r in range(5)] == [other.relative(r) for r in range(5)]
