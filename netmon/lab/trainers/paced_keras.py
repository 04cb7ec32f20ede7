# SPDX-License-Identifier: Apache-2.0
"""A Keras model with the gradients of a big one, its arithmetic a wait. Runs in the trainer's own environment."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from cpu_waits import NOTED_AT_ONCE_NS, CpuWaits  # type: ignore[import-not-found]
from horovod.tensorflow.mpi_ops import _normalize_name
from iteration_log import wait_until  # type: ignore[import-not-found]

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
        """A step begins."""
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
