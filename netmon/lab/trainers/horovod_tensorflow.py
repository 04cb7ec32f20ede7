# SPDX-License-Identifier: Apache-2.0
"""An ordinary Horovod TensorFlow training script, in Horovod's own environment: without --marks, it knows no netmon.

The only thing unusual is that it writes down when each iteration's moments were, to compare with later.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.mpi_ops import _normalize_name
from script import (  # type: ignore[import-not-found]
    IterationLog,
    Transfers,
    gradient_times_ns,
    options,
    read_layers,
    wait_until,
)

# --- Whether a moment was noted when it was there.

LOOK_SECONDS = 0.005
NOTED_AT_ONCE_NS = 500_000
"""A thread that has waited longer for a CPU noted something late."""


class CpuWaits:
    """How long the threads that request, and the one that looks, have waited for a CPU although they could go on (ns).

    The latter counts because the others wait for it, too, where it holds Python's lock.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # descriptors of their schedstat, by thread
        self._before: dict[int, int] = {}
        threading.Thread(target=self._look_again_and_again, daemon=True).start()

    def total(self) -> int:
        """Of this thread, until now."""
        thread = threading.get_native_id()
        if thread not in self._files:
            self._files[thread] = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        return _waited(self._files[thread])

    def lately(self) -> int:
        """The longest of all within the last milliseconds."""
        now = {thread: _waited(file) for thread, file in list(self._files.items())}
        return max((now[thread] - before for thread, before in self._before.items()), default=0)

    def _look_again_and_again(self) -> None:
        self.total()
        while True:
            time.sleep(LOOK_SECONDS)
            self._before = {thread: _waited(file) for thread, file in list(self._files.items())}


def _waited(schedstat: int) -> int:
    try:
        return int(os.pread(schedstat, 64, 0).split()[1])
    except ProcessLookupError:  # the thread has ended
        return 0


# --- A Keras model with the gradients of a big one, its arithmetic a wait.

Gradients = list[Any]
Array = np.ndarray[Any, Any]


class Moments:
    """When a step's gradients are due, when they were handed to Horovod and when they came back.

    The latter is noted within the graph: right before each all-reduce, and once all have come, which is when what
    uses the gradients goes on.
    """

    def __init__(self, forward_ns: float, due_ns: Sequence[int]) -> None:
        """forward_ns: of the step, without gradients; due_ns: when each layer's gradient is to come, last first.

        Make one, before the optimizer: it wraps what Horovod builds its all-reduces with.
        """
        self._due_ns = [round(forward_ns), *due_ns]
        self._waits = CpuWaits()
        self.begin()
        make, subgraph, allreduce = hvd._make_allreduce_grads_fn, hvd._make_subgraph, hvd._allreduce

        def make_noted(*args: Any, **kwargs: Any) -> Any:
            reduce = make(*args, **kwargs)
            return reduce if tf.executing_eagerly() else self._noted(reduce)  # the former is a subgraph

        def allreduce_noted(gradient: tf.Tensor, name: str | None = None, **kwargs: Any) -> tf.Tensor:
            named = name or f"HorovodAllreduce_{_normalize_name(gradient.name)}"
            return allreduce(self._handed_over(gradient), name=named, **kwargs)

        hvd._allreduce = allreduce_noted
        hvd._make_allreduce_grads_fn = make_noted
        hvd._make_subgraph = lambda reduce: subgraph(self._noted(reduce))

    def begin(self) -> None:
        self._first_ns = self._came_ns = 0
        self._first_by = self._waited = 0  # who noted the first enqueue, and how long it had waited then
        self._late = False
        self._start_ns = time.monotonic_ns()

    def of_step(self) -> tuple[int, int, int, int, bool]:
        """Its start, its first enqueue, the end of its communication, now (CLOCK_MONOTONIC ns).

        And whether a thread had to wait for a CPU while it noted them: then what it notes was over before.
        """
        now = time.monotonic_ns()
        return self._start_ns, self._first_ns, self._came_ns, now, self._late

    def wait(self, gradient: Array, place: int) -> Array:
        """Let the backward pass go on no earlier than at the accelerator's moment: 0 after the forward pass."""
        wait_until(self._start_ns + self._due_ns[place])
        return gradient

    def _note_enqueue(self, _: Array, shape: Array) -> Array:
        thread = threading.get_native_id()
        waited = self._waits.total()
        if not self._first_ns:
            self._first_by, self._waited = thread, waited
            self._first_ns = time.monotonic_ns()
        elif self._first_by == thread:
            self._late |= waited - self._waited > NOTED_AT_ONCE_NS  # between the first note and its hand-over
            self._first_by = 0
        return shape

    def _note_all(self) -> np.float32:
        self._came_ns = time.monotonic_ns()
        self._late |= self._waits.lately() > NOTED_AT_ONCE_NS
        return np.float32(0)

    def _noted(self, reduce: Callable[..., Gradients]) -> Callable[..., Gradients]:
        def noted(gradients: Gradients, *args: Any, **kwargs: Any) -> Gradients:
            reduced = reduce(gradients, *args, **kwargs)
            with tf.control_dependencies(reduced):
                done = tf.numpy_function(self._note_all, [], tf.float32)
            with tf.control_dependencies([done]):
                return [tf.identity(gradient) for gradient in reduced]

        return noted

    def _handed_over(self, gradient: tf.Tensor) -> tf.Tensor:
        # A note without a state, or TensorFlow would take the gradients in the order in which they are written here. It
        # gives the shape back, so that there is something to wait for.
        noted = [tf.reshape(gradient, [-1])[:1], gradient.shape]
        shape = tf.numpy_function(self._note_enqueue, noted, tf.int32, stateful=False)
        handed = tf.reshape(gradient, shape)
        handed.set_shape(gradient.shape)
        return handed


