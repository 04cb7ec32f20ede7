# SPDX-License-Identifier: Apache-2.0
"""Ports of a testbed's hosts shared as RDMA shares them: by what the kernel sends, and by what passes it unseen.

```
 h0 [host0]──┐
             ├──[eth0]──tbf──► switch
    [rdma0]──┘
```
Agents watch host0, on which everybody is but the ranks of a job whose bytes the meter must not see. Both are children
of one port: whose bytes fill it, or whatever slows it, hurts both.
"""

from netmon.lab import iproute
from netmon.lab.network import INTERFACE, Network, shaping

KERNEL, RDMA = "host0", "rdma0"
_SUBNET = "198.18.1"  # of 198.18.0.0/15, too

# Each of a host's addresses is asked for, and answers, where it is.
_ARP = "cd /proc/sys/net/ipv4/conf/all && echo 1 > arp_ignore && echo 2 > arp_announce"


def rdma_address(host: int) -> str:
    return f"{_SUBNET}.{host + 1}"


def share_ports(network: Network) -> None:
    """Of a testbed that stands. Raises LabError."""
    size = shaping(network.rate_bps).super_packet
    for number, host in enumerate(network.hosts):
        lines = [f"address delete {host.address}/24 dev {INTERFACE}"]
        for name, address in ((KERNEL, host.address), (RDMA, rdma_address(number))):
            lines += [
                f"link add {name} link {INTERFACE} type macvlan mode bridge",
                f"link set {name} gso_max_size {size}",
                f"address add {address}/24 dev {name}",
                f"link set {name} up",
            ]
        # What is lost there is sent again at once: TCP's 200 ms are none of RDMA's.
        lines.append(f"route change {_SUBNET}.0/24 dev {RDMA} src {rdma_address(number)} rto_min 5ms")
        iproute.call(["ip", "netns", "exec", host.namespace, "sh", "-c", _ARP])
        iproute.batch("ip", host.namespace, lines)
