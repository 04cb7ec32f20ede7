# SPDX-License-Identifier: Apache-2.0
"""The sums, medians and cuts that verdicts are made of are those of the plain way to do them."""

import numpy as np
import pytest

from collector.judging.judging import RecentRows, disjoint, of_sessions
from netmon.dl.verdict import Link, Whose
from netmon.dl.verdict.baseline import median, middle
from netmon.dl.verdict.cells import where_contested
from netmon.dl.verdict.connections import SAID, limited
from netmon.dl.verdict.evidence import CELL_NS, LINK_TOTAL, LinkTotals
from netmon.dl.verdict.host_part import KEPT, WAITED, kept_more, stopped_in, within
from netmon.dl.verdict.window import JobTraffic, around, around_each
from netmon.records import Columns, Direction

MS = 1_000_000
UTC = 1_795_000_000_000_000_000


@pytest.fixture
def random():
    return np.random.default_rng(1)


@pytest.mark.parametrize("cells", [1, 3, 50])
def test_sums_around_cells(random, cells):
    values = random.integers(0, 1_000, (2, 3, cells)).astype(float)
    reaches = (4, 0, 20)
    for reach, found in zip(reaches, around_each(values, reaches), strict=True):
        plain = [values[..., max(0, k - reach) : k + reach + 1].sum(axis=-1) for k in range(cells)]
        assert (found == np.stack(plain, axis=-1)).all()
        assert (around(values, reach) == found).all()


def test_medians(random):
    for count in (1, 2, 7, 100):
        values = random.normal(size=count)
        assert median(values) == np.median(values)
    table = random.normal(size=(9, 40))
    table[random.uniform(size=table.shape) < 0.5] = np.nan
    table[:, 3] = np.nan
    found = middle(table)
    assert np.isnan(found[3])
    for column in range(40):
        known = table[:, column][np.isfinite(table[:, column])]
        assert not len(known) or found[column] == np.median(known)
    assert np.isnan(middle(np.zeros((0, 2)))).all()


def waits(random, rows=300, ranks=3):
    """Rows of WAITED in no order, some of which overlap."""
    table = np.zeros(rows, WAITED)
    table["rank"] = random.integers(0, ranks, rows)
    table["start_ns"] = UTC + random.integers(0, 20_000, rows) * MS
    table["end_ns"] = table["start_ns"] + random.integers(0, 300, rows) * MS
    for name in ("waited_ns", "throttled_ns", "stopped_ns"):
        table[name] = random.integers(0, 100, rows) * (random.uniform(size=rows) < 0.5) * MS
    return table


def plain_within(rows, name, span):
    """One row after the other."""
    sums = 0.0
    for row in rows:
        overlap = min(float(row["end_ns"]), float(span[1])) - max(float(row["start_ns"]), float(span[0]))
        sums += max(overlap, 0.0) / max(int(row["end_ns"] - row["start_ns"]), 1) * int(row[name])
    return sums


def test_what_rows_sum_up_to_in_times(random):
    rows = waits(random)
    since = UTC + np.sort(random.integers(0, 20_000, 50)) * MS
    spans = np.stack([since, since + 100 * MS], axis=1)
    expected = [plain_within(rows, "waited_ns", span) for span in spans.tolist()]
    assert within(rows, "waited_ns", spans) == pytest.approx(expected, rel=1e-12, abs=1e-6)
    assert within(rows[:0], "waited_ns", spans).tolist() == [0.0] * 50


def test_who_was_stopped_and_who_may_have_been(random):
    rows, span = waits(random), (UTC + 5_000 * MS, UTC + 6_000 * MS)
    told = stopped_in(rows, span)
    sums = {rank: plain_within(rows[rows["rank"] == rank], "stopped_ns", span) for rank in range(3)}
    longest = max(sums.values())
    assert told.watched == 3
    assert set(told.ranks) == {rank for rank, ns in sums.items() if ns >= longest / 2}
    assert all(ns == pytest.approx(sums[rank]) for rank, ns in told.ranks.items())
    later = stopped_in(rows, (UTC + 100_000 * MS, UTC + 101_000 * MS))  # nobody told anything of it
    assert (later.ranks, later.unseen, later.watched) == ({}, {0, 1, 2}, 3)


