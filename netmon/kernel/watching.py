# SPDX-License-Identifier: Apache-2.0
"""Interfaces that are watched for as long as the agent lives, though they may go, come back or change their name."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.loader import XDP_FRAGS
from netmon.kernel.nic import name_of
from netmon.kernel.privilege import because
from netmon.own_module import call_by_name
from netmon.records import KERNEL_INTERFACE, Direction

if TYPE_CHECKING:
    from pyroute2 import IPRoute

# --- Filters of clsact, where the kernel has no tcx (before Linux 6.6). They do not vanish with their process.
#
# So the next start removes what a killed agent left of that kind, which it knows by its name, and nobody else's.

_PARENT = {Direction.RX: 0xFFFFFFF2, Direction.TX: 0xFFFFFFF3}
_FILTER_NAME = "netmon"
_OF_OUR_QDISC = "netmon-clsact"
"""The name of a filter whose qdisc we have made: so the next start knows what a killed agent has left."""
_HANDLE = 0x6E6D  # not the first free one: others replace handle 1 of priority 1, whosever it is (Cilium does)
_ALL_PROTOCOLS = socket.htons(0x0003)  # ETH_P_ALL


def attach_filter(program: int, index: int, name: str, direction: Direction) -> Callable[[], None]:
    """Adds the program next to the existing ones; returns what takes it away again. Raises KernelError."""
    filters = _Filters(index, _PARENT[direction])
    try:
        ours = filters.add(program)
    except filters.refused as error:
        reason = f"{os.strerror(error.code)}{because(OSError(error.code, ''))}"
        raise KernelError(f"cannot attach to {name}: clsact refused the filter ({reason})") from error
    return lambda: filters.remove(ours)


class _Filters:
    """Those of one direction of an interface."""

    def __init__(self, index: int, parent: int) -> None:
        # 10 MB, for which kernels with tcx have no use.
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        self._open, self.refused, self._index, self._parent = IPRoute, NetlinkError, index, parent

    def add(self, program: int) -> bool:
        """Whether the qdisc is ours. Raises `refused`."""
        with self._open() as route:
            left = self._remove_ours(route)
            ours = self._make_clsact(route) or _OF_OUR_QDISC in left
            route.tc(
                "add-filter", "bpf", self._index, fd=program, name=_OF_OUR_QDISC if ours else _FILTER_NAME,
                parent=self._parent, prio=self._priority(route), handle=_HANDLE, classid=1, direct_action=True,
            )  # fmt: skip
        return ours

    def remove(self, ours: bool) -> None:
        """What `add` has added. ours: the qdisc, too, where nobody else has a filter in it."""
        with contextlib.suppress(self.refused), self._open() as route:
            self._remove_ours(route)
            if ours and not any(self._there(route, parent) for parent in _PARENT.values()):
                route.tc("del", "clsact", self._index)

    def _make_clsact(self, route: "IPRoute") -> bool:
        """Whether it had to be made: one that is there is somebody's, and stays."""
        try:
            route.tc("add", "clsact", self._index)
        except self.refused as error:
            if error.code == errno.EEXIST:
                return False
            raise
        return True

    def _priority(self, route: "IPRoute") -> int:
        """The first one, unless a filter of another kind or protocol has it: the kernel does not mix them."""
        there = self._there(route, self._parent)
        others = [(m["info"] >> 16, m["info"] & 0xFFFF, m.get_attr("TCA_KIND")) for m in there]
        barred = {priority for priority, protocol, kind in others if (protocol, kind) != (_ALL_PROTOCOLS, "bpf")}
        return next(priority for priority in count(1) if priority not in barred)

    def _remove_ours(self, route: "IPRoute") -> set[str]:
        """The names that they had."""
        names = set()
        for one in self._there(route, self._parent):
            options = one.get_attr("TCA_OPTIONS")
            name = options and options.get_attr("TCA_BPF_NAME")
            if name in (_FILTER_NAME, _OF_OUR_QDISC):
                which = {"parent": self._parent, "prio": one["info"] >> 16, "handle": one["handle"]}
                route.tc("del-filter", "bpf", self._index, **which)
                names.add(str(name))
        return names

    def _there(self, route: "IPRoute", parent: int) -> list[Any]:
        """Nothing where there is no clsact."""
        try:
            return [m for m in route.get_filters(index=self._index, parent=parent) if m["handle"]]
        except self.refused:
            return []


