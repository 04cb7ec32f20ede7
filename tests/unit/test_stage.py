# SPDX-License-Identifier: Apache-2.0
"""All hosts in one table: what is stored does not depend on how batches come together, and no byte is lost or moved."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest
from collector_stream import MS, UTC, S, TrainingAgent
from decoded import gather

from collector.dataset.manifest import Resume
from collector.host.ledger import ROWS
from collector.host.rows import SETTLED
from collector.host.stage import HostStage, Settled
from collector.jobs.rank_registry import RankRegistry
from collector.settings import Settings
from netmon.records import (
    BUCKET,
    Batch,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    LedgerSample,
    Mark,
    Moment,
    Owner,
    Source,
    Training,
    joined,
)
from netmon.wire.batches import encode_batch

HOSTS, TICKS = 4, 32
LINKS = (Interface(7, "eth0", 10**9, "tcx", "tcx"), Interface(9, "eth1", 0, "tcx", "tcx"))
OF_CLASSES = {"iterations": range(16, 40)}  # columns
COUNTS = ["packets", "wire_bytes", "payload_bytes"]


def owner(host: int, number: int) -> Owner:
    """Two ranks of one job, another job's, a backup, and nobody known."""
    kinds = (
        Owner(10, "python", "", "train", 2 * host, "socket"),
        Owner(11, "python", "", "train", 2 * host + 1, "socket"),
        Owner(50, "rsync", source="socket"),
        Owner(20, "python", "", "bert", host, "socket"),
        Owner(),
    )
    return kinds[number % len(kinds)]


