# SPDX-License-Identifier: Apache-2.0
"""Ranks that begin their iterations when they are told to."""

import time
from pathlib import Path

from netmon.lab.trainers.ring import Pace, write_pace

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


def test_without_a_file_nothing_is_waited_for(tmp_path: Path) -> None:
    Pace("").wait()
    Pace(str(tmp_path / "none")).wait()


def test_iterations_begin_with_the_periods(tmp_path: Path) -> None:
    begin = time.monotonic_ns() + 30 * MS
    write_pace(tmp_path / "pace", begin, 40 * MS)
    pace = Pace(str(tmp_path / "pace"))
    for number in range(3):
        pace.wait()
        assert time.monotonic_ns() >= begin + number * 40 * MS


def test_who_is_a_little_late_begins_at_once(tmp_path: Path) -> None:
    write_pace(tmp_path / "pace", time.monotonic_ns() - HOUR_NS // 10, HOUR_NS)
    Pace(str(tmp_path / "pace")).wait()  # or the test lasts an hour


def test_who_is_very_late_waits_for_the_next_period(tmp_path: Path) -> None:
    begin = time.monotonic_ns() - HOUR_NS + 50 * MS
    write_pace(tmp_path / "pace", begin, HOUR_NS)
    Pace(str(tmp_path / "pace")).wait()
    assert time.monotonic_ns() >= begin + HOUR_NS


def test_who_waits_hears_of_another_pace(tmp_path: Path) -> None:
    path = tmp_path / "pace"
    write_pace(path, 0)
    pace = Pace(str(path))
    pace.wait()
    write_pace(path, time.monotonic_ns() + 20 * MS)
    pace.wait()
    pace.wait()  # no period: one iteration after the other


def test_ranks_that_skipped_unlike_periods_begin_together_again(tmp_path: Path) -> None:
    """One of them just made the last period; both end their iteration a little after the next one has begun."""
    begin = time.monotonic_ns() - 2 * HOUR_NS - HOUR_NS // 10
    for missed in (0, 1):
        write_pace(tmp_path / "pace", begin + missed * HOUR_NS, HOUR_NS)
        Pace(str(tmp_path / "pace")).wait()  # or the test lasts an hour
