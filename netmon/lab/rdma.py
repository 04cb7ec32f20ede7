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

# Below 128 bytes of IPv4, to one of these addresses: length at 16, destination's third byte at 32, of the frame.
_SMALL = "6,40 0 0 16,53 3 0 128,48 0 0 32,21 0 1 1,6 0 0 4294967295,6 0 0 0"

# Each of a host's addresses is asked for, and answers, where it is.
_ARP = "cd /proc/sys/net/ipv4/conf/all && echo 1 > arp_ignore && echo 2 > arp_announce"


def rdma_address(host: int) -> str:
    return f"{_SUBNET}.{host + 1}"


def share_ports(network: Network) -> None:
    """Of a testbed that stands. Raises LabError."""
    shape = shaping(network.rate_bps)
    size = shape.super_packet
    # As RDMA's NICs do, acknowledgements pass what a host has in its queue.
    queues = [
        f"qdisc replace dev {INTERFACE} root handle 1: tbf rate {network.rate_bps}bit burst {shape.burst_bytes} "
        f"limit {shape.host_limit}",
        f"qdisc add dev {INTERFACE} parent 1:1 handle 2: htb default 2",
        *(
            f"class add dev {INTERFACE} parent 2: classid 2:{number} htb rate 10gbit quantum 60000 prio {number}"
            for number in (1, 2)
        ),
        f"qdisc add dev {INTERFACE} parent 2:2 bfifo limit {shape.host_limit}",
        f'filter add dev {INTERFACE} parent 2: protocol ip bpf bytecode "{_SMALL}" flowid 2:1',
    ]
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
        iproute.batch("tc", host.namespace, queues)
