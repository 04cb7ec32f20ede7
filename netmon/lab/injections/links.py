# SPDX-License-Identifier: Apache-2.0
"""A link of the testbed made worse: slower, with a shorter queue, or with loss.

Loss is a filter on the switch that drops super-packets at random, written in the classic BPF that `tc` assembles by
itself: kernels without netem have it. A sender's own queue is never touched by loss or length: netmon counts before
it, and bytes dropped there would never have been on a link.
"""

from netmon.lab import iproute
from netmon.lab.network import INTERFACE, Network, shaping
from netmon.records import Direction

_RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h
_PASS, _DROP = 0xFFFFFFFF, 2  # TC_ACT_UNSPEC, TC_ACT_SHOT


def slow(network: Network, host: int, direction: int, share: float) -> None:
    """Leave a link this share of its rate, from now on; 1 undoes it. Raises LabError."""
    shape = shaping(network.rate_bps)
    rate = max(8000, round(network.rate_bps * share))
    if direction == Direction.TX:
        limits = f"rate {rate}bit burst {shape.burst_bytes} limit {shape.host_limit}"
        iproute.batch("tc", network.hosts[host].namespace, [f"qdisc change dev {INTERFACE} root tbf {limits}"])
    else:
        limits = f"rate {rate}bit burst {shape.burst_bytes} limit {shape.port_limit}"
        _on_switch(network, f"qdisc change dev port{host} root tbf {limits}")


def shorten(network: Network, host: int, share: float) -> None:
    """Leave the queue of the switch's port to a host this share of its bytes; 1 undoes it. Raises LabError."""
    shape = shaping(network.rate_bps)
    limit = max(shape.super_packet, round(shape.port_limit * share))
    limits = f"rate {network.rate_bps}bit burst {shape.burst_bytes} limit {limit}"
    _on_switch(network, f"qdisc change dev port{host} root tbf {limits}")


def police(network: Network, host: int, share: float) -> None:
    """Let this share of the rate pass to a host, and queue one super-packet: the rest is dropped, as a policer does.

    shorten(…, 1) undoes it. Raises LabError.
    """
    shape = shaping(network.rate_bps)
    rate = max(8000, round(network.rate_bps * share))
    _on_switch(
        network,
        f"qdisc change dev port{host} root tbf rate {rate}bit burst {shape.burst_bytes} limit {shape.super_packet}",
    )


def lose(network: Network, host: int, direction: int, share: float) -> None:
    """Drop this share of a host's super-packets, on the switch, from now on. Raises LabError."""
    where = "ingress" if direction == Direction.TX else "egress"
    threshold = round(share * (1 << 32))
    program = f"4,32 0 0 {_RANDOM},37 0 1 {threshold},6 0 0 {_PASS},6 0 0 {_DROP}"
    _on_switch(
        network,
        f"qdisc add dev port{host} clsact",
        f'filter add dev port{host} {where} bpf direct-action bytecode "{program}"',
    )


def keep(network: Network, host: int) -> None:
    """Undo lose()."""
    _on_switch(network, f"qdisc del dev port{host} clsact")


def _on_switch(network: Network, *lines: str) -> None:
    iproute.batch("tc", network.lease.namespace("switch"), lines)
