# SPDX-License-Identifier: Apache-2.0
"""What one rank transfers alongside its gradients, in a thread of its own: a checkpoint to a file server, training data
from it. Standard library only, for Horovod's environment imports it, too."""

import socket
import threading
import time

PIECE = 1 << 20
ORDER = 9  # bytes: what is asked of the server: `u` or `d`, and how many bytes


class Transfers:
    """When a rank transfers: AFTER:KIND:BYTES:ADDRESS:PORT,…, AFTER being finished iterations and a share of one."""

    def __init__(self, text: str = "") -> None:
        """text: as the option has it; empty: never."""
        self._due = [each.split(":") for each in text.split(",") if each]
        self._last_ns = time.monotonic_ns()

    def begin_due(self, finished: int) -> None:
        """Begin what is due after so many iterations; does not block.

        Each prints when it begins and when it is over, CLOCK_MONOTONIC in ns.
        """
        now = time.monotonic_ns()
        took_s, self._last_ns = (now - self._last_ns) / 1e9, now
        for after, *what in self._due:
            if int(float(after)) == finished:
                later_s = took_s * (float(after) - finished)
                threading.Thread(target=_transfer, args=(after, later_s, *what), daemon=True).start()


def _transfer(after: str, later_s: float, kind: str, size: str, address: str, port: str) -> None:
    time.sleep(later_s)
    with socket.create_connection((address, int(port))) as connection:
        print(f"transfer {after} begun {time.monotonic_ns()}", flush=True)
        connection.sendall(kind[0].encode() + int(size).to_bytes(ORDER - 1, "big"))
        if kind == "upload":
            _send(connection, int(size))
        received = 0
        while piece := connection.recv(PIECE):
            received += len(piece)
        print(f"transfer {after} ended {time.monotonic_ns()} {received}", flush=True)


def _send(connection: socket.socket, size: int) -> None:
    piece = bytes(PIECE)
    while size > 0:
        size -= connection.send(piece[:size])
    connection.shutdown(socket.SHUT_WR)