class PacedModel(tf.keras.Model):  # type: ignore[misc]
    """A chain of wide layers of one input each: all the gradients of a big model, little of its arithmetic."""

    def __init__(self, sizes: Sequence[int], moments: Moments) -> None:
        """sizes: parameters of each layer, first to last."""
        super().__init__()
        self._widths = [tf.keras.layers.Dense(size, use_bias=False) for size in sizes]
        self._moments = moments

    def call(self, batch: tf.Tensor) -> tf.Tensor:
        """Each layer's mean output is the next one's input."""
        for place, layer in enumerate(self._widths):
            mean = tf.reduce_mean(layer(batch), axis=1, keepdims=True)
            batch = self._paced(mean, len(self._widths) - place) + batch
        return self._paced(batch, 0)

    def _paced(self, values: tf.Tensor, place: int) -> tf.Tensor:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def paced(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                waited = tf.numpy_function(self._moments.wait, [upstream, place], tf.float32, stateful=False)
                return tf.ensure_shape(waited, upstream.shape)

            return tf.identity(values), gradient

        return paced(values)


# --- The script.

RATE = 1e-3


class Logged(tf.keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, moments: Moments, log: IterationLog) -> None:
        super().__init__()
        self._moments, self._log, self._iteration = moments, log, 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self._moments.begin()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._log.add(self._iteration, *self._moments.of_step())
        self._iteration += 1


def fit(model: PacedModel, moments: Moments, log: IterationLog, iterations: int, marks: bool) -> None:
    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(RATE))
    model.compile(optimizer, "mse")
    callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), Logged(moments, log)]
    if marks:
        from netmon.horovod import keras_callback

        callbacks.append(keras_callback())
    batches = tf.data.Dataset.from_tensors((tf.ones((1, 1)), tf.ones((1, 1)))).repeat()
    model.fit(batches, steps_per_epoch=iterations, verbose=0, callbacks=callbacks)


def loop(model: PacedModel, moments: Moments, log: IterationLog, iterations: int, marks: bool, *, graph: bool) -> None:
    """A loop of the script's own. graph: with a step that is a tf.function."""
    optimizer = tf.keras.optimizers.SGD(RATE)
    step = Step(model, optimizer)
    if marks:
        from netmon.horovod import Steps

        steps = Steps(parameters=model.count_params())
    train = tf.function(step.train, autograph=False) if graph else step.train
    hvd.broadcast_variables(model.variables, root_rank=0)
    for iteration in range(iterations):
        moments.begin()
        if marks:
            steps.begin()
        train(tf.ones((1, 1)))
        if marks:
            steps.end()
        log.add(iteration, *moments.of_step())


class Step:
    def __init__(self, model: PacedModel, optimizer: tf.keras.optimizers.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        optimizer.build(model.trainable_variables)

    def train(self, batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self._model(batch) - 2 * batch))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self._model.trainable_variables)
        self._optimizer.apply_gradients(zip(gradients, self._model.trainable_variables, strict=True))


LOOPS: dict[str, Callable[..., None]] = {
    "keras": fit,
    "graph": partial(loop, graph=True),
    "eager": partial(loop, graph=False),
}


def main() -> None:
    parser = options("one rank of a Horovod training job on TensorFlow")
    parser.add_argument("--loop", choices=LOOPS, default="graph", help="whose the training loop is")
    parser.add_argument("--marks", action="store_true", help="report every step to netmon's agent")
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # a paced gradient holds one
    hvd.init()
    layers = read_layers(args.layers, args.params)
    compute_ns = int(args.compute * 1e9)
    due_ns = gradient_times_ns(len(layers), compute_ns, args.backward_share)
    moments = Moments(compute_ns * (1 - args.backward_share), due_ns)
    model = PacedModel(layers, moments)
    model(tf.ones((1, 1)))
    with IterationLog(args.log, hvd.rank(), Transfers(args.transfers).begin_due) as log:
        LOOPS[args.loop](model, moments, log, args.iterations, args.marks)
    hvd.shutdown()


if __name__ == "__main__":
    main()
