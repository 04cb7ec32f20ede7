# SPDX-License-Identifier: Apache-2.0
"""Ends tasks that would go on for ever."""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 0.5


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
