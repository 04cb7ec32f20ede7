# SPDX-License-Identifier: Apache-2.0
"""What the program itself takes of the machine."""

import resource
import time
from pathlib import Path

from netmon.top.about import cost


class OwnCost:
    """Measured over the last seconds."""

    _EVERY_S = 2.0

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._text_of: tuple[float, int] = (0.0, _rss_bytes())

    def text(self, width: int) -> str:
        """As it is shown on a screen of that width."""
        wall, cpu = time.monotonic(), time.process_time()
        if wall - self._wall >= self._EVERY_S:
            self._text_of = (cpu - self._cpu) / (wall - self._wall), _rss_bytes()
            self._wall, self._cpu = wall, cpu
        return cost(*self._text_of, width)


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
