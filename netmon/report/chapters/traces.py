# SPDX-License-Identifier: Apache-2.0
"""One iteration looked at closely."""

import pandas as pd

from netmon.report.exhibit import Chapter, Exhibit, Frames
from netmon.report.figures import traces as draw
from netmon.report.study import Study
from netmon.report.trace import middle, traces

_WIDE_GRID_NS, _MARGIN_NS = 1_000_000, 20_000_000
_CLOSE_GRID_NS, _CLOSE_NS = 200_000, 20_000_000


def _wide(study: Study) -> Frames:
    moment = middle(study)
    begin, end = int(moment.around["start_ns"].min()), int(moment.around["end_ns"].max())
    return _frames(study, begin - _MARGIN_NS, end + _MARGIN_NS, _WIDE_GRID_NS)


def _close(study: Study) -> Frames:
    begin = int(middle(study).ranks["start_ns"].min())
    return _frames(study, begin - _CLOSE_NS * 3, begin + _CLOSE_NS, max(_CLOSE_GRID_NS, study.bucket_ns))


def _frames(study: Study, begin_ns: int, end_ns: int, grid_ns: int) -> Frames:
    moment = middle(study)
    cut = traces(study, moment, begin_ns, end_ns, grid_ns)
    edges = moment.around[["run", "job", "iteration", "start_ns", "end_ns"]]
    origin = int(moment.ranks["start_ns"].min())
    relative = pd.DataFrame(
        {"start_ms": (edges["start_ns"] - origin) / 1e6, "end_ms": (edges["end_ns"] - origin) / 1e6}
    )
    return {
        "rates": cut.assign(time_ms=(cut["time_ns"] - origin) / 1e6, run=edges["run"].iloc[0]),
        "boundaries": pd.concat([edges, relative], axis=1),
    }


CHAPTER = Chapter(
    "One iteration, closely",
    (
        Exhibit(
            "trace",
            "Flows 1, 2 and 3 around an iteration",
            "thesis, figure 3-10",
            "Wire rate in intervals of 1 ms, in one clock. Lines: the iteration's start (its first rank's), time "
            "0, and those of its neighbours. Colours tell the node's class. The iteration in the middle of the "
            "run with the most cross traffic up to 80 %.",
            _wide,
            draw.trace,
        ),
        Exhibit(
            "trace-boundary",
            "The boundary of the same iteration",
            "thesis, figure 3-11",
            "The same in intervals of 0.2 ms, from 60 ms before the boundary to 20 ms after it. A packet that the "
            "hook saw as one has one time for all of its bytes, so short intervals may hold more than the link "
            "carries in them; what a host sends is counted before its own queue.",
            _close,
            draw.trace,
        ),
    ),
)
