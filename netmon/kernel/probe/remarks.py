# SPDX-License-Identifier: Apache-2.0
"""What a reader of an interface's figures has to know about it."""

from collections.abc import Sequence

from netmon.kernel.probe.interfaces import InterfaceFacts, Program
from netmon.kernel.probe.xdp import XdpSupport

_METER = "meter_tc_"  # what the names of our programs for tc begin with


def remarks(facts: InterfaceFacts) -> list[str]:
    """A line each, the most misleading first. Pure."""
    found = []
    if facts.uppers:
        found.append(f"{', '.join(facts.uppers)} on top carries the same bytes: watch either, not both")
    if facts.gro and not facts.virtual:
        found.append("GRO: a received super-packet of up to 64 KB has one time stamp")
    if facts.lro:
        turn_off = f"ethtool -K {facts.name} lro off"
        found.append(f"LRO on: the NIC merges packets before any hook, one time stamp for many; {turn_off} ends that")
    if facts.xdp_program:
        holder = facts.xdp_holder or f"program {facts.xdp_program} ({facts.xdp_name or 'unnamed'})"
        found.append(f"XDP {holder} comes first: what it drops or redirects is not seen")
    chains = (("in", facts.tcx_rx), ("out", facts.tcx_tx))
    found += [_chain(direction, programs) for direction, programs in chains if programs]
    if not facts.virtual:
        found.append(_xdp(facts.xdp))
    if facts.rdma:
        found.append(f"RDMA device {', '.join(facts.rdma)}: its traffic is not attributed to flows")
    if not facts.capacity_bps:
        found.append("speed unknown: give --capacity")
    return found


def _chain(direction: str, programs: Sequence[Program]) -> str:
    names = [program.name or f"program {program.id}" for program in programs]
    line = f"tcx {direction}: {', then '.join(names)}"
    meters = [index for index, name in enumerate(names) if name.startswith(_METER)]
    if not meters:
        return f"{line}; the meter goes first"
    if meters[0] > 0:
        return f"{line}: what is dropped or redirected before the meter is not seen"
    return line


def _xdp(xdp: XdpSupport | None) -> str:
    if xdp is None:
        return "XDP: unknown (Linux 6.3 and later tell)"
    if not xdp.native:
        return "XDP: generic only, after the sk_buff is built: nothing is gained over tc"
    if not xdp.fragments:
        return "XDP: native, no fragments: a frame has to fit into a page (4 KiB: an MTU of about 3.5 kB)"
    return "XDP: native, also with frames in fragments"
