# SPDX-License-Identifier: Apache-2.0
"""What there is to know about each interface before anything is attached to it, and where on it the meter goes."""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pyroute2 import IPRoute
from pyroute2.ethtool import Ethtool
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket, GenericNetlinkSocket

from netmon.errors import UnsupportedError
from netmon.kernel import bpf_calls, nic
from netmon.kernel.nic import Nic, name_of

_FAMILY, _DEV_GET = "netdev", 1
_BASIC, _HW_OFFLOAD, _RX_SG = 1 << 0, 1 << 4, 1 << 5  # enum netdev_xdp_act


@dataclass(frozen=True)
class XdpSupport:
    """What one driver does. Generic XDP, which runs on finished sk_buffs, is there on every interface."""

    native: bool
    offload: bool  # programs can run on the NIC itself
    fragments: bool  # native programs are given frames that do not fit into one page


class _Device(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    nla_map = ((1, "NETDEV_A_DEV_IFINDEX", "uint32"), (3, "NETDEV_A_DEV_XDP_FEATURES", "uint64"))


class _QuietAsyncSocket(AsyncGenericNetlinkSocket):  # type: ignore[misc]
    module_err_level = "debug"  # that there is no such family is an answer, not an error to be logged


class _QuietSocket(GenericNetlinkSocket):  # type: ignore[misc]
    async_class = _QuietAsyncSocket


def xdp_support() -> dict[int, XdpSupport]:
    """That of every interface of the caller's network namespace, by index; empty where the kernel does not report.

    Needs no privilege.
    """
    found = {}
    with contextlib.suppress(Exception), _QuietSocket() as netlink:  # absent on old kernels, in many ways
        netlink.bind(_FAMILY, _Device)
        request = _Device()
        request["cmd"], request["version"] = _DEV_GET, 1
        for device in netlink.nlm_request(request, msg_type=netlink.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP):
            features = device.get_attr("NETDEV_A_DEV_XDP_FEATURES")
            if features is not None:
                found[int(device.get_attr("NETDEV_A_DEV_IFINDEX"))] = _support(features)
    return found


def _support(features: int) -> XdpSupport:
    return XdpSupport(bool(features & _BASIC), bool(features & _HW_OFFLOAD), bool(features & _RX_SG))


# --- What there is to know about each interface before anything is attached to it.

# --- Whose a loaded program is: what the kernel and /proc report of those who hold it.

DISPATCHER = "xdp_dispatcher"
_PROC, _PINS = Path("/proc"), Path("/sys/fs/bpf")
_MOST_PINS = 1000
_MOST_NAMED = 3


def describe_program(program_id: int, name: str) -> str:
    """`program 17 (xdp_filter), loaded by xdp-loader[812]`. Reads /proc and /sys/fs/bpf; never raises."""
    line = f"program {program_id}" + (f" ({name})" if name else "")
    if name == DISPATCHER:
        line += ", libxdp's dispatcher for programs of others (xdp-loader status lists them)"
    holders = [*_processes(program_id), *_pins(program_id)]
    return line + (f", loaded by {', '.join(holders[:_MOST_NAMED])}" if holders else "")


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
    tcx_rx: tuple[Program, ...] | None  # in the order in which they run; None: no tcx, or no permission to query it
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


# --- Which interfaces are meant by names, patterns and `physical`.

PHYSICAL = "physical"
_CLASS = Path("/sys/class/net")
_PATTERN = re.compile(r"[*?\[]")
_REPRESENTOR = re.compile(r"pf\d+(vf|sf)\d+$")  # phys_port_name of a switch port that leads to a virtual function


class Chosen(NamedTuple):
    """names: each once, in the order in which they were requested; remarks: what would mislead, a line each."""

    names: tuple[str, ...]
    remarks: tuple[str, ...]


def choose_interfaces(wanted: Sequence[str], there: Sequence[InterfaceFacts]) -> Chosen:
    """wanted: names, patterns such as `ens*f?np*`, and `physical`; there: the watchable ones.

    A pattern leaves the loopback out. `physical` means those with a device behind them, but neither virtual functions,
    nor switch ports that lead to them, nor the lower one of two that carry the same bytes. A plain name is taken as it
    is. Raises UnsupportedError for what matches nothing.
    """
    names: dict[str, None] = {}
    for each in wanted:
        names |= dict.fromkeys(_meant_by(each, there))
    return Chosen(tuple(names), tuple(_twice_counted(names, there)))


def choose(wanted: Sequence[str]) -> tuple[list[Nic], tuple[str, ...]]:
    """Chosen, of the interfaces that there are; what is returned is read where this module is not imported.

    Raises UnsupportedError.
    """
    chosen = choose_interfaces(wanted, interface_facts().watchable)
    return [nic.describe(name) for name in chosen.names], chosen.remarks


def _meant_by(wanted: str, there: Sequence[InterfaceFacts]) -> list[str]:
    known = [facts.name for facts in there]
    if wanted in known:
        return [wanted]
    if wanted == PHYSICAL:
        found = physical_interfaces(there)
    elif _PATTERN.search(wanted):
        found = [facts.name for facts in there if facts.kind != "loopback" and fnmatchcase(facts.name, wanted)]
    else:
        return [wanted]  # whoever describes it says what is wrong with it
    if not found:
        raise UnsupportedError(f"cannot watch {wanted!r}: no interface matches; there are {', '.join(sorted(known))}")
    return found


def physical_interfaces(there: Sequence[InterfaceFacts], sys_class: Path = _CLASS) -> list[str]:
    """The names of those that `physical` means. sys_class: where the kernel describes them."""
    real = [facts for facts in there if _has_its_own_wire(sys_class / facts.name)]
    names = {facts.name for facts in real}
    return [facts.name for facts in real if not names.intersection(facts.uppers)]


def _has_its_own_wire(index: Path) -> bool:
    if not (index / "device").exists() or (index / "device/physfn").exists():
        return False
    try:
        port = (index / "phys_port_name").read_text().strip()
    except OSError:  # most drivers have no name for it
        return True
    return not _REPRESENTOR.search(port)


def _twice_counted(names: "dict[str, None]", there: Sequence[InterfaceFacts]) -> list[str]:
    pairs = [(upper, facts.name) for facts in there if facts.name in names for upper in facts.uppers if upper in names]
    return [
        f"{upper} and {lower} carry the same bytes and are both watched: they count twice" for upper, lower in pairs
    ]


# --- What a reader of an interface's figures has to know about it.

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
        return "XDP: unknown (Linux 6.3 and later report it)"
    if not xdp.native:
        return "XDP: generic only, after the sk_buff is built: nothing is gained over tc"
    if not xdp.fragments:
        return "XDP: native, no fragments: a frame has to fit into a page (4 KiB: an MTU of about 3.5 kB)"
    return "XDP: native, also with frames in fragments"


# --- Where on an interface the meter goes, and why.

# Drivers of physical NICs that run XDP before they build an sk_buff: for kernels that do not report (before Linux 6.3).
NATIVE_XDP_DRIVERS = frozenset(
    {
        *("atlantic", "bnxt_en", "ena", "gve", "i40e", "iavf", "ice", "igb", "igc", "ixgbe", "ixgbevf"),
        *("mana", "mlx4_en", "mlx5_core", "nfp", "qede", "sfc", "thunderx_nicvf"),
    }
)
_LOOKS = 10  # at an interface whose name changes between two questions about it
_LINEARISING_KINDS = frozenset({"veth"})


class HookChoice(NamedTuple):
    """rx: "tcx", "clsact", "xdp" or "xdpgeneric"; tx: "tcx" or "clsact", for XDP sees only what arrives."""

    rx: str
    tx: str
    reason: str


def choose_hook(facts: InterfaceFacts, *, tcx: bool, wanted: str = "auto") -> HookChoice:
    """The hooks for one interface. wanted: "auto", "tc" or "xdp"; tcx: whether the kernel has it. Pure.

    XDP is used only on request: it takes the interface's only slot, may reset the link when it attaches, and on
    virtual interfaces undoes GRO. Where the slot is somebody's, it stays his, and tc is used.
    """
    tc = "tcx" if tcx else "clsact"
    if wanted != "xdp":
        return HookChoice(tc, tc, _tc_reason(tcx))
    if facts.xdp_program:
        holder = f"program {facts.xdp_program}" + (f" ({facts.xdp_name})" if facts.xdp_name else "")
        return HookChoice(tc, tc, f"the XDP slot is taken by {holder}")
    if facts.kind in _LINEARISING_KINDS:
        return HookChoice("xdp", tc, f"requested; on {facts.kind} it undoes GRO and costs most of the rate")
    native, reason = _native(facts)
    return HookChoice("xdp" if native else "xdpgeneric", tc, f"requested; {reason}")


def _native(facts: InterfaceFacts) -> tuple[bool, str]:
    """Whether the driver runs XDP itself, and who says so."""
    driver = facts.driver or facts.kind or "its driver"
    if facts.xdp is not None:
        verb = "runs" if facts.xdp.native else "does not run"
        return facts.xdp.native, f"{driver} {verb} it natively, says the kernel"
    if facts.driver in NATIVE_XDP_DRIVERS:
        return True, f"{driver} runs it natively"
    return False, f"{driver} is not known to run it natively"


def _tc_reason(tcx: bool) -> str:
    if tcx:
        return "keeps the interface's speed, shares the hook with others, vanishes with the process"
    return "this kernel has no tcx (Linux 6.6 brought it); a filter of its own, next to the existing ones"


def choose_for(name: str, known_index: int, wanted: str) -> tuple[int, str, tuple[str, str], str]:
    """For an interface, by its index where that is known: it may be getting another name just now; 0: by its name.

    Returns its index, its name now, the hooks (rx, tx) as of choose_hook, and who has the XDP slot that was wanted; ""
    where it is free. Raises UnsupportedError.
    """
    fact = _found(name, known_index)
    choice = choose_hook(fact, tcx=bpf_calls.has_tcx(), wanted=wanted)
    holder = fact.xdp_holder if wanted == "xdp" and fact.xdp_program else ""
    return fact.index, fact.name, (choice.rx, choice.tx), holder


def _found(name: str, known_index: int) -> InterfaceFacts:
    for _ in range(_LOOKS):
        there = interface_facts()
        for fact in there.watchable:
            if fact.index == known_index or (not known_index and fact.name == name):
                return fact
        if not name_of(known_index):
            break
    why = next((line for line in there.refused if f" {name}:" in line), "")
    raise UnsupportedError(why or f"cannot watch {name}: no such interface")
