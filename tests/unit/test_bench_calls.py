# SPDX-License-Identifier: Apache-2.0
"""What `netmon bench calls` feeds the agent's part with is training that it knows."""

import pytest

from netmon.bench.calls import KINDS, agent_cost, paper_calls
from netmon.records import STEP_BEGIN


@pytest.mark.parametrize("kind", KINDS)
def test_all_steps_on_paper_are_found(kind: str) -> None:
    cost = agent_cost(kind, 1_000)
    assert 16_000 // 200 - cost.steps in (0, 1)  # the last one may end with the next call
    assert 0 < cost.core_share < 1
    assert cost.us_per_call == pytest.approx(1e6 * cost.core_share / 1_000)


def test_calls_on_paper_come_at_their_rate() -> None:
    calls = paper_calls(True, 1_000, 16)
    assert (calls["kind"] == STEP_BEGIN).sum() == 16_000
    assert (calls["time_ns"][1:] >= calls["time_ns"][:-1]).all()
