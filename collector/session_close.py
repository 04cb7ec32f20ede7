# SPDX-License-Identifier: Apache-2.0
"""Sessions that have said their last word: settled and stored together with those that leave alongside them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from collector.ending import end_tasks
from collector.entry import Entry


class SessionClose:
    """Many agents may leave at one time: one flush serves all who wait for the next one."""

    def __init__(self, store: Callable[[list[Entry]], Coroutine[Any, Any, bool]]) -> None:
        """store: settles all that these sessions have sent, and stores it; False where the disk does not take it."""
        self._store = store
        self._leaving: list[Entry] = []
        self._next: asyncio.Task[bool] | None = None  # that has not begun
        self._tasks: set[asyncio.Task[bool]] = set()
        self._now = asyncio.Lock()

    async def part(self, entry: Entry) -> bool:
        """Wait until all that it has sent is stored; False where the disk does not take it."""
        self._leaving.append(entry)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._part())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _part(self) -> bool:
        async with self._now:
            leaving, self._leaving, self._next = self._leaving, [], None
            return await self._store(leaving)

    async def close(self) -> None:
        """Nobody waits any more."""
        await end_tasks(self._tasks)
