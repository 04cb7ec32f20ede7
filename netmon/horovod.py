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

from netmon.training.keras_callback import keras_callback
from netmon.training.optimizer import watch
from netmon.training.steps import Steps

__all__ = ["Steps", "keras_callback", "watch"]
