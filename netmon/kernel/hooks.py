# SPDX-License-Identifier: Apache-2.0
"""Attaching the meter to interfaces beside whatever is there, and taking it away again.

Links (XDP, tcx) are held by a descriptor and vanish with the process. Where the kernel has no tcx, a filter is added
to clsact; the next start removes what a killed agent left of that kind (by its name), and nobody else's.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.loader import XDP_FRAGS
from netmon.kernel.refusal import because
from netmon.records import Direction

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
    from netmon.kernel.clsact import attach_filter  # with a library that takes 20 MB

    return Attachment("clsact", attach_filter(program, index, name, direction))


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
