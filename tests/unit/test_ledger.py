# SPDX-License-Identifier: Apache-2.0
import math
from types import SimpleNamespace

import numpy as np
import pytest
from collector_stream import hello

from collector.host.flows import Links
from collector.host.ledger import ROWS, SAMPLE, LedgerAccounts, account
from netmon.errors import WireError
from netmon.records import Direction

S = 1_000_000_000
TX = 1


def sample(time_s, **counters):
    row = np.zeros(1, SAMPLE)
    row["link"], row["time_ns"] = TX, time_s * S
    for name, value in counters.items():
        row[name] = value
    return row


def each(rows):
    """Rows of the ledger, one by one."""
    columns = [rows[name].tolist() for name in ROWS]
    return [SimpleNamespace(**dict(zip(ROWS, values, strict=True))) for values in zip(*columns, strict=True)]


def ledger_row(before, after, attributed_bytes):
    before["attributed_bytes"] = attributed_bytes
    rows = each(account(before, after, before["link"])[0])
    return rows[0] if rows else None


class Ledger:
    """The account of two links: rx and tx."""

    def __init__(self, stored_until_ns=None, totals=None, open_samples=None):
        self.accounts = LedgerAccounts()
        self.accounts.open(0, 2, stored_until_ns or {}, totals or {}, open_samples or {})

    def rows(self, settled_ns):
        return each(self.accounts.rows(np.full(2, settled_ns)))


def test_everything_seen_is_full_coverage():
    after = sample(1, nic_bytes=1000, nic_packets=1, frames=1, packets=1, frame_bytes=1000, wire_bytes=1000)
    row = ledger_row(sample(0), after, attributed_bytes=1000)
    assert (row.nic_bytes, row.invisible_bytes, row.coverage) == (1000, 0, 1)


def test_what_was_counted_as_lost_and_is_delivered_after_all_is_taken_off():
    ledger = Ledger()
    counts = {"nic_bytes": 1000, "nic_packets": 1, "frames": 1, "packets": 1, "frame_bytes": 1000, "wire_bytes": 1000}
    for time_s, lost, overflow in ((0, 0, 0), (1, 300, 0), (2, 100, 500)):
        counters = {name: time_s * count for name, count in counts.items()}
        told = sample(time_s, lost_kernel_wire_bytes=lost, overflow_wire_bytes=overflow, **counters)
        ledger.accounts.sample(told)
    rows = ledger.rows(2 * S)
    assert [(row.nic_bytes, row.lost_kernel_bytes, row.overflow_bytes) for row in rows] == [
        (1000, 300, 0),
        (1000, -200, 500),
    ]
    assert ledger.accounts.resets == 0


def test_a_super_packet_counts_its_headers_on_the_wire():
    # A software NIC counts a super-packet of 45 segments with one header of 66 bytes; the wire carries 45 of them.
    seen = {"frames": 1, "packets": 45, "frame_bytes": 65_226, "wire_bytes": 65_226 + 44 * 66}
    after = sample(1, nic_bytes=65_226, nic_packets=1, **seen)
    row = ledger_row(sample(0), after, attributed_bytes=65_226 + 44 * 66)
    assert row.nic_bytes == 65_226 + 44 * 66
    assert row.nic_counter_bytes == 65_226
    assert row.invisible_bytes == 0


def test_a_nic_that_counts_every_segment_counts_what_is_on_the_wire():
    seen = {"frames": 1, "packets": 45, "frame_bytes": 65_226, "wire_bytes": 65_226 + 44 * 66}
    after = sample(1, nic_bytes=65_226 + 44 * 66, nic_packets=45, **seen)
    row = ledger_row(sample(0), after, attributed_bytes=65_226 + 44 * 66)
    assert row.nic_bytes == row.nic_counter_bytes == 65_226 + 44 * 66
    assert row.invisible_bytes == 0


@pytest.mark.parametrize("packets", [10, 40])
def test_a_nic_that_leaves_out_the_ethernet_header(packets):
    """Whether it counts frames or, as here every one of them, their segments."""
    seen = {"frames": 10, "packets": packets, "frame_bytes": 10_000, "wire_bytes": 10_000}
    after = sample(1, nic_bytes=10_000 - 14 * packets, nic_packets=packets, nic_header_bytes=14, **seen)
    assert ledger_row(sample(0), after, 10_000).nic_bytes == 10_000


def test_every_loss_has_its_place():
    after = sample(
        1,
        **{"nic_bytes": 1000, "nic_packets": 10, "frames": 9, "packets": 9, "frame_bytes": 900, "wire_bytes": 900},
        **{"overflow_wire_bytes": 10, "lost_kernel_wire_bytes": 20, "lost_agent_wire_bytes": 30},
    )
    row = ledger_row(sample(0), after, 840)
    assert (row.overflow_bytes, row.lost_kernel_bytes, row.lost_agent_bytes, row.invisible_bytes) == (10, 20, 30, 100)
    assert row.coverage == pytest.approx(0.84)


