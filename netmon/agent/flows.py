# SPDX-License-Identifier: Apache-2.0
"""New flow keys from the kernel, and aggregates of what is not described one by one → flows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import Aggregate
from netmon.kernel.meter.meter import Drained
from netmon.records import Direction, Flow, Owner, address

_AGAIN_NS = 60_000_000_000
"""An aggregate with traffic is described at least so often: a collector forgets what was silent for long."""
_GROWN_NS = 1_000_000_000  # and at most so often, as it gets members


def describe_flows(drained: Drained, now_ns: int) -> list[Flow]:
    """The flows that are new in this drain. One that has no closed bucket yet began just now."""
    ids = drained.new.ids  # ascending
    if not len(ids):
        return []
    first = np.full(len(ids), now_ns, np.uint64)
    rows = drained.buckets[drained.buckets["flow_id"] >= ids[0]]
    index = np.searchsorted(ids, rows["flow_id"]).clip(0, len(ids) - 1)
    own = ids[index] == rows["flow_id"]
    np.minimum.at(first, index[own], rows["bucket_start_ns"][own])
    return [
        _flow(flow_id, key, first_ns)
        for flow_id, key, first_ns in zip(ids.tolist(), drained.new.keys.tolist(), first.tolist(), strict=True)
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


class AggregateFlows:
    """The aggregates as flows, described when they have traffic and there is something new to say."""

    def __init__(self, aggregates: dict[int, Aggregate]) -> None:
        """aggregates: by id, as they come to be."""
        self._aggregates = aggregates
        self._said: dict[int, tuple[int, Flow]] = {}  # when, and what

    def described(self, seen: npt.NDArray[np.uint32], now_ns: int, last: bool = False) -> list[Flow]:
        """seen: the distinct flow ids of a batch's rows → the aggregates among them that are to be described.

        last: no batch will follow, so that all that have grown since they were described are.
        """
        if not self._aggregates:
            return []
        known = np.fromiter(self._aggregates, np.uint32, len(self._aggregates))
        due = set(known[np.isin(known, seen)].tolist())
        if last:
            due |= self._said.keys() & self._aggregates.keys()
        return [flow for i in sorted(due) if (flow := self._describe(i, now_ns, last))]

    def _describe(self, flow_id: int, now_ns: int, last: bool) -> Flow | None:
        aggregate = self._aggregates[flow_id]
        said_ns, flow = self._said.get(flow_id, (0, None))
        grown = flow is None or flow.members != max(1, aggregate.members)
        if flow and now_ns - said_ns < (_GROWN_NS if grown else _AGAIN_NS) and not (grown and last):
            return None
        flow = _aggregate_flow(aggregate, flow.first_ns if flow else now_ns)
        self._said[flow_id] = now_ns, flow
        return flow


def _aggregate_flow(aggregate: Aggregate, first_ns: int) -> Flow:
    direction = Direction(aggregate.link_protocol >> 8 & 1)
    remote = address(aggregate.address)
    local = "::" if ":" in remote else "0.0.0.0"
    sends = direction is Direction.TX
    return Flow(
        flow_id=aggregate.flow_id,
        interface=aggregate.link_protocol >> 9,
        direction=direction,
        src=local if sends else remote,
        dst=remote if sends else local,
        src_port=aggregate.local_port if sends else aggregate.remote_port,
        dst_port=aggregate.remote_port if sends else aggregate.local_port,
        protocol=aggregate.link_protocol & 0xFF,
        first_ns=first_ns,
        owner=Owner(),
        members=max(1, aggregate.members),
        prefix_bits=aggregate.prefix_bits,
    )


# --- The flows and steps that are under way.

_IDLE_NS = 300_000_000_000
"""A flow so long without a packet is over for the agent."""
_SWEEP_NS = 10_000_000_000

_MANY = 5_000
"""With more flows than that, the others than training's are over sooner."""
_CROWDED_IDLE_NS = 10_000_000_000
_CROWDED_SWEEP_NS = 2_000_000_000


class RecentFlows:
    """When each flow was last seen."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}
        self._sweep_ns = 0

    def over(self, seen: npt.NDArray[np.uint32], now_ns: int, known: Mapping[int, Flow]) -> list[int]:
        """seen: (n,) distinct, of the rows just sent → those of the known flows that have been idle for too long.

        An aggregate is never over: its members keep their slots, and the next packet of one is a row of it.
        """
        self._seen_ns.update(dict.fromkeys(seen.tolist(), now_ns))
        crowded = len(known) > _MANY
        if now_ns < self._sweep_ns - (_SWEEP_NS - _CROWDED_SWEEP_NS) * crowded:
            return []
        self._sweep_ns = now_ns + _SWEEP_NS
        idle = {i: now_ns - self._seen_ns.setdefault(i, now_ns) for i, flow in known.items() if not flow.members}
        over = [i for i, ns in idle.items() if ns > _IDLE_NS]
        if crowded:
            over = [i for i, ns in idle.items() if ns > (_IDLE_NS if known[i].owner.job else _CROWDED_IDLE_NS)]
        for flow_id in over:
            del self._seen_ns[flow_id]
        return over


def distinct_ids(flow_ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Of (n,) rows, ascending. Ids are dense: marking them in an array of their range is cheaper than sorting them."""
    if not len(flow_ids):
        return np.zeros(0, np.uint32)
    least = int(flow_ids.min())
    if int(flow_ids.max()) - least > 100 * len(flow_ids) + _MANY:  # old flows alongside new ones
        return np.unique(flow_ids)
    seen = np.zeros(int(flow_ids.max()) - least + 1, bool)
    seen[flow_ids - np.uint32(least)] = True
    return (np.flatnonzero(seen) + least).astype(np.uint32)
