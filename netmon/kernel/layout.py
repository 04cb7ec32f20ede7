# SPDX-License-Identifier: Apache-2.0
"""The proof that bpf/netmon.h and the numpy dtypes of netmon.records say the same.

The dtypes are written out as static assertions and compiled together with the program: a field that moved on
either side is a compile error, and nothing is loaded.
"""

from typing import Any

import numpy as np

from netmon.records import (
    FLOW_KEY,
    KERNEL_BUCKET,
    KERNEL_CONSUMER,
    KERNEL_FLOW,
    KERNEL_INTERFACE,
    KERNEL_LEDGER,
    KERNEL_PRODUCER,
    SLOT,
    SOCKET_EVENT,
    STEP,
    STOP,
)

METER = {
    "netmon_flow_key": FLOW_KEY,
    "netmon_slot": SLOT,
    "netmon_flow": KERNEL_FLOW,
    "netmon_bucket": KERNEL_BUCKET,
    "netmon_interface": KERNEL_INTERFACE,
    "netmon_producer": KERNEL_PRODUCER,
    "netmon_consumer": KERNEL_CONSUMER,
    "netmon_ledger": KERNEL_LEDGER,
}
STEPS = {"netmon_step": STEP}
SOCKET_EVENTS = {"netmon_birth": SOCKET_EVENT}
STOPS = {"netmon_stop": STOP}


def assertions(structures: "dict[str, np.dtype[Any]]") -> str:
    """C source that compiles only where every structure has its dtype's size, fields, offsets and widths."""
    lines = []
    for struct, dtype in structures.items():
        assert dtype.fields is not None
        lines.append(_require(f"sizeof(struct {struct}) == {dtype.itemsize}", f"size of {struct}"))
        for name, (field, offset, *_) in dtype.fields.items():
            member = f"((struct {struct} *)0)->{name}"
            index = f"__builtin_offsetof(struct {struct}, {name}) == {offset}"
            lines.append(_require(f"{index} && sizeof({member}) == {field.itemsize}", f"{struct}.{name}"))
    return "\n".join(lines) + "\n"


def _require(condition: str, what: str) -> str:
    return f'_Static_assert({condition}, "bpf/netmon.h and netmon/records.py differ: {what}");'
