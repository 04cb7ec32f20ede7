# SPDX-License-Identifier: Apache-2.0
"""Iterations one by one, as the collector's tables have them."""

from collections.abc import Iterable

import numpy as np

from collector.host.iteration_rows import VARYING, Common, IterationRows
from netmon.dl.iterations import Iteration


def iteration_rows(iterations: Iterable[tuple[int, Iteration]]) -> IterationRows:
    """Iterations with the indices of their sessions."""
    each = list(iterations)
    columns = {name: np.array([getattr(one, name) for _, one in each], np.int64) for name in VARYING}
    session = np.array([session for session, _ in each], np.int64)
    return IterationRows(Common([one for _, one in each]), session, np.arange(len(each)), **columns)