# --- Interfaces that are watched for as long as the agent lives, though they may go, come back or change their name.

# --- The kernel's table of watched interfaces: ifindex → the number under which the meter counts it.
#
# An interface that is removed and made again has another ifindex and keeps its number. Two interfaces never share an
# entry: the program compares the ifindex, and what finds no place here is refused.


_MOST_INTERFACES = 1024  # NETMON_INTERFACES
_PROBES = 4  # NETMON_PROBES


def number_interface(table: int, index: int, number: int) -> None:
    """table: descriptor of the map `interfaces`; number: from 1. To be called before a program is attached.

    Needs CAP_BPF. Raises KernelError.
    """
    entries = _near(table, index)
    indices = [position for wanted in (index, 0) for position, found in entries.items() if found == wanted]
    if not indices:
        raise KernelError(f"cannot number the interface with index {index}: {_PROBES} others have its slots")
    _write(table, indices[0], index, number)


def forget_interface(table: int, index: int) -> None:
    """Its ifindex may become another's. Nothing happens where it has no number. Raises KernelError."""
    for position, entry in _near(table, index).items():
        if entry == index:
            _write(table, position, 0, 0)


def _near(table: int, index: int) -> dict[int, int]:
    """The entries where the program looks for this ifindex: place → the ifindex that is there."""
    indices = [(index + probe) % _MOST_INTERFACES for probe in range(_PROBES)]
    return {position: int(_read(table, position)["index"]) for position in indices}


def _read(table: int, index: int) -> np.void:
    try:
        entry: np.void = np.frombuffer(
            bpf_calls.array_entry(table, index, KERNEL_INTERFACE.itemsize), KERNEL_INTERFACE
        )[0]
    except OSError as error:
        raise _unreachable(error) from error
    return entry


def _write(table: int, position: int, index: int, number: int) -> None:
    """A word of eight bytes: a program that runs meanwhile sees all of it or nothing."""
    try:
        bpf_calls.set_array_entry(table, position, np.array([(index, number)], KERNEL_INTERFACE).tobytes())
    except OSError as error:
        raise _unreachable(error) from error


def _unreachable(error: OSError) -> KernelError:
    return KernelError(f"cannot reach the table of interfaces: {error.strerror}")


# --- Attaching the meter to interfaces next to the programs already there, and detaching it.
#
# Links (XDP, tcx) belong to a descriptor and vanish with the process. Where the kernel has no tcx, a filter is
# added to clsact; the next start removes what a killed agent left of that kind (by its name), and nobody else's.

_AT_HEAD = 1 << 3  # BPF_F_BEFORE without a relative: before all others, so that nobody's redirect blinds us
_XDP_MODE = {"xdp": 1 << 2, "xdpgeneric": 1 << 1}  # XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE


@dataclass(frozen=True)
class Attachment:
    """One program on one link. detach is idempotent."""

    hook: str  # tcx, clsact, xdp, xdpgeneric
    detach: Callable[[], None]


def attach_program(programs: Mapping[str, int], index: int, name: str, hook: str, direction: Direction) -> Attachment:
    """hook: "tcx", "clsact", "xdp" or "xdpgeneric" (XDP only receives). Raises KernelError."""
    if hook.startswith("xdp"):
        return _attach_xdp(programs.get(XDP_FRAGS, programs["meter_xdp"]), index, name, hook)
    program = programs["meter_tc_ingress" if direction is Direction.RX else "meter_tc_egress"]
    if hook == "tcx":
        return _attach_tcx(program, index, name, direction)

    return Attachment("clsact", attach_filter(program, index, name, direction))


