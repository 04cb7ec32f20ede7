# SPDX-License-Identifier: Apache-2.0
"""For tests: how much work something is, the same on a busy machine."""

import sys
from collections.abc import Callable


def lines_run(work: Callable[[], None]) -> int:
    """How many lines of Python it takes, loops within a line by their turns: the same on a busy machine."""
    count = 0

    def trace(*_: object) -> Callable[..., object]:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