@dataclass
class Simulated:
    """Batches of 100 ms of hosts with clocks of their own."""

    seed: int
    late: bool  # some rows come after they should have settled
    begin: list[int] = field(default_factory=list)  # mono

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.agents = [TrainingAgent() for _ in range(HOSTS)]
        self.begin = [int(self.rng.integers(1, 5000)) * S for _ in range(HOSTS)]

    def clock(self, host: int, now: int) -> ClockSample:
        return ClockSample(self.begin[host] + now, UTC + now + host * 1000, 1_000)

    def hello(self, host: int) -> Hello:
        return Hello(f"h{host}", f"s{host}", MS, self.clock(host, 0), LINKS, "0.1")

    def batches(self) -> Iterator[tuple[int, Batch]]:
        for tick in range(TICKS):
            for host in self.rng.permutation(HOSTS).tolist():
                yield host, self._batch(host, tick)

    def _batch(self, host: int, tick: int) -> Batch:
        begin, now = self.begin[host], (tick + 1) * 100 * MS
        known = 6 + min(tick, 12)
        first = range(1, known + 1) if tick == 0 else range(known, known + (tick <= 12))
        described = [self._flow(host, number, known=number % 4 != 0) for number in first]
        if tick == 20 and self.late:  # owners that are found late
            described += [self._flow(host, number, known=True) for number in range(1, 13)]
        samples = []
        if tick % 5 == 0 or tick == TICKS - 1:
            counted = [tick * 10**6] * 2, [tick * 10**6] * 4
            samples = [
                LedgerSample(link.index, way, begin + now, *counted[0], 14, *counted[1], *[0] * 9)
                for link in LINKS
                for way in Direction
            ]
        rows, clock = self._rows(host, tick, known), self.clock(host, now)
        return Batch(tick + 1, clock, begin + now, rows, described, self._training(host, tick), samples, bucket_ns=MS)

    def _flow(self, host: int, number: int, known: bool) -> Flow:
        whose = owner(host, number) if known else Owner()
        ends = f"10.0.0.{host}", f"10.0.1.{number}", 1000 + number, 2000, 6
        return Flow(number, LINKS[number % 2].index, Direction(number // 2 % 2), *ends, self.begin[host], whose)

    def _rows(self, host: int, tick: int, known: int) -> np.ndarray:
        count = int(self.rng.integers(0, 120))
        rows = np.zeros(count, BUCKET)
        late = 1500 * (self.rng.random(count) < 0.03) * self.late
        start = np.maximum(100 * tick + self.rng.integers(0, 100, count) - late, 0).astype(np.int64)
        rows["flow_id"], rows["packets"] = self.rng.integers(1, known + 1, count), self.rng.integers(1, 50, count)
        rows["bucket_start_ns"] = self.begin[host] + start * MS
        rows["payload_bytes"] = rows["packets"] * np.where(self.rng.random(count) < 0.2, 0, 1000)
        rows["wire_bytes"] = rows["payload_bytes"] + 66 * rows["packets"]
        return rows

    def _training(self, host: int, tick: int) -> Training:
        return self.agents[host].training(self._marks(host, tick))

    def _marks(self, host: int, tick: int) -> list[Mark]:
        marks = []

        def tell(job: str, rank: int, pid: int, moment: Moment, number: int, time_ms: int, source: Source) -> None:
            time_ns = self.begin[host] + time_ms * MS
            marks.append(Mark(job, rank, 8, pid, number, moment, time_ns, source, 1_000, 10**6))

        for rank, pid in ((2 * host, 10), (2 * host + 1, 11)):
            if tick == 0:
                tell("train", rank, pid, Moment.JOIN, 0, 0, Source.HOOK)
            for time_ms in range(100 * tick, 100 * tick + 100):
                number, phase = divmod(time_ms, 230)
                moment = {0: Moment.STEP_START, 90: Moment.FIRST_ENQUEUE, 220: Moment.STEP_END}.get(phase)
                if moment:
                    tell("train", rank, pid, moment, number, time_ms, Source.HOOK)
        if tick == 10:
            tell("bert", host, 20, Moment.JOIN, 0, 1000, Source.UPROBE)
        for time_ms in range(100 * tick, 100 * tick + 100) if 10 <= tick < 25 else ():
            number, phase = divmod(time_ms - 1000, 170)
            if phase == 0:
                tell("bert", host, 20, Moment.FIRST_ENQUEUE, number, time_ms, Source.UPROBE)
        if tick == 26:
            tell("bert", host, 20, Moment.LEAVE, 0, 2600, Source.UPROBE)
        return marks


@dataclass
class Stored:
    """What a stage has made final, by session."""

    settled: list[Settled] = field(default_factory=list)

    def tables(self, stage: HostStage) -> dict[str, pd.DataFrame]:
        buckets = joined([rows for one in self.settled for rows in one.stored])
        rows = pd.DataFrame({name: buckets[name].astype(SETTLED[name]) for name in buckets.names})
        jobs = stage.tables.flows.jobs
        accounted = [told for one in self.settled for told in one.accounted]
        iterations = [
            (place, *i, *t) for told in accounted for place, (i, t) in zip(told.rows.session, told.each(), strict=True)
        ]
        ledger = joined([rows for one in self.settled for rows in one.ledger])
        ledger = zip(*(ledger[name].tolist() for name in ("session", *ROWS)), strict=True)
        rows["job"] = [jobs[job] for job in rows["job"]]
        tables = {"rows": rows, "iterations": pd.DataFrame(iterations), "ledger": pd.DataFrame(ledger)}
        return {name: t.sort_values(list(t.columns)).reset_index(drop=True) for name, t in tables.items()}


def run(seed: int, late: bool, together: int) -> tuple[HostStage, dict[str, pd.DataFrame], list[tuple[int, Batch]]]:
    """All of it, so many batches at a time; 0: each one at once as it is, without the wire."""
    simulated, stored = Simulated(seed, late), Stored()
    stage = HostStage(Settings(), RankRegistry().answer)
    places = [stage.open(simulated.hello(host), Resume()) for host in range(HOSTS)]
    sent = list(simulated.batches())
    for count, (host, batch) in enumerate(sent, 1):
        if not together:
            stored.settled.append(stage.take([places[host]], gather([batch])))
            continue
        stage.add(places[host], encode_batch(batch))
        if count % together == 0:
            stored.settled.append(stage.tick())
    stored.settled.append(stage.settle_all(places, leaving=True))
    assert not any(one.refused or one.failed for one in stored.settled)
    return stage, stored.tables(stage), sent


@pytest.mark.parametrize("together", [1, HOSTS, 3 * HOSTS + 1])
def test_how_batches_come_together_changes_nothing(together: int) -> None:
    _, alone, sent = run(1, late=False, together=0)
    _, tables, _ = run(1, late=False, together=together)
    assert len(alone["rows"]) > 5_000
    assert len(alone["iterations"]) > 80
    for name, table in alone.items():
        exact = list(table.columns)
        if together > HOSTS:  # what a flow carries, and so its class, is told by more of it where more has come
            exact = [column for column in exact if column not in ("class", *OF_CLASSES.get(name, ()))]
        one, other = (t[exact].sort_values(exact).reset_index(drop=True).infer_objects() for t in (table, tables[name]))
        pd.testing.assert_frame_equal(one, other)
    assert sum(len(batch.buckets) for _, batch in sent) >= len(alone["rows"])


@pytest.mark.parametrize("together", [0, 3 * HOSTS + 1])
def test_every_byte_is_stored_once_and_accounted_for_once(together: int) -> None:
    _, tables, sent = run(2, late=True, together=together)
    rows, ledger = tables["rows"], tables["ledger"]
    for host in range(HOSTS):
        own = np.concatenate([batch.buckets for of, batch in sent if of == host])
        for name in COUNTS:
            true = pd.Series(own[name].astype(np.int64)).groupby(own["flow_id"]).sum()
            stored = rows[rows["session"] == host].groupby("flow_id")[name].sum()
            assert stored.to_dict() == true.to_dict()
        last = 100 * TICKS * MS
        begin = 100 * MS  # the first sample of each link
        start = own["bucket_start_ns"].astype(np.int64) - int(sent_begin(sent, host))
        inside = own[(start >= begin) & (start < last)]
        early = own[start < begin]  # those that come late count in the interval that is open then
        attributed = int(ledger.loc[ledger[0] == host, 5].sum())
        most = int(inside["wire_bytes"].sum(dtype=np.int64)) + int(early["wire_bytes"].sum(dtype=np.int64))
        assert int(inside["wire_bytes"].sum(dtype=np.int64)) <= attributed <= most


def sent_begin(sent: list[tuple[int, Batch]], host: int) -> int:
    first = next(batch for of, batch in sent if of == host)
    return first.horizon_ns - 100 * MS


def test_a_flow_that_nobody_has_described_costs_only_its_session() -> None:
    simulated = Simulated(3, late=False)
    stage = HostStage(Settings(), RankRegistry().answer)
    places = [stage.open(simulated.hello(host), Resume()) for host in range(HOSTS)]
    for host, batch in simulated.batches():
        if batch.sequence > 3:
            break
        if (host, batch.sequence) == (1, 2):
            batch.buckets["flow_id"] = 99
        stage.add(places[host], encode_batch(batch))
    settled = stage.tick()
    assert settled.refused == {places[1]: (2, "a bucket names flow 99, which no message has described")}
    assert [stage.session(place).received for place in places] == [3, 1, 3, 3]


def test_a_session_that_goes_leaves_nothing_to_the_one_that_gets_its_place() -> None:
    simulated = Simulated(4, late=False)
    stage = HostStage(Settings(), RankRegistry().answer)
    place = stage.open(simulated.hello(0), Resume())
    batches = [batch for host, batch in simulated.batches() if host == 0]
    for batch in batches[:20]:
        stage.take([place], gather([batch]))
    beside = stage.open(simulated.hello(1), Resume())
    stage.close(place)
    for host, batch in simulated.batches():  # what the session has left behind is nobody's
        if host == 1:
            assert not stage.take([beside], gather([batch])).failed
    again = stage.open(replace(simulated.hello(0), session="next"), Resume())
    assert again == place
    window = stage.session(again).window
    assert len(window.flows) == (stage.tables.pending.all()["session"] == again).sum() == 0
    first, links = window.first_link, len(window.links)
    assert not stage.tables.ledger.totals[first : first + links].any()
    settled = [stage.take([again], gather([batch])) for batch in batches]
    settled.append(stage.settle_all([again], leaving=True))
    rows = joined([rows for one in settled for rows in one.outputs(again)])
    assert rows["wire_bytes"].sum() == sum(int(batch.buckets["wire_bytes"].sum()) for batch in batches)
