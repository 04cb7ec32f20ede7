# SPDX-License-Identifier: Apache-2.0
"""What this machine can do: features are tried, kernel versions are never compared.

Probing leaves nothing behind: programs and maps that it loads are closed at once, and nothing is attached.
"""

from netmon.kernel.probe.check import Check, Status
from netmon.kernel.probe.hook import HookChoice, choose_hook
from netmon.kernel.probe.interfaces import InterfaceFacts, Interfaces, Program, interface_facts
from netmon.kernel.probe.machine import machine_checks
from netmon.kernel.probe.patterns import choose_interfaces
from netmon.kernel.probe.remarks import remarks
from netmon.kernel.probe.xdp import XdpSupport, xdp_support

__all__ = [
    "Check",
    "HookChoice",
    "InterfaceFacts",
    "Interfaces",
    "Program",
    "Status",
    "XdpSupport",
    "choose_hook",
    "choose_interfaces",
    "interface_facts",
    "machine_checks",
    "remarks",
    "xdp_support",
]
