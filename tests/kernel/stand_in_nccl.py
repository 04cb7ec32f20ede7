# SPDX-License-Identifier: Apache-2.0
"""A rank that uses the library that stands in for NCCL.

LIBRARY, then lines on standard input, each a JSON list of a call and its arguments. A line answers each.
"""

import ctypes
import json
import socket
import sys
import threading


class Rank:
    """The rank's own calls."""

    def __init__(self, library: str) -> None:
        self._nccl = ctypes.CDLL(library)
        self._nccl.stand_in_connect.restype = ctypes.c_void_p
        self._ends: list[ctypes.c_void_p] = []
        self._sockets: list[socket.socket] = []

    def listen(self, address: str, port: int, count: int) -> int:
        """Takes so many connections, each for an end that receives, in their order."""
        with socket.create_server((address, port), backlog=16) as server:
            print(json.dumps("listens"), flush=True)
            self._sockets += [server.accept()[0] for _ in range(count)]
        return count

    def connect(self, address: str, port: int, count: int) -> int:
        """The other side."""
        for _ in range(count):
            self._sockets.append(socket.create_connection((address, port)))
        return count

    def end(self, connection: int, sends: int, rank: int, peer: int, channel: int) -> int:
        """An end of a connection, by its number; −1: nothing is moved."""
        number = self._sockets[connection].fileno() if connection >= 0 else -1
        self._ends.append(ctypes.c_void_p(self._nccl.stand_in_connect(number, sends, rank, peer, channel)))
        return len(self._ends) - 1

    def operate(self, first: int, collective: int, operations: list[list[int]], ends: list[int]) -> list[list[int]]:
        """Operations of transfers of these sizes on each end, which has a thread → each end's bytes and transfers."""

        def proxy(end: int) -> None:
            for number, sizes in enumerate(operations):
                array = (ctypes.c_int * len(sizes))(*sizes)
                at = ctypes.c_uint64(first + number)
                if self._nccl.stand_in_operate(self._ends[end], at, collective, 0, 2, len(sizes), array):
                    return

        threads = [threading.Thread(target=proxy, args=(end,)) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [self.moved(end) for end in range(len(self._ends))]

    def repeat(self, end: int, times: int, sizes: list[int]) -> list[int]:
        """The same operation so often, in one call."""
        array = (ctypes.c_int * len(sizes))(*sizes)
        self._nccl.stand_in_repeat(self._ends[end], times, len(sizes), array)
        return self.moved(end)

    def moved(self, end: int) -> list[int]:
        """Bytes and transfers so far."""
        bytes_, transfers = ctypes.c_uint64(), ctypes.c_uint64()
        self._nccl.stand_in_moved(self._ends[end], ctypes.byref(bytes_), ctypes.byref(transfers))
        return [bytes_.value, transfers.value]


def main() -> None:
    rank = Rank(sys.argv[1])
    print(json.dumps("mapped"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(rank, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
