# SPDX-License-Identifier: Apache-2.0
"""The stream coarsens itself when it falls behind, and comes back when it has been easy for a while."""

import numpy as np

from netmon.agent.counting import PollSchedule
from netmon.agent.pressure import Backlog, Pressure, Resolution, widths
from netmon.records import BUCKET

MS, S = 1_000_000, 1_000_000_000
EASY = Backlog()


def test_the_steps_nest_and_full_resolution_has_none() -> None:
    assert widths(10_000, MS) == (MS, 5 * MS, 20 * MS)
    assert widths(10_000, 2 * MS) == (2 * MS, 20 * MS)
    assert widths(10_000, 10_000) == (10_000,)


def test_it_gets_coarser_at_once_and_finer_slowly() -> None:
    of = Pressure(widths(10_000, MS))
    assert of.width(Backlog(late_s=4.9), 0) == MS
    assert of.width(Backlog(late_s=5), S) == 5 * MS
    assert of.width(Backlog(late_s=15), 2 * S) == 20 * MS
    assert of.width(EASY, 11 * S) == 20 * MS
    assert of.width(EASY, 12 * S) == 5 * MS
    assert of.width(Backlog(late_s=2), 21 * S) == 5 * MS  # not easy
    assert of.width(EASY, 30 * S) == 5 * MS
    assert of.width(EASY, 31 * S) == MS
    assert of.width(Backlog(full=0.3), 32 * S) == 20 * MS


def test_every_byte_goes_out_once_whatever_the_width() -> None:
    rng = np.random.default_rng(1)
    of, sent, horizon = Resolution(10_000, MS, None), [], 0
    full = np.zeros(50_000, BUCKET)
    full["bucket_start_ns"] = np.sort(rng.integers(0, 400_000, 50_000)) * 10_000
    full["flow_id"], full["wire_bytes"] = rng.integers(0, 5, 50_000), rng.integers(60, 9000, 50_000)
    late = [0, 6, 6, 20, 20, 0, 0, *[0] * 140]
    for number, backlog in enumerate(late):
        begin, end = number * 27 * MS, (number + 1) * 27 * MS
        start = full["bucket_start_ns"]
        streamed = of.stream(full[(start >= begin) & (start < end)], end, Backlog(late_s=backlog), last=False)
        assert not (streamed.buckets["bucket_start_ns"] % streamed.bucket_ns).any()
        assert streamed.horizon_ns >= horizon
        horizon = streamed.horizon_ns
        sent.append(streamed)
    rest = full[full["bucket_start_ns"] >= len(late) * 27 * MS]
    sent.append(of.stream(rest, 10**10, EASY, last=True))
    assert {s.bucket_ns for s in sent} == {MS, 5 * MS, 20 * MS}
    assert sum(int(s.buckets["wire_bytes"].sum()) for s in sent) == int(full["wire_bytes"].sum())
    assert sum(int(s.buckets["busy_buckets"].sum()) for s in sent) == len(
        np.unique(full[["flow_id", "bucket_start_ns"]])
    )


def test_what_the_collector_asks_for_holds_as_long_as_it_does() -> None:
    of = Pressure(widths(10_000, MS))
    assert of.width(Backlog(requested_ns=2 * MS), 0) == 5 * MS
    assert of.width(Backlog(requested_ns=20 * MS), S) == 20 * MS
    assert of.width(Backlog(requested_ns=10**12), 2 * S) == 20 * MS  # the widest that it can
    assert of.width(Backlog(late_s=5, requested_ns=20 * MS), 3 * S) == 20 * MS
    assert of.width(Backlog(requested_ns=0), 4 * S) == 5 * MS  # its own reason has not gone yet
    assert of.width(EASY, 14 * S) == MS
    assert Pressure(widths(10_000, 10_000)).width(Backlog(requested_ns=MS), 0) == 10_000


def test_batches_come_as_rarely_as_the_collector_asks_but_within_reason() -> None:
    def due_after(asked_ns: int) -> int:
        of = PollSchedule(0)
        of.requested_ns = asked_ns
        for now in range(0, 10 * S, 50 * MS):
            of.update(now, 0.0, waits=True)
            if of.batch_is_due:
                return now
        raise AssertionError

    assert [due_after(asked) for asked in (0, 100 * MS, S, 10**15)] == [S, S, S, 2 * S]
