# SPDX-License-Identifier: Apache-2.0
"""The agent's questions for owners, and what it makes of the answers."""

import mmap
import os
import pwd
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

from netmon.agent.flow_owners import FlowOwners
from netmon.kernel.owners.socket_events import SocketEventTable, _chosen
from netmon.kernel.sock_diag import packed_address
from netmon.records import FLOW_KEY, SOCKET_CLOSE, SOCKET_CONNECT, SOCKET_EVENT, Direction, Flow

MS = 1_000_000


class Kernel:
    """What bpf/sockets.c does with its ring, on a file laid out like one."""

    def __init__(self) -> None:
        size = mmap.PAGESIZE
        descriptor = os.memfd_create("socket_events")
        os.ftruncate(descriptor, 2 * mmap.PAGESIZE + 2 * size)
        self.socket_watch = SocketEventTable(descriptor, size)
        self._file = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self._told = 0

    def tell(self, port: int, pid: int, kind: int = SOCKET_CONNECT, cgroup: int = 1) -> None:
        socket_event = np.zeros(1, SOCKET_EVENT)
        socket_event["local"], socket_event["remote"] = (np.void(packed_address(a)) for a in ("192.0.2.1", "192.0.2.9"))
        socket_event["local_port"], socket_event["remote_port"], socket_event["pid"] = port, 443, pid
        socket_event["kind"], socket_event["cgroup"], socket_event["process"] = kind, cgroup, b"thread"
        record = SOCKET_EVENT.itemsize.to_bytes(8, "little") + socket_event.tobytes()
        place = 2 * mmap.PAGESIZE + self._told
        self._file[place : place + len(record)] = record
        self._told += len(record)
        self._file[mmap.PAGESIZE : mmap.PAGESIZE + 8] = self._told.to_bytes(8, "little")


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def flow(number: int, port: int, remote_port: int = 443, protocol: int = 6) -> Flow:
    return Flow(number, 1, Direction.TX, "192.0.2.1", "192.0.2.9", port, remote_port, protocol, 0)


def found(pid: int, source: str) -> dict[str, Any]:
    return {"pid": pid, "uid": 0, "process": f"p{pid}", "container": "", "job": "", "rank": -1, "source": source}


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
    answered(owners, [found(5, "connect"), None], 0)
    assert (owners.flows[2].owner.pid, owners.flows[2].owner.source) == (5, "service")


def test_a_service_of_several_tells_nothing() -> None:
    owners = FlowOwners()
    owners.add([flow(1, 50001), flow(2, 50002), flow(3, 50003), flow(4, 50004)], 0)
    answered(owners, [found(5, "connect"), found(6, "socket"), found(5, "connect"), None], 0)
    assert owners.flows[4].owner.source == ""


