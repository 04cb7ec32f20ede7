# SPDX-License-Identifier: Apache-2.0
"""Scalars written from the training loops of others: Lightning, Hugging Face's Trainer, Keras.

Each takes its base class from what the script has imported.
"""

import sys
from typing import Any

from netmon.training.scalars import Scalars

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
