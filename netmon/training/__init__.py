# SPDX-License-Identifier: Apache-2.0
"""What a training script imports: standard library only. `netmon.horovod` is the same.

    optimizer = watch(hvd.DistributedOptimizer(optimizer))          # PyTorch: every optimizer.step() is a step

    model.fit(…, callbacks=[netmon.training.keras_callback()])      # Keras: every batch is a step

    steps = Steps()                                                 # anything else
    with steps.step(): …

    scalars = Scalars(optimizer, "collector:9400", SummaryWriter()) # what netmon knows of the steps, to TensorBoard,
    scalars.write()                                                 # Weights & Biases or MLflow

It costs some microseconds per step, imports nothing but the standard library, never blocks and never raises into
the training; without an agent it does nothing.
"""

from netmon.training.optimizer import watch
from netmon.training.scalars import (
    Known,
    Scalars,
    keras_callback,
    keras_scalars,
    lightning_callback,
    transformers_callback,
)
from netmon.training.steps import Steps

__all__ = [
    "Known",
    "Scalars",
    "Steps",
    "keras_callback",
    "keras_scalars",
    "lightning_callback",
    "transformers_callback",
    "watch",
]
