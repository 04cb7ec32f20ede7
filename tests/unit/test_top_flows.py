# SPDX-License-Identifier: Apache-2.0
"""Flows: their names, their order, and that they stay where they are."""

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
from netmon.top.widgets import HOLD_NS, StableRows
from netmon.views import FlowView

TENTH = 100_000_000


def named(port: int, rate: float) -> FlowView:
    return flow("h0", Direction.TX, "10.0.0.1", port, "10.0.0.2", 5000, Owner(), Class.CROSS, rate)


def ports(rows: list[FlowRow]) -> list[int]:
    return [row.view.flow.src_port for row in rows]


def by_rate(**rates: float) -> list[FlowRow]:
    flows = (named(int(port[1:]), rate) for port, rate in rates.items())
    return flow_rows(sorted(flows, key=lambda view: -view.wire_bps))


def test_flows_keep_their_rows_while_they_are_in_the_top() -> None:
    places = StableRows(FLOWS)
    assert ports(places.place(by_rate(p1=9, p2=5, p3=1), 2, 0)) == [1, 2, 3]
    assert ports(places.place(by_rate(p1=5, p2=9, p3=1), 2, TENTH)) == [1, 2, 3]


def test_a_flow_that_left_the_top_keeps_its_row_for_a_while() -> None:
    places = StableRows(FLOWS)
    places.place(by_rate(p1=9, p2=5, p3=1), 2, 0)
    assert ports(places.place(by_rate(p1=9, p2=1, p3=5), 2, HOLD_NS - 1)) == [1, 2, 3]
    assert ports(places.place(by_rate(p1=9, p2=1, p3=5), 2, HOLD_NS)) == [1, 3, 2]


def test_a_flow_that_came_back_in_time_starts_anew() -> None:
    places = StableRows(FLOWS)
    for now, p2 in ((0, 5), (HOLD_NS - 1, 1), (HOLD_NS, 5), (HOLD_NS + 1, 1)):
        assert ports(places.place(by_rate(p1=9, p2=p2, p3=3), 2, now)) == [1, 2, 3]


def test_a_flow_that_is_gone_has_an_unknown_rate() -> None:
    places = StableRows(FLOWS)
    places.place(by_rate(p1=9, p2=5), 2, 0)
    (first, second) = places.place(by_rate(p2=5), 2, TENTH)
    assert math.isnan(first.view.wire_bps)
    assert second.view.wire_bps == 5


def test_fewer_rows_and_more_rows() -> None:
    places = StableRows(FLOWS)
    views = by_rate(p1=9, p2=5, p3=1)
    assert ports(places.place(views, 3, 0)) == [1, 2, 3]
    assert ports(places.place(views, 1, 0)) == [1, 2, 3]
    assert ports(places.place(views, 0, 0)) == [1, 2, 3]
    assert ports(places.place(views, 5, 0)) == [1, 2, 3]


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