@pytest.mark.parametrize("name", KEPT)
def test_a_rank_that_never_waits_waited_no_longer(random, name):
    rows = waits(random)
    usual = UTC + np.arange(2_000, 18_000, 200)[:, None] * MS + np.array([0, 100 * MS])
    rows[name][rows["rank"] == 1] = 0
    slow = rows["start_ns"] // (1_000 * MS) == (UTC + 19_000 * MS) // (1_000 * MS)
    rows["end_ns"] = rows["start_ns"] + 100 * MS
    rows[name][slow & (rows["rank"] == 2)] = 10_000 * MS
    found = kept_more(rows, name, (UTC + 19_000 * MS, UTC + 20_000 * MS), usual)
    assert found[2] == max(found.values()) > 0
    assert found[2] <= 100 * MS * (slow & (rows["rank"] == 2)).sum()  # on however many CPUs
    assert 1 not in found


@pytest.mark.parametrize(("cpu_ms", "kept"), [(5, True), (20.5, True), (30, False)])
def test_a_rank_that_had_the_cpu_as_ever_was_not_kept_from_running(cpu_ms, kept):
    """A thread of it waited: for another one of the same rank, which computed for longer than usual."""
    rows = np.zeros(40, WAITED)
    rows["start_ns"] = UTC + np.arange(40) * 500 * MS
    rows["end_ns"] = rows["start_ns"] + 500 * MS
    rows["waited_ns"], rows["cpu_ns"] = 10 * MS, 100 * MS
    rows["cpu_ns"] += np.arange(40) % 5 * MS  # it differs by some
    rows["waited_ns"][38], rows["cpu_ns"][38] = 400 * MS, round(5 * cpu_ms * MS)
    usual = UTC + np.arange(0, 18_000, 200)[:, None] * MS + np.array([0, 200 * MS])
    found = kept_more(rows, "waited_ns", (UTC + 19_100 * MS, UTC + 19_400 * MS), usual)
    assert (found.get(0, 0.0) > 200 * MS) == kept


def test_a_rank_that_is_throttled_for_a_part_of_a_row_may_have_been_so_in_the_iteration():
    rows = np.zeros(40, WAITED)
    rows["start_ns"] = UTC + np.arange(40) * 500 * MS
    rows["end_ns"] = rows["start_ns"] + 500 * MS
    rows["throttled_ns"][38] = 90 * MS
    usual = UTC + np.arange(0, 18_000, 200)[:, None] * MS + np.array([0, 200 * MS])
    for begin, ns in ((19_100, 90), (19_450, 50), (19_500, 0)):
        found = kept_more(rows, "throttled_ns", (UTC + begin * MS, UTC + (begin + 200) * MS), usual)
        assert found.get(0, 0.0) == pytest.approx(ns * MS, abs=1_000)


def test_a_job_that_always_runs_in_a_quota_is_not_throttled_more(random):
    """Three tenths of the time, give or take a tenth of that, in short iterations and long ones."""
    rows = np.zeros(200, WAITED)
    rows["start_ns"] = UTC + np.arange(200) * 100 * MS
    rows["end_ns"] = rows["start_ns"] + 100 * MS
    rows["throttled_ns"] = 30 * MS * random.uniform(0.9, 1.1, 200)
    usual = UTC + np.arange(0, 18_000, 200)[:, None] * MS + np.array([0, 200 * MS])
    span = (UTC + 19_000 * MS, UTC + 19_600 * MS)
    assert kept_more(rows, "throttled_ns", span, usual) == {}
    rows["throttled_ns"][190:196] += 50 * MS
    assert kept_more(rows, "throttled_ns", span, usual)[0] == pytest.approx(300 * MS, rel=0.1)


