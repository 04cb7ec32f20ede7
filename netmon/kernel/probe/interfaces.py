# SPDX-License-Identifier: Apache-2.0
"""What there is to know about each interface before anything is attached to it."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.ethtool import Ethtool

from netmon.errors import UnsupportedError
from netmon.kernel import bpf_calls, nic
from netmon.kernel.probe.xdp import XdpSupport, xdp_support

# --- Whose a loaded program is: what the kernel and /proc report of those who hold it.

DISPATCHER = "xdp_dispatcher"
_PROC, _PINS = Path("/proc"), Path("/sys/fs/bpf")
_MOST_PINS = 1000
_MOST_NAMED = 3


def describe_program(program_id: int, name: str) -> str:
    """`program 17 (xdp_filter), held by xdp-loader[812]`. Reads /proc and /sys/fs/bpf; never raises."""
    line = f"program {program_id}" + (f" ({name})" if name else "")
    if name == DISPATCHER:
        line += ", libxdp's dispatcher for programs of others (xdp-loader status lists them)"
    holders = [*_processes(program_id), *_pins(program_id)]
    return line + (f", held by {', '.join(holders[:_MOST_NAMED])}" if holders else "")


def _processes(program_id: int) -> list[str]:
    """Those with a descriptor of the program, or of a link of it, as name[pid]."""
    found = []
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is not ours to look at
            links = {entry: os.readlink(process / "fd" / entry) for entry in os.listdir(process / "fd")}
            bpf = [entry for entry, target in links.items() if target.startswith("anon_inode:bpf")]
            if any(bpf_calls.program_of(str(process / "fdinfo" / entry)) == program_id for entry in bpf):
                found.append(f"{(process / 'comm').read_text().strip()}[{process.name}]")
    return found


def _pins(program_id: int) -> list[str]:
    """The paths below /sys/fs/bpf of the program, or of a link of it."""
    found = []
    paths = (os.path.join(index, file) for index, _, files in os.walk(_PINS) for file in files)
    for path in islice(paths, _MOST_PINS):
        with contextlib.suppress(OSError):
            if bpf_calls.pinned_program(path) == program_id:
                found.append(path)
    return found


# --- interfaces


_LOOPBACK_FLAG = 1 << 3  # IFF_LOOPBACK


@dataclass(frozen=True)
class Program:
    """A loaded BPF program. name: at most 15 characters of it, which is what the kernel keeps; empty: not known."""

    id: int
    name: str


@dataclass(frozen=True)
class InterfaceFacts:
    """One interface. kind: as `ip -d link` names virtual ones ("veth", "bond", …), "loopback", else empty."""

    index: int
    name: str
    kind: str
    driver: str  # empty: unknown
    mtu: int
    up: bool
    capacity_bps: int  # 0: unknown
    gro: bool
    tso: bool | None  # None: unknown
    lro: bool | None
    uppers: tuple[str, ...]  # bonds, bridges, VLANs on top: they carry the same bytes again
    xdp_program: int  # id of the program that holds the XDP slot; 0: free
    xdp_name: str
    xdp: XdpSupport | None  # None: the kernel does not report
    tcx_rx: tuple[Program, ...] | None  # in the order in which they run; None: no tcx, or no permission to ask
    tcx_tx: tuple[Program, ...] | None
    rdma: tuple[str, ...]  # RDMA devices of the same NIC
    xdp_holder: str = ""  # the XDP program in words, with who holds it; empty: the slot is free

    @property
    def virtual(self) -> bool:
        """Whether there is no NIC behind it."""
        return self.kind != ""


@dataclass(frozen=True)
class Interfaces:
    """All interfaces of a network namespace, by index."""

    watchable: tuple[InterfaceFacts, ...]
    refused: tuple[str, ...]  # why each of the others cannot be watched


def interface_facts() -> Interfaces:
    """Those of the caller's network namespace. Reads netlink and /sys; needs no privilege for most of it."""
    with IPRoute() as route:
        links = sorted(route.get_links(), key=lambda link: int(link["index"]))
    xdp = xdp_support()
    watchable, refused = [], []
    for link in links:
        try:
            watchable.append(_facts(link, links, xdp.get(int(link["index"]))))
        except UnsupportedError as error:
            refused.append(str(error))
    return Interfaces(tuple(watchable), tuple(refused))


def _facts(link: Any, links: Sequence[Any], xdp: XdpSupport | None) -> InterfaceFacts:
    name = str(link.get("ifname"))
    known = nic.describe(name)
    program = _xdp_program(link)
    features = _features(name)
    return InterfaceFacts(
        index=known.index,
        name=name,
        kind=_kind(link),
        driver=known.driver,
        mtu=known.mtu,
        up=link.get("operstate") in ("UP", "UNKNOWN"),
        capacity_bps=known.capacity_bps,
        gro=known.gro,
        tso=features.get("tx-tcp-segmentation"),
        lro=features.get("rx-lro"),
        uppers=_uppers(link, links),
        xdp_program=program,
        xdp_name=_program_name(program),
        xdp=xdp,
        tcx_rx=_tcx(known.index, bpf_calls.TCX_INGRESS),
        tcx_tx=_tcx(known.index, bpf_calls.TCX_EGRESS),
        rdma=_rdma(name),
        xdp_holder=describe_program(program, _program_name(program)) if program else "",
    )


def _kind(link: Any) -> str:
    if link["flags"] & _LOOPBACK_FLAG:
        return "loopback"
    information = link.get("linkinfo")
    return str((information and information.get("kind")) or "")


def _uppers(link: Any, links: Sequence[Any]) -> tuple[str, ...]:
    # A veth's IFLA_LINK is its peer, and a link in another namespace has only an index there: neither is an upper.
    index = link["index"]
    above = [
        other
        for other in links
        if other["index"] == link.get("master")
        or (other.get("link") == index and other.get("link_netnsid") is None and _kind(other) != "veth")
    ]
    return tuple(str(other.get("ifname")) for other in above)


def _xdp_program(link: Any) -> int:
    xdp = link.get_attr("IFLA_XDP")
    return int((xdp and xdp.get_attr("IFLA_XDP_PROG_ID")) or 0)


def _program_name(program: int) -> str:
    with contextlib.suppress(OSError):  # without privilege the id is all there is
        return bpf_calls.program_name(program) if program else ""
    return ""


def _tcx(index: int, attach_type: int) -> tuple[Program, ...] | None:
    with contextlib.suppress(OSError):
        return tuple(Program(id_, _program_name(id_)) for id_ in bpf_calls.attached_programs(index, attach_type))
    return None


def _features(name: str) -> dict[str, bool]:
    with contextlib.suppress(Exception), Ethtool() as ethtool:  # absent on old kernels, in many ways
        return {key: bool(feature.enable) for key, feature in ethtool.get_features(name).features.items()}
    return {}


def _rdma(name: str) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(sorted(entry.name for entry in Path(f"/sys/class/net/{name}/device/infiniband").iterdir()))
    return ()
