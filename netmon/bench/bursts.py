# SPDX-License-Identifier: Apache-2.0
"""Traffic with rests: two ends of a TCP connection send each other a burst in turn, then nothing for a while.

`python -m netmon.bench.bursts listen ADDRESS` · `python -m netmon.bench.bursts connect ADDRESS`
"""

import random
import socket
import sys
import time

PORT = 5301
LISTENING = "listening"
_BURST = bytes(200_000)
_REST_S = (0.06, 0.14)


def listen(address: str) -> None:
    """Answer bursts with bursts until the other end goes away."""
    with socket.create_server((address, PORT)) as server:
        print(LISTENING, flush=True)
        connection, _ = server.accept()
        with connection:
            while _receive(connection):
                connection.sendall(_BURST)


def connect(address: str) -> None:
    """Send bursts without end; the rests between them are of different lengths, as those of computing are."""
    pause = random.Random(address)
    with socket.create_connection((address, PORT)) as connection:
        while True:
            time.sleep(pause.uniform(*_REST_S))
            connection.sendall(_BURST)
            if not _receive(connection):
                return


def _receive(connection: socket.socket) -> bool:
    """Wait for a whole burst; False where the other end has gone."""
    left = len(_BURST)
    while left:
        received = len(connection.recv(min(left, 1 << 16)))
        if not received:
            return False
        left -= received
    return True


if __name__ == "__main__":
    {"listen": listen, "connect": connect}[sys.argv[1]](sys.argv[2])
