# SPDX-License-Identifier: Apache-2.0
"""The steps of one rank, reported to the agent on this host: standard library only, and nothing that blocks."""

import os
import socket
import struct
import sys
import time
import weakref
from typing import Any

from netmon.marks import MARK, head, rank_from_environment, socket_path

_JOIN, _STEP_START, _FIRST_ENQUEUE, _LAST_WAIT, _STEP_END, _LEAVE, _FIRST_WAIT = range(1, 8)  # netmon.records.Moment
_HOROVODS = tuple(f"horovod.{name}" for name in ("torch", "tensorflow", "keras", "tensorflow.keras", "mxnet"))
_TWO_MARKS = struct.Struct("<" + 2 * MARK.format.lstrip("<"))
_MOST_KEPT = 32 * MARK.size  # bytes: who calls first_wait a thousand times per step loses some of them
_NO_SIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))  # scripts are also tried on machines that are not Linux
_TRY_AGAIN_NS = 1_000_000_000
_RESET_NS = 100_000_000  # an elastic reset takes longer


class _Step:
    """The context of one step: begun, and ended or given up."""

    def __init__(self, steps: "Steps") -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._steps.begin()

    def __exit__(self, exception: object, *where: object) -> None:
        if exception is None:
            self._steps.end()
        else:
            self._steps.give_up()