def _holding(descriptor: int) -> Callable[[], None]:
    stack = contextlib.ExitStack()
    stack.callback(os.close, descriptor)
    return stack.close


def _attach_xdp(program: int, index: int, name: str, hook: str) -> Attachment:
    """A driver may refuse its own mode for reasons of the moment (its queues, its offloads): then the generic one."""
    for mode in dict.fromkeys((hook, "xdpgeneric")):
        try:
            return Attachment(mode, _holding(bpf_calls.link_create(program, index, bpf_calls.XDP, _XDP_MODE[mode])))
        except OSError as error:
            reason = f"{error.strerror}{because(error)}"
            if error.errno == errno.EINVAL:
                reason += " (Linux 5.9 brought XDP links)"
    raise KernelError(f"cannot attach to {name} by {hook}: {reason}; use --hook tc")


def _attach_tcx(program: int, index: int, name: str, direction: Direction) -> Attachment:
    attach_type = bpf_calls.TCX_INGRESS if direction is Direction.RX else bpf_calls.TCX_EGRESS
    try:
        return Attachment("tcx", _holding(bpf_calls.link_create(program, index, attach_type, _AT_HEAD)))
    except OSError as error:
        raise KernelError(f"cannot attach to {name} by tcx: {error.strerror}{because(error)}") from error


# --- watching


log = logging.getLogger(__name__)

_CHOOSE = "netmon.kernel.interfaces:choose_for"  # needs libraries that a long-lived process does not want to keep


@dataclass
class WatchedInterface:
    """One interface. It is known by its index while it is there, and found again by the name it was requested by."""

    number: int  # from 1, stays when it is made again
    given_name: str
    wanted_hook: str  # as of choose_hook
    known_index: int = 0  # by which it is attached the first time, whatever its name is then; 0: by its name
    index: int = 0  # 0: it is not there
    name: str = ""  # now
    hooks: tuple[str, str] = ("", "")  # rx, tx
    _attached: list[Attachment] = field(default_factory=list)

    def attach(self, programs: Mapping[str, int]) -> None:
        """Attaches both directions. Raises UnsupportedError, KernelError; then nothing is attached."""
        index, name, hooks, holder = self._chosen()
        if holder:
            log.warning("cannot attach to %s by XDP: its slot is taken by %s; tc is used", name, holder)
        attached: list[Attachment] = []
        with contextlib.ExitStack() as undo:
            number_interface(programs["interfaces"], index, self.number)
            undo.callback(forget_interface, programs["interfaces"], index)
            for direction, hook in zip(Direction, hooks, strict=True):
                attachment = attach_program(programs, index, name, hook, direction)
                undo.callback(attachment.detach)
                attached.append(attachment)
            undo.pop_all()
        self.index, self.name = index, name
        self._attached = attached
        self.hooks = (attached[0].hook, attached[1].hook)

    def _chosen(self) -> tuple[int, str, tuple[str, str], str]:
        """As of choose_for. What was found a moment ago need not be looked up again, but for who has the XDP slot."""
        if self.wanted_hook != "xdp" and (name := name_of(self.known_index)):
            hook = "tcx" if bpf_calls.has_tcx() else "clsact"
            return self.known_index, name, (hook, hook), ""
        chosen: tuple[int, str, tuple[str, str], str] = call_by_name(
            _CHOOSE, self.given_name, self.known_index, self.wanted_hook
        )
        return chosen

    def follow(self, programs: Mapping[str, int]) -> None:
        """Takes in what has happened to it. Raises as attach does, when it is back and refuses."""
        if self.index:
            self.name = name_of(self.index)
            if not self.name:
                forget_interface(programs["interfaces"], self.index)
                self.detach()
        if not self.index and any(name == self.given_name for _, name in socket.if_nameindex()):
            self.attach(programs)

    def detach(self) -> None:
        """Takes the programs away, where the interface has not taken them with it."""
        self.index, self.name, self.known_index = 0, "", 0
        while self._attached:
            self._attached.pop().detach()
