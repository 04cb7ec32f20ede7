# SPDX-License-Identifier: Apache-2.0
"""When jobs trained, on which hosts, and when anybody did: of any number of iterations in little memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from netmon.history.frames import groups
from netmon.report.cells import Ints

Span = tuple[int, int]


@dataclass
class TrainingTimes:
    """Spans in ns of UTC. starts, ends: disjoint and ascending; within them some iteration ran."""

    jobs: dict[str, Span] = field(default_factory=dict)
    hosts: dict[str, dict[str, Span]] = field(default_factory=dict)  # by host and job
    starts: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ends: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, iterations: pd.DataFrame) -> None:
        """Take in rows with host, job, start_ns and end_ns."""
        for (host, job), rows in groups(iterations, "host", "job"):
            span = int(rows["start_ns"].min()), int(rows["end_ns"].max())
            of_host = self.hosts.setdefault(str(host), {})
            for known in (of_host, self.jobs):
                before = known.get(str(job), span)
                known[str(job)] = min(before[0], span[0]), max(before[1], span[1])
        starts = np.concatenate([self.starts, iterations["start_ns"].to_numpy(np.int64)])
        ends = np.concatenate([self.ends, iterations["end_ns"].to_numpy(np.int64)])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        first = np.flatnonzero(np.r_[True, starts[1:] > ends[:-1]]) if len(starts) else np.empty(0, np.int64)
        self.starts, self.ends = starts[first], ends[np.r_[first[1:] - 1, len(ends) - 1]] if len(starts) else ends


def training_times(frames: Iterable[pd.DataFrame]) -> TrainingTimes:
    """Of all rows of the table `iterations`."""
    found = TrainingTimes()
    for frame in frames:
        found.add(frame)
    return found
