# SPDX-License-Identifier: Apache-2.0
"""Aggregates of flows as the collector and people are told of them."""

import numpy as np
import pyarrow as pa
from collector_stream import clock

from collector.dataset.tables import Origin, Origins, flow_table
from collector.host.flows import STATE, Links
from netmon.agent.flow_owners import AggregateFlows, FlowOwners, RecentFlows
from netmon.agent.spool import link_totals
from netmon.dl.timemap import TimeMap
from netmon.kernel.meter.flow_numbers import Aggregate, Aggregates
from netmon.kernel.sock_diag import packed_address
from netmon.records import BUCKET, FLOW_KEY, Batch, Direction, Flow, Hello, Interface, Owner, empty
from netmon.top.flows import five_tuple
from netmon.wire.batches import decode_batch, encode_batch

S = 1_000_000_000


def crowd(flow_id: int, remote: str, direction: Direction, protocol: int = 17, **others: int) -> Aggregate:
    bits = others.pop("prefix_bits", 24)
    return Aggregate(flow_id, 1 << 9 | direction << 8 | protocol, packed_address(remote), bits, **others)


def seen(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint32)


def test_an_aggregate_is_described_when_it_has_traffic_and_when_it_has_grown() -> None:
    one = crowd(5, "198.51.100.0", Direction.RX, members=3)
    flows = AggregateFlows({5: one})
    assert flows.described(seen(4), S) == []
    (told,) = flows.described(seen(4, 5), S)
    assert (told.interface, told.direction, told.src, told.dst) == (1, Direction.RX, "198.51.100.0", "0.0.0.0")
    assert (told.members, told.prefix_bits, told.first_ns) == (3, 24, S)
    assert flows.described(seen(5), 3 * S) == []
    one.members = 9
    assert flows.described(seen(5), S + 1) == []
    assert [flow.members for flow in flows.described(seen(5), 3 * S)] == [9]
    (again,) = flows.described(seen(5), 100 * S)  # the collector may have forgotten it
    assert (again.flow_id, again.first_ns) == (5, S)


def test_what_has_grown_is_described_in_the_last_batch() -> None:
    one, other = crowd(5, "198.51.100.0", Direction.RX, members=3), crowd(6, "198.51.101.0", Direction.RX, members=2)
    flows = AggregateFlows({5: one, 6: other})
    assert len(flows.described(seen(5, 6), S)) == 2
    one.members = 9
    assert flows.described(seen(), S + 1) == []
    assert [(flow.flow_id, flow.members) for flow in flows.described(seen(), S + 1, last=True)] == [(5, 9)]


def test_it_says_what_it_is() -> None:
    flows = AggregateFlows(
        {
            1: crowd(1, "198.51.100.0", Direction.RX, members=1204),
            2: crowd(2, "2001:db8::", Direction.TX, 6, members=2, prefix_bits=48),
            3: crowd(3, "0.0.0.0", Direction.RX, members=7, prefix_bits=0, local_port=53),
        },
    ).described(seen(1, 2, 3), S)
    assert [five_tuple(flow) for flow in flows] == [
        "198.51.100.0/24 → any udp (1,204 flows)",
        "any → 2001:db8::/48 tcp (2 flows)",
        "any → any:53 udp (7 flows)",
    ]
    batch = Batch(1, clock(), 0, empty(BUCKET), flows)
    assert list(decode_batch(encode_batch(batch)).flows) == flows


def test_the_dataset_has_its_members() -> None:
    flows = AggregateFlows({1: crowd(1, "198.51.100.0", Direction.RX, members=12)}).described(seen(1), S)
    hello = Hello("h", "s", 10_000, clock(), (Interface(1, "eth0", 0, "tcx", "tcx"),), "1")
    origins = Origins([Origin(hello, Links(hello), TimeMap.constant(0))])
    table: pa.Table = flow_table(origins, np.zeros(1, np.int64), flows, np.zeros(1, STATE), [-1])
    assert (table["members"].to_pylist(), table["prefix_bits"].to_pylist()) == ([12], [24])
    assert table["class"].to_pylist() == ["unclassified"]


