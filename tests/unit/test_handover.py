# SPDX-License-Identifier: Apache-2.0
"""A worker's part in who has which host: its event loop turns whatever else it is doing, until it has left."""

import asyncio

from collector.bus.membership import Cluster, HostTies
from collector.bus.worker import Handover

LOOK_EVERY_S = 0.02


class Heart:
    """Counts."""

    def __init__(self) -> None:
        self.turns, self.begun, self.over = 0, False, False

    def begin(self) -> None:
        self.begun = True

    def here(self) -> None:
        assert self.begun
        self.turns += 1

    async def end(self) -> None:
        self.over = True


class Members:
    """Of a bus on which this worker is alone with one host, and has to let go of it for another one's sake."""

    worker, ttl_s = "w1", 0.08

    def __init__(self) -> None:
        self.heart = Heart()

    async def poll(self) -> Cluster:
        return Cluster({"w1": 1.0, "w2": 1e6}, {"a": "w1", "b": "w1"}, {})

    async def publish_ties(self, ties: dict[str, HostTies]) -> None: ...

    async def claim(self, host: str) -> int:
        return 1

    async def give_up(self, host: str) -> None: ...

    async def leave(self) -> None:
        assert self.heart.over


class Stuck:
    """Storing what it has of a host takes as long as the test wants."""

    def __init__(self) -> None:
        self.releasing, self.go_on = asyncio.Event(), asyncio.Event()

    async def release(self, *hosts: str) -> None:
        self.releasing.set()
        await self.go_on.wait()

    async def take(self, host: str) -> None: ...

    async def mend(self) -> None: ...

    async def hosts(self) -> frozenset[str]:
        return frozenset("ab")

    def taken_hosts(self) -> frozenset[str]:
        return frozenset("ab")


class Sink:
    def take(self, epochs: dict[str, int]) -> frozenset[str]:
        return frozenset()

    def settle_changes(self) -> None: ...


def test_a_worker_that_stores_for_long_is_still_there(monkeypatch):
    monkeypatch.setattr("collector.bus.worker._LOOK_EVERY_S", LOOK_EVERY_S)

    async def test() -> None:
        members, intake = Members(), Stuck()
        handover = Handover(members, members.heart, intake, Sink(), lambda hosts: {})
        running = asyncio.create_task(handover.run())
        await intake.releasing.wait()
        before = members.heart.turns
        while members.heart.turns < before + 3:
            await asyncio.sleep(0.01)
        intake.go_on.set()
        await handover.close()
        await running
        left_after = members.heart.turns
        await asyncio.sleep(3 * LOOK_EVERY_S)
        assert members.heart.turns == left_after, "it has left, and does not come back"

    asyncio.run(asyncio.wait_for(test(), 60))


class Restarted(Members):
    """Its predecessor, of the same name, was killed when it had a host that another worker is to have now."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = {"a": "w1", "b": "w2"}

    async def poll(self) -> Cluster:
        return Cluster({"w1": 1.0, "w2": 1e6}, dict(self.owners), {})

    async def give_up(self, host: str) -> None:
        del self.owners[host]


class Empty(Stuck):
    async def release(self, *hosts: str) -> None:
        assert not hosts

    def taken_hosts(self) -> frozenset[str]:
        return frozenset()


def test_who_has_begun_again_gives_up_what_another_one_is_to_have() -> None:
    async def scenario() -> None:
        members = Restarted()
        handover = Handover(members, members.heart, Empty(), Sink(), lambda hosts: {})
        running = asyncio.create_task(handover.run())
        while "a" in members.owners:
            await asyncio.sleep(0.01)
        assert members.owners == {"b": "w2"}
        await handover.close()
        await running

    asyncio.run(asyncio.wait_for(scenario(), 60))
