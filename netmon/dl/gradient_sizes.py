# SPDX-License-Identifier: Apache-2.0
"""How large the gradients of a step are, as the calls tell that hand them over."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WIDTH_BITS = 4  # of the field `size` of dtype STEP, for the bytes of a value
_MOST_NAMES = 50_000


class GradientSize(NamedTuple):
    """What one step reduces; zeros: not known."""

    values: int = 0
    bytes: int = 0


UNKNOWN = GradientSize()


def gradient_size(encoded: int) -> GradientSize:
    """encoded: the field `size` of dtype STEP."""
    values, width = encoded >> _WIDTH_BITS, encoded & ((1 << _WIDTH_BITS) - 1)
    return GradientSize(values, values * width) if values and width else UNKNOWN


def byte_sizes(encoded: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """encoded: as of gradient_size; the bytes of each, 0: not known."""
    values, width = encoded >> np.uint64(_WIDTH_BITS), encoded & np.uint64((1 << _WIDTH_BITS) - 1)
    return values.astype(np.float64) * width.astype(np.float64)


def total(sizes: Iterable[GradientSize]) -> GradientSize:
    """Of all together: unknown where one of them is, or there is none."""
    known = list(sizes)
    if UNKNOWN in known:
        return UNKNOWN
    return GradientSize(sum(size.values for size in known), sum(size.bytes for size in known))


def summed(encoded: npt.NDArray[np.uint64]) -> GradientSize:
    """encoded: as of gradient_size; of all together: unknown where one of them is, or there is none."""
    values, width = encoded >> np.uint64(_WIDTH_BITS), encoded & np.uint64((1 << _WIDTH_BITS) - 1)
    sizes = values * width
    return GradientSize(int(values.sum()), int(sizes.sum())) if len(sizes) and sizes.all() else UNKNOWN


class NamedSizes:
    """The sizes of what is handed over by name."""

    def __init__(self) -> None:
        """None is known."""
        self._sizes: dict[int, GradientSize] = {}

    def learn(self, name: int, encoded: int) -> bool:
        """encoded: the field `size` of dtype STEP; whether it is new."""
        if not encoded or not name or self._sizes.get(name) == (size := gradient_size(encoded)):
            return False
        if len(self._sizes) >= _MOST_NAMES:
            self._sizes.clear()
        self._sizes[name] = size
        return True

    def total(self, names: Iterable[int]) -> GradientSize:
        """Of what is handed over by these names."""
        return total(self._sizes.get(name, UNKNOWN) for name in names)
