# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib

import pytest

from collector import ending
from collector.ending import end_tasks


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(ending, "_AGAIN_S", 0.01)


def test_a_task_that_gets_what_it_waits_for_at_that_moment_ends_too():
    async def test():
        news = asyncio.Event()

        async def work():
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), 60)
                news.clear()

        working = asyncio.create_task(work())
        for _ in range(3):  # it waits
            await asyncio.sleep(0)
        news.set()
        await asyncio.sleep(0)  # what it waits for has come, and it does not know that yet
        await asyncio.wait_for(end_tasks([working]), 60)
        assert working.cancelled()

    asyncio.run(test())


def test_how_they_end_does_not_matter():
    async def test():
        async def fail():
            raise ValueError

        async def take_no_notice():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            await asyncio.sleep(60)

        tasks = [asyncio.create_task(work) for work in (fail(), take_no_notice(), asyncio.sleep(0))]
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(tasks), 60)
        assert all(task.done() for task in tasks)
        await end_tasks([])

    asyncio.run(test())
