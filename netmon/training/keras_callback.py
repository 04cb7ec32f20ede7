# SPDX-License-Identifier: Apache-2.0
"""The batches of a Keras training."""

from typing import Any

from netmon.training.steps import Steps


def keras_callback(**identity: Any) -> Any:
    """A Keras callback that marks every training batch as a step. identity: as of Steps."""
    from keras.callbacks import Callback

    class _Callback(Callback):  # type: ignore[misc]
        _steps: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            if "parameters" not in identity:
                identity["parameters"] = int(self.model.count_params())
            if self._steps:  # it has failed, as an elastic job does, and trains again
                self._steps.close()
            self._steps = Steps(**identity)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._steps.end()

        def on_train_end(self, logs: Any = None) -> None:
            self._steps.close()

    return _Callback()
