# SPDX-License-Identifier: Apache-2.0
"""netmon.training under the name by which scripts have called it since there was only Horovod."""

from netmon.training import (
    Known,
    Scalars,
    Steps,
    keras_callback,
    keras_scalars,
    lightning_callback,
    transformers_callback,
    watch,
)

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
