# SPDX-License-Identifier: Apache-2.0
"""Where on an interface the meter goes, and why."""

from typing import NamedTuple

from netmon.errors import UnsupportedError
from netmon.kernel.probe import bpf
from netmon.kernel.probe.interfaces import InterfaceFacts, interface_facts

# Drivers of physical NICs that run XDP before they build an sk_buff: for kernels that do not tell (before Linux 6.3).
NATIVE_XDP_DRIVERS = frozenset(
    {
        *("atlantic", "bnxt_en", "ena", "gve", "i40e", "iavf", "ice", "igb", "igc", "ixgbe", "ixgbevf"),
        *("mana", "mlx4_en", "mlx5_core", "nfp", "qede", "sfc", "thunderx_nicvf"),
    }
)
_LINEARISING_KINDS = frozenset({"veth"})


class HookChoice(NamedTuple):
    """rx: "tcx", "clsact", "xdp" or "xdpgeneric"; tx: "tcx" or "clsact", for XDP sees only what arrives."""

    rx: str
    tx: str
    reason: str


def choose_hook(facts: InterfaceFacts, *, tcx: bool, wanted: str = "auto") -> HookChoice:
    """The hooks for one interface. wanted: "auto", "tc" or "xdp"; tcx: whether the kernel has it. Pure.

    XDP is used only when asked for: it takes the interface's only slot, may reset the link when it attaches, and on
    virtual interfaces undoes GRO. Raises UnsupportedError when it is asked for and the slot is taken.
    """
    tc = "tcx" if tcx else "clsact"
    if wanted != "xdp":
        return HookChoice(tc, tc, _tc_reason(tcx))
    if facts.xdp_program:
        holder = f"program {facts.xdp_program}" + (f" ({facts.xdp_name})" if facts.xdp_name else "")
        raise UnsupportedError(f"cannot attach to {facts.name}: XDP slot taken by {holder}; use --hook tc")
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


def choose_for(name: str, wanted: str) -> tuple[int, tuple[str, str]]:
    """An interface's index and the hooks for it (rx, tx), as of choose_hook. Raises UnsupportedError."""
    facts = [fact for fact in interface_facts().watchable if fact.name == name]
    if not facts:
        raise UnsupportedError(f"cannot watch {name}: no such interface")
    choice = choose_hook(facts[0], tcx=bpf.has_tcx(), wanted=wanted)
    return facts[0].index, (choice.rx, choice.tx)
