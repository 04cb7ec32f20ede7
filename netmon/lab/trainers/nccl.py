# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job that sends its gradients by the library that stands in for NCCL (nccl.c), in a ring, waits
for them in the one that stands in for CUDA's, and tells nobody of its steps. The launcher sets RANK.

Its iterations are the lab's own trainer's, but that no value is reduced: the bytes of an all-reduce go round.
"""

import ctypes
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from netmon.horovod import Steps
from netmon.lab.trainers.collectives import PORT, Floats, Ring
from netmon.lab.trainers.ring import OVERLAPPED_FUSION_BYTES, Gradients, Pace, Trainer
from netmon.lab.trainers.script import IterationLog, Pauses, Transfers, options, read_layers
from netmon.marks import SOCKET_VARIABLE

SLICE_BYTES = 1 << 18  # of a transfer, at most: NCCL's megabyte on much slower links
_LOAD_S = 3.0  # as long as a model is loaded: an agent finds the library meanwhile
_BUFFER_BYTES = 1 << 15  # that the kernel takes of a transfer before it is on its way
_ALL_REDUCE, _RING, _SIMPLE, _FLOAT, _SUM = 4, 2, 2, 7, 0


def ring_slices(bytes_: int, ranks: int) -> list[int]:
    """Sizes of the transfers by which a rank sends its part of an all-reduce, and of those that it receives."""
    left, sizes = -(-bytes_ // ranks), list[int]()
    while left > 0:
        sizes += [min(left, SLICE_BYTES)] * (2 * (ranks - 1))
        left -= SLICE_BYTES
    return sizes


class _End(threading.Thread):
    """Of a connection, as NCCL's network proxy: a thread of its own."""

    def __init__(self, library: ctypes.CDLL, connected: socket.socket, sends: int, rank: int, peer: int) -> None:
        super().__init__(daemon=True)
        self._library, self._orders = library, queue.SimpleQueue[tuple[int, list[int], Future[int]]]()
        self.number = ctypes.c_void_p(library.stand_in_connect(connected.fileno(), sends, rank, peer, 0))
        self.start()

    def run(self) -> None:
        while True:
            number, sizes, done = self._orders.get()
            what = (_ALL_REDUCE, _RING, _SIMPLE, len(sizes), (ctypes.c_int * len(sizes))(*sizes))
            done.set_result(self._library.stand_in_operate(self.number, ctypes.c_uint64(number), *what))

    def begin(self, number: int, sizes: list[int]) -> Future[int]:
        done: Future[int] = Future()
        self._orders.put((number, sizes, done))
        return done


class NcclRing(Ring):
    """One rank's connections, and its proxy at both."""

    def __init__(self, library: ctypes.CDLL, rank: int, addresses: Sequence[str], port: int) -> None:
        super().__init__(rank, addresses, port)
        self._to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        for connection in (self._to, self._from):
            connection.setblocking(True)
        peers = (rank + 1) % self.size, (rank - 1) % self.size
        sends, receives = _End(library, self._to, 1, rank, peers[0]), _End(library, self._from, 0, rank, peers[1])
        library.stand_in_couple(sends.number, receives.number, self.size)
        self._ends, self._number = (sends, receives), 0

    def all_reduce(self, block: Floats) -> None:
        """Blocks. Raises ConnectionError where a neighbour has ended."""
        sizes = ring_slices(block.nbytes, self.size)
        if any(done.result() for done in [end.begin(self._number, sizes) for end in self._ends]):
            raise ConnectionError(f"rank {self.rank} cannot go on: a neighbour has ended")
        self._number += 1


class _Unreduced(Gradients):
    def check(self, iteration: int) -> None:
        """Nothing has been summed."""


class _Queued(Future[None]):
    """An all-reduce on a stream."""

    def __init__(self, cuda: ctypes.CDLL, stream: ctypes.c_void_p) -> None:
        super().__init__()
        self._cuda, self._stream = cuda, stream
        cuda.stand_in_queue(stream)
        self.add_done_callback(lambda _: cuda.stand_in_over(stream))

    def result(self, timeout: float | None = None) -> None:
        """Waits for all that is queued there."""
        self._cuda.cudaStreamSynchronize(self._stream)
        return super().result(timeout)


class _NcclTrainer(Trainer):
    def __init__(
        self, libraries: Sequence[ctypes.CDLL], collective: NcclRing, gradients: Gradients, *compute: float
    ) -> None:
        """libraries: NCCL's, and CUDA's."""
        super().__init__(collective, gradients, int(compute[0]), compute[1])
        self._nccl, self._cuda = libraries
        self._stream = ctypes.c_void_p(self._cuda.stand_in_stream())

    def _enqueue(self, block: Floats) -> Future[None]:
        self._nccl.ncclAllReduce(None, None, ctypes.c_size_t(len(block)), _FLOAT, _SUM, None, None)
        done = _Queued(self._cuda, self._stream)
        self._to_reduce.put((block, done))
        return done


def main() -> None:
    parser = options("one rank of a job that sends by the library that stands in for NCCL")
    parser.add_argument("--libraries", required=True, nargs=2, help="NCCL's and CUDA's, of netmon.lab.nccl_library")
    parser.add_argument("--addresses", required=True, help="of all ranks, comma-separated")
    args = parser.parse_args()
    rank, addresses = int(os.environ["RANK"]), args.addresses.split(",")
    nccl, cuda = map(ctypes.CDLL, args.libraries)
    nccl.stand_in_connect.restype = cuda.stand_in_stream.restype = ctypes.c_void_p
    os.environ[SOCKET_VARIABLE] = os.devnull  # no steps are reported
    with IterationLog(args.log, rank, Transfers(args.transfers).begin_due) as log:
        collective = NcclRing(nccl, rank, addresses, PORT)
        gradients = _Unreduced(read_layers(args.layers, args.params), rank, len(addresses), OVERLAPPED_FUSION_BYTES)
        trainer = _NcclTrainer((nccl, cuda), collective, gradients, args.compute * 1e9, args.backward_share)
        time.sleep(_LOAD_S)
        trainer.train(args.iterations, Steps(), log, Pauses(args.pauses, rank), Pace(""))


if __name__ == "__main__":
    main()