def test_a_user_whose_name_comes_late_is_called_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.struct_passwd(("alice", "x", 70_000, 1, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    owners = FlowOwners()
    owners.add([flow(1, 50001)], 0)
    answered(owners, [found(5, "connect") | {"uid": 70_000}], 0)
    assert owners.flows[1].owner.user == "70000"
    owners.changed()
    wait_for(lambda: owners.read_socket_events(0) or owners.flows[1].owner.user == "alice")
    assert [flow.flow_id for flow in owners.changed()] == [1]


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


def test_a_process_is_asked_for_once_and_its_later_connections_are_its_own_at_once(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    kernel.tell(50001, pid=5)
    owners.read_socket_events(0)
    owners.add([flow(1, 50001)], 0)
    answered(owners, [found(5, "connect")], 0)
    for port in range(50002, 50012):
        kernel.tell(port, pid=5)
    owners.read_socket_events(50 * MS)
    owners.add([flow(port, port) for port in range(50002, 50012)], 50 * MS)
    told = {flow.flow_id: (flow.owner.process, flow.owner.source) for flow in owners.changed()}
    assert told == dict.fromkeys((1, *range(50002, 50012)), ("p5", "connect"))
    assert owners.due(10_000 * MS) == []


def test_what_is_told_after_the_flow_was_seen_ends_the_asking(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    owners.add([flow(1, 50001), flow(2, 50002), flow(3, 50003)], 0)
    assert owners.due(0) == []  # most are told of meanwhile
    kernel.tell(50001, pid=5)
    kernel.tell(50002, pid=5, kind=SOCKET_CLOSE)
    owners.read_socket_events(10 * MS)
    answered(owners, [found(5, "connect"), found(5, "close")], 10 * MS)
    assert len(owners.due(50 * MS)) == 1
    kernel.tell(50003, pid=5, kind=SOCKET_CLOSE)  # while the question is under way
    owners.read_socket_events(60 * MS)
    assert (owners.flows[3].owner.pid, owners.flows[3].owner.source) == (5, "close")
    owners.answer([None], 70 * MS)
    assert owners.flows[3].owner.pid == 5
    assert owners.due(10_000 * MS) == []


def test_flows_that_wait_for_a_process_get_it_by_one_answer(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    ports = range(40000, 40040)
    for port in ports:
        kernel.tell(port, pid=5)
    owners.read_socket_events(0)
    owners.add([flow(ports[0], ports[0])], 0)
    assert len(owners.due(0)) == 1
    owners.add([flow(port, port) for port in ports[1:]], 0)
    owners.answer([found(5, "connect")], 5 * MS)
    assert {flow.owner.pid for flow in owners.flows.values()} == {5}
    assert owners.due(10_000 * MS) == []


def test_a_process_is_asked_for_again_for_as_long_as_it_connects(kernel: Kernel) -> None:
    """It may have become another program, and its number may be another one's by now."""
    owners = FlowOwners(kernel.socket_watch)
    kernel.tell(50001, pid=5)
    owners.read_socket_events(0)
    owners.add([flow(1, 50001)], 0)
    answered(owners, [found(5, "connect")], 0)
    kernel.tell(50002, pid=5)
    owners.read_socket_events(5_000 * MS)
    owners.add([flow(2, 50002)], 5_000 * MS)
    assert owners.flows[2].owner.process == "p5"
    answered(owners, [found(5, "connect") | {"process": "trainer"}], 5_000 * MS)
    assert owners.flows[2].owner.process == "trainer"
    kernel.tell(50003, pid=5, cgroup=2)
    owners.read_socket_events(5_001 * MS)
    owners.add([flow(3, 50003)], 5_001 * MS)
    assert owners.flows[3].owner.pid == 0
    answered(owners, [found(5, "connect") | {"container": "other"}], 5_001 * MS)
    assert owners.flows[3].owner.container == "other"


def test_a_listener_is_asked_for_less_where_the_kernel_tells_who_closes(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    owners.add([flow(1, 80)], 0)
    answered(owners, [], 39 * MS)
    answered(owners, [found(5, "listener")], 40 * MS)
    assert owners.due(399 * MS) == []
    answered(owners, [found(6, "socket")], 1000 * MS)
    assert owners.flows[1].owner.pid == 6


def test_another_connection_between_the_same_ends_has_another_owner(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    for pid in (5, 6):
        kernel.tell(50001, pid=pid)
        owners.read_socket_events(pid * 1_000 * MS)
        if pid == 5:
            owners.add([flow(1, 50001)], pid * 1_000 * MS)
        answered(owners, [found(pid, "connect")], pid * 1_000 * MS)
        assert [(flow.owner.pid, flow.owner.source) for flow in owners.changed()] == [(pid, "connect")]
    kernel.tell(50001, pid=7, kind=SOCKET_CLOSE)  # a child that outlives the one that connected
    owners.read_socket_events(8_000 * MS)
    assert owners.due(10_000 * MS) == []
    owners.forget([1])
    kernel.tell(50001, pid=8)
    owners.read_socket_events(9_000 * MS)
    assert owners.due(10_000 * MS) == []


def test_of_a_storm_of_connections_each_process_has_one_and_those_that_matter_have_all() -> None:
    table = np.zeros(1000, SOCKET_EVENT)
    table["pid"] = 1
    table["pid"][500], table["pid"][600:605] = 2, 3
    assert sorted(_chosen(table, {3, 4})["pid"].tolist()) == [1, 2, 3, 3, 3, 3, 3]


def test_a_connection_that_a_rank_has_just_made_is_training(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    keys = np.array(
        [(packed_address("192.0.2.1"), packed_address("192.0.2.9"), port, 443, 1 << 8 | 6) for port in (1, 2, 3)],
        FLOW_KEY,
    )
    kernel.tell(1, 4711)
    owners.add([flow(1, 1)], 0)
    owners.read_socket_events(0)
    answered(owners, [found(4711, "connect")], 0)
    kernel.tell(2, 4711)
    assert owners.training(keys).tolist() == [False, False, False]  # known, and no rank
    owners.ranks([4711])
    kernel.tell(3, 4712)
    assert owners.training(keys).tolist() == [True, True, True]  # a rank, and who nobody knows yet
    owners.add([flow(2, 2)], 0)
    owners.read_socket_events(0)  # what was told in between is not lost
    assert owners.flows[2].owner.pid == 4711


def test_datagrams_between_the_ends_of_a_ranks_connection_are_not_training(kernel: Kernel) -> None:
    owners = FlowOwners(kernel.socket_watch)
    ends = packed_address("192.0.2.1"), packed_address("192.0.2.9"), 1, 443
    keys = np.array([(*ends, 1 << 8 | protocol) for protocol in (6, 17)], FLOW_KEY)
    owners.ranks([4711])
    kernel.tell(1, 4711)
    assert owners.training(keys).tolist() == [True, False]


def test_questions_are_bounded_and_the_first_of_each_comes_first() -> None:
    owners = FlowOwners()
    owners.add([flow(n, n, protocol=17) for n in range(1, 8_001)], 0)
    asked = 0
    for now in range(0, 100, 4):
        due = owners.due(now * 10 * MS)
        assert len(due) <= 500
        owners.answer([None] * len(due), now * 10 * MS)
        asked += len(due)
    assert asked <= 6_000
