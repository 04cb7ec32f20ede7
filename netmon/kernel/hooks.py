# SPDX-License-Identifier: Apache-2.0
"""Attaching the meter to interfaces beside whatever is there, and taking it away again.

Links (XDP, tcx) are held by a descriptor and vanish with the process. Where the kernel has no tcx, a filter is added
to clsact; the next start removes what a killed agent left of that kind (by its name), and nobody else's.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.loader import XDP_FRAGS
from netmon.kernel.refusal import because
from netmon.records import Direction

_AT_HEAD = 1 << 3  # BPF_F_BEFORE without a relative: before all others, so that nobody's redirect blinds us
_XDP_MODE = {"xdp": 1 << 2, "xdpgeneric": 1 << 1}  # XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE

_CLSACT_PARENT = {Direction.RX: 0xFFFFFFF2, Direction.TX: 0xFFFFFFF3}
_FILTER_NAME = "netmon"
_OF_OUR_QDISC = "netmon-clsact"
"""The name of a filter whose qdisc we have made: so the next start knows what a killed agent has left."""
_HANDLE = 0x6E6D  # not the first free one: others replace handle 1 of priority 1, whosever it is (Cilium does)
_ALL_PROTOCOLS = socket.htons(0x0003)  # ETH_P_ALL


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
    attach_tc = _attach_tcx if hook == "tcx" else _attach_clsact
    return attach_tc(program, index, name, direction)


def _held(descriptor: int) -> Callable[[], None]:
    stack = contextlib.ExitStack()
    stack.callback(os.close, descriptor)
    return stack.close


def _attach_xdp(program: int, index: int, name: str, hook: str) -> Attachment:
    """A driver may refuse its own mode for reasons of the moment (its queues, its offloads): then the generic one."""
    for mode in dict.fromkeys((hook, "xdpgeneric")):
        try:
            return Attachment(mode, _held(bpf_calls.link_create(program, index, bpf_calls.XDP, _XDP_MODE[mode])))
        except OSError as error:
            reason = f"{error.strerror}{because(error)}"
            if error.errno == errno.EINVAL:
                reason += " (Linux 5.9 brought XDP links)"
    raise KernelError(f"cannot attach to {name} by {hook}: {reason}; use --hook tc")


def _attach_tcx(program: int, index: int, name: str, direction: Direction) -> Attachment:
    attach_type = bpf_calls.TCX_INGRESS if direction is Direction.RX else bpf_calls.TCX_EGRESS
    try:
        return Attachment("tcx", _held(bpf_calls.link_create(program, index, attach_type, _AT_HEAD)))
    except OSError as error:
        raise KernelError(f"cannot attach to {name} by tcx: {error.strerror}{because(error)}") from error


def _attach_clsact(program: int, index: int, name: str, direction: Direction) -> Attachment:
    parent = _CLSACT_PARENT[direction]
    try:
        with IPRoute() as route:
            left = _remove_ours(route, index, parent)
            ours = _make_clsact(route, index) or _OF_OUR_QDISC in left
            route.tc(
                "add-filter", "bpf", index, fd=program, name=_OF_OUR_QDISC if ours else _FILTER_NAME, parent=parent,
                prio=_priority(route, index, parent), handle=_HANDLE, classid=1, direct_action=True,
            )  # fmt: skip
    except NetlinkError as error:
        reason = f"{os.strerror(error.code)}{because(OSError(error.code, ''))}"
        raise KernelError(f"cannot attach to {name}: clsact refused the filter ({reason})") from error
    return Attachment("clsact", lambda: _detach_clsact(index, parent, ours))


def _make_clsact(route: IPRoute, index: int) -> bool:
    """Whether it had to be made: one that is there is somebody's, and stays."""
    try:
        route.tc("add", "clsact", index)
    except NetlinkError as error:
        if error.code == errno.EEXIST:
            return False
        raise
    return True


def _priority(route: IPRoute, index: int, parent: int) -> int:
    """The first one, unless a filter of another kind or protocol has it: the kernel does not mix them."""
    others = [(m["info"] >> 16, m["info"] & 0xFFFF, m.get_attr("TCA_KIND")) for m in _filters(route, index, parent)]
    barred = {priority for priority, protocol, kind in others if (protocol, kind) != (_ALL_PROTOCOLS, "bpf")}
    return next(priority for priority in count(1) if priority not in barred)


def _detach_clsact(index: int, parent: int, ours: bool) -> None:
    with contextlib.suppress(NetlinkError), IPRoute() as route:
        _remove_ours(route, index, parent)
        others = any(_filters(route, index, parent_) for parent_ in _CLSACT_PARENT.values())
        if ours and not others:
            route.tc("del", "clsact", index)


def _remove_ours(route: IPRoute, index: int, parent: int) -> set[str]:
    """The names that they had."""
    names = set()
    for message in _filters(route, index, parent):
        options = message.get_attr("TCA_OPTIONS")
        name = options and options.get_attr("TCA_BPF_NAME")
        if name in (_FILTER_NAME, _OF_OUR_QDISC):
            route.tc("del-filter", "bpf", index, parent=parent, prio=message["info"] >> 16, handle=message["handle"])
            names.add(str(name))
    return names


def _filters(route: IPRoute, index: int, parent: int) -> list[Any]:
    """What is there; nothing where there is no clsact."""
    try:
        return [m for m in route.get_filters(index=index, parent=parent) if m["handle"]]
    except NetlinkError:
        return []
