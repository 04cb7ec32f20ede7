# SPDX-License-Identifier: Apache-2.0
"""What the agent costs, also while its processes end."""

import subprocess
import sys

import pytest
from waiting import wait_for

from netmon.agent import evidence
from netmon.agent.evidence import CostMeter


def test_a_process_that_has_ended_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        wait_for(lambda: used(child.pid) > 20)
        meter = CostMeter((child.pid,))
        child.kill()
    began = evidence.time.monotonic()
    monkeypatch.setattr(evidence.time, "monotonic", lambda: began + 3)
    assert meter.measure(0, 0).cpu_fraction == 0


def used(pid: int) -> int:
    """Ticks."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
