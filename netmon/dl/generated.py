# SPDX-License-Identifier: Apache-2.0
"""The traffic of a training job as a generator: phases, sizes and gaps, and how they are written down.

The JSON document: `format`, `job`, `ranks`, `iteration_ns` (median of the recording), `phases`, each a list of
`[from rank, to rank, bytes]`, `gaps_ns[iteration][phase][rank]`, from the end of the phase before, or the iteration's
start, until the rank sends, and `after_ns[iteration][rank]`, from the last phase to the iteration's end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError

FORMAT = "netmon generator 1"
_MOST_RANKS, _MOST_PHASES, _MOST_BYTES = 4096, 10_000, 1 << 40


@dataclass(frozen=True)
class Phase:
    """What ranks send to each other: (from, to) → payload bytes."""

    bytes: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Generator:
    """Of one job. Times in ns."""

    job: str
    ranks: int
    phases: tuple[Phase, ...]
    gaps_ns: npt.NDArray[np.int64]  # (iterations, phases, ranks)
    after_ns: npt.NDArray[np.int64]  # (iterations, ranks)
    iteration_ns: int

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "job": self.job,
            "ranks": self.ranks,
            "iteration_ns": self.iteration_ns,
            "phases": [[[a, b, size] for (a, b), size in sorted(phase.bytes.items())] for phase in self.phases],
            "gaps_ns": self.gaps_ns.tolist(),
            "after_ns": self.after_ns.tolist(),
        }


def read_generator(document: Any, name: str) -> Generator:
    """The reverse of `document`. name: of the file. Raises DataError for what is none."""
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
        ranks = int(document["ranks"])
        phases = tuple(Phase({(int(a), int(b)): int(size) for a, b, size in phase}) for phase in document["phases"])
        gaps, after = (np.array(document[key], np.int64) for key in ("gaps_ns", "after_ns"))
        if not (2 <= ranks <= _MOST_RANKS and 1 <= len(phases) <= _MOST_PHASES):
            raise ValueError(f"{ranks} ranks and {len(phases)} phases")
        if gaps.ndim != 3 or gaps.shape[1:] != (len(phases), ranks) or after.shape != (len(gaps), ranks):
            raise ValueError("the gaps are not one for each iteration, phase and rank")
        if not len(gaps) or gaps.min() < 0 or after.min() < 0:
            raise ValueError("there are no gaps, or negative ones")
        ends = [pair for phase in phases for pair in phase.bytes]
        if any(not (0 <= a < ranks and 0 <= b < ranks and a != b) for a, b in ends):
            raise ValueError("a rank sends to one that does not exist, or to itself")
        if any(not 0 < size < _MOST_BYTES for phase in phases for size in phase.bytes.values()):
            raise ValueError("a size is none")
        return Generator(str(document["job"]), ranks, phases, gaps, after, int(document["iteration_ns"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"cannot read {name} as a generator: {reason}; `netmon export --format generator` makes one"
        ) from None
