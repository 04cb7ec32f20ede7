# SPDX-License-Identifier: Apache-2.0
"""Flows: their names, their order, and that they do not change places at once."""

import math
from dataclasses import replace

import pytest
from rich.console import Console
from snapshot_example import example, flow

from netmon.records import Class, Direction, Owner
from netmon.top.filters import parse
from netmon.top.flows import (
    FLOWS,
    FlowRow,
    draw,
    five_tuple,
    flow_rows,
    group_term,
    grouped,
    loss_share,
    owner,
    rank,
    round_trip,
)
from netmon.top.options import Options, arrange
from netmon.top.rows import HOLD_NS, StableOrder
from netmon.views import FlowView

TENTH = 100_000_000


def named(port: int, rate: float) -> FlowView:
    return flow("h0", Direction.TX, "10.0.0.1", port, "10.0.0.2", 5000, Owner(), Class.CROSS, rate)


def ports(rows: list[FlowRow]) -> list[int]:
    return [row.view.flow.src_port for row in rows]


def by_rate(**rates: float) -> list[FlowRow]:
    return flow_rows([named(int(port[1:]), rate) for port, rate in rates.items()])


def placed(order: StableOrder, now_ns: int, **rates: float) -> list[int]:
    return ports(order.place(by_rate(**rates), "rate", True, now_ns))


def test_flows_stand_by_their_rates_and_do_not_change_places_at_once() -> None:
    order = StableOrder(FLOWS)
    assert placed(order, 1, p3=1, p1=9, p2=5) == [1, 2, 3]
    assert placed(order, TENTH, p3=1, p1=5, p2=9) == [1, 2, 3]
    assert placed(order, HOLD_NS, p3=671, p1=5, p2=9) == [1, 2, 3]
    assert placed(order, HOLD_NS + 1, p3=671, p1=5, p2=9) == [3, 2, 1]
    assert placed(order, HOLD_NS + TENTH, p3=0, p1=5, p2=9) == [3, 2, 1]


def test_a_new_flow_comes_where_its_rate_belongs() -> None:
    order = StableOrder(FLOWS)
    placed(order, 1, p1=9, p3=1)
    assert placed(order, TENTH, p3=1, p1=9, p2=5, p4=12) == [4, 1, 2, 3]


def test_a_flow_that_is_gone_has_an_unknown_rate_and_then_no_row() -> None:
    order = StableOrder(FLOWS)
    placed(order, 1, p1=9, p2=5)
    first, second = order.place(by_rate(p2=5), "rate", True, TENTH)
    assert math.isnan(first.view.wire_bps)
    assert second.view.wire_bps == 5
    assert placed(order, 1 + HOLD_NS, p2=5) == [2]


def test_another_order_counts_at_once() -> None:
    order = StableOrder(FLOWS)
    placed(order, 1, p1=9, p2=5)
    order.clear()
    assert placed(order, TENTH, p1=1, p2=5) == [2, 1]


def test_what_is_not_known_comes_last_either_way() -> None:
    rows = by_rate(p1=1, p2=5, p3=7)
    rows[0] = rows[0]._replace(view=replace(rows[0].view, wire_bps=math.nan))
    assert [ports(StableOrder(FLOWS).place(rows, "rate", falling, 1)) for falling in (True, False)] == [
        [3, 2, 1],
        [2, 3, 1],
    ]


def test_the_largest_flows_come_first() -> None:
    assert [view.host for view in arrange(example()).flows] == ["h2", "h0", "h1"]


def test_flows_of_a_silent_host_come_last_with_an_unknown_rate() -> None:
    hosts = tuple(replace(host, connected=host.host != "h2") for host in example().hosts)
    flows = arrange(replace(example(), hosts=hosts)).flows
    assert [view.host for view in flows] == ["h0", "h1", "h2"]
    assert math.isnan(flows[-1].wire_bps)


