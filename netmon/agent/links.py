# SPDX-License-Identifier: Apache-2.0
"""The watched interfaces by numbers of our own, which stay when an interface is removed and made again."""

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)


class Links:
    """Numbers are 1, 2, … in the order in which the interfaces were named."""

    def __init__(self, indices: Sequence[int], names: Sequence[str]) -> None:
        """indices, names: of the interfaces as they are at the start."""
        self._names = tuple(names)
        self._now: list[tuple[int, str]] = list(zip(indices, names, strict=True))

    def name(self, number: int) -> str:
        """What it is called now; empty while it is not there."""
        return self._now[number - 1][1]

    def index(self, number: int) -> int:
        """Its ifindex; 0 while it is not there."""
        return self._now[number - 1][0]

    def follow(self, now: Sequence[tuple[int, str]]) -> None:
        """now: (ifindex, name) of each; (0, "") where it is not there. Says what has changed."""
        for number, ((index, name), (old_index, old_name)) in enumerate(zip(now, self._now, strict=True), 1):
            interfaces = self._names[number - 1]
            if old_index and not index:
                log.warning("%s is gone; waiting for it to come back", interfaces)
            elif index and not old_index:
                log.info("%s is back", interfaces)
            elif name != old_name:
                log.info("%s is called %s now; it stays %s in the dataset", old_name, name, interfaces)
        self._now = [(index, name) for index, name in now]
