# SPDX-License-Identifier: Apache-2.0
"""The ranks of all hosts in one table: whatever agents tell, and however it comes together."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from collector_stream import MS, UTC, S, TrainingAgent, rows
from decoded import gather
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_hosts import over, ranks

from collector.dataset.manifest import Resume
from collector.host.stage import HostStage, Settled
from collector.jobs.rank_registry import RankRegistry
from collector.settings import Settings
from netmon.records import (
    ITERATION,
    Batch,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    Mark,
    Moment,
    Owner,
    RankState,
    Source,
    Training,
)

HOSTS, TICKS = 2, 48
STEP_MS, SPAN_MS = 130, 200
_MOMENTS = {
    **{0: Moment.STEP_START, 40: Moment.FIRST_ENQUEUE, 70: Moment.FIRST_WAIT},
    **{100: Moment.LAST_WAIT, 120: Moment.STEP_END},
}


@dataclass
class TwoHosts:
    """Two ranks on each host, which are disturbed now and then."""

    seed: int
    disturbed: float  # share of the batches with something odd
    kept_back: dict[int, list[Mark]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.agents = [TrainingAgent() for _ in range(HOSTS)]

    def begin(self, host: int) -> int:
        return (100 + host) * S

    def hello(self, host: int) -> Hello:
        link = Interface(7, "eth0", 10**9, "tcx", "tcx")
        return Hello(f"h{host}", f"s{host}", MS, ClockSample(self.begin(host), UTC, 1_000), (link,), "0.1")

    def batch(self, host: int, tick: int) -> Batch:
        first, begin = tick * SPAN_MS, self.begin(host)
        now = begin + (first + SPAN_MS) * MS
        table = rows(*((flow, time, 1000) for time in range(first, first + SPAN_MS, 3) for flow in (1, 2, 3)))
        table["bucket_start_ns"] += np.uint64(begin)
        flows = [
            Flow(number, 7, Direction.TX, "10.0.0.1", "10.0.0.2", number, 2, 6, begin, owner)
            for number, owner in enumerate(
                (
                    *(Owner(10 + n, "python", "", "train", 2 * host + n, "socket") for n in (0, 1)),
                    Owner(5, "rsync", source="socket"),
                ),
                1,
            )
        ]
        marks = [mark for number in (0, 1) for mark in self._marks(host, number, first, tick)]
        clock = ClockSample(now, UTC + now - begin, 1_000)
        told = self.agents[host].training(self._odd(host, tick, marks))
        return Batch(tick + 1, clock, now, table, flows if tick == 0 else [], told)

    def _marks(self, host: int, number: int, first: int, tick: int) -> list[Mark]:
        rank, begin = 2 * host + number, self.begin(host)
        joins = [Mark("train", rank, 2 * HOSTS, 10 + number, 0, Moment.JOIN, begin, Source.HOOK, 0, 10)]
        steps = [
            Mark(
                *("train", rank, 2 * HOSTS, 10 + number, (time - 7 * number) // STEP_MS),
                *(moment, begin + time * MS, Source.HOOK, 1_000, 10),
            )
            for time in range(first, first + SPAN_MS)
            if time >= 7 * number and (moment := _MOMENTS.get((time - 7 * number) % STEP_MS))
        ]
        return joins + steps if tick == 0 else steps

    def _odd(self, host: int, tick: int, marks: list[Mark]) -> list[Mark]:
        marks = self.kept_back.pop(host, []) + marks
        if tick < 20 or self.rng.random() >= self.disturbed or not marks:
            return marks
        place = int(self.rng.integers(len(marks)))
        one = marks[place]
        kind = int(self.rng.integers(8))
        if kind == 0:
            return marks[:place] + marks[place + 1 :]
        if kind == 1:
            return [*marks, one]
        if kind == 2:
            self.kept_back[host] = [one]
            return marks[:place] + marks[place + 1 :]
        if kind == 3:
            return [marks[turn] for turn in self.rng.permutation(len(marks)).tolist()]
        if kind == 4:
            return [*marks, replace(one, moment=Moment.LEAVE), replace(one, moment=Moment.JOIN)]
        if kind == 5:
            return [*marks, replace(one, source=Source.UPROBE)]
        if kind == 6:
            return [*marks, replace(one, time_ns=one.time_ns + 40 * S)]
        return [replace(mark, parameters=11) for mark in marks]


def told(seed: int, disturbed: float, together: int) -> dict[str, pd.DataFrame]:
    """All that becomes final, where so many hosts' batches come together."""
    training, settled = TwoHosts(seed, disturbed), list[Settled]()
    stage = HostStage(Settings(), RankRegistry().answer)
    places = [stage.open(training.hello(host), Resume()) for host in range(HOSTS)]
    for tick in range(TICKS):
        batches = [training.batch(host, tick) for host in range(HOSTS)]
        if tick % 16 == 15 and disturbed:
            host = int(training.rng.integers(HOSTS))
            whose = "train", 2 * host, 2 * HOSTS, 0, tick, Moment.LAST_WAIT
            stage.add_marks(places[host], [Mark(*whose, batches[host].horizon_ns, Source.INFERRED, 0, 0)])
        for first in range(0, HOSTS, together):
            settled.append(stage.take(places[first : first + together], gather(batches[first : first + together])))
    settled.append(stage.settle_all(places, leaving=True))
    assert not any(one.refused or one.failed for one in settled)
    ended = [
        (int(place), *i) for one in settled for r in one.ended for place, i in zip(r.session, r.each(), strict=True)
    ]
    accounts = [
        (int(place), *i, *t)
        for one in settled
        for told in one.accounted
        for place, (i, t) in zip(told.rows.session, told.each(), strict=True)
    ]
    buckets = [rows for one in settled for rows in one.stored]
    names = ("session", "flow_id", "class", "job", "iteration", "bucket_start_ns", "wire_bytes")
    stamped = pd.DataFrame({name: np.concatenate([part[name] for part in buckets]) for name in names})
    odd = [(place, "; ".join(stage.session(place).window.ranks.rejected.warnings)) for place in places]
    tables = {"ended": ended, "accounts": accounts, "rows": stamped, "odd": odd}
    frames = {name: pd.DataFrame(table) for name, table in tables.items()}
    return {name: f.sort_values(list(f.columns)).reset_index(drop=True) for name, f in frames.items()}


