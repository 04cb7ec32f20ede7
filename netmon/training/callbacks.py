# SPDX-License-Identifier: Apache-2.0
"""Callbacks for the training loops of others: Lightning, Hugging Face's Trainer, Keras.

Each takes its base class from what the script has imported.
"""

import sys
from typing import Any

from netmon.training.scalars import Scalars
from netmon.training.steps import Steps

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(scalars: Scalars) -> Any:
    """For Trainer(callbacks=[…]). Raises LookupError where the script has not imported Lightning."""

    class _Lightning(_base(_LIGHTNING, "Callback")):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            scalars.write()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            scalars.close()

    return _Lightning()


def transformers_callback(scalars: Scalars) -> Any:
    """For Trainer(callbacks=[…]). Raises LookupError where the script has not imported transformers."""

    class _Transformers(_base(("transformers",), "TrainerCallback")):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            scalars.write()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            scalars.close()

    return _Transformers()


def keras_scalars(scalars: Scalars) -> Any:
    """For model.fit(callbacks=[…]). Raises LookupError where the script has not imported Keras."""

    class _Keras(_base(("keras.callbacks", "keras", "tensorflow.keras.callbacks"), "Callback")):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            scalars.write()

        def on_train_end(self, logs: Any = None) -> None:
            scalars.close()

    return _Keras()


def _base(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        if module in sys.modules and (found := getattr(sys.modules[module], name, None)) is not None:
            return found
    raise LookupError(f"none of {', '.join(modules)} is imported: import it before its callback is made")


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
