# SPDX-License-Identifier: Apache-2.0
"""The testbed of the kernel tests is what it says: reachable, quiet, and gone afterwards."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

pytestmark = pytest.mark.kernel

SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
    for _ in range(100):
        channel.sendto(b"x" * 100, (sys.argv[1], 9))
"""


def test_what_is_sent_arrives_and_nothing_else_is_on_the_wire(namespaces):
    left, right = namespaces()
    left.namespace.run(sys.executable, "-c", SEND, right.address)
    (link,) = json.loads(left.namespace.run("ip", "-json", "-statistics", "link", "show", "dev", left.interface))
    assert link["stats64"]["tx"]["packets"] == 100
    assert link["stats64"]["tx"]["bytes"] == 100 * (14 + 20 + 8 + 100)
    (peer,) = json.loads(right.namespace.run("ip", "-json", "-statistics", "link", "show", "dev", right.interface))
    assert peer["stats64"]["rx"]["packets"] == 100


def test_namespaces_are_removed_also_on_failure(network):
    class BrokenTestError(Exception):
        pass

    made = []

    def broken_test() -> None:
        with ExitStack() as cleanup:
            testbed = type(network)(cleanup)
            made.extend([testbed.namespace(), testbed.namespace()])
            testbed.veth(*made)
            raise BrokenTestError

    with pytest.raises(BrokenTestError):
        broken_test()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not [namespace for namespace in made if namespace.name in left]
