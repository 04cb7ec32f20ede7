# SPDX-License-Identifier: Apache-2.0
"""The columns of a page's figures: what all hosts sent by class, and how long iterations took, in a time."""

import numpy as np

from netmon.errors import UsageError
from netmon.records import CLASS_NAMES
from netmon.web.columns import encode
from netmon.web.grid import DIRECTIONS
from netmon.web.lanes import JOB, Catalogue
from netmon.web.source import Source

_BINS = 240
_FINEST_NS = 1_000_000
_MOST_STEPS = 3_000  # of a job: of more, every so many-th is told
_MOST_JOBS = 6
_MOST_NS = 8 * 3_600_000_000_000


def figures(source: Source, catalogue: Catalogue, begin_ns: int, end_ns: int) -> bytes:
    """The message. Blocks. Raises UsageError for a time that is no page's."""
    if not 0 < end_ns - begin_ns <= _MOST_NS:
        raise UsageError("figures are of eight hours at most")
    width = max(_FINEST_NS, -(-(end_ns - begin_ns) // _BINS))
    bins = -(-(end_ns - begin_ns) // width)
    hosts = sorted({lane.host for lane in catalogue.lanes} - {""})
    sent = source.totals(hosts, begin_ns, width, bins).reshape(len(DIRECTIONS), len(CLASS_NAMES), bins)[1]
    known, _ = source.steps(begin_ns, end_ns)
    job, starts, took, held = [], [], [], []
    names: list[str] = []
    for at, lane in enumerate(catalogue.lanes):
        if lane.kind != JOB or len(names) == _MOST_JOBS:
            continue
        for steps in known:
            rows = steps.of(at, begin_ns, end_ns)
            every = slice(rows.start, rows.stop, max(1, -(-(rows.stop - rows.start) // _MOST_STEPS)))
            bounds, end = steps.bounds[every], steps.end_ns[every]
            job.append(np.full(len(end), len(names)))
            starts.append(bounds[:, 0] / 1e9)
            took.append(end - bounds[:, 0])
            held.append((bounds[:, 4] > bounds[:, 3]) & steps.known[every])
        names.append(catalogue.job_names.get(lane.job, lane.job))
    none = [np.empty(0)]
    return encode(
        {"jobs": names, "width_ns": width},
        {
            "rate_s": (begin_ns + width * np.arange(bins)) / 1e9,
            "rate_bps": (sent * (8e9 / width)).astype(np.float32).ravel(),
            "step_job": np.concatenate(job or none).astype(np.uint8),
            "step_s": np.concatenate(starts or none).astype(np.float64),
            "step_ns": np.concatenate(took or none).astype(np.float64),
            "step_held": np.concatenate(held or none).astype(np.uint8),
        },
    )
