# SPDX-License-Identifier: Apache-2.0
"""How often the agent looks around among the processes."""

from pathlib import Path

from netmon.agent.looks import Looks

MS = 1_000_000


def looks(around: Looks, begin_ms: int, end_ms: int) -> int:
    return sum(around.due(ms * MS) for ms in range(begin_ms, end_ms, 50))


def test_a_quiet_host_is_looked_at_seldom_until_a_process_begins(tmp_path: Path) -> None:
    load = tmp_path / "loadavg"
    load.write_text("0.00 0.01 0.05 1/200 4711\n")
    around = Looks(load)
    assert looks(around, 1000, 6000) == 17
    assert looks(around, 7000, 17_000) >= 30
    load.write_text("0.00 0.01 0.05 1/201 4712\n")
    assert looks(around, 17_000, 22_000) >= 15


def test_while_there_are_ranks_it_is_looked_at_often(tmp_path: Path) -> None:
    load = tmp_path / "loadavg"
    load.write_text("0.00 0.01 0.05 1/200 4711\n")
    around = Looks(load)
    around.seen(True)
    assert looks(around, 100_000, 103_000) == 10
