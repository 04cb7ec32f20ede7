# SPDX-License-Identifier: Apache-2.0
"""Why an iteration took as long as it did: where its time went, whose bytes held it up, and who was only present."""

from netmon.dl.verdict.evidence import CELL_NS, Carried, Link, Steps, Whose, in_cells, nothing_carried
from netmon.dl.verdict.judge import (
    NOTABLE,
    judge,
    looked_at,
    matrix,
    standing_out,
    verdict_on,
    wanted_times,
    worth_telling,
)
from netmon.dl.verdict.rank_times import most_telling, path_of, rank_times, times_of
from netmon.dl.verdict.words import sentence

__all__ = [
    "CELL_NS",
    "NOTABLE",
    "Carried",
    "Link",
    "Steps",
    "Whose",
    "in_cells",
    "judge",
    "looked_at",
    "matrix",
    "most_telling",
    "nothing_carried",
    "path_of",
    "rank_times",
    "sentence",
    "standing_out",
    "times_of",
    "verdict_on",
    "wanted_times",
    "worth_telling",
]
