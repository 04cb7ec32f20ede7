# SPDX-License-Identifier: Apache-2.0
"""What is told of connections is what happened to them, and what `ss` says of them."""

import os
import re
from collections.abc import Callable

import pytest
from tcp_transfer import lossy_route, transfer

from netmon.kernel.sock_diag import TIMEOUTS_UNKNOWN

pytestmark = pytest.mark.kernel


def as_ss_says(end, port: int) -> dict[str, int]:
    """bytes_sent, bytes_retrans and minrtt of the connection from this port."""
    text = end.namespace.run("ss", "-tinH", "sport", "=", f":{port}")
    return {name: int(float(value) * 1000) for name, value in re.findall(r"(\w+):([\d.]+)", text)}


def test_what_a_full_queue_drops_is_sent_again_and_told_as_ss_tells_it(network) -> None:
    left, right = lossy_route(network)
    with transfer(left, right, 8) as (said, _):
        (before,), (now,), (other,), nobody = said["looks"]
        ss = as_ss_says(left, said["port"])
    assert before["cookie"] == now["cookie"] != other["cookie"]
    assert now["retransmitted_bytes"] > 0
    assert now["sent_bytes"] == (8 << 20) + now["retransmitted_bytes"]
    assert now["sent_bytes"] * 1000 == ss["bytes_sent"]
    assert now["retransmitted_bytes"] * 1000 == ss["bytes_retrans"]
    assert now["rtt_min_us"] == ss["minrtt"]
    assert now["busy_us"] > 500_000  # 8 MiB at 100 Mbit/s
    assert other["out_of_order_packets"] > 0  # what came after a hole, as the receiver saw it
    assert other["sent_bytes"] == 0
    assert nobody == []  # the left end, asked for where the right one is


def test_next_to_nothing_is_sent_again_where_nothing_is_lost(namespaces: Callable) -> None:
    left, right = namespaces()
    with transfer(left, right, 8) as (said, process):
        _, (now,), (other,), _ = said["looks"]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"  # a connection that is over is not told of, in TIME_WAIT or gone
    assert other["out_of_order_packets"] == 0
    # A busy machine answers late at times, and TCP probes whether its last segments were lost: a few of thousands.
    assert now["retransmitted_bytes"] < (8 << 20) / 100
    assert now["sent_bytes"] == (8 << 20) + now["retransmitted_bytes"]
    assert 0 < now["rtt_min_us"] <= now["rtt_us"]


def test_how_often_the_timer_ran_out(namespaces: Callable) -> None:
    left, right = namespaces()
    with transfer(left, right, 1, "cut") as (said, _):
        (before,), (now,), _, _ = said["looks"]
        names, values = re.findall(r"^TcpExt: (.+)$", left.namespace.run("cat", "/proc/net/netstat"), re.MULTILINE)
    if now["timeouts"] == TIMEOUTS_UNKNOWN:
        assert tuple(map(int, os.uname().release.split(".")[:2])) < (6, 7)
    else:
        counted = dict(zip(names.split(), map(int, values.split()), strict=True))["TCPTimeouts"]
        assert now["timeouts"] - before["timeouts"] == counted >= 2


def test_a_reader_that_is_slow_limits_by_its_window(namespaces: Callable) -> None:
    with transfer(*namespaces(), 4, "slow-reader") as (said, _):
        _, (now,), _, _ = said["looks"]
    assert now["receiver_limited_us"] > now["busy_us"] / 2 > 100_000
    assert now["sender_limited_us"] < now["receiver_limited_us"] / 4


def test_who_sends_seldom_is_limited_by_itself(namespaces: Callable) -> None:
    with transfer(*namespaces(), 2, "idler") as (said, _):
        _, (now,), _, _ = said["looks"]
    assert now["application_limited"] & 1
    assert now["busy_us"] < 16 * 2 * 20_000 / 2  # it slept that long at least
    assert now["receiver_limited_us"] + now["sender_limited_us"] <= now["busy_us"]


def test_ipv6_is_told_of_too(namespaces: Callable) -> None:
    left, right = namespaces()
    for number, end in enumerate((left, right), 1):
        end.namespace.set(f"net.ipv6.conf.{end.interface}.disable_ipv6=0")
        end.namespace.run("ip", "address", "add", f"fd00::{number}/64", "dev", end.interface, "nodad")
    with transfer(left, right, 2, address="fd00::2") as (said, _):
        _, (now,), (other,), _ = said["looks"]
    assert now["sent_bytes"] == (2 << 20) + now["retransmitted_bytes"]
    assert other["sent_bytes"] == 0