def test_names() -> None:
    tcp = example().flows[0].flow
    assert five_tuple(tcp) == "10.77.0.10:40000 → 10.77.0.13:5000 tcp"
    assert five_tuple(tcp, wide=False) == "10.77.0.10:40000 → 10.77.0.13:5000"
    assert five_tuple(replace(tcp, protocol=1, src_port=0, dst_port=0)) == "10.77.0.10 → 10.77.0.13 icmp"
    assert five_tuple(replace(tcp, protocol=47, src_port=0, dst_port=0)) == "10.77.0.10 → 10.77.0.13 protocol 47"
    assert five_tuple(replace(tcp, protocol=255, dst_port=0x88CC)) == "EtherType 0x88cc"
    assert owner(Owner(1, "sh", "box", source="socket")) == "sh[1] (box)"
    assert owner(Owner()) == "unknown"
    assert owner(Owner(source="protocol")) == "(protocol)"
    assert rank(Owner(1, "sh", "", "job", 2, "socket"), "job") == "job/2"
    assert rank(Owner(1, "sh", source="socket"), "") == ""


def test_round_trips_and_losses_stand_beside_the_rates_where_tcp_has_said_them() -> None:
    quiet = named(1, 9)
    assert (round_trip(quiet), loss_share(quiet)) == ("", "")
    for rtt_ns, text in ((85_400, "85us"), (1_240_000, "1.2ms"), (250_000_000, "250ms")):
        assert round_trip(replace(quiet, rtt_ns=rtt_ns)) == text
    for loss, text in ((0, "0%"), (0.00004, "<.01%"), (0.0005, ".05%"), (0.012, "1.2%"), (0.5, "50.0%")):
        assert loss_share(replace(quiet, rtt_ns=1.0, loss=loss)) == text
    assert loss_share(replace(quiet, rtt_ns=1.0)) == ""
    for width in (80, 120, 200):
        for views, there in (([quiet], False), ([quiet, replace(quiet, rtt_ns=85_400, loss=0.012)], True)):
            console = Console(width=width)
            with console.capture() as captured:
                console.print(draw(views, Options(), width, 9))
            lines = captured.get().splitlines()
            assert ("rtt" in lines[0]) == ("loss" in lines[0]) == there
            assert (lines[-1].split()[-4:-2] == ["85us", "1.2%"]) == there
            assert all("10.0.0.1:1 → 10.0.0.2:5000" in line for line in lines[1:])
            assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("process", {"python3": 2, "iperf3": 1}),
        ("container", {"": 2, "backup.service": 1}),
        ("user", {"alice": 2, "1007": 1}),
        ("job", {"train": 2, "": 1}),
        ("peer host", {"h1": 1, "h0": 1, "192.0.2.7": 1}),
        ("prefix", {"10.0.0.0/24": 2, "192.0.2.0/24": 1}),
        ("host", {"h0": 2, "h1": 1}),
    ],
)
def test_flows_are_grouped_and_a_group_is_found_by_its_filter(by: str, groups: dict[str, int]) -> None:
    rank = Owner(1, "python3", "", "train", 0, "socket", "alice")
    other = Owner(2, "iperf3", "backup.service", source="socket", user="1007")
    rows = flow_rows(
        [
            flow("h0", Direction.TX, "10.0.0.1", 1, "10.0.0.2", 5000, rank, Class.DL_ONLY, 3e6),
            flow("h1", Direction.TX, "10.0.0.2", 2, "10.0.0.1", 5000, rank, Class.DL_ONLY, 2e6),
            flow("h0", Direction.TX, "10.0.0.1", 3, "192.0.2.7", 5201, other, Class.CROSS, 1e6),
        ]
    )
    found = grouped(rows, by)
    assert {group.name: group.flows for group in found} == groups
    for group in found:
        wanted = parse(group_term(group))
        assert sum(wanted.holds(FLOWS.values(row)) for row in rows) == group.flows


def test_a_flow_that_is_seen_at_both_ends_is_counted_once() -> None:
    iperf = Owner(1, "iperf3", source="socket", user="root")
    ends = ("10.0.0.3", 7, "10.0.0.1", 5201)
    rows = flow_rows(
        [
            flow("h2", Direction.TX, *ends, iperf, Class.CROSS, 6e8),
            flow("h0", Direction.RX, *ends, iperf, Class.CROSS, 5.9e8),
        ]
    )
    [both] = grouped(rows, "process")
    assert (both.flows, both.hosts, both.wire_bps, both.wire_bytes) == (1, ("h0", "h2"), 6e8, 600_000_000)
    assert {group.name: group.wire_bps for group in grouped(rows, "host")} == {"h2": 6e8, "h0": 5.9e8}
