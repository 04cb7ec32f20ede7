# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import replace

import numpy as np
import pytest
from collector_stream import hello

from collector.host.flows import Links
from collector.host.ledger import LedgerAccount, ledger_row
from netmon.errors import WireError
from netmon.records import Direction, LedgerSample

S = 1_000_000_000
ZERO = LedgerSample(7, Direction.TX, 0, 0, 0, 0, *[0] * 13)


def sample(time_s, **counters):
    return replace(ZERO, time_ns=time_s * S, **counters)


def test_everything_seen_is_full_coverage():
    after = sample(1, nic_bytes=1000, nic_packets=1, frames=1, packets=1, frame_bytes=1000, wire_bytes=1000)
    row = ledger_row(1, ZERO, after, attributed_bytes=1000)
    assert (row.nic_bytes, row.invisible_bytes, row.coverage) == (1000, 0, 1)


def test_a_super_packet_counts_its_headers_on_the_wire():
    # A software NIC counts a super-packet of 45 segments with one header of 66 bytes; the wire carries 45 of them.
    seen = {"frames": 1, "packets": 45, "frame_bytes": 65_226, "wire_bytes": 65_226 + 44 * 66}
    after = sample(1, nic_bytes=65_226, nic_packets=1, **seen)
    row = ledger_row(1, ZERO, after, attributed_bytes=65_226 + 44 * 66)
    assert row.nic_bytes == 65_226 + 44 * 66
    assert row.nic_counter_bytes == 65_226
    assert row.invisible_bytes == 0


def test_a_nic_that_counts_every_segment_counts_what_is_on_the_wire():
    seen = {"frames": 1, "packets": 45, "frame_bytes": 65_226, "wire_bytes": 65_226 + 44 * 66}
    after = sample(1, nic_bytes=65_226 + 44 * 66, nic_packets=45, **seen)
    row = ledger_row(1, ZERO, after, attributed_bytes=65_226 + 44 * 66)
    assert row.nic_bytes == row.nic_counter_bytes == 65_226 + 44 * 66
    assert row.invisible_bytes == 0


@pytest.mark.parametrize("packets", [10, 40])
def test_a_nic_that_leaves_out_the_ethernet_header(packets):
    """Whether it counts frames or, as here every one of them, their segments."""
    seen = {"frames": 10, "packets": packets, "frame_bytes": 10_000, "wire_bytes": 10_000}
    after = sample(1, nic_bytes=10_000 - 14 * packets, nic_packets=packets, nic_header_bytes=14, **seen)
    assert ledger_row(1, ZERO, after, 10_000).nic_bytes == 10_000


def test_every_loss_has_its_place():
    after = sample(
        1,
        **{"nic_bytes": 1000, "nic_packets": 10, "frames": 9, "packets": 9, "frame_bytes": 900, "wire_bytes": 900},
        **{"overflow_wire_bytes": 10, "lost_kernel_wire_bytes": 20, "lost_agent_wire_bytes": 30},
    )
    row = ledger_row(1, ZERO, after, 840)
    assert (row.overflow_bytes, row.lost_kernel_bytes, row.lost_agent_bytes, row.invisible_bytes) == (10, 20, 30, 100)
    assert row.coverage == pytest.approx(0.84)


def test_a_counter_that_went_back_gives_no_account():
    assert ledger_row(1, sample(1, nic_bytes=5), sample(2), 0) is None


def test_an_idle_link_has_no_coverage():
    assert math.isnan(ledger_row(1, ZERO, sample(1), 0).coverage)


def test_rows_wait_for_their_interval():
    account = LedgerAccount(Links(hello()), {}, {})
    tx = np.array([1], np.int64)
    for time_s in (0, 1, 2):
        account.sample(sample(time_s, nic_bytes=100 * time_s), -1)
    account.add(np.array([S // 2]), tx, np.array([100]))
    assert account.rows(S - 1) == []
    (row,) = account.rows(S)
    assert (row.start_ns, row.end_ns, row.attributed_bytes, row.coverage) == (0, S, 100, 1)
    account.add(np.array([S]), tx, np.array([60]))
    assert [row.invisible_bytes for row in account.rows(3 * S)] == [40]
    assert account.totals[1].tolist() == [200, 160, 0, 0, 0]
    assert account.needed_since() == 2 * S


def test_rows_that_come_late_are_in_the_next_interval():
    account = LedgerAccount(Links(hello()), {}, {})
    tx = np.array([1], np.int64)
    for time_s in (0, 1, 2):
        account.sample(sample(time_s, nic_bytes=100 * time_s), -1)
    account.add(np.array([S // 2]), tx, np.array([90]))
    assert [row.invisible_bytes for row in account.rows(S)] == [10]
    account.add(np.array([S // 2, S]), np.array([1, 1]), np.array([10, 100]))
    assert [row.invisible_bytes for row in account.rows(2 * S)] == [-10]
    assert account.totals[1].tolist() == [200, 200, 0, 0, 0]


def test_stored_intervals_are_not_given_again():
    account = LedgerAccount(Links(hello()), {1: S}, {1: np.array([100, 100, 0, 0, 0])})
    for time_s in (0, 1, 2):
        account.sample(sample(time_s, nic_bytes=100 * time_s), -1)
    assert [row.start_ns for row in account.rows(2 * S)] == [S]
    assert account.totals[1].tolist() == [200, 100, 0, 0, 0]


def test_samples_out_of_order_are_passed_over():
    account = LedgerAccount(Links(hello()), {}, {})
    for time_s in (0, 1, 1, 0, 2):
        account.sample(sample(time_s), -1)
    assert len(account.rows(5 * S)) == 2


def test_a_sample_of_an_unknown_interface():
    with pytest.raises(WireError, match="interface 9"):
        LedgerAccount(Links(hello()), {}, {}).sample(replace(ZERO, interface=9), -1)
