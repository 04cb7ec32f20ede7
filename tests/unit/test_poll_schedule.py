# SPDX-License-Identifier: Apache-2.0
"""When the agent looks, and when it sends."""

from netmon.agent.counting import BATCH_NS, LOOK_NS, PollSchedule

MS, S = 1_000_000, 1_000_000_000


def looks(rhythm: PollSchedule, begin_ns: int, until_ns: int, *, waits: bool = False) -> tuple[list[int], int]:
    """Looks as an agent does that nothing wakes, with the same result each time: the times of the batches, and how
    many looks there were.
    """
    batches, now, count = [], begin_ns, 0
    while now < until_ns:
        now, count = now + rhythm.rest().ns, count + 1
        rhythm.update(now, 0.0, waits)
        if rhythm.batch_is_due:
            rhythm.sent()
            batches.append(now)
    return batches, count


def test_an_idle_host_is_left_alone_and_its_horizon_moves_on() -> None:
    rhythm = PollSchedule(0)
    batches, count = looks(rhythm, 0, 10 * S)
    assert batches == [n * S for n in range(1, 11)]
    assert count == 20
    assert rhythm.idle


def test_what_waits_leaves_once_a_second_where_nobody_waits_for_it() -> None:
    rhythm = PollSchedule(0)
    rhythm.update(300 * MS, 0.0, True)
    assert looks(rhythm, 300 * MS, 5 * S, waits=True)[0] == [n * BATCH_NS for n in range(1, 6)]
    assert not rhythm.idle


def test_what_waits_leaves_as_soon_as_somebody_waits_for_it_and_nobody_looks_between() -> None:
    rhythm = PollSchedule(0)
    rhythm.within_ns = 200 * MS
    rhythm.update(300 * MS, 0.0, True)
    first = rhythm.rest().ns + 300 * MS
    assert first == 300 * MS + LOOK_NS
    rhythm.update(first, 0.0, True)
    rhythm.sent()
    assert looks(rhythm, first, first + S, waits=True) == ([first + n * 200 * MS for n in range(1, 6)], 5)
    rhythm.requested_ns = S  # where the collector cannot take as much, they wait
    last = first + S
    assert looks(rhythm, last, last + 2 * S, waits=True)[0] == [last + S, last + 2 * S]
    rhythm.requested_ns = rhythm.within_ns = 0
    assert looks(rhythm, last + 2 * S, last + 4 * S, waits=True)[0] == [last + 3 * S, last + 4 * S]


def test_an_idle_host_is_woken_by_anything_and_a_busy_one_by_a_ring_that_fills() -> None:
    rhythm = PollSchedule(0)
    assert rhythm.rest().wakes
    assert rhythm.rest().level == 0
    rhythm.update(100 * MS, 0.0001, True)
    assert rhythm.rest().wakes
    assert 0 < rhythm.rest().level < 0.1


def test_the_end_of_a_silence_is_sent_with_what_is_open_then() -> None:
    rhythm = PollSchedule(0)
    rhythm.within_ns = 200 * MS
    last = looks(rhythm, 0, 5 * S)[0][-1]
    rhythm.update(last + 400 * MS, 0.0001, True)
    assert not rhythm.batch_is_due
    assert rhythm.rest().ns == LOOK_NS
    rhythm.update(last + 400 * MS + LOOK_NS, 0.0, True)
    assert rhythm.batch_is_due


def test_while_one_thing_follows_the_other_nobody_is_woken_for_each() -> None:
    rhythm = PollSchedule(0)
    rhythm.update(LOOK_NS, 0.0001, True, hurried=True)
    assert not rhythm.rest().wakes
    assert rhythm.rest().ns == LOOK_NS


def test_ranks_that_tell_of_their_steps_are_heard_more_often() -> None:
    rhythm = PollSchedule(0)
    assert rhythm.rest(ranks=True).ns == 100 * MS
    rhythm.update(100 * MS, 0.0, True)
    assert rhythm.rest(ranks=True).ns == 100 * MS


def test_a_ring_that_fills_is_drained_before_the_batch_is_due() -> None:
    rhythm = PollSchedule(0)
    rhythm.update(LOOK_NS, 0.05, True)
    assert not rhythm.full
    rhythm.update(2 * LOOK_NS, 0.1, True)
    assert rhythm.full
    assert not rhythm.batch_is_due


def test_looks_come_sooner_only_while_a_ring_fills_fast() -> None:
    rhythm = PollSchedule(0)
    rhythm.update(LOOK_NS, 0.3, True)
    rhythm.drained()
    assert rhythm.rest().ns < LOOK_NS
    rhythm.update(LOOK_NS + rhythm.rest().ns, 0.03, True)
    assert rhythm.rest().ns > LOOK_NS


def test_a_collector_that_asks_for_it_gets_fewer_batches() -> None:
    rhythm = PollSchedule(0)
    rhythm.requested_ns = 2 * S
    batches, _ = looks(rhythm, 0, 6 * S, waits=True)
    assert batches == [2 * S, 4 * S, 6 * S]


def test_a_ring_that_fills_as_fast_as_before_is_never_more_than_half_full() -> None:
    rhythm, now, per_ns, drained_ns = PollSchedule(0), 0, 0.7 / LOOK_NS, 0
    levels = []
    for took_ns in [LOOK_NS, *[10 * MS] * 20]:  # after each look the agent works for some time
        now += took_ns + (rhythm.rest(now_ns=now + took_ns).ns if levels else 0)
        levels.append((now - drained_ns) * per_ns)
        rhythm.update(now, levels[-1], True, hurried=True)
        rhythm.drained()
        drained_ns = now
    assert max(levels[1:]) < 0.5
    assert min(levels[1:]) > 0.1, "no more looks than that takes"
