# SPDX-License-Identifier: Apache-2.0
"""Which flow of one snapshot is which of another."""

from typing import NamedTuple

from netmon.views import FlowView


class FlowKey(NamedTuple):
    """What makes a flow the same flow in two snapshots."""

    host: str
    interface: str
    direction: int
    src: str
    src_port: int
    dst: str
    dst_port: int
    protocol: int


def flow_key(view: FlowView) -> FlowKey:
    """The 5-tuple on its link."""
    flow = view.flow
    source = f"{flow.src}/{flow.prefix_bits}" if flow.members else flow.src  # a /8 may begin as a /24 of its does
    end = (source, flow.src_port, flow.dst, flow.dst_port, flow.protocol)
    return FlowKey(view.host, view.interface, flow.direction, *end)
