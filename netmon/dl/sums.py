# SPDX-License-Identifier: Apache-2.0
"""Rows summed by two keys."""

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import order_by, starts

_Column = npt.NDArray[np.int64]


def sums_by_two(major: _Column, minor: _Column, values: _Column) -> tuple[_Column, _Column, _Column]:
    """Major key, minor key and sum of every pair that occurs, ordered by major, then minor; rows in any order."""
    order = order_by(major, minor)
    major, minor, values = major[order], minor[order], values[order]
    if not len(major):
        return major, minor, values
    first = starts(major, minor)
    return major[first], minor[first], np.add.reduceat(values, first)
