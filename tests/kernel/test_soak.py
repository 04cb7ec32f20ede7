# SPDX-License-Identifier: Apache-2.0
"""Memory, descriptors, threads and disks of both sides stay as they are under churn: ten minutes of `make soak`, after
its warm-up."""

from pathlib import Path

import pytest
from soak import Footprint, grown, soak


def footprint(**more: int) -> Footprint:
    return Footprint(**{"rss": 100 << 20, "descriptors": 50, "threads": 10, "waiting_bytes": 0} | more)


def test_what_grows_is_named() -> None:
    flat = [footprint(rss=(100 << 20) + number % 3) for number in range(90)]
    assert grown("agent", flat) == []
    leaking = [footprint(rss=(100 << 20) + (number << 20), descriptors=50 + number) for number in range(90)]
    assert [line.split(" from ")[0] for line in grown("agent", leaking)] == ["agent: rss", "agent: descriptors"]
    assert grown("agent", [footprint(threads=5 + number // 80 * 4) for number in range(90)]) == []


@pytest.mark.long
@pytest.mark.kernel
@pytest.mark.timeout(2400)
def test_ten_minutes(tmp_path: Path) -> None:
    assert soak(600, tmp_path) == []
