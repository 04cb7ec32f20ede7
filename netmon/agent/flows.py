# SPDX-License-Identifier: Apache-2.0
"""New flow keys from the kernel → flows."""

from typing import Any

import numpy as np

from netmon.kernel.meter.meter import Drained
from netmon.records import Direction, Flow, address


def describe_flows(drained: Drained, now_ns: int) -> list[Flow]:
    """The flows that are new in this drain. One that has no closed bucket yet began just now."""
    count = len(drained.keys)
    if not count:
        return []
    first = np.full(count, now_ns, np.uint64)
    rows = drained.buckets[drained.buckets["flow_id"] >= drained.first_id]
    np.minimum.at(first, rows["flow_id"] - drained.first_id, rows["bucket_start_ns"])
    return [
        _flow(drained.first_id + i, key, first_ns)
        for i, (key, first_ns) in enumerate(zip(drained.keys.tolist(), first.tolist(), strict=True))
    ]


def _flow(flow_id: int, key: tuple[Any, ...], first_ns: int) -> Flow:
    src, dst, src_port, dst_port, link_protocol = key
    return Flow(
        flow_id=flow_id,
        interface=link_protocol >> 9,
        direction=Direction(link_protocol >> 8 & 1),
        src=address(src),
        dst=address(dst),
        src_port=src_port,
        dst_port=dst_port,
        protocol=link_protocol & 0xFF,
        first_ns=first_ns,
    )
