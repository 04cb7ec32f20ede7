# SPDX-License-Identifier: Apache-2.0
"""What is done to ranks from outside, as programs; standard library only: python -I -S programs.py WHAT ARGUMENTS….

stop SECONDS PID…: stops processes and lets them go on. busy LOOPS SECONDS PID [OTHER…]: loops share one CPU with a
process. SIGTERM, which the kernel sends when the lab has died, undoes either at once. Both print their two moments, in
ns of CLOCK_MONOTONIC: when all was done, and when the first was undone.
serve ADDRESS PORT: a file server, which takes what is uploaded, and sends as much as is requested
(netmon.lab.trainers.script), until SIGTERM.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

# --- Stopping processes.

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop(seconds: float, processes: list[int]) -> None:
    """Stop them for so long; blocks. Processes that are gone are left out."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        _send(signal.SIGSTOP, processes)
        print(f"begun {time.monotonic_ns()}", flush=True)
        signal.sigtimedwait(_ENDS, seconds)
    finally:
        ended = time.monotonic_ns()
        _send(signal.SIGCONT, processes)
    print(f"ended {ended}", flush=True)


def _send(number: int, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


# --- Busy loops.
#
# All of the process's threads are left one CPU, on which the loops run, too. The others stand for what runs on other
# hosts, whose CPUs the loops do not take: they are kept off that CPU, if there is another one. Afterwards all get back
# those that they had.


def disturb(loops: int, seconds: float, process: int, others: Sequence[int] = ()) -> None:
    """Run the loops for so long; blocks. process, others: process ids."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    before = os.sched_getaffinity(process)
    shared = {max(before)}
    children = []
    try:
        _leave(process, shared)
        for other in others:
            _leave(other, before - shared or before)
        for _ in range(loops):
            children.append(os.fork())
            if not children[-1]:
                _loop(shared, time.monotonic() + seconds)
        print(f"begun {time.monotonic_ns()}", flush=True)
        signal.sigtimedwait(_ENDS, seconds)
    finally:
        ended = time.monotonic_ns()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for one in (process, *others):
            _leave(one, before)
    print(f"ended {ended}", flush=True)


def _loop(cpus: set[int], until: float) -> None:
    os.sched_setaffinity(0, cpus)
    os.setsid()  # where the kernel shares CPU time out by session (autogroup), each loop gets a share of its own
    while time.monotonic() < until:  # also where nobody is left to end it
        for _ in range(10_000):
            pass
    os._exit(0)


def _leave(process: int, cpus: set[int]) -> None:
    """All threads of a process run on these CPUs only."""
    with contextlib.suppress(FileNotFoundError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cpus)


# --- The file server.

_PIECE, _ORDER = 1 << 20, 9


def _serve(connection: socket.socket) -> None:
    with connection:
        order = connection.recv(_ORDER, socket.MSG_WAITALL)
        size, piece = int.from_bytes(order[1:], "big"), bytes(_PIECE)
        if order[:1] == b"u":
            taken = bytearray(_PIECE)
            while connection.recv_into(taken):
                pass
            return
        while size > 0:
            size -= connection.send(piece[:size])


def serve(address: str, port: int) -> None:
    """Blocks until the process is ended."""
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "stop":
        stop(float(words[0]), [int(pid) for pid in words[1:]])
    elif what == "busy":
        disturb(int(words[0]), float(words[1]), int(words[2]), [int(pid) for pid in words[3:]])
    else:
        serve(words[0], int(words[1]))