def flow(number: int, port: int, **others: object) -> Flow:
    return Flow(number, 1, Direction.RX, "203.0.113.9", "192.0.2.1", port, 53, 17, 0, **others)


def found(pid: int, job: str = "") -> dict:
    known = {"pid": pid, "uid": 0, "process": f"p{pid}", "container": ""}
    return {**known, "job": job, "rank": 0 if job else -1, "source": "socket"}


def serve(owners: FlowOwners, *pids: int, job: str = "") -> None:
    """A flow to port 53 for each, which is found to be the process's."""
    for number, pid in enumerate(pids, len(owners.flows) + 1):
        owners.add([flow(number, 1000 + number)], 0)
        assert len(owners.due(0)) == 1
        owners.answer([found(pid, job)], 0)


def aggregates() -> Aggregates:
    return Aggregates(iter(range(100, 1000)).__next__)


def test_a_port_that_one_process_serves_is_its_aggregate() -> None:
    crowds = aggregates()
    owners = FlowOwners(aggregates=crowds)
    serve(owners, *[4711] * 8)
    assert crowds.services[1, 53]
    many = flow(99, 0, members=12)
    owners.add([many], S)
    assert owners.flows[99].owner == Owner(4711, "p4711", source="aggregate", user="root")
    assert owners.due(S) == []
    serve(owners, 4712)
    assert not crowds.services[1, 53]


def test_a_ranks_port_is_no_service() -> None:
    crowds = aggregates()
    owners = FlowOwners(aggregates=crowds)
    serve(owners, *[4711] * 20, job="train")
    assert not crowds.services.any()


def test_new_flows_on_a_ranks_port_or_of_its_peers_are_training() -> None:
    owners = FlowOwners()
    serve(owners, 4711, job="train")
    keys = np.array(
        [
            (packed_address("198.51.100.1"), packed_address("192.0.2.1"), 9, 53, 7 << 9 | 17),  # the rank's port
            (packed_address("198.51.100.1"), packed_address("192.0.2.1"), 9, 54, 7 << 9 | 17),
            (packed_address("192.0.2.1"), packed_address("203.0.113.9"), 54, 9, 7 << 9 | 1 << 8 | 6),  # to its peer
            (packed_address("198.51.100.1"), packed_address("192.0.2.1"), 0, 53, 7 << 9 | 1),  # ICMP has no ports
        ],
        FLOW_KEY,
    )
    assert owners.training(keys).tolist() == [True, False, True, False]


def test_in_a_crowd_flows_are_over_sooner_and_those_of_ranks_are_not() -> None:
    recent = RecentFlows()
    known = {n: flow(n, n, owner=Owner(1, job="train" if n < 10 else "")) for n in range(6000)}
    assert recent.over(seen(*known), S, known) == []
    over = recent.over(seen(5999), 15 * S, known)
    assert over == list(range(10, 5999))
    few = {n: known[n] for n in range(10)}
    assert recent.over(seen(), 40 * S, few) == []
    assert recent.over(seen(), 400 * S, few) == list(few)


def test_rows_of_an_aggregate_have_a_flow_however_long_it_was_silent() -> None:
    """A member sends again, from the slot that it has kept: nothing is new, so nothing is described."""
    one = crowd(7000, "198.51.100.0", Direction.RX, members=3)
    flows, owners, recent = AggregateFlows({7000: one}), FlowOwners(), RecentFlows()
    owners.add([flow(n, n) for n in range(6000)], S)
    rows = np.zeros(1, BUCKET)
    rows["flow_id"], rows["packets"], rows["wire_bytes"] = 7000, 1, 60
    for now in (S, 31 * S, 1000 * S):
        owners.add(flows.described(seen(7000), now), now)
        assert link_totals(rows, owners.flows)["packets"].tolist() == [1]
        owners.forget(recent.over(seen(7000), now, owners.flows))
        owners.forget(recent.over(seen(), now + 15 * S, owners.flows))
