# SPDX-License-Identifier: Apache-2.0
"""Interfaces keep their numbers, whenever the agent is told of what has become of them."""

import socket

from netmon.agent.host_part import Links

GONE = 1 << 22  # no interface has such an index
LOOPBACK = socket.if_nametoindex("lo")


def test_an_interface_made_again_keeps_its_number() -> None:
    links = Links([GONE, LOOPBACK], ["eth0", "lo"])
    links.follow([(0, ""), (LOOPBACK, "lo")])
    assert links.name(1) == ""
    links.follow([(GONE + 1, "eth0"), (LOOPBACK, "lo")])
    assert (links.name(1), links.name(2)) == ("eth0", "lo")
