# SPDX-License-Identifier: Apache-2.0
"""The collector's registry without a network and in one process."""

import asyncio
from collections.abc import Sequence

from collector.host.session import Session
from collector.jobs.worker import JobStage
from collector.messages import HostNews, JobNews
from collector.registry import Registry
from netmon.records import Batch
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch


class JobsHere:
    """The job stage in this process, in a thread while it computes: as JobStageProcess does."""

    def __init__(self) -> None:
        self._stage = JobStage()
        self.trouble: Sequence[str] = ()
        self.alive = True

    async def exchange(self, news: HostNews) -> JobNews:
        answer = await asyncio.to_thread(self._stage.answer, news)
        self.trouble = answer.trouble
        return answer

    def close(self) -> None:
        pass


def take(registry: Registry, entry: Session, batch: Batch) -> None:
    """A batch comes, and a tick takes it in at once."""
    registry.add(entry, netmon_pb2.AgentMessage(batch=encode_batch(batch)))
    registry.tick()
