# SPDX-License-Identifier: Apache-2.0
"""How a frame is drawn, and what of a snapshot stands on it."""

import math
from dataclasses import dataclass, replace

from netmon.top.names import called
from netmon.top.staleness import present_flows
from netmon.views import Snapshot


@dataclass(frozen=True)
class Options:
    """How things look."""

    colour: bool = True
    bytes_: bool = False  # rates in byte/s instead of bit/s


def arrange(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the largest rates first, those that are not known last; jobs by their names."""
    snapshot = called(snapshot)
    flows = sorted(present_flows(snapshot), key=lambda view: (math.isnan(view.wire_bps), -view.wire_bps))
    return replace(snapshot, flows=tuple(flows))
