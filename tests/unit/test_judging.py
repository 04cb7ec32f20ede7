# SPDX-License-Identifier: Apache-2.0
"""Which iterations stand out as they end, and what is kept of rows until somebody asks."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from collector_stream import hello
from dataset_rows import BEGIN_NS, table
from iteration_tables import iteration_rows
from test_store import store_small

from collector.dataset.manifest import Resume
from collector.dataset.sink import ParquetSink
from collector.host.flows import Links
from collector.host.rows import ARRIVED
from collector.host.stage import Settled
from collector.host.tables import Tables
from collector.judging import judging as judging_module
from collector.judging.job_steps import JobSteps, steps_in_utc
from collector.judging.judging import MOST_ROWS, RECENT, Judging, Part, RecentRows, of_sessions
from collector.settings import Settings
from netmon.dl.iterations import Iteration
from netmon.dl.timemap import TimeMap
from netmon.history import judging
from netmon.rate_limiter import TimeLimiter
from netmon.records import Columns, Direction, Flow, Moment, Owner, Source
from netmon.views import Cause, Verdict

MS = 1_000_000


def iteration(number, rank, duration_ms=100, size=2):
    start = number * 1000 * MS
    boundaries = start, start + duration_ms * MS, Moment.STEP_START, Moment.STEP_END
    return Iteration("job", rank, size, number, *boundaries, Source.HOOK, 2_000, False, 0)


def told(job, numbers, ranks=(0, 1), duration_ms=100):
    """What is said to stand out."""
    each = ((rank, iteration(number, rank, duration_ms)) for number in numbers for rank in ranks)
    return [number for one in each for number in job.add({one[0]: f"h{one[0]}"}, iteration_rows([one]))]


def test_an_iteration_stands_out_once_every_rank_has_ended_it():
    job = JobSteps()
    assert told(job, range(10)) == []
    assert told(job, [10], [0], 200) == []
    assert told(job, [10], [1]) == [10]
    assert told(job, [11]) == []


def test_few_iterations_have_no_usual():
    job = JobSteps()
    assert told(job, range(4)) == []
    assert told(job, [4], duration_ms=900) == []


def test_the_usual_is_that_of_iterations_without_foreign_traffic():
    job = JobSteps()
    for number in range(40):
        slow = number >= 8
        assert told(job, [number], duration_ms=300 if slow else 100) == ([number] if slow else [])
        if slow:
            job.were_shared(iteration_rows([(0, iteration(number, 0))]))
        accounted(job, number)
    rows = job.rows()
    assert set(rows["number"][rows["shared"]].tolist()) == set(range(8, 40))


def accounted(job, number):
    """What else the hosts carried in an iteration is known of all ranks."""
    rows = iteration_rows([(rank, iteration(number, rank)) for rank in (0, 1)])
    job.were_accounted(rows, np.array([100 + number, 50]))


def test_what_is_not_known_yet_to_have_had_no_foreign_traffic_is_no_measure():
    """Hosts tell some seconds later what they carried: until then a slow iteration is not taken for a usual one."""
    job = JobSteps()
    for number in range(6):
        told(job, [number])
        accounted(job, number)
    assert told(job, range(6, 16), duration_ms=150) == list(range(6, 16))
    rows = job.rows()
    assert set(rows["number"][rows["shared"]].tolist()) == set(range(6, 16))


def test_where_all_iterations_had_foreign_traffic_those_stand_out_that_took_longer_than_most():
    job = JobSteps()
    for number in range(40):
        slow = number % 10 == 9
        assert told(job, [number], duration_ms=150 if slow else 100) == ([number] if slow else [])
        job.were_shared(iteration_rows([(0, iteration(number, 0))]))
        accounted(job, number)


def test_a_rank_that_counts_anew_begins_anew():
    job = JobSteps()
    told(job, range(10))
    accounted(job, 9)
    assert told(job, [0], duration_ms=900) == []
    assert set(job.rows()["number"].tolist()) == {0}
    assert job.received == {}


def test_an_iteration_received_what_its_busiest_rank_did_whenever_that_is_known():
    job = JobSteps()
    told(job, range(300))
    for rank, received in ((0, 7), (1, 9)):
        job.were_accounted(
            iteration_rows([(rank, iteration(number, rank)) for number in range(300)]), np.full(300, received)
        )
    assert job.received == dict.fromkeys(range(50, 300), 9)
    rows = job.rows()[:2]
    times = np.zeros((4, 2), np.int64)
    assert steps_in_utc(rows, times, ["h0", "h1"], 2, {int(rows["number"][0]): 5}).received_bytes.tolist() == [
        5 if number == rows["number"][0] else -1 for number in rows["number"]
    ]


def test_what_is_kept_is_bounded():
    job = JobSteps()
    told(job, range(2_000))
    rows = job.rows()
    assert len(rows) <= 600
    assert rows["number"].max() == 1_999
    kept = RecentRows()
    for session in range(4):
        rows = Columns.zeros(MOST_ROWS // 3, ARRIVED)
        rows["session"] = session
        kept.add(Settled(arrived=[rows]))
    assert len(of_sessions(kept.parts(), [0])) == 0
    assert len(of_sessions(kept.parts(), [2, 3])) == 2 * (MOST_ROWS // 3)


def test_rows_that_came_long_before_a_time_are_left_out():
    kept = RecentRows()
    rows = Columns.zeros(3, ARRIVED)
    kept.add(Settled(arrived=[rows]))
    (part,) = kept.parts()
    assert len(of_sessions([part], [0], part.arrived_ns + 1_000_000_000)) == 3  # clocks may be off
    assert len(of_sessions([part], [0], part.arrived_ns + 5_000_000_000)) == 0


def test_moments_that_nobody_told_stay_unknown():
    job = JobSteps()
    told(job, range(3))
    rows = job.rows()
    utc = np.stack([rows[name] + 7 for name in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns")])
    steps = steps_in_utc(rows, utc, [f"h{place}" for place in rows["session"].tolist()], 2, {})
    assert (steps.start_ns == rows["start_ns"] + 7).all()
    assert not steps.comm_start_ns.any()
    assert [steps.hosts[host] for host in steps.host.tolist()] == [f"h{rank}" for rank in steps.rank.tolist()]


def test_a_time_of_which_no_connection_was_told_is_judged(tmp_path):
    store_small(tmp_path)
    assert judging._flows(tmp_path, [], pd.DataFrame()) == []


def test_a_dataset_that_is_read_in_pieces_has_the_same_verdicts(tmp_path, monkeypatch):
    numbers = np.tile(np.arange(3000), 4)
    job, rank = np.repeat([0, 0, 1, 1], 3000), np.repeat([0, 1, 0, 1], 3000)
    start = BEGIN_NS + numbers * 1000 * MS
    length = np.where(numbers % 97 == 60, 250, 100) * MS
    sink = ParquetSink(tmp_path)
    hosts = {"host": np.char.add("h", rank.astype(str)), "session": np.char.add("s", rank.astype(str))}
    words = hosts | {"job": np.array(["a", "b"])[job], "source": "hook"}
    times = {"start_ns": start, "end_ns": start + length, "comm_start_ns": start, "comm_end_ns": start + length}
    sink.write(
        {"iterations": table("iterations", len(start), **words, **times, rank=rank, size=2, iteration=numbers)}, {}
    )
    sink.close()
    half = BEGIN_NS + 1500 * 1000 * MS, BEGIN_NS + 1800 * 1000 * MS

    def found(within_ns=judging.ALWAYS):
        return [(one.job, one.iteration, one.end_ns) for one in judging.verdicts(tmp_path, within_ns=within_ns)]

    whole, part = found(), found(half)
    assert {number for _, number, _ in whole} == set(range(60, 3000, 97))
    assert len(whole) == len(set(whole)) == 2 * len(range(60, 3000, 97))
    monkeypatch.setattr(judging, "_ROWS", 1000)
    assert found() == whole
    assert found(half) == part == [one for one in whole if half[0] < one[2] and one[1] < 1800]
    ((verdict, times),) = list(judging.explained(tmp_path, "b", 1515))
    assert (verdict.job, verdict.iteration, len(times)) == ("b", 1515, 2)


def test_the_newest_is_judged_first_each_by_what_was_kept_when_it_was_due(monkeypatch):
    judging_ = Judging(Tables(Settings()), {}, None, None, None)
    seen = []
    monkeypatch.setattr(judging_, "_case", lambda job, number, parts: seen.append((number, len(parts))))

    async def run():
        for number in range(3):
            judging_._cpu_time.spend(10**18)  # the machine is busy with something else
            judging_._coming.append((0.0, "job", number))
            judging_.tick(Settled(arrived=[Columns.zeros(3, ARRIVED)]))
        monkeypatch.setattr(judging_module, "KEPT_S", -1.0)
        judging_._cpu_time = TimeLimiter(1, 10**9)
        judging_.tick(Settled())
        await judging_.finish()

    asyncio.run(run())
    assert judging_._rows.parts() == []
    assert seen == [(2, 3), (1, 2), (0, 1)]


@pytest.mark.parametrize("why", ["many", "old"])
def test_what_is_too_late_to_be_judged_by_what_is_kept_is_judged_by_the_dataset(monkeypatch, why):
    told, asked = [], []

    def from_dataset(job, since_ns, until_ns):
        asked.append((job, until_ns - since_ns))
        return [Verdict(job, number, 0, 1, 1, 0, 1, Cause.CROSS) for number in (1, 2)]

    viewed = SimpleNamespace(judged=lambda verdict: None)
    judging_ = Judging(Tables(Settings()), {}, viewed, told.append, from_dataset)
    monkeypatch.setattr(judging_, "_case", lambda job, number, parts: None)
    monkeypatch.setattr(judging_module, "_MOST_WAITING" if why == "many" else "_LONGEST_S", 0)
    job = judging_._jobs["job"] = JobSteps()
    job.last_step_s = time.monotonic()

    async def run():
        judging_._coming.extend((0.0, "job", number) for number in (1, 2, 3))
        judging_.tick(Settled())
        monkeypatch.setattr(judging_module, "_STORED_S", 60.0)
        judging_.tick(Settled())
        await asyncio.sleep(0.1)
        assert not asked, "it may not be stored yet"
        monkeypatch.setattr(judging_module, "_STORED_S", -60.0)
        for _ in range(3):
            judging_.tick(Settled())
            await judging_._working

    asyncio.run(run())
    assert asked == 3 * [("job", 20_000_000_000)]
    assert [(verdict.iteration, verdict.cause) for verdict in told] == [(1, Cause.CROSS), (2, Cause.CROSS)]
    assert all(verdict.reported_ns for verdict in told)


@pytest.mark.parametrize(("confidence", "answers"), [(0.9, 1), (0.2, 2)])
def test_what_is_not_clear_is_judged_again_when_all_hosts_have_told_of_the_step(monkeypatch, confidence, answers):
    verdict = Verdict("job", 1, 0, 1, 1, 0, 1, Cause.CROSS, confidence=confidence)
    told, asked, described = [], [], []
    judging_ = Judging(Tables(Settings()), {}, SimpleNamespace(judged=lambda verdict: None), told.append, None)
    monkeypatch.setattr(judging_, "_with_ends", lambda verdict, parts: verdict)
    case = SimpleNamespace(judged=lambda: (verdict, lambda: described.append(1) or "in the data group"))
    monkeypatch.setattr(judging_, "_case", lambda job, number, parts: asked.append(number) or case)
    job = judging_._jobs["job"] = JobSteps()
    told_until = {"host": 1_050 * MS, "transfers": 0, "collectives": 0}
    monkeypatch.setattr(judging_, "_of_job", lambda table, *_: rows_until(told_until[table]))

    def rows_until(end_ns):
        return Columns({"rank": np.arange(2), "end_ns": np.full(2, end_ns)}) if end_ns else None

    async def run():
        job.add({0: "h0", 1: "h1"}, iteration_rows([(rank, iteration(1, rank)) for rank in (0, 1)]))
        job.last_step_s = time.monotonic()
        judging_._coming.append((0.0, "job", 1))
        judging_.tick(Settled())
        await judging_._working
        judging_.tick(Settled())
        assert len(told) == (answers == 1)
        told_until["host"] = 2_000 * MS
        judging_.tick(Settled())
        await judging_._working

    asyncio.run(run())
    assert (len(told), len(asked)) == (1, answers)
    assert (told[0].group_waits, len(described)) == ("in the data group", 1)


def test_an_iteration_is_told_of_once():
    job = JobSteps()
    assert [job.mark_published(number) for number in (7, 8, 7)] == [True, True, False]


def test_a_culprit_is_found_on_the_link_of_any_host():
    tables, sessions, parts = Tables(Settings()), {}, []
    for host in ("h1", "h0", "h2"):  # not in the order of their links
        own = hello(host=host, session=host)
        index = tables.sessions.add(own, Links(own), Settings(), Resume())
        first_link = int(tables.sessions.table["first_link"][index])
        clock = SimpleNamespace(map=TimeMap.constant(0))
        window = SimpleNamespace(links=Links(own), first_link=first_link, alignment=clock)
        sessions[index] = SimpleNamespace(hello=own, window=window)
        # The first was the busiest, but not in this iteration; of the last nothing came in it.
        for number, (address, carried) in enumerate([("198.18.0.7", (900, 10)), ("198.18.0.9", (0, 500)), ("::1", ())]):
            owner = Owner(9, "iperf3", user=f"{host}-user")
            flow = Flow(number, 7, Direction.RX, address, "198.18.0.1", number, 2, 6, 0, owner)
            at = tables.flows.append(index, flow)
            tables.flows.set(at, int(Direction.RX), flow)
            rows = Columns.zeros(len(carried), RECENT)
            rows["session"][:], rows["flow"][:], rows["bucket_ns"][:] = index, at, MS
            rows["start_ns"][:], rows["payload_bytes"][:] = np.array([0, 50 * MS])[: len(carried)], carried
            parts.append(Part(time.time_ns(), rows))
    judging_ = Judging(tables, sessions, None, None, None)
    for host in ("h0", "h1", "h2"):
        told = Verdict("ring", 1, 10 * MS, 90 * MS, 1, 1, 1, Cause.CROSS, "iperf3", host, "eth0", Direction.RX)
        found = judging_._with_ends(told, parts)
        assert (found.culprit_user, found.sender, found.receiver) == (f"{host}-user", "198.18.0.9", host)
        earlier = replace(told, start_ns=-9 * MS, end_ns=-5 * MS)
        assert judging_._with_ends(earlier, parts) is earlier, "none of its flows carried anything then"


def test_of_a_culprits_flows_in_a_dataset_the_one_that_carried_most_in_the_step_counts(tmp_path):
    """The first lasted longest and carried most in all; the second did while the iteration lasted."""
    sink = ParquetSink(tmp_path)
    link = {"host": "h0", "session": "s0", "interface": "eth0", "direction": "rx"}
    ends = {"src": np.array(["198.18.0.7", "198.18.0.9"]), "dst": "198.18.0.1", "process": "iperf3"}
    lasted = {"first_ns": np.array([BEGIN_NS, BEGIN_NS + 900 * MS]), "last_ns": BEGIN_NS + 5_000 * MS}
    users = {"user": np.array(["ann", "bob"]), "flow_id": np.array([1, 2])}
    start = BEGIN_NS + np.array([0, 1_000, 1_000, 1_100]) * MS
    carried = {"flow_id": np.array([1, 1, 2, 2]), "payload_bytes": np.array([9_000, 10, 300, 300])}
    rows = table("buckets", 4, **link, **carried, bucket_start_ns=start, bucket_ns=MS)
    sink.write({"flows": table("flows", 2, **link, **ends, **lasted, **users), "buckets": rows}, {})
    sink.close()
    since, until = BEGIN_NS + 950 * MS, BEGIN_NS + 1_200 * MS
    told = Verdict("ring", 1, since, until, 1, 1, 1, Cause.CROSS, "iperf3", "h0", "eth0", Direction.RX)
    found = judging._Ends(tmp_path).added(told)
    assert (found.culprit_user, found.sender, found.receiver) == ("bob", "198.18.0.9", "h0")
    earlier = judging._Ends(tmp_path).added(replace(told, start_ns=BEGIN_NS - 9 * MS, end_ns=BEGIN_NS + 9 * MS))
    assert (earlier.culprit_user, earlier.sender) == ("ann", "198.18.0.7")