@pytest.mark.parametrize(("seed", "disturbed"), [(0, 0.0), (1, 0.1), (2, 0.3), (3, 0.6)])
def test_how_batches_come_together_changes_nothing(seed: int, disturbed: float) -> None:
    alone, together = told(seed, disturbed, 1), told(seed, disturbed, HOSTS)
    assert len(alone["ended"]) > 100
    for name, table in alone.items():
        pd.testing.assert_frame_equal(table, together[name])


numbers, times = st.integers(-1, 12), st.integers(0, 120).map(lambda ms: ms * MS)
moments = st.sampled_from([int(moment) for moment in Moment])
garbage = st.tuples(
    st.integers(1, 3), numbers, st.integers(1, 4), moments, moments, times, times, st.just(0), times, times, times
)


@given(st.lists(st.lists(garbage, max_size=8), max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_an_agent_tells_iterations_ascend(batches: list[list[tuple[int, ...]]]) -> None:
    host = ranks()
    settled, known = list[Settled](), tuple(RankState(n, "train", n, 4, 10 + n, 0) for n in (1, 2))
    for rows_of_batch in batches:
        told = Training(known, np.array([row for row in rows_of_batch if row[6] == 0 or row[6] >= row[5]], ITERATION))
        settled.append(host.tell(told))
    account = [one for each in settled for one in over(each)] + host.hosts.end(host)
    for rank in (1, 2):
        own = [one for one in account if one.rank == rank]
        assert all(one.number < other.number for one, other in pairwise(own))
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(own))
