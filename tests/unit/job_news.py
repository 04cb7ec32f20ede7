# SPDX-License-Identifier: Apache-2.0
"""Traffic that was made up as the host stage tells it: each host is a session, at the place of its first flow."""

from collections.abc import Iterator

import numpy as np
from training_traffic import MS, START, Wire

from collector.messages import FlowUpdate, HostNews, flow_numbers
from netmon.dl.inference.types import TRAFFIC

SLICE_MS = 200


def numbered(wire: Wire) -> tuple[list[FlowUpdate], np.ndarray]:
    """All flows, and the number of each by its number on the wire."""
    places: dict[str, int] = {}
    told = []
    for number, flow in enumerate(wire.flows):
        place = places.setdefault(flow.host, len(places))
        told.append(FlowUpdate(flow_numbers(place, number), *vars(flow).values(), "", -1, False))
    return told, np.array([flow.flow for flow in told], np.int64)


def slices(wire: Wire) -> Iterator[HostNews]:
    """Every 200 ms; the flows are told first."""
    told, numbers = numbered(wire)
    rows = np.concatenate([*wire.tables, np.empty(0, TRAFFIC)])
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    rows["flow"] = numbers[rows["flow"]]
    last = int(rows["time_ns"][-1] - START)
    for now in range(0, last + SLICE_MS * MS, SLICE_MS * MS):
        low, high = np.searchsorted(rows["time_ns"], (START + now, START + now + SLICE_MS * MS))
        yield HostNews(flows=told if now == 0 else (), payload=rows[low:high], horizon_ns=START + now + SLICE_MS * MS)
