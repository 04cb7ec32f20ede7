# SPDX-License-Identifier: Apache-2.0
"""What may hold an acknowledgement back, and what may not."""

from dataclasses import replace

import pytest
from collector_stream import DL_TX, MS, Host, S, TrainingAgent, clock, flows, hello, mark, rows
from decoded import gather

from collector.dataset.manifest import Resume
from collector.host.stage import HostStage
from collector.jobs.rank_registry import RankRegistry
from collector.server import flush_pause_s
from collector.settings import Settings
from netmon.records import Batch, Direction, Mark, Moment, Source, Training

SETTINGS = Settings()
SETTLE_BATCHES = SETTINGS.settle_ns // (100 * MS)


def acknowledged_after(batches: list[Batch], told: dict[int, list[Mark]]) -> int:
    """The last batch that may be acknowledged; told: what the traffic tells after which batch."""
    stage = HostStage(SETTINGS, RankRegistry().answer)
    place = stage.open(hello(), Resume())
    session = stage.session(place)
    last = 0
    for batch in batches:
        stage.take([place], gather([batch]))
        if batch.sequence in told:
            stage.add_marks(place, told[batch.sequence])
            stage.tick()
        flush = session.flush([], [])
        if flush:
            flush.done()
            last = flush.acknowledge or last
    return last


def inferred(moment: Moment, iteration: int, time_ms: float, rank: int = 0) -> Mark:
    return mark(moment, iteration, time_ms, job="j1", pid=0, rank=rank, source=Source.INFERRED, relative=True)


def test_a_rank_that_only_the_traffic_tells_of_holds_nothing_back() -> None:
    host = Host()
    batches = [host.batch() for _ in range(100)]
    told = {20: [inferred(Moment.FIRST_ENQUEUE, 0, 1500)], 30: [inferred(Moment.FIRST_ENQUEUE, 1, 2500, rank=1)]}
    plain, beside = acknowledged_after(batches, {}), acknowledged_after(batches, told)
    assert beside == plain
    assert plain >= 100 - SETTLE_BATCHES - 5  # an iteration is open


def test_an_open_iteration_of_a_process_does_for_half_a_minute() -> None:
    host = Host(iteration_ms=10**9)
    batches = [host.batch() for _ in range(500)]
    assert acknowledged_after(batches[:250], {}) == 0
    assert acknowledged_after(batches, {}) >= 500 - SETTLE_BATCHES - 2 * 5


def test_a_batch_waits_for_its_rows_and_no_longer() -> None:
    host = Host()
    batches = [replace(host.batch(), training=Training()) for _ in range(40)]
    assert acknowledged_after(batches, {}) == 40 - SETTLE_BATCHES


@pytest.mark.parametrize("period_ms", [920, 1000, 1100])
def test_batches_that_come_each_second_wait_for_the_next_one_and_no_longer(period_ms: int) -> None:
    stage = HostStage(SETTINGS, RankRegistry().answer)
    place = stage.open(hello(), Resume())
    session = stage.session(place)
    for sequence in range(1, 6):
        start_ns, end_ns = (number * period_ms * MS + 3 * MS + 7 for number in (sequence - 1, sequence))
        own = rows(*((DL_TX, time_ms, 1000) for time_ms in range(start_ns // MS + 1, end_ns // MS + 1)))
        batch = Batch(sequence, clock(end_ns), end_ns, own, flows() if sequence == 1 else (), Training(), ())
        stage.take([place], gather([batch]))
        flush = session.flush([], [])
        assert ((flush and flush.acknowledge) or 0) == sequence - 1
        if flush:
            flush.done()


@pytest.mark.parametrize(("late_ms", "behind"), [(200, 1), (320, 1), (600, 2)])
def test_an_iteration_that_ends_soon_after_its_batch_makes_it_wait_for_one_more_and_not_for_two(
    late_ms: int, behind: int
) -> None:
    stage, agent = HostStage(SETTINGS, RankRegistry().answer), TrainingAgent()
    place = stage.open(hello(), Resume())
    session = stage.session(place)
    marks = [mark(Moment.JOIN, 0, 0)]
    for number in range(1, 8):  # under way at the end of each batch
        marks += [mark(Moment.STEP_START, number, number * 1000 - 100)]
        marks += [mark(Moment.STEP_END, number, number * 1000 + late_ms)]
    for sequence in range(1, 7):
        end_ns = sequence * 1000 * MS + 3 * MS + 7
        own = rows(*((DL_TX, time_ms, 1000) for time_ms in range(1000 * (sequence - 1) + 4, 1000 * sequence + 4)))
        told = agent.training(one for one in marks if end_ns - 1000 * MS <= max(one.time_ns, 3 * MS + 7) < end_ns)
        batch = Batch(sequence, clock(end_ns), end_ns, own, flows() if sequence == 1 else (), told, ())
        stage.take([place], gather([batch]))
        flush = session.flush([], [])
        if flush:
            flush.done()
    assert ((flush and flush.acknowledge) or 0) == 6 - behind


def test_an_open_interval_of_the_ledger_holds_nothing_back() -> None:
    host = Host()
    batches = [host.batch() for _ in range(100)]
    cut = [
        replace(batch, ledger=[s for s in batch.ledger if s.direction == Direction.TX or s.time_ns < 3 * S])
        for batch in batches
    ]
    assert acknowledged_after(cut, {}) == acknowledged_after(batches, {})


@pytest.mark.parametrize("took_s", [0.0, 0.1, 0.5, 0.75])
def test_rows_are_stored_within_the_interval_also_where_a_flush_takes_its_time(took_s: float) -> None:
    waits_s = took_s + flush_pause_s(2.0, took_s)  # of a row that settled when a flush had just begun
    assert waits_s + took_s <= 2.0
    assert waits_s >= 1.0


def test_a_disk_that_is_slow_leaves_time_for_everything_else() -> None:
    assert flush_pause_s(2.0, 30.0) == 0.5
