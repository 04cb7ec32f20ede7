# SPDX-License-Identifier: Apache-2.0
"""Sends a load: every flow when it is due, on a TCP connection of its own, whether or not earlier ones have ended.

python -m netmon.lab.traffic.send ADDRESS:PORT --profile burst --load-bps 800e6 --rate-bps 1e9 --seed 1
python -m netmon.lab.traffic.send ADDRESS:PORT --file load.csv

Stops at SIGTERM and prints its account as one line of JSON. One thread per open flow: it waits in the kernel, in one
call for up to a quarter of a megabyte, so that one core sends some Gbit/s.
"""

import argparse
import contextlib
import ctypes
import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from netmon.lab.traffic.loads import ALGORITHMS, SECOND_NS, Recipe, endless, read_load
from netmon.records import Table

_ZEROS = memoryview(bytes(1 << 18))
_OPEN_FLOWS = 1000  # at most; later ones wait, and are late
_LINGER = struct.pack("ii", 1, 10)  # close() returns when the receiver has acknowledged everything, or after 10 s
_NAP_SECONDS = 0.05  # SIGTERM is noticed this soon
_SIGNALLED_SECONDS = 0.5
_PR_SET_TIMERSLACK = 29


class _Over(NamedTuple):
    late_ns: int
    lasted_ns: int
    sent: int
    whole: bool


class Sender:
    """Sends flows to one address until it is stopped, and knows what it really sent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.stopped = False
        self._open: set[socket.socket] = set()
        self._over: list[_Over] = []
        self._begun = self._offered = 0

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End soon; may be a signal's handler."""
        self.stopped = True  # no Event: its lock may be held where the signal comes

    def run(self, loads: Iterable[Table], begun: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """Replay loads (dtype LOAD, one after the other, in order of time) and return the account; blocks.

        begun: called with the moment from which the loads' times count, CLOCK_MONOTONIC in ns.
        bytes_offered: of all flows that were due. bytes_sent: handed to TCP, whose delivery is waited for.
        lateness: from when a flow was due to when its connection was requested. flow_duration: from there to the
        receiver's last acknowledgement, of the flows that were sent whole.
        """
        begin = time.monotonic_ns()
        begun(begin)
        with ThreadPoolExecutor(_OPEN_FLOWS) as flows:
            for start, size in _rows(loads):
                if not self._wait_until(begin + start):
                    break
                self._begun += 1
                self._offered += size
                flows.submit(self._send, begin + start, size)
            ended = time.monotonic_ns()
            while self.stopped and len(self._over) < self._begun:
                self._cut_off()
                time.sleep(0.01)
        return self._account(ended - begin)

    def _wait_until(self, due_ns: int) -> bool:
        """Sleep until a moment of CLOCK_MONOTONIC; whether it came before the end."""
        while (left := due_ns - time.monotonic_ns()) > 0 and not self.stopped:
            time.sleep(min(left / 1e9, _NAP_SECONDS))
        return not self.stopped

    def _send(self, due_ns: int, size: int) -> None:
        start, sent = time.monotonic_ns(), 0
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            self._open.add(connection)
            with contextlib.suppress(OSError):  # cut off, or refused: the account shows it
                if not self.stopped:
                    connection.connect(self._address)
                while sent < size:
                    sent += connection.send(_ZEROS[: size - sent])
            self._open.discard(connection)
        self._over.append(_Over(start - due_ns, time.monotonic_ns() - start, sent, sent == size))

    def _cut_off(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # not connected yet, or over
                connection.shutdown(socket.SHUT_RDWR)

    def _account(self, lasted_ns: int) -> dict[str, Any]:
        sent, seconds = sum(flow.sent for flow in self._over), lasted_ns / SECOND_NS
        return {
            "flows": self._begun,
            "flows_ended": sum(flow.whole for flow in self._over),
            "bytes_offered": self._offered,
            "bytes_sent": sent,
            "seconds": seconds,
            "achieved_bps": sent * 8 / seconds,
            "lateness_us": _percentiles([flow.late_ns for flow in self._over]),
            "flow_duration_us": _percentiles([flow.lasted_ns for flow in self._over if flow.whole]),
        }


def _percentiles(values_ns: list[int]) -> dict[str, float] | None:
    if not values_ns:
        return None
    median, p99, largest = np.percentile(values_ns, [50, 99, 100]) / 1000
    return {"median": round(median, 1), "p99": round(p99, 1), "largest": round(largest, 1)}


def _rows(loads: Iterable[Table]) -> Iterator[tuple[int, int]]:
    for rows in loads:
        yield from zip(rows["start_ns"].tolist(), rows["size_bytes"].tolist(), strict=True)


def _again_and_again(rows: Table) -> Iterator[Table]:
    """The load, and from the next whole second after its last flow again, without end."""
    length_ns = (int(rows["start_ns"][-1]) // SECOND_NS + 1) * SECOND_NS
    while True:
        yield rows
        rows = rows.copy()
        rows["start_ns"] += length_ns


def precise_sleeps() -> None:
    """Let the kernel end this process's sleeps when they should, not up to 50 µs later."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def main() -> None:
    """Send until SIGTERM, or to the end of the file."""
    parser = argparse.ArgumentParser(description="cross traffic")
    parser.add_argument("address", help="of the receiver, ADDRESS:PORT")
    parser.add_argument("--file", type=Path, help="a load file")
    parser.add_argument("--repeat", action="store_true", help="begin the file again when it has ended")
    parser.add_argument("--profile", choices=ALGORITHMS, default="websearch")
    parser.add_argument("--load-bps", type=float, default=800e6)
    parser.add_argument("--rate-bps", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold", action="store_true", help="be ready, and begin at SIGUSR1")
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    sender = Sender((host, int(port)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, sender.stop)
    precise_sleeps()
    if args.hold:
        _hold(sender)
    if args.file:
        rows = read_load(args.file)
        account = sender.run(_again_and_again(rows) if args.repeat else [rows], _say)
    else:
        recipe = Recipe(args.profile, args.load_bps, args.rate_bps, args.seed)
        account = {**sender.run(endless(recipe), _say), "size_scale": recipe.size_scale}
    print(json.dumps(account), flush=True)


def _hold(sender: Sender) -> None:
    """Block until SIGUSR1, or until the sender is stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("ready", flush=True)
    while not signal.sigtimedwait([signal.SIGUSR1], _SIGNALLED_SECONDS) and not sender.stopped:
        pass


def _say(begin_ns: int) -> None:
    print(f"sending since {begin_ns}", flush=True)


if __name__ == "__main__":
    main()