class Steps:
    """Tells the agent on this host when this rank's steps begin and end."""

    def __init__(
        self, job: str | None = None, rank: int | None = None, size: int | None = None, parameters: int = 0
    ) -> None:
        """What is not given is queried from Horovod, where the script uses it, or from the launcher's environment.

        parameters: of the model, for the theory. What cannot be sent (a rank of 2**40) makes it silent, not raise.
        """
        self.failures = 0  # of netmon's own doing, none of which the training has seen
        known = rank_from_environment(os.environ)
        self.job = job or (known.job if known else "training")
        self.rank = rank if rank is not None else known.rank if known else 0
        self.size = size if size is not None else known.size if known else 1
        self.parameters = parameters
        self.iteration = 0
        self._kept = b""  # marks that go with the next packet
        self._step = _Step(self)
        self._horovod: Any = None
        self._asks_horovod = rank is None and size is None
        self._begun_ns = 0
        self._path = socket_path()
        self._socket: socket.socket | None = None
        self._try_again_ns = 0
        self._enqueued = False  # in this step
        self._given_up = False
        self._last_wait_ns = 0
        self.rank, self.size = self._requested()
        self._head = self._whose()
        self._connect(time.monotonic_ns())
        itself = weakref.ref(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _let_go(itself()))

    is_copy = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read from a file, is nobody's rank: it has the numbers, and tells nothing."""
        return _copy, (self.job, self.rank, self.size, self.parameters, self.iteration)

    def step(self) -> _Step:
        """A context: one training step, the forward pass, the backward pass and the update."""
        return self._step

    def begin(self) -> None:
        """A step begins: call it before the forward pass."""
        now = time.monotonic_ns()
        if self._given_up or self._moved(now):
            self._move(now)
        if self._socket is None and now >= self._try_again_ns:
            self._connect(now)
        self._start(now)

    def _start(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._enqueued = False
        self._last_wait_ns = 0
        self._send_mark(_STEP_START, now_ns)

    def begin_anew(self) -> None:
        """Begins the step again if the one under way was given up, or if Horovod has given the ranks out anew since."""
        now = time.monotonic_ns()
        if self._given_up or self._moved(now):
            self._move(now)
            self._start(now)

    def give_up(self) -> None:
        """The step under way has failed, as when a peer of an elastic job dies: it is none, the next has its number."""
        self._kept = b""
        self._given_up = True

    def first_enqueue(self) -> None:
        """A gradient of this step is handed over; with the first one the communication begins."""
        if not self._enqueued:
            self.begin_anew()
            self._enqueued = True
            self._keep(_FIRST_ENQUEUE, time.monotonic_ns())

    def first_wait(self) -> None:
        """Nothing is left but to wait: the communication is exposed from here on."""
        self._keep(_FIRST_WAIT, time.monotonic_ns())

    def last_wait(self) -> None:
        """A reduced gradient of this step has come; with the last one the communication is over."""
        self._last_wait_ns = time.monotonic_ns()

    def end(self) -> None:
        """The step is over, the update included. What happened within it is reported now."""
        self._end(time.monotonic_ns())
        self._send()

    def next(self) -> None:
        """The step is over and the next one begins: cheaper than `end` and `begin`."""
        now = time.monotonic_ns()
        if self._socket is None or self._given_up or now - self._begun_ns > _RESET_NS:
            self._end(now)
            self.begin()
            return
        if self._last_wait_ns:
            self._keep(_LAST_WAIT, self._last_wait_ns)
            self._last_wait_ns = 0
        number = self.iteration
        self.iteration = number + 1
        self._begun_ns = now
        self._enqueued = False
        self._kept += _TWO_MARKS.pack(_STEP_END, number, now, _STEP_START, number + 1, now)
        self._send()

    def _end(self, now_ns: int) -> None:
        if self._last_wait_ns:
            self._keep(_LAST_WAIT, self._last_wait_ns)
            self._last_wait_ns = 0
        self._keep(_STEP_END, now_ns)
        self.iteration += 1

    def close(self) -> None:
        """This rank is done."""
        self._send_mark(_LEAVE, time.monotonic_ns())
        if self._socket:
            self._socket.close()

    def _requested(self) -> tuple[int, int]:
        """Rank and size as Horovod says, if it is there: an elastic job gives its ranks out again."""
        if self._horovod is None:
            self._horovod = next((sys.modules[name] for name in _HOROVODS if name in sys.modules), None)
        if self._horovod is not None and self._asks_horovod:
            try:
                return self._horovod.rank(), self._horovod.size()
            except Exception:  # not initialised, or between two lives of an elastic job
                pass
        return self.rank, self.size

    def _moved(self, now_ns: int) -> bool:
        """Whether this process is another rank by now; checked only where so much time has passed that it may be."""
        return (
            self._asks_horovod and now_ns - self._begun_ns > _RESET_NS and self._requested() != (self.rank, self.size)
        )

    def _move(self, now_ns: int) -> None:
        """Leaves as who it was, with all that was kept, and joins as who it is now."""
        self._send_mark(_LEAVE, now_ns)
        self._given_up = False
        self.rank, self.size = self._requested()
        self._head = self._whose()
        self._send_mark(_JOIN, now_ns)

    def _whose(self) -> bytes:
        """What stands before all marks; nothing where it cannot be written."""
        try:
            return head(self.job, self.rank, self.size, self.parameters)
        except Exception:
            self.failures += 1
            return b""

    def _connect(self, now_ns: int) -> None:
        """Joins, if there is an agent: it may come later than the training, or come again."""
        if not self._head or self.is_copy:
            return
        self._try_again_ns = now_ns + _TRY_AGAIN_NS
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        except (AttributeError, OSError):  # not Linux, or no descriptor is left
            return
        try:
            connection.connect(self._path)
        except (OSError, ValueError):
            connection.close()
            return
        self._socket = connection
        self._send_mark(_JOIN, now_ns)

    def _send_mark(self, moment: int, time_ns: int) -> None:
        """With what was kept until now."""
        self._keep(moment, time_ns)
        self._send()

    def _keep(self, moment: int, time_ns: int) -> None:
        if self._socket is not None and len(self._kept) < _MOST_KEPT:
            self._kept += MARK.pack(moment, 0 if moment == _JOIN else self.iteration, time_ns)

    def _send(self) -> None:
        kept, self._kept = self._kept, b""
        if self._socket is None or not kept or not self._head:
            return
        try:
            self._socket.send(self._head + kept, _NO_SIGNAL)
        except BlockingIOError:
            return  # the agent is behind: training goes on
        except OSError:
            self._socket.close()
            self._socket = None


def _let_go(steps: Steps | None) -> None:
    """In a child, such as a data loader: the connection is its parent's, and has to end with it."""
    if steps is not None and steps._socket is not None:
        steps._socket.close()
        steps._socket = None


def _copy(job: str, rank: int, size: int, parameters: int, iteration: int) -> Steps:
    copied = Steps.__new__(Steps)
    copied.is_copy = True
    copied.__init__(job, rank, size, parameters)  # type: ignore[misc]
    copied.iteration = iteration
    return copied
