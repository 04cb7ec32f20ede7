# SPDX-License-Identifier: Apache-2.0
"""Filters of clsact, where the kernel has no tcx (before Linux 6.6). They do not vanish with their process.

So the next start removes what a killed agent left of that kind, which it knows by its name, and nobody else's.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netmon.errors import KernelError
from netmon.kernel.privilege import because
from netmon.records import Direction

_PARENT = {Direction.RX: 0xFFFFFFF2, Direction.TX: 0xFFFFFFF3}
_FILTER_NAME = "netmon"
_OF_OUR_QDISC = "netmon-clsact"
"""The name of a filter whose qdisc we have made: so the next start knows what a killed agent has left."""
_HANDLE = 0x6E6D  # not the first free one: others replace handle 1 of priority 1, whosever it is (Cilium does)
_ALL_PROTOCOLS = socket.htons(0x0003)  # ETH_P_ALL


def attach_filter(program: int, index: int, name: str, direction: Direction) -> Callable[[], None]:
    """Adds the program beside what is there; returns what takes it away again. Raises KernelError."""
    parent = _PARENT[direction]
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
    return lambda: _detach(index, parent, ours)


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


def _detach(index: int, parent: int, ours: bool) -> None:
    with contextlib.suppress(NetlinkError), IPRoute() as route:
        _remove_ours(route, index, parent)
        others = any(_filters(route, index, parent_) for parent_ in _PARENT.values())
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
