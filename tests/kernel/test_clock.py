# SPDX-License-Identifier: Apache-2.0
"""Another clock injected into a real agent, recovered by a real collector, over the lab's links."""

from pathlib import Path

import pytest

from netmon.bench.clock import BUCKET_NS, Injection, recover

pytestmark = pytest.mark.kernel
US = 1_000


@pytest.mark.parametrize(("offset_s", "skew_ppm"), [(5, 200), (-3, -200)])
def test_the_exchange_recovers_an_injected_clock(tmp_path: Path, offset_s: int, skew_ppm: int) -> None:
    found = recover(Injection("exchange", offset_s * 10**9, skew_ppm), 12, tmp_path)
    assert found.host_error_ns <= 50 * US
    assert found.host_error_most_ns <= 1_000 * US  # whatever else the machine does meanwhile
    assert found.source in ("exchange", "traffic")
    assert found.skew_ppm == pytest.approx(skew_ppm, abs=20)
    drift_ns = abs(skew_ppm) * 1e-6 * 60e9
    assert found.offset_ns == pytest.approx(offset_s * 10**9, abs=drift_ns)


def test_the_traffic_alone_recovers_an_injected_clock_to_a_bucket(tmp_path: Path) -> None:
    found = recover(Injection("traffic", 2_000_000_000, 100), 14, tmp_path)
    assert found.difference_ns <= BUCKET_NS
    assert found.source == "traffic"
