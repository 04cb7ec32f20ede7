# SPDX-License-Identifier: Apache-2.0
"""`netmon bench calls` sees every call of a real rank, three times."""

import pytest

from netmon.bench.calls import measure
from netmon.bench.specs import CallsSpec

pytestmark = pytest.mark.kernel


def test_every_collective_is_begun_waited_for_and_over() -> None:
    result = measure(CallsSpec(rounds=1, rates=(1_000,)))
    assert result.rows_per_call == 3
    assert result.alone_ns > 0
    assert len(list(result.shown())) == 2
