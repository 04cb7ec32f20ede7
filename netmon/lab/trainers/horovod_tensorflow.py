# SPDX-License-Identifier: Apache-2.0
"""An ordinary Horovod TensorFlow training script, in Horovod's own environment: unless asked to, it knows no netmon.

The only thing unusual is that it writes down when each iteration's moments were, to compare with later.
"""

from collections.abc import Callable
from functools import partial

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf
from iteration_log import IterationLog  # type: ignore[import-not-found]
from layers import gradient_times_ns, read_layers  # type: ignore[import-not-found]
from options import options  # type: ignore[import-not-found]
from paced_keras import Moments, PacedModel  # type: ignore[import-not-found]
from transfers import Transfers  # type: ignore[import-not-found]

RATE = 1e-3


class Logged(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the batches of model.fit."""

    def __init__(self, moments: Moments, log: IterationLog) -> None:
        """moments: of the model that is fitted."""
        super().__init__()
        self._moments, self._log, self._iteration = moments, log, 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """A step begins."""
        self._moments.begin()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """The step is over, the update included."""
        self._log.add(self._iteration, *self._moments.of_step())
        self._iteration += 1


def fit(model: PacedModel, moments: Moments, log: IterationLog, iterations: int, marks: bool) -> None:
    """Keras' own loop."""
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
    """A training step, eager or in a graph."""

    def __init__(self, model: PacedModel, optimizer: tf.keras.optimizers.Optimizer) -> None:
        """What is trained, and how."""
        self._model, self._optimizer = model, optimizer
        optimizer.build(model.trainable_variables)

    def train(self, batch: tf.Tensor) -> None:
        """Forward and backward pass, and the update."""
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
    """Train on ones."""
    parser = options("one rank of a Horovod training job on TensorFlow")
    parser.add_argument("--loop", choices=LOOPS, default="graph", help="whose the training loop is")
    parser.add_argument("--marks", action="store_true", help="tell netmon's agent of every step")
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
