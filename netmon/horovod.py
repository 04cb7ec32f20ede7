# SPDX-License-Identifier: Apache-2.0
"""Two lines for a training script, so that netmon knows its steps exactly:

    from netmon.horovod import watch
    optimizer = watch(hvd.DistributedOptimizer(optimizer))          # PyTorch: every optimizer.step() is a step

    model.fit(…, callbacks=[netmon.horovod.keras_callback()])       # Keras: every batch is a step

    steps = Steps()                                                 # anything else
    with steps.step(): …

It costs some microseconds per step, imports nothing but the standard library, never blocks and never raises into
the training; without an agent it does nothing.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from netmon.marks import MarkPacket, encode, rank_from_environment, socket_path

_JOIN, _STEP_START, _FIRST_ENQUEUE, _LAST_WAIT, _STEP_END, _LEAVE = range(1, 7)  # netmon.records.Moment
_TRY_AGAIN_NS = 1_000_000_000


class Steps:
    """Tells the agent on this host when this rank's steps begin and end."""

    def __init__(
        self, job: str | None = None, rank: int | None = None, size: int | None = None, parameters: int = 0
    ) -> None:
        """What is not given is taken from the launcher's environment. parameters: of the model, for the theory."""
        known = rank_from_environment(os.environ)
        self.job = job or (known.job if known else "training")
        self.rank = rank if rank is not None else known.rank if known else 0
        self.size = size if size is not None else known.size if known else 1
        self.parameters = parameters
        self.iteration = 0
        self._path = socket_path()
        self._socket: socket.socket | None = None
        self._try_again_ns = 0
        self._connect(time.monotonic_ns())

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One training step: the forward pass, the backward pass and the update."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """A step begins: call it before the forward pass."""
        now = time.monotonic_ns()
        if self._socket is None and now >= self._try_again_ns:
            self._connect(now)
        self._tell(_STEP_START, now)

    def first_enqueue(self) -> None:
        """The first gradient of this step is handed over: the communication begins."""
        self._tell(_FIRST_ENQUEUE, time.monotonic_ns())

    def last_wait(self) -> None:
        """The last reduced gradient of this step has come: the communication is over."""
        self._tell(_LAST_WAIT, time.monotonic_ns())

    def end(self) -> None:
        """The step is over, the update included."""
        self._tell(_STEP_END, time.monotonic_ns())
        self.iteration += 1

    def close(self) -> None:
        """This rank is done."""
        self._tell(_LEAVE, time.monotonic_ns())
        if self._socket:
            self._socket.close()

    def _connect(self, now_ns: int) -> None:
        """Joins, if there is an agent: it may come later than the training, or come again."""
        self._try_again_ns = now_ns + _TRY_AGAIN_NS
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        self._socket = connection
        self._tell(_JOIN, now_ns)

    def _tell(self, moment: int, time_ns: int) -> None:
        if self._socket is None:
            return
        iteration = 0 if moment == _JOIN else self.iteration
        mark = MarkPacket(self.job, self.rank, self.size, iteration, moment, time_ns, self.parameters)
        try:
            self._socket.send(encode(mark), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return  # the agent is behind: training goes on
        except OSError:
            self._socket.close()
            self._socket = None


def watch(optimizer: Any, **identity: Any) -> Any:
    """Marks every step of a PyTorch optimizer; returns the same optimizer, with its Steps as `.netmon`.

    A step runs from the end of the step before (the first one: from here) to the end of `optimizer.step()`, so
    that the forward pass is in it. identity: as of Steps.
    """
    if "parameters" not in identity:
        groups = getattr(optimizer, "param_groups", ())
        identity["parameters"] = sum(p.numel() for group in groups for p in group["params"] if p.requires_grad)
    steps = Steps(**identity)
    steps.begin()
    update = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = update(*args, **kwargs)
        steps.end()
        steps.begin()
        return result

    optimizer.step = step
    optimizer.netmon = steps
    return optimizer


def keras_callback(**identity: Any) -> Any:
    """A Keras callback that marks every training batch as a step. identity: as of Steps."""
    from keras.callbacks import Callback

    class _Callback(Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            if "parameters" not in identity:
                identity["parameters"] = int(self.model.count_params())
            self._steps = Steps(**identity)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._steps.end()

        def on_train_end(self, logs: Any = None) -> None:
            self._steps.close()

    return _Callback()
