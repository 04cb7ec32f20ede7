# SPDX-License-Identifier: Apache-2.0
"""When the agent looks, and when it sends."""

from netmon.agent.rhythm import BATCH_NS, LOOK_NS, Rhythm

MS, S = 1_000_000, 1_000_000_000


def looks(rhythm: Rhythm, begin_ns: int, until_ns: int, *, level: float = 0.0, waits: bool = False) -> list[int]:
    """Looks as the agent does, with the same result each time; the times of the batches."""
    batches, now = [], begin_ns
    while now < until_ns:
        now += rhythm.rest_ns
        rhythm.look(now, level, waits)
        if rhythm.full or rhythm.batch_is_due:
            rhythm.drained()
        if rhythm.batch_is_due:
            rhythm.sent()
            batches.append(now)
    return batches


def test_an_idle_host_is_left_alone_and_its_horizon_moves_on() -> None:
    rhythm = Rhythm(0)
    batches = looks(rhythm, 0, 10 * S)
    assert all(S <= later - batch <= S + 2 * LOOK_NS for batch, later in zip([0, *batches], batches, strict=False))
    assert batches[-1] > 8 * S
    assert rhythm.rest_ns == 2 * LOOK_NS


def test_what_waits_leaves_after_a_fifth_of_a_second() -> None:
    rhythm = Rhythm(0)
    assert looks(rhythm, 0, S, waits=True) == [n * BATCH_NS for n in range(1, 6)]
    assert rhythm.rest_ns == LOOK_NS


def test_after_a_rest_the_first_look_that_finds_something_sends_it() -> None:
    rhythm = Rhythm(0)
    last = looks(rhythm, 0, 5 * S + 300 * MS)[-1]
    rhythm.look(last + 400 * MS, 0.0001, True)
    assert rhythm.batch_is_due
    assert rhythm.rest_ns == LOOK_NS


def test_a_ring_that_fills_is_drained_before_the_batch_is_due() -> None:
    rhythm = Rhythm(0)
    rhythm.look(LOOK_NS, 0.05, True)
    assert not rhythm.full
    rhythm.look(2 * LOOK_NS, 0.1, True)
    assert rhythm.full
    assert not rhythm.batch_is_due


def test_looks_come_sooner_only_while_a_ring_fills_fast() -> None:
    rhythm = Rhythm(0)
    rhythm.look(LOOK_NS, 0.3, True)
    rhythm.drained()
    assert rhythm.rest_ns < LOOK_NS
    rhythm.look(LOOK_NS + rhythm.rest_ns, 0.03, True)
    assert rhythm.rest_ns == LOOK_NS
    rhythm.look(2 * LOOK_NS, 0.06, True)
    assert rhythm.rest_ns == LOOK_NS
