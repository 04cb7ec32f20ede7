# SPDX-License-Identifier: Apache-2.0
"""Why a link was slow, by what its host's NICs have counted meanwhile."""

from pathlib import Path

import numpy as np
import pytest
from test_stored_transfers import store
from test_verdict_transfers import AT, JOB, MS, RANKS, Training

from collector.host.tables import Lately
from collector.judging.judging import RecentTransfers
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.dl.verdict import matrix, no_link_totals, sentence
from netmon.dl.verdict.host_part import COUNTED, REASONS, why_slow
from netmon.dl.verdict.judge import judge_input, verdict_on
from netmon.evidence import UNKNOWN
from netmon.history import judging
from netmon.records import Columns, Table
from netmon.views import Cause

S = 1_000_000_000
SPAN = (AT + 20 * S, AT + 20 * S + 400 * MS)
USUAL = [(AT + n * S // 2, AT + n * S // 2 + 200 * MS) for n in range(2, 36)]


def counted(name: str, slow: int, usual: int = 0) -> Table:
    """A row a second; slow: in that of SPAN."""
    rows = np.zeros(30, COUNTED)
    rows["start_ns"] = AT + np.arange(30) * S
    rows["end_ns"] = rows["start_ns"] + S
    rows[name] = usual
    rows[name][20] = slow
    return rows


@pytest.mark.parametrize(("name", "words"), REASONS.items())
def test_what_a_card_counts_then_and_not_usually_is_the_reason(name: str, words: str) -> None:
    assert why_slow(counted(name, 500), SPAN, USUAL) == words
    assert why_slow(counted(name, 500, usual=10), SPAN, USUAL) == words


def test_what_it_counts_at_any_time_or_at_another_one_is_none() -> None:
    assert why_slow(counted("pause_packets", 500, usual=300), SPAN, USUAL) == ""
    other = counted("pause_packets", 0)
    other["pause_packets"][10] = 500
    assert why_slow(other, SPAN, USUAL) == ""
    unknown = counted("pause_packets", 500)
    unknown["pause_packets"] = UNKNOWN
    assert why_slow(unknown, SPAN, USUAL) == ""
    assert why_slow(counted("pause_packets", 500), SPAN, USUAL[:2]) == ""
    assert why_slow(np.empty(0, COUNTED), SPAN, USUAL) == ""


def test_a_verdict_says_so_of_the_host_whose_link_it_is() -> None:
    steps, transfers = Training(pairs=[1], factor=20, steps=60, slow_step=50).run()
    table = matrix(steps)
    at = int(steps.start_ns[steps.number == 50].min())

    def of_host(host: str) -> Table:
        rows = counted("limited_packets", 0)
        rows["start_ns"], rows["end_ns"] = rows["start_ns"] - AT + at - 20 * S, rows["end_ns"] - AT + at - 20 * S
        rows["limited_packets"][20] = 40 if host == "h1" else 0
        return rows

    for host, told in (("h1", "the cloud's limit"), ("h2", "")):
        one = judge_input(JOB, table, no_link_totals(), 50, lambda: transfers, lambda _, host=host: of_host(host))
        found = verdict_on(one, steps)
        assert (found.cause, found.host, found.culprit) == (Cause.SLOW_LINK, "h1", told)
        assert ("with no other traffic on it (the cloud's limit), which" in sentence(found)) == bool(told)


def test_both_a_dataset_and_a_collector_have_what_a_host_counted(tmp_path: Path) -> None:
    same = {"host": "h1", "session": "s1", "rank": None, "start_ns": AT, "end_ns": AT + S}
    store(tmp_path, "host", [same | {"limited_packets": 7, "pause_packets": None, "congestion_packets": 0}], "h1")
    (row,) = judging._counted(tmp_path, (AT - S, AT + S), "h1")
    assert row.tolist() == (AT, AT + S, 7, UNKNOWN, 0)
    assert not len(judging._counted(tmp_path, (AT - S, AT + S), "h2"))
    lately = Lately()
    names = {"start_ns": AT, "end_ns": AT + S, "limited_packets": 7, "pause_packets": UNKNOWN, "congestion_packets": 0}
    both = {name: np.array([value, value], np.int64) for name, value in names.items()}
    lately.append(Columns(both | {"session": np.array([1, 1]), "rank": np.array([UNKNOWN, 3])}))
    maps, there = TimeMaps([TimeMap.constant(0)] * RANKS), np.arange(RANKS)
    recent, hosts = RecentTransfers(host=lately), {n: f"h{n}" for n in range(RANKS)}
    assert recent.counted_in_utc(maps, there, hosts, "h1").tolist() == [row.tolist()]
    assert not len(recent.counted_in_utc(maps, there, hosts, "h2"))
