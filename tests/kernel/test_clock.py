# SPDX-License-Identifier: Apache-2.0
"""Another clock injected into a real agent, recovered by a real collector, over the lab's links."""

from pathlib import Path

import pytest

from netmon.bench.clock import BUCKET_NS, Injection, recover

pytestmark = pytest.mark.kernel
US = 1_000


def test_the_exchange_recovers_an_injected_clock(tmp_path: Path) -> None:
    found = recover(Injection("exchange", 5_000_000_000, 200), 11, tmp_path)
    # On a busy machine an answer is late, and so is what is known: as late as the collector says.
    assert found.host_error_ns <= max(50 * US, found.bound_ns)
    assert found.source in ("exchange", "traffic")
    assert found.skew_ppm == pytest.approx(200, abs=20)
    drift_ns = 200e-6 * 60e9
    assert found.offset_ns == pytest.approx(5_000_000_000, abs=drift_ns)


def test_the_traffic_alone_recovers_an_injected_clock_to_a_bucket(tmp_path: Path) -> None:
    found = recover(Injection("traffic", -3_000_000_000, -200), 12, tmp_path)
    assert found.difference_ns <= BUCKET_NS
    assert found.source == "traffic"
