# SPDX-License-Identifier: Apache-2.0
"""Attaching the meter to interfaces beside whatever is there, and taking it away again.

Links (XDP, tcx) are held by a descriptor and vanish with the process. Where the kernel has no tcx, a filter is added
to clsact; the next start removes what a killed agent left of that kind (by its name), and nobody else's.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netmon.errors import KernelError
from netmon.kernel import libbpf
from netmon.kernel.loader import XDP_FRAGS
from netmon.records import Direction

if TYPE_CHECKING:  # 20 MB, needed only where there is no tcx
    from pyroute2 import IPRoute

_AT_HEAD = 1 << 3  # BPF_F_BEFORE without a relative: before all others, so that nobody's redirect blinds us
_XDP_MODE = {"xdp": 1 << 2, "xdpgeneric": 1 << 1}  # XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE

_CLSACT_PARENT = {Direction.RX: 0xFFFFFFF2, Direction.TX: 0xFFFFFFF3}
_CLSACT_PRIORITY = 1
_FILTER_NAME = "netmon"


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
            return Attachment(mode, _held(libbpf.link_create(program, index, libbpf.XDP, _XDP_MODE[mode])))
        except OSError as error:
            reason = error.strerror
    raise KernelError(f"cannot attach to {name} by {hook}: {reason}; use --hook tc")


def _attach_tcx(program: int, index: int, name: str, direction: Direction) -> Attachment:
    attach_type = libbpf.TCX_INGRESS if direction is Direction.RX else libbpf.TCX_EGRESS
    try:
        return Attachment("tcx", _held(libbpf.link_create(program, index, attach_type, _AT_HEAD)))
    except OSError as error:
        raise KernelError(f"cannot attach to {name} by tcx: {error.strerror}") from error


def _attach_clsact(program: int, index: int, name: str, direction: Direction) -> Attachment:
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    parent = _CLSACT_PARENT[direction]
    created = True
    try:
        with IPRoute() as route:
            try:
                route.tc("add", "clsact", index)
            except NetlinkError:  # it is there: then it is somebody's, and stays
                created = False
            _remove_ours(route, index, parent)
            route.tc(
                "add-filter", "bpf", index, fd=program, name=_FILTER_NAME, parent=parent, prio=_CLSACT_PRIORITY,
                classid=1, direct_action=True,
            )  # fmt: skip
    except NetlinkError as error:
        raise KernelError(f"cannot attach to {name}: clsact refused the filter ({error})") from error
    return Attachment("clsact", lambda: _detach_clsact(index, parent, created))


def _detach_clsact(index: int, parent: int, created: bool) -> None:
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with contextlib.suppress(NetlinkError), IPRoute() as route:
        _remove_ours(route, index, parent)
        others = any(list(route.get_filters(index=index, parent=p)) for p in _CLSACT_PARENT.values())
        if created and not others:
            route.tc("del", "clsact", index)


def _remove_ours(route: "IPRoute", index: int, parent: int) -> None:
    for message in _our_filters(route, index, parent):
        route.tc("del-filter", "bpf", index, parent=parent, prio=message["info"] >> 16, handle=message["handle"])


def _our_filters(route: "IPRoute", index: int, parent: int) -> Iterator[dict[str, int]]:
    for message in route.get_filters(index=index, parent=parent):
        options = message.get_attr("TCA_OPTIONS")
        if options is not None and options.get_attr("TCA_BPF_NAME") == _FILTER_NAME:
            yield message
