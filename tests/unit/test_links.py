# SPDX-License-Identifier: Apache-2.0
"""Interfaces keep their numbers, whenever the agent is told of what has become of them."""

import socket

from netmon.agent.links import Links

GONE = 1 << 22  # no interface has such an index
LOOPBACK = socket.if_nametoindex("lo")


def test_an_interface_made_again_keeps_its_number() -> None:
    links = Links([GONE, LOOPBACK], ["eth0", "lo"])
    links.follow([(0, ""), (LOOPBACK, "lo")])
    assert links.name(1) == ""
    links.follow([(GONE + 1, "eth0"), (LOOPBACK, "lo")])
    assert [links.number(index) for index in (GONE, GONE + 1, LOOPBACK)] == [1, 1, 2]
    assert links.indices(1) == [GONE, GONE + 1]


def test_traffic_of_an_interface_made_again_may_come_before_the_news_of_it() -> None:
    links = Links([GONE, GONE + 1], ["eth0", "lo"])
    assert links.number(LOOPBACK) == 2  # by its name
    links.follow([(GONE, "eth0"), (LOOPBACK, "lo")])
    assert links.number(LOOPBACK) == 2
    assert links.number(GONE + 2) == 1  # gone again already: the one that is missing
