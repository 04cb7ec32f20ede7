# SPDX-License-Identifier: Apache-2.0
"""The watched interfaces by numbers of our own, which stay when an interface is removed and made again."""

import logging
import socket
from collections.abc import Sequence

log = logging.getLogger(__name__)


class Links:
    """Numbers are 1, 2, … in the order in which the interfaces were named."""

    def __init__(self, indices: Sequence[int], names: Sequence[str]) -> None:
        """indices, names: of the interfaces as they are at the start."""
        self._asked = tuple(names)
        self._now: list[tuple[int, str]] = list(zip(indices, names, strict=True))
        self._number = {index: number for number, index in enumerate(indices, 1)}

    def number(self, index: int) -> int:
        """The number of an interface that has, or once had, this ifindex."""
        if index not in self._number:  # attached again, and counted, before `follow` was told of it
            self._number[index] = self._newcomer(index)
        return self._number[index]

    def _newcomer(self, index: int) -> int:
        """By its name; if it is gone once more, the first interface that is not there under the ifindex we know."""
        name = _name_of(index)
        if name in self._asked:
            return self._asked.index(name) + 1
        return next((n for n, (known, _) in enumerate(self._now, 1) if not _name_of(known)), 1)

    def indices(self, number: int) -> list[int]:
        """Every ifindex that the interface has had."""
        return [index for index, known in self._number.items() if known == number]

    def name(self, number: int) -> str:
        """What it is called now; empty while it is not there."""
        return self._now[number - 1][1]

    def follow(self, now: Sequence[tuple[int, str]]) -> None:
        """now: (ifindex, name) of each; (0, "") where it is not there. Says what has changed."""
        for number, ((index, name), (old_index, old_name)) in enumerate(zip(now, self._now, strict=True), 1):
            asked = self._asked[number - 1]
            if index and index not in self._number:
                self._number[index] = number
            if old_index and not index:
                log.warning("%s is gone; waiting for it to come back", asked)
            elif index and not old_index:
                log.info("%s is back", asked)
            elif name != old_name:
                log.info("%s is called %s now; it stays %s in the dataset", old_name, name, asked)
        self._now = [(index, name) for index, name in now]


def _name_of(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""
