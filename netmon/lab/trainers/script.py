# SPDX-License-Identifier: Apache-2.0
"""What every training script has besides training; standard library only, for Horovod's environment imports it, too.

Its options, how a model's parameters lie in its layers, the truth about its iterations, and what it does now and then.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path


def options(description: str) -> argparse.ArgumentParser:
    """The model, its pace, and where the script writes down what it saw."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--params", type=int, default=4_000_000)
    parser.add_argument("--layers", default="", help="JSON file with the parameters of each layer, instead")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of forward and backward pass, mostly waits")
    parser.add_argument("--backward-share", type=float, default=0.0, help="of them, in which gradients come")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--pauses", default="", help="as Pauses has them")
    parser.add_argument("--transfers", default="", help="AFTER:upload or download:BYTES:ADDRESS:PORT, comma-separated")
    parser.add_argument("--hangs", default="", help="file that tells a rank to stand still, as Hangs has it")
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    return parser


# --- How a model's parameters lie in its layers.

LAYERS = 16


def layer_sizes(parameters: int, layers: int = LAYERS) -> list[int]:
    """Parameters of each layer, first to last; they add up to `parameters`, each at least 1.

    Layers grow linearly, as the stages of convolutional networks do: the last has `layers` times the first.
    """
    layers = max(1, min(layers, parameters))
    spare, weights = parameters - layers, layers * (layers + 1) // 2
    ends = [spare * (k * (k + 1) // 2) // weights for k in range(layers + 1)]
    return [1 + end - start for start, end in pairwise(ends)]


def read_layers(path: str, parameters: int) -> list[int]:
    """Layers from a file, a JSON list of numbers; without a file, those of layer_sizes()."""
    if not path:
        return layer_sizes(parameters)
    sizes: list[int] = json.loads(Path(path).read_text())
    return sizes


def gradient_times_ns(layers: int, compute_ns: int, backward_share: float) -> list[int]:
    """When each layer's gradient is there, last layer first, in ns from the step's start.

    The backward pass takes the last `backward_share` of the computing, and each layer an equal part of it. With 0 all
    gradients come at its end.
    """
    forward_ns = compute_ns * (1 - backward_share)
    backward_ns = compute_ns - forward_ns
    return [round(forward_ns + backward_ns * (done + 1) / layers) for done in range(layers)]


# --- The truth about a rank's iterations.

COLUMNS = "rank,iteration,step_start_ns,first_enqueue_ns,last_wait_ns,step_end_ns,interrupted,timeouts,busiest_bytes"


_LONGER_NS = 150_000_000  # TCP's timers run for 200 ms at least
_TIMERS = ("TCPTimeouts", "TCPLossProbeRecovery")
"""A packet that is lost alone is sent again by a loss probe, 200 ms later, too, and counts as the second only."""


class Timeouts:
    """How often a timer of TCP has run out in this network namespace, after a loss.

    Looked at after steps so long that there may be one: a look takes some 0.1 ms, by which the next step begins later.
    """

    def __init__(self) -> None:
        self._file = os.open("/proc/net/netstat", os.O_RDONLY | os.O_CLOEXEC)
        names = self._read()[0].split()
        self._columns = [names.index(name.encode()) for name in _TIMERS]
        self._count, self._quickest_ns = self._look(), 1 << 62

    def count(self, took_ns: int) -> int:
        """Until the end of the last step that was long. took_ns: the step that has just ended."""
        self._quickest_ns = min(self._quickest_ns, took_ns)
        if took_ns > self._quickest_ns + _LONGER_NS:
            self._count = self._look()
        return self._count

    def _look(self) -> int:
        values = self._read()[1].split()
        return sum(int(values[column]) for column in self._columns)

    def _read(self) -> list[bytes]:
        return os.pread(self._file, 1 << 16, 0).split(b"\n", 2)


class IterationLog:
    """One CSV line per iteration, times in CLOCK_MONOTONIC ns. Kept in memory, written when the context is left.

    SIGTERM leaves the context, too. One line per iteration also goes to standard output, as trainers do.
    """

    def __init__(self, path: str, rank: int, after: Callable[[int], None] = lambda _: None) -> None:
        """Log of one rank. after: is reported every iteration how many have finished."""
        self._path = Path(path)
        self._rank = rank
        self._after = after
        self._lines = [COLUMNS]
        self._kept: tuple[int, tuple[int, int, int, int], int, int] | None = None
        self._timeouts = Timeouts()

    def add(
        self,
        iteration: int,
        step_start: int,
        first_enqueue: int,
        last_wait: int,
        step_end: int,
        interrupted: int = 0,
        busiest_bytes: int = 0,
    ) -> None:
        """One finished iteration. interrupted: not 0 where the scheduler came between a moment and its noting.
        busiest_bytes: what the ranks that exchanged most had to send or receive; 0: as much in each iteration."""
        moments = step_start, first_enqueue, last_wait, step_end
        self.keep(iteration, moments, interrupted, busiest_bytes)
        self.tell()

    def keep(
        self, iteration: int, moments: tuple[int, int, int, int], interrupted: int = 0, busiest_bytes: int = 0
    ) -> None:
        """As `add`, for a script whose next step begins at once: it tells of this one where that one waits."""
        self._kept = iteration, moments, interrupted, busiest_bytes

    def tell(self) -> None:
        """Write down what was kept, if anything."""
        if self._kept is None:
            return
        iteration, moments, interrupted, busiest_bytes = self._kept
        self._kept, took = None, moments[-1] - moments[0]
        timeouts = self._timeouts.count(took)
        line = (self._rank, iteration, *moments, int(bool(interrupted)), timeouts, busiest_bytes)
        self._lines.append(",".join(map(str, line)))
        print(f"iteration {iteration} took {took / 1e9:.3f} s", flush=True)
        self._after(iteration + 1)

    def __enter__(self) -> "IterationLog":
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *exception: object) -> None:
        self.tell()
        self._path.write_text("\n".join(self._lines) + "\n")


def wait_until(deadline_ns: int) -> None:
    """Sleep until a moment of CLOCK_MONOTONIC: what an accelerator's work looks like to the host."""
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


# --- What a script does now and then besides training.
#
# All ranks evaluate, write a checkpoint, or go on with another batch size, after a step: the work is a wait, as the
# trainers' computing is, and an evaluation ends with its metrics averaged over the ranks: small all-reduces, as scripts
# have them. One rank is late within a step: it waits for its data, or computes, for longer than the others; or its
# garbage is collected in the middle of its backward pass, in which nothing else of that Python runs.

METRICS = 4
_NEVER_S = 1e6
_OF_ALL_RANKS = ("evaluate", "checkpoint", "batch")


class Pauses:
    """When a script pauses: AFTER:SECONDS:KIND:RANK:STRENGTH,…, AFTER being a number of finished iterations.

    STRENGTH: the share of the time in which a late rank computes; of a batch, times as long as at first that a step
    computes from then on. A rank that is not RANK is neither late nor collects.
    """

    def __init__(self, text: str = "", rank: int = 0) -> None:
        """text: as the option has it; empty: never. rank: whose pauses they are."""
        self._after: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for pause in text.split(",") if text else ():
            after, seconds, kind, whose, strength = pause.split(":")
            if kind in _OF_ALL_RANKS or int(whose) == rank:
                self._after.setdefault((int(after), kind), []).append((float(seconds), float(strength)))

    def keep(self, finished: int, average_metric: Callable[[], object]) -> bool:
        """Evaluate or write a checkpoint if it is due after so many iterations, and say whether it was; blocks."""
        due = False
        for kind in _OF_ALL_RANKS:
            for seconds, _ in self._due(finished, kind):
                due = True
                time.sleep(seconds if kind != "batch" else 0.0)
                for _ in range(METRICS if kind == "evaluate" else 0):
                    average_metric()
        return due

    def be_late(self, finished: int) -> None:
        """Wait, or compute, before the first gradient is there, if it is due; blocks."""
        for seconds, busy in self._due(finished, "late"):
            computed = time.monotonic() + seconds * busy
            while time.monotonic() < computed:
                pass
            time.sleep(seconds * (1 - busy))

    def collect(self, finished: int) -> None:
        """Collect garbage if it is due; blocks every thread that runs Python."""
        for seconds, _ in self._due(finished, "gc"):
            until, interval_s = time.monotonic() + seconds, sys.getswitchinterval()
            sys.setswitchinterval(_NEVER_S)
            while time.monotonic() < until:
                gc.collect(0)
            sys.setswitchinterval(interval_s)

    def _due(self, finished: int, kind: str) -> Iterator[tuple[float, float]]:
        """Seconds and share of those that are due; both moments of each are printed, CLOCK_MONOTONIC in ns."""
        for pause in self._after.get((finished, kind), []):
            begun = time.monotonic_ns()
            yield pause
            print(f"paused {kind} {finished} {begun} {time.monotonic_ns()}", flush=True)

    def computing(self, finished: int) -> float:
        """Times as long as at first that a step computes after so many iterations."""
        changed = [after for after, kind in self._after if kind == "batch" and after <= finished]
        return self._after[max(changed), "batch"][-1][1] if changed else 1.0


# --- How a script stands still, when a file says so: which it looks for after every step.


class Hangs:
    """What the file has: KIND RANK AFTER, AFTER being finished iterations; while it is there, that rank stands still.

    sleep: it sleeps; compute: it computes; disk PATH: it writes there, which may take long. Others are in `calls`:
    ranks make them on request, and may not come back.
    """

    def __init__(
        self, path: str, rank: int, calls: Mapping[str, Callable[[bool], object]], sequence: Callable[[], int]
    ) -> None:
        """path: of the file; empty: never. calls: by kind, called with whether it is this rank that is to differ.
        sequence: how many collectives of all ranks there have been."""
        self._path, self._rank, self._calls, self._sequence = Path(path), rank, calls, sequence
        self._there = bool(path)

    def keep(self, finished: int) -> None:
        """Stand still if it is due after so many iterations; blocks. The moment is printed, UTC in ns."""
        if not self._there or not (order := self._order()):
            return
        kind, rank, after, *where = order
        own = int(rank) == self._rank
        if int(after) != finished or not (own or kind in self._calls):
            return
        if own:
            print(f"hang {kind} {time.time_ns()} {self._sequence()}", flush=True)
        if kind in self._calls:
            self._calls[kind](own)
        elif kind == "disk":
            with Path(where[0]).open("wb") as file:
                file.write(bytes(PIECE))
                os.fsync(file.fileno())
        while own and self._path.exists():
            if kind == "compute":
                sum(range(10_000))
            else:
                time.sleep(0.05)

    def _order(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return self._path.read_text().split()
        return []


# --- What one rank transfers alongside its gradients, in a thread of its own: a checkpoint to a file server, training
# data from it.

PIECE = 1 << 20
ORDER = 9  # bytes: the request to the server: `u` or `d`, and how many bytes


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
