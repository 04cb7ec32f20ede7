# SPDX-License-Identifier: Apache-2.0
"""Counters that stand still are not sent again, until everything is."""

from netmon.agent.host_part import Links, NicSamples

S = 1_000_000_000


def test_only_what_has_changed_is_sent() -> None:
    samples, now = NicSamples(Links([1], ["lo"]), 1, 1), 10**18
    first = {name for sample in samples.due(now) for name in sample.names}
    assert {"rx_bytes", "tx_errors"} <= first
    again = {name for sample in samples.due(now + S) for name in sample.names}
    assert "tx_errors" not in again
    whole = {name for sample in samples.due(now + 61 * S) for name in sample.names}
    assert whole == first


def test_counters_that_stand_still_are_read_less_often_until_there_is_traffic() -> None:
    samples, now = NicSamples(Links([1], ["lo"]), 1, S), 10**18
    reads = []
    samples._counters.read = lambda names: reads.append(len(reads)) or []
    for second in range(9):
        samples.due(now + second * S, idle=True)
    assert len(reads) == 3
    samples.due(now + 9 * S)
    samples.due(now + 10 * S)
    assert len(reads) == 5


def test_the_last_sample_is_taken_however_early_it_is() -> None:
    samples, now = NicSamples(Links([1], ["lo"]), 1, S), 10**18
    reads = []
    samples._counters.read = lambda names: reads.append(len(reads)) or []
    for last in (False, False, True):
        samples.due(now, idle=True, last=last)
    assert len(reads) == 2