def test_a_counter_that_went_back_gives_no_account():
    assert ledger_row(sample(1, nic_bytes=5), sample(2), 0) is None


def test_an_idle_link_has_no_coverage():
    assert math.isnan(ledger_row(sample(0), sample(1), 0).coverage)


def test_rows_wait_for_their_interval():
    ledger = Ledger()
    tx = np.array([1], np.int64)
    for time_s in (0, 1, 2):
        ledger.accounts.sample(sample(time_s, nic_bytes=100 * time_s))
    ledger.accounts.add(np.array([S // 2]), tx, np.array([100]))
    assert ledger.rows(S - 1) == []
    (row,) = ledger.rows(S)
    assert (row.start_ns, row.end_ns, row.attributed_bytes, row.coverage) == (0, S, 100, 1)
    ledger.accounts.add(np.array([S]), tx, np.array([60]))
    assert [row.invisible_bytes for row in ledger.rows(3 * S)] == [40]
    assert ledger.accounts.totals[1].tolist() == [200, 160, 0, 0, 0]


def test_an_open_interval_goes_on_after_a_restart():
    before = Ledger()
    for time_s in (0, 1):
        before.accounts.sample(sample(time_s, nic_bytes=100 * time_s))
    before.accounts.add(np.array([S // 2, S]), np.array([1, 1]), np.array([100, 60]))
    assert len(before.rows(S + 1)) == 1
    assert not before.accounts.resumed.any()
    after = Ledger({1: S}, {1: before.accounts.totals[1]}, before.accounts.open_samples(0, 2))
    assert after.accounts.resumed.tolist() == [False, True]
    after.accounts.sample(sample(1, nic_bytes=100))  # sent again
    after.accounts.add(np.array([S // 2, S + S // 2]), np.array([1, 1]), np.array([5, 30]))  # the first one is late
    after.accounts.sample(sample(2, nic_bytes=200))
    assert [(row.start_ns, row.attributed_bytes) for row in after.rows(2 * S)] == [(S, 95)]
    assert after.accounts.totals[1].tolist() == [200, 195, 0, 0, 0]


def test_rows_that_come_late_are_in_the_next_interval():
    ledger = Ledger()
    tx = np.array([1], np.int64)
    for time_s in (0, 1, 2):
        ledger.accounts.sample(sample(time_s, nic_bytes=100 * time_s))
    ledger.accounts.add(np.array([S // 2]), tx, np.array([90]))
    assert [row.invisible_bytes for row in ledger.rows(S)] == [10]
    ledger.accounts.add(np.array([S // 2, S]), np.array([1, 1]), np.array([10, 100]))
    assert [row.invisible_bytes for row in ledger.rows(2 * S)] == [-10]
    assert ledger.accounts.totals[1].tolist() == [200, 200, 0, 0, 0]


def test_stored_intervals_are_not_given_again():
    ledger = Ledger({1: S}, {1: np.array([100, 100, 0, 0, 0])})
    for time_s in (0, 1, 2):
        ledger.accounts.sample(sample(time_s, nic_bytes=100 * time_s))
    assert [row.start_ns for row in ledger.rows(2 * S)] == [S]
    assert ledger.accounts.totals[1].tolist() == [200, 100, 0, 0, 0]


def test_samples_out_of_order_are_passed_over():
    ledger = Ledger()
    for time_s in (0, 1, 1, 0, 2):
        ledger.accounts.sample(sample(time_s))
    assert len(ledger.rows(5 * S)) == 2


def test_a_sample_of_an_unknown_interface():
    with pytest.raises(WireError, match="interface 9"):
        Links(hello()).number(9, Direction.TX)


def test_the_time_in_which_nobody_counted_is_told_from_that_in_which_the_hook_saw_nothing():
    counted = sample(1, nic_bytes=1000, nic_packets=10, frames=10, packets=10, frame_bytes=1000, wire_bytes=1000)
    seen = {"frames": 10, "packets": 10, "frame_bytes": 1000, "wire_bytes": 1000}
    later = sample(5, nic_bytes=4000, nic_packets=30, nic_header_bytes=14, uncounted=1, **seen)
    row = ledger_row(counted, later, attributed_bytes=500)
    assert (row.watched, row.nic_bytes, row.nic_counter_bytes) == (False, 3000 + 14 * 20, 3000)
    assert row.invisible_bytes == row.nic_bytes - 500
    first = sample(1, nic_bytes=1000, nic_packets=10)  # nothing had passed the hook when the agent was killed
    later = sample(5, nic_bytes=4000, nic_packets=30, uncounted=1)
    assert not ledger_row(first, later, attributed_bytes=0).watched
    unseen = sample(5, nic_bytes=4000, nic_packets=30, frames=10, packets=10, frame_bytes=1000, wire_bytes=1000)
    assert ledger_row(counted, unseen, attributed_bytes=0).watched
