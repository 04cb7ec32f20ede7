# SPDX-License-Identifier: Apache-2.0
"""Receives what send.py sends, and throws it away: python -m netmon.lab.traffic.receive ADDRESS:PORT.

The kernel drops the bytes itself (MSG_TRUNC): they are never copied. Runs until killed.
"""

import contextlib
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

_OPEN_FLOWS = 1000
_AT_ONCE = bytearray(1 << 20)
_BACKLOG = 4096


def drain(connection: socket.socket) -> None:
    flags = socket.MSG_TRUNC | socket.MSG_WAITALL
    with connection, contextlib.suppress(OSError):  # a flow that was cut off at the end of the run
        while connection.recv_into(_AT_ONCE, len(_AT_ONCE), flags):
            pass


def receive(host: str, port: int) -> None:
    """Accept and drain connections until killed or interrupted."""
    with socket.create_server((host, port), backlog=_BACKLOG) as server, ThreadPoolExecutor(_OPEN_FLOWS) as flows:
        print("listening", flush=True)
        while True:
            flows.submit(drain, server.accept()[0])


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    receive(host, int(port))


if __name__ == "__main__":
    main()
