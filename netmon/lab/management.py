# SPDX-License-Identifier: Apache-2.0
"""A second network between the hosts of a testbed and one more, the bus: off the links that are watched."""

from collections.abc import Sequence

from netmon.lab import iproute
from netmon.lab.lease import Lease
from netmon.lab.network import Host

_SUBNET = "198.19.0"  # of 198.18.0.0/15, too
_PORT = "mgmt0"


def connect_management(lease: Lease, hosts: Sequence[Host]) -> Host:
    """Build it; returns the host in the middle, which all others reach. It goes with the lease. Raises LabError."""
    bus = Host("bus", lease.namespace("bus"), f"{_SUBNET}.254")
    iproute.call(["ip", "netns", "add", bus.namespace])
    bridge = ["link add br0 type bridge stp_state 0", f"address add {bus.address}/24 dev br0", "link set br0 up"]
    iproute.batch("ip", bus.namespace, ["link set lo up", *bridge])
    for number, host in enumerate(hosts):
        pair = f"link add {_PORT} type veth peer name port{number} netns {bus.namespace}"
        address = f"address add {_SUBNET}.{number + 1}/24 dev {_PORT}"
        iproute.batch("ip", host.namespace, [pair, address, f"link set {_PORT} up"])
    iproute.batch("ip", bus.namespace, [f"link set port{n} master br0 up" for n in range(len(hosts))])
    return bus
