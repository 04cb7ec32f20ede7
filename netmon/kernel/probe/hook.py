# SPDX-License-Identifier: Apache-2.0
"""Where on an interface the meter goes, and why."""

from typing import NamedTuple

import netmon.kernel.probe.bpf as bpf
from netmon.errors import UnsupportedError
from netmon.kernel.nic import name_of
from netmon.kernel.probe.interfaces import InterfaceFacts, interface_facts

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

    XDP is used only when asked for: it takes the interface's only slot, may reset the link when it attaches, and on
    virtual interfaces undoes GRO. Where the slot is somebody's, it stays his, and tc is used.
    """
    tc = "tcx" if tcx else "clsact"
    if wanted != "xdp":
        return HookChoice(tc, tc, _tc_reason(tcx))
    if facts.xdp_program:
        holder = f"program {facts.xdp_program}" + (f" ({facts.xdp_name})" if facts.xdp_name else "")
        return HookChoice(tc, tc, f"the XDP slot is taken by {holder}")
    if facts.kind in _LINEARISING_KINDS:
        return HookChoice("xdp", tc, f"asked for; on {facts.kind} it undoes GRO and costs most of the rate")
    native, reason = _native(facts)
    return HookChoice("xdp" if native else "xdpgeneric", tc, f"asked for; {reason}")


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
    return "this kernel has no tcx (Linux 6.6 brought it); a filter of its own, beside what is there"


def choose_for(name: str, known_index: int, wanted: str) -> tuple[int, str, tuple[str, str], str]:
    """For an interface, by its index where that is known: it may be getting another name just now; 0: by its name.

    Returns its index, its name now, the hooks (rx, tx) as of choose_hook, and who has the XDP slot that was wanted; ""
    where it is free. Raises UnsupportedError.
    """
    fact = _found(name, known_index)
    choice = choose_hook(fact, tcx=bpf.has_tcx(), wanted=wanted)
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
