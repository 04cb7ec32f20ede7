# SPDX-License-Identifier: Apache-2.0
"""The receiving process as a task of this one, for tests that change what it does."""

import asyncio
import socket

import pytest

from collector.receiving import client
from collector.receiving.frames import Listen, Listening, Pipe, Stop
from collector.receiving.receiver import Receiver


class ReceivingTask(client.ReceivingProcess):
    """Same frames, same pipe."""

    def __init__(self, task: "asyncio.Task[None]", pipe: Pipe) -> None:
        self._task, self._pipe = task, pipe

    @classmethod
    async def start(cls, listen: Listen) -> "ReceivingTask":
        ours, theirs = socket.socketpair()
        pipe = await Pipe.open(theirs)
        started = cls(asyncio.create_task(Receiver(pipe, listen).serve()), await Pipe.open(ours))
        assert await started.receive() == Listening()
        return started

    @property
    def pid(self) -> int:
        return 0

    async def stop(self, grace_s: float) -> None:
        self.send(Stop(grace_s))
        await asyncio.wait([self._task], timeout=grace_s + 1)
        self.kill()

    def kill(self) -> int:
        self._pipe.close()
        self._task.cancel()
        return 0


def receive_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ReceivingProcess", ReceivingTask)
