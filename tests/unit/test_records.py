# SPDX-License-Identifier: Apache-2.0
"""What all rooms share of tables."""

import numpy as np
import pytest

from netmon.records import distinct


@pytest.mark.parametrize("values", [[], [3], [3, 1, 3, 2, 1, 3]])
def test_each_value_once(values: list[int]) -> None:
    numbers = np.array(values, np.uint32)
    found = distinct(numbers)
    assert (found.tolist(), found.dtype) == (np.unique(numbers).tolist(), numbers.dtype)
