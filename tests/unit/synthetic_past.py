# SPDX-License-Identifier: Apache-2.0
"""A past of one job for viewers: 40 iterations, the 36th held up, and frames of any of them."""

from dataclasses import replace

import numpy as np
from snapshot_example import example

from netmon.errors import DataError
from netmon.views import STEP_TIMES, Frame, GroupLine, PastSteps, RankSpan, RankTimes

BEGIN_NS = 1_795_255_900_000_000_000
USUAL_NS, SLOW_NS = 300_000_000, 590_000_000
SLOW = 36


class SyntheticPast:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def steps(self) -> PastSteps:
        rows = np.zeros(40, STEP_TIMES)
        rows["number"] = np.arange(40)
        rows["longest_ns"] = np.where(rows["number"] == SLOW, SLOW_NS, USUAL_NS)
        rows["end_ns"] = BEGIN_NS + np.cumsum(rows["longest_ns"])
        rows["start_ns"] = rows["end_ns"] - rows["longest_ns"]
        rows["baseline_ns"] = np.where(rows["number"] >= 5, USUAL_NS, 0)
        slow = rows[SLOW]
        verdict = replace(
            example().jobs[0].verdicts[0],
            iteration=SLOW,
            start_ns=int(slow["start_ns"]),
            end_ns=int(slow["end_ns"]),
            relative=False,
        )
        return PastSteps({"resnet": rows}, (verdict,), {"resnet": "resnet"})

    def frame(self, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        self.asked.append((number, since_ns, until_ns))
        if number == 0:
            raise DataError("cannot show iteration 0: its rows were cleaned away")
        full = example()
        columns = max(1, (until_ns - since_ns) // 1_000_000)
        links = tuple(
            replace(link, interval_ns=1_000_000, wire_bps=np.resize(link.wire_bps, (columns, 4))) for link in full.links
        )
        job_view = replace(full.jobs[0], iteration=number, relative=False, verdicts=self.steps().verdicts)
        return Frame(
            since_ns,
            until_ns,
            replace(full, time_ns=until_ns, links=links, jobs=(job_view,)),
            tuple(
                RankSpan(rank.rank, rank.host, since_ns, until_ns, since_ns + 100_000_000, until_ns - 5_000_000)
                for rank in full.jobs[0].ranks
            ),
            "rows of 1 ms, made up",
        )

    def times(self, job: str, number: int, end_ns: int) -> tuple[RankTimes, ...]:
        return tuple(
            RankTimes(rank.rank, rank.host, SLOW_NS, True, 100_000_000, 20_000_000, 0, 209_000_000, 261_000_000)
            for rank in example().jobs[0].ranks
        )

    def groups(self, job: str) -> list[GroupLine]:
        calls = "8 all-gathers (1 MB), 4 reduce-scatters (2 MB)"
        return [
            GroupLine("all ranks", "sharded data", "0–2", calls, "forward, backward", "32.5 ms, rank 2 100 ms", 32.5e6)
        ]
