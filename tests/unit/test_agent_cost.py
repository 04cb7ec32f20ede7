# SPDX-License-Identifier: Apache-2.0
"""What the agent says of its own cost."""

import os
import subprocess
import sys

import pytest

from netmon.agent import cost
from netmon.agent.cost import CostMeter

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_process_that_ends_does_not_give_its_time_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cost.time, "monotonic", lambda: now[0])
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        meter = CostMeter((os.getpid(), process.pid))
        process.stdout.readline()
        now[0] += 10
        busy = meter.measure(0, 0)
        assert busy.cpu_fraction >= 0.02
        assert busy.rss_bytes > 0
        process.kill()
        process.wait()
    now[0] += 10
    assert 0 <= meter.measure(0, 0).cpu_fraction < busy.cpu_fraction + 1
