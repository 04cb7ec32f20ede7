# SPDX-License-Identifier: Apache-2.0
"""Equal keys as one group, without sorting where the keys lie close together."""

import numpy as np
import numpy.typing as npt

_CLOSE = 16  # × as many places as there are keys


def groups(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(the distinct keys, ascending; the group of each key), as np.unique with return_inverse gives them."""
    if not len(keys):
        return keys, np.empty(0, np.int64)
    first = int(keys.min())
    session_indices = int(keys.max()) - first + 1
    if session_indices > _CLOSE * len(keys):
        distinct, of_key = np.unique(keys, return_inverse=True)
        return distinct, of_key.astype(np.int64, copy=False)
    session_index = keys - first
    present = np.zeros(session_indices, np.bool_)
    present[session_index] = True
    distinct = np.flatnonzero(present)
    number = np.empty(session_indices, np.int64)  # what is not written is not read
    number[distinct] = np.arange(len(distinct))
    return distinct + first, number[session_index]


def summed(group: npt.NDArray[np.int64], amount: npt.NDArray[np.generic], count: int) -> npt.NDArray[np.int64]:
    """The sum of amounts of each of `count` groups."""
    return np.bincount(group, weights=amount, minlength=count).astype(np.int64)
