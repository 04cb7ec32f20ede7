# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by one veth pair whose speed nothing limits but this machine."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from netmon.lab import iproute
from netmon.lab.lease import leased
from netmon.lab.network import INTERFACE, SUBNET, Host

_SETTINGS = """
cd /proc/sys/net
for every in ipv6/conf/all ipv6/conf/default; do [ ! -d $every ] || echo 1 > $every/disable_ipv6; done
"""
_CONGESTION = "ipv4/tcp_congestion_control"


@dataclass(frozen=True)
class Pair:
    """Who sends and who receives, each on INTERFACE."""

    sender: Host
    receiver: Host
    congestion: str  # TCP's congestion control


@contextlib.contextmanager
def pair(congestion: str) -> Iterator[Pair]:
    """Make both hosts; they are gone afterwards, with all that runs in them. Needs root. Raises LabError.

    congestion: TCP's congestion control; empty for what this machine uses.
    """
    settings = _SETTINGS + (f"echo {congestion} > {_CONGESTION}\n" if congestion else "") + f"cat {_CONGESTION}\n"
    with leased() as lease:
        names = ("sender", "receiver")
        hosts = [Host(name, lease.namespace(name), f"{SUBNET}.{number}") for number, name in enumerate(names, 1)]
        for host in hosts:
            iproute.call(["ip", "netns", "add", host.namespace])
            used = iproute.call(["ip", "netns", "exec", host.namespace, "sh", "-se"], settings).strip()
        sender, receiver = hosts
        link = f"link add {INTERFACE} type veth peer name {INTERFACE} netns {receiver.namespace}"
        iproute.batch("ip", sender.namespace, [link])
        for host in hosts:
            address = f"address add {host.address}/24 dev {INTERFACE}"
            iproute.batch("ip", host.namespace, ["link set lo up", address, f"link set {INTERFACE} up"])
        yield Pair(sender, receiver, used)
