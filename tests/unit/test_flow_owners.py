# SPDX-License-Identifier: Apache-2.0
"""The agent's questions for owners, and what it makes of the answers."""

from typing import Any

from netmon.agent.owners import FlowOwners
from netmon.records import Direction, Flow

MS = 1_000_000


def flow(number: int, port: int, remote_port: int = 443, protocol: int = 6) -> Flow:
    return Flow(number, 1, Direction.TX, "192.0.2.1", "192.0.2.9", port, remote_port, protocol, 0)


def found(pid: int, source: str) -> dict[str, Any]:
    return {"pid": pid, "process": f"p{pid}", "container": "", "job": "", "rank": -1, "source": source}


def answered(owners: FlowOwners, answers: list[dict[str, Any] | None], now_ns: int) -> None:
    assert len(owners.due(now_ns)) == len(answers)
    owners.answer(answers, now_ns)


def test_a_listener_is_kept_until_the_accepting_process_is_known() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 80)], 0)
    answered(owners, [found(5, "listener")], 0)
    assert owners.flows[1].owner.source == "listener"
    assert owners.due(10 * MS) == []
    answered(owners, [found(6, "close")], 20 * MS)
    assert (owners.flows[1].owner.pid, owners.flows[1].owner.source) == (6, "close")
    assert owners.due(10_000 * MS) == []


def test_who_alone_talks_to_a_service_is_taken_for_who_talked_to_it() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 50001), flow(2, 50002)], 0)
    answered(owners, [found(5, "birth"), None], 0)
    assert (owners.flows[2].owner.pid, owners.flows[2].owner.source) == (5, "service")


def test_a_service_of_several_tells_nothing() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 50001), flow(2, 50002), flow(3, 50003), flow(4, 50004)], 0)
    answered(owners, [found(5, "birth"), found(6, "socket"), found(5, "birth"), None], 0)
    assert owners.flows[4].owner.source == ""


def test_what_has_no_port_is_the_protocols() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 0, 0, protocol=1)], 0)
    assert owners.due(0) == []
    assert owners.flows[1].owner.source == "protocol"


def test_in_the_end_nobody_is_asked_again() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 50001)], 0)
    asked = 0
    for now in range(0, 10_000, 10):
        if due := owners.due(now * MS):
            owners.answer([None] * len(due), now * MS)
            asked += 1
    assert asked == 7
    assert owners.flows[1].owner.source == ""
