# SPDX-License-Identifier: Apache-2.0
"""A NIC's own counters, of an interface that goes and comes back under the same name."""

import json
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.kernel

SCRIPT = """
import json, os, subprocess, sys
from netmon.kernel.nic import NicCounters
made = ["ip", "link", "add", "again0", "type", "veth", "peer", "name", "again1"]
counters, seen = NicCounters(), []
for _ in range(2):
    subprocess.run(made, check=True)
    seen.append([sample.source for sample in counters.read(["again0"])])
    held = len(os.listdir("/proc/self/fd"))
    seen.append([sample.source for sample in counters.read(["again0"])])
    assert len(os.listdir("/proc/self/fd")) == held
    subprocess.run(["ip", "link", "del", "again0"], check=True)
    seen.append([sample.source for sample in counters.read(["again0"])])
print(json.dumps(seen))
"""


def test_an_interface_that_is_made_again_is_counted_again(namespaces: Callable) -> None:
    left, _ = namespaces()
    first, second, gone, *again = json.loads(left.namespace.run(sys.executable, "-c", SCRIPT))
    assert "sysfs" in first
    assert second == first
    assert gone == []
    assert again == [first, second, gone]
