# SPDX-License-Identifier: Apache-2.0
"""Another clock injected into a real agent, recovered by a real collector, over the lab's links."""

import time
from pathlib import Path

import pytest

from netmon.bench.clock import BUCKET_NS, Injection, recover

pytestmark = pytest.mark.kernel
US = 1_000
SECONDS = 11


@pytest.mark.long
def test_the_exchange_recovers_an_injected_clock(tmp_path: Path) -> None:
    began = time.monotonic_ns()
    found = recover(Injection("exchange", 5_000_000_000, 200), SECONDS, tmp_path)
    # On a busy machine an answer is late, and so is what is known: as late as the collector says.
    assert found.host_error_ns <= max(50 * US, found.bound_ns)
    assert found.source in ("exchange", "traffic")
    known_ppm = 2 * found.bound_ns / (SECONDS * 1e9) * 1e6  # at both ends
    assert found.skew_ppm == pytest.approx(200, abs=max(20, known_ppm))
    drift_ns = 200e-6 * (time.monotonic_ns() - began)
    assert -found.bound_ns <= found.offset_ns - 5_000_000_000 <= drift_ns + found.bound_ns


def test_the_traffic_alone_recovers_an_injected_clock_to_a_bucket(tmp_path: Path) -> None:
    found = recover(Injection("traffic", -3_000_000_000, -200), 12, tmp_path)
    assert found.difference_ns <= BUCKET_NS
    assert found.source == "traffic"
