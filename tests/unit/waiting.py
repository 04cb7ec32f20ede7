# SPDX-License-Identifier: Apache-2.0
"""For tests: what to wait for, and where to listen, on a machine that does other things as well."""

import os
import socket
import time
from collections.abc import Callable

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: its process is killed when the tests are, or the thread that has started it ends."""

_LOWEST, _HIGHEST = 20_000, 32_000


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Until it holds. The time is for a busy machine: who passes does not need it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port(count: int = 1) -> int:
    """The first of `count` adjacent ports of the loopback that nobody uses now.

    Every process of tests begins to look elsewhere, so that a server which is killed and started again finds its port
    free; they are below those that clients are given.
    """
    begin = _LOWEST + os.getpid() * 37 % (_HIGHEST - _LOWEST)
    for port in (*range(begin, _HIGHEST, count), *range(_LOWEST, begin, count)):
        sockets = []
        try:
            sockets = [socket.create_server(("127.0.0.1", port + offset)) for offset in range(count)]
            return port
        except OSError:
            continue
        finally:
            for used in sockets:
                used.close()
    raise AssertionError
