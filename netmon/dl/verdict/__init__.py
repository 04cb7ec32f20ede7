# SPDX-License-Identifier: Apache-2.0
"""Why an iteration took as long as it did: where its time went, whose bytes delayed it, and who was only present."""

from netmon.dl.verdict.evidence import CELL_NS, Link, LinkTotals, Steps, Whose, in_cells, no_link_totals
from netmon.dl.verdict.judge import (
    NOTABLE,
    judge,
    judge_input,
    matrix,
    standing_out,
    verdict_on,
    wanted_times,
    worth_reporting,
)
from netmon.dl.verdict.rank_times import most_relevant, path_of, rank_times, times_of
from netmon.dl.verdict.verdict_text import sentence

__all__ = [
    "CELL_NS",
    "NOTABLE",
    "Link",
    "LinkTotals",
    "Steps",
    "Whose",
    "in_cells",
    "judge",
    "judge_input",
    "matrix",
    "most_relevant",
    "no_link_totals",
    "path_of",
    "rank_times",
    "sentence",
    "standing_out",
    "times_of",
    "verdict_on",
    "wanted_times",
    "worth_reporting",
]
