# SPDX-License-Identifier: Apache-2.0
"""Tasks that would go on for ever are ended; work that many request is done once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

_AGAIN_S = 0.5
_T = TypeVar("_T")


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Call tasks off, and wait until they have ended, however that was. Does not raise.

    Until Python 3.12 asyncio.wait_for takes no notice of a cancellation that comes together with what it waits for: a
    task that goes on is called off again.
    """
    going = set(tasks)
    while going:
        for task in going:
            task.cancel()
        over, going = await asyncio.wait(going, timeout=_AGAIN_S)
        await asyncio.gather(*over, return_exceptions=True)


class Together(Generic[_T]):
    """Work that is done once for all who request it before it begins, one after the other."""

    def __init__(self, work: Callable[[], Awaitable[_T]]) -> None:
        self._work = work
        self.now = asyncio.Lock()
        """Locked while it is being done."""
        self._next: asyncio.Task[_T] | None = None  # that has not begun
        self._tasks: set[asyncio.Task[_T]] = set()

    async def done(self) -> _T:
        """Have it done, from now on. Once begun it runs to its end, whoever requested it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._done())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _done(self) -> _T:
        async with self.now:
            self._next = None
            return await self._work()

    async def close(self) -> None:
        await end_tasks(self._tasks)
