# SPDX-License-Identifier: Apache-2.0
"""One iteration alongside its baseline, and who was found to have delayed it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import Matrix
from netmon.dl.verdict.phases import StepTimes, moments
from netmon.dl.verdict.window import Window
from netmon.records import Table


@dataclass(frozen=True)
class Judged:
    """One iteration with all that is known of it."""

    job: str
    table: Matrix
    row: int
    baseline: npt.NDArray[np.intp]
    seen: Window | None
    references: Mapping[int, Window]
    waited: Table | None  # dtype WAITED

    @cached_property
    def moments(self) -> StepTimes:
        """When which rank did what, by marks and traffic."""
        return moments(self.table, self.row, self.seen, self.references)


class Culprit(NamedTuple):
    """Whose bytes held a transfer up."""

    cause: str  # as in SHARES
    name: str
    link: int  # of the window's, where most of it was
    ns: float
    most_ns: float  # that it may have been: not compared with what its bytes take on the link
    payload: float  # there


@dataclass(frozen=True)
class Blamed:
    """Whose bytes and which link held the transfer up."""

    culprits: tuple[Culprit, ...]  # most ns first
    links: tuple[int, ...]  # that were slow or dropped, by blame
