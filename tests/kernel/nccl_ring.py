# SPDX-License-Identifier: Apache-2.0
"""A rank that trains by the library that stands in for NCCL, in a ring over TCP; a step each time that it is told to.

LIBRARY RANK SIZE PORT. A line with milliseconds and bytes per second: so long it computes, then hands gradients over
and sends them, no faster than that; it says when that is done. What an all-reduce does besides, that all wait for all,
is left to whoever says when to go on.
"""

import ctypes
import queue
import socket
import sys
import threading
import time

SIZES = [1 << 18] * 6
GRADIENTS = (50_000, 60_000, 70_000, 80_000)  # values
ALL_REDUCE, RING, SIMPLE = 4, 2, 2
SO_MAX_PACING_RATE = 47


class End(threading.Thread):
    """One of a connection, as a network proxy: a thread of its own."""

    def __init__(self, library: ctypes.CDLL, connected: socket.socket, sends: int, rank: int, peer: int) -> None:
        super().__init__(daemon=True)
        self._library, self._socket = library, connected
        self._end = ctypes.c_void_p(library.stand_in_connect(connected.fileno(), sends, rank, peer, 0))
        self._operations, self._done = queue.Queue[int](), queue.Queue[int]()
        self.start()

    def run(self) -> None:
        sizes = (ctypes.c_int * len(SIZES))(*SIZES)
        while True:
            number = ctypes.c_uint64(self._operations.get())
            self._done.put(
                self._library.stand_in_operate(self._end, number, ALL_REDUCE, RING, SIMPLE, len(SIZES), sizes)
            )

    def begin(self, number: int) -> None:
        self._operations.put(number)

    def wait(self) -> None:
        assert not self._done.get()


def main() -> None:
    path, rank, size, port = sys.argv[1], *map(int, sys.argv[2:])
    library = ctypes.CDLL(path)
    library.stand_in_connect.restype = ctypes.c_void_p
    listening = socket.create_server(("127.0.0.1", port + rank))
    print("listens", flush=True)
    sys.stdin.readline()
    to_next = socket.create_connection(("127.0.0.1", port + (rank + 1) % size))
    to_next.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # what is sent is on its way
    ends = [
        End(library, to_next, 1, rank, (rank + 1) % size),
        End(library, listening.accept()[0], 0, rank, (rank - 1) % size),
    ]
    number = 0
    print("connected", flush=True)
    for line in sys.stdin:
        compute_ms, rate = map(int, line.split())
        to_next.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        time.sleep(compute_ms / 1000)
        for values in GRADIENTS:
            library.ncclAllReduce(None, None, ctypes.c_size_t(values), 7, 0, None, None)
        for _ in GRADIENTS:
            for end in ends:
                end.begin(number)
            for end in ends:
                end.wait()
            number += 1
        print("done", flush=True)


if __name__ == "__main__":
    main()
