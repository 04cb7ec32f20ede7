# SPDX-License-Identifier: Apache-2.0
"""Which connections are looked at, and what is told of them: real sockets over the loopback."""

import dataclasses
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from netmon.agent.transport import FORGOTTEN_NS, INTERVAL_NS, MOST_OTHERS, SILENT_NS, TransportLooks
from netmon.evidence import UNKNOWN
from netmon.records import BUCKET, Direction, Flow, Owner, Table

NOBODY = Owner()
RANK = Owner(pid=1, process="train", job="job", rank=0, source="socket")


_OWN = "127.0.0.7"  # nobody else takes a port of it meanwhile


class Connections:
    """Connections over the loopback, and their flows as if they were seen on a link."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.flows: dict[int, Flow] = {}
        self._listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))

    def connect(self, owner: Owner = NOBODY, first_ns: int | None = None) -> tuple[int, socket.socket, socket.socket]:
        """The number of its tx flow (its rx flow has the next), and both sockets."""
        connection = socket.create_connection(self._listener.getsockname(), source_address=(_OWN, 0))
        near = self._cleanup.enter_context(connection)
        far = self._cleanup.enter_context(self._listener.accept()[0])
        first_ns = time.monotonic_ns() if first_ns is None else first_ns
        number = len(self.flows) + 1
        here, there = near.getsockname(), near.getpeername()
        for place, way in enumerate((Direction.TX, Direction.RX)):
            source, destination = (here, there) if way is Direction.TX else (there, here)
            addresses = source[0], destination[0], source[1], destination[1]
            self.flows[number + place] = Flow(number + place, 1, way, *addresses, 6, first_ns, owner)
        return number, near, far

    def looks(self) -> TransportLooks:
        """However much CPU time they take: a first look on a busy machine takes more than they may."""
        looks = self._cleanup.enter_context(closing(TransportLooks(self.flows)))
        looks._limiter.allows = lambda: True
        return looks


@pytest.fixture
def connections() -> Iterator[Connections]:
    with ExitStack() as cleanup:
        yield Connections(cleanup)


def rows(*counts: tuple[int, int]) -> Table:
    """(flow, payload bytes)"""
    table = np.zeros(len(counts), BUCKET)
    for row, (flow_id, payload) in zip(table, counts, strict=True):
        row["flow_id"], row["payload_bytes"] = flow_id, payload
    return table


def send(near: socket.socket, far: socket.socket, count: int) -> None:
    near.sendall(bytes(count))
    left = count
    while left:
        left -= len(far.recv(left))


def a_look(looks: TransportLooks, *counts: tuple[int, int]) -> Table:
    looks.count(rows(*counts))
    return looks.due(looks._looked_ns + INTERVAL_NS)


def test_a_row_tells_what_has_happened_between_two_looks(connections: Connections) -> None:
    number, near, far = connections.connect(RANK, first_ns=1)
    send(near, far, 5000)
    looks = connections.looks()
    assert len(a_look(looks, (number, 400))) == 0  # it may have begun long ago: nothing is told of before
    between = time.monotonic_ns()
    send(near, far, 700)
    (row,) = a_look(looks, (number, 700))
    assert (row["flow_id"], row["sent_bytes"], row["retransmitted_bytes"]) == (number, 700, 0)
    assert row["start_ns"] <= between <= row["end_ns"]
    assert 0 < row["rtt_min_ns"] <= row["rtt_ns"]
    assert row["timeouts"] in (0, UNKNOWN)  # before Linux 6.7
    assert row["ecn_marked_packets"] == UNKNOWN  # nobody speaks ECN on the loopback
    assert row["congestion_window_bytes"] > 0
    assert a_look(looks, (number + 1, 0), (number, 0))["reverse_flow_id"].tolist() == [number + 1]


def test_a_connection_that_began_since_the_last_look_is_told_from_its_beginning(connections: Connections) -> None:
    looks = connections.looks()
    number, near, far = connections.connect(RANK)
    older, *ends = connections.connect(RANK)
    for some in ((near, far), ends):
        send(*some, 3000)
    told = a_look(looks, (number, 3000), (older, 2000))  # of the older one less was seen than it has sent
    assert told[["flow_id", "sent_bytes"]].tolist() == [(number, 3000)]
    assert told["start_ns"].tolist() == [connections.flows[number].first_ns]


def test_a_connection_that_was_born_lately_is_told_from_its_beginning_though_it_was_small_at_first(
    connections: Connections,
) -> None:
    old_ns = time.monotonic_ns() - 60_000_000_000
    born = dataclasses.replace(NOBODY, pid=1, process="iperf3", source="connect")
    young, near, far = connections.connect(born)
    others = connections.connect(born, old_ns), connections.connect()  # long ago; and nobody said who connected it
    looks = connections.looks()
    for some in ((near, far), *(ends for _, *ends in others)):
        send(*some, 1000)
    assert len(a_look(looks, *((number, 1000) for number in (young, *(number for number, *_ in others))))) == 0
    time.sleep(0.01)
    send(near, far, 1_000_000)
    told = a_look(looks, *((number, 1_000_000) for number in (young, *(number for number, *_ in others))))
    assert told[["flow_id", "sent_bytes"]].tolist() == [(young, 1_001_000)]
    assert told["start_ns"].tolist() == [connections.flows[young].first_ns]


def test_nothing_is_told_of_a_connection_that_is_over_nor_of_the_next_one_on_its_port(connections: Connections) -> None:
    number, near, far = connections.connect(RANK, first_ns=1)
    looks = connections.looks()
    a_look(looks, (number, 1))
    port = near.getsockname()[1]
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT: the port is free
    address = near.getpeername()
    near.close()
    far.close()
    assert len(a_look(looks, (number, 9000))) == 0
    with socket.create_connection(address, source_address=(_OWN, port)) as again:
        other, _ = connections._listener.accept()
        with other:
            send(again, other, 100)
            assert len(a_look(looks, (number, 100))) == 0  # another socket: its first look
            send(again, other, 50)
            assert a_look(looks, (number, 50))["sent_bytes"].tolist() == [50]


def test_ranks_come_first_and_of_the_others_only_the_largest(connections: Connections) -> None:
    counts = []
    for place in range(MOST_OTHERS + 8):
        number, *_ = connections.connect(first_ns=1)
        counts.append((number, 1_000_000 + place))
    small, *_ = connections.connect(first_ns=1)
    rank, *_ = connections.connect(RANK, first_ns=1)
    counts += [(small, 100), (rank, 100)]
    looks = connections.looks()
    a_look(looks, *counts)
    told = a_look(looks, *counts)
    assert set(told["flow_id"]) == {rank, *(number for number, _ in counts[8 : 8 + MOST_OTHERS])}


def test_the_last_segments_of_a_connection_that_was_large_are_told_however_late_they_come(
    connections: Connections,
) -> None:
    number, near, far = connections.connect(first_ns=1)
    small, *_ = connections.connect(first_ns=1)
    looks = connections.looks()
    a_look(looks, (number, 1_000_000), (small, 100))
    send(near, far, 5000)
    (row,) = a_look(looks, (number, 5000), (small, 100))
    assert (row["flow_id"], row["sent_bytes"]) == (number, 5000)
    assert len(a_look(looks, (small, 100))) == 0
    send(near, far, 300)
    (row,) = a_look(looks, (small, 100), (number, 300))
    assert (row["flow_id"], row["sent_bytes"]) == (number, 300)
    assert len(a_look(looks, (number, 0))) == 0  # carries nothing


def test_what_is_no_tcp_and_what_carries_nothing_is_not_asked_for(connections: Connections) -> None:
    number, *_ = connections.connect(RANK, first_ns=1)
    datagrams = Flow(90, 1, Direction.TX, "127.0.0.1", "127.0.0.1", 1, 2, 17, 1, RANK)
    connections.flows[90] = datagrams
    looks = connections.looks()
    asked: list[int] = []
    ask = looks._tcp.query
    looks._tcp.query = lambda endpoints: asked.append(len(endpoints)) or ask(endpoints)
    for _ in range(3):
        assert len(a_look(looks, (90, 10**9))) == 0
    assert asked == []
    a_look(looks, (90, 10**9), (number, 10))
    assert asked == [1]


def test_of_a_ranks_connection_that_falls_silent_it_is_told_what_gets_to_no_interface(connections: Connections) -> None:
    """On a link that is down TCP sends again, and none of it passes."""
    number, near, far = connections.connect(RANK, first_ns=1)
    other, *of_other = connections.connect(first_ns=1)
    looks = connections.looks()
    a_look(looks, (number, 1), (other, 1_000_000))
    assert len(a_look(looks)) == 0
    send(near, far, 100)
    send(*of_other, 100)
    looks._looked_ns += SILENT_NS
    (row,) = a_look(looks)
    assert (row["flow_id"], row["sent_bytes"]) == (number, 100)
    looks._looked_ns += SILENT_NS
    assert len(a_look(looks)) == 0  # it did nothing
    send(near, far, 100)
    looks._looked_ns += FORGOTTEN_NS
    assert len(a_look(looks)) == 0  # that was long ago


def test_what_was_seen_of_a_connection_is_remembered_while_others_come_and_go(connections: Connections) -> None:
    one, *of_one = connections.connect(RANK, first_ns=1)
    other, *of_other = connections.connect(RANK, first_ns=1)
    looks = connections.looks()
    a_look(looks, (one, 1), (other, 1))
    told = []
    for numbers, sent in (([one], 100), ([one, other], 30), ([other], 7), ([other, one], 5)):
        for number, ends in ((one, of_one), (other, of_other)):
            if number in numbers:
                send(*ends, sent)
        rows = a_look(looks, *((number, sent) for number in numbers))
        told.append(dict(rows[["flow_id", "sent_bytes"]].tolist()))
    assert told == [{one: 100}, {one: 30, other: 30}, {other: 7}, {one: 5, other: 5}]


def test_of_a_connection_seen_on_two_links_the_flow_that_carries_more_is_told(connections: Connections) -> None:
    number, near, far = connections.connect(RANK, first_ns=1)
    twin = dataclasses.replace(connections.flows[number], flow_id=50, interface=2)
    connections.flows[50] = twin
    looks = connections.looks()
    a_look(looks, (number, 10), (50, 20))
    for counts, told in ((((number, 10), (50, 20)), 50), (((number, 30), (50, 20)), number)):
        send(near, far, 10)
        assert a_look(looks, *counts)["flow_id"].tolist() == [told]