def test_connections_that_were_never_limited_do_not_count():
    said = np.zeros(20, SAID)
    said["of"] = np.arange(20) % 2
    said["start_ns"] = UTC + np.arange(20) // 2 * 100 * MS
    said["end_ns"] = said["start_ns"] + 100 * MS
    said["receiver_ns"][said["of"] == 0] = -1  # not known
    usual = [(UTC + k * 100 * MS, UTC + (k + 1) * 100 * MS) for k in range(3)]
    span = (UTC + 500 * MS, UTC + 600 * MS)
    assert limited(said, "receiver_ns", span, usual) == 0.0
    said["receiver_ns"][said["of"] == 1] = np.where(np.arange(10) == 5, 40, 10) * MS
    assert limited(said, "receiver_ns", span, usual) == pytest.approx(30 * MS, rel=1e-4)


def test_times_that_overlap_are_one():
    begins, ends = disjoint([(50, 60), (10, 20), (15, 30), (30, 35)])
    assert (begins[:-1].tolist(), ends.tolist()) == ([10, 50], [35, 60])
    assert begins[-1] == np.iinfo(np.int64).max
    assert len(disjoint([])[0]) == 1


def test_rows_that_are_not_wanted_are_not_copied():
    kept, rows = RecentRows(), Columns.zeros(10, np.dtype([("session", "<i4"), ("flow", "<i4"), ("start_ns", "<i8")]))
    rows["session"], rows["start_ns"] = np.arange(10) % 2, np.arange(10)
    whole = rows.replaced(**{name: np.full(10, 7) for name in ("bucket_ns", "wire_bytes", "payload_bytes")})
    kept.add(type("Arrived", (), {"arrived": [whole]}))
    found = of_sessions(kept.parts(), [1], 0, lambda session, start, width: (start > 2) & (session == 1) & (width == 7))
    assert found["start_ns"].tolist() == [3, 5, 7, 9]


LINKS = [Link(f"h{rank}", "eth0", way, 10**9) for rank in range(2) for way in (Direction.RX, Direction.TX)]
WHOSE = [Whose("job", 0, 1, False, ""), Whose("job", 1, 0, False, ""), Whose("", -1, -1, False, "iperf3")]


def carried(foreign: int):
    """Ten ms in which rank 0 sends to rank 1, beside so many bytes of somebody else's in each cell."""
    cells = np.arange(40)
    rows = np.zeros(3 * len(cells), LINK_TOTAL)
    rows["cell"] = UTC // CELL_NS + np.tile(cells, 3)
    rows["link"], rows["of"] = np.repeat([1, 2, 2], len(cells)), np.repeat([0, 1, 2], len(cells))
    rows["payload_bytes"] = rows["wire_bytes"] = np.repeat([10_000, 10_000, foreign], len(cells))
    return LinkTotals(LINKS, WHOSE, rows[::-1])


@pytest.mark.parametrize(("foreign", "full"), [(0, False), (300, False), (4_000, False), (20_000, True)])
def test_a_link_is_contested_where_it_is_full_with_others_bytes(foreign, full):
    traffic = JobTraffic(carried(foreign), "job")
    seen = traffic.window(UTC, UTC + 10 * MS)
    assert seen.ranks.tolist() == [0, 1]
    assert (seen.left_cells.sum(), seen.arrived_cells.sum()) == (400_000, 400_000)
    assert seen.foreign.sum() == 40 * foreign
    found = where_contested(seen, seen.capacity)
    assert found.cells.any() == full
    assert (found.link >= 0).any() == (found.traffic_owner >= 0).any() == full
    assert traffic.window(UTC + 100 * MS, UTC + 200 * MS) is None
    part = traffic.window(UTC + 5 * MS, UTC + 10 * MS)
    assert part.cells == 20
    assert (part.own == seen.own[:, 20:]).all()
    assert (part.foreign_payload == seen.foreign_payload[..., 20:]).all()
