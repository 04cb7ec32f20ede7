# SPDX-License-Identifier: Apache-2.0
"""What was told of the iterations that nothing was done to: how much a verdict is worth that nobody can check."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netmon.bench.verdict.scoring import Told
from netmon.bench.verdict.truth import Truth


@dataclass
class Undisturbed:
    """Of a campaign; may still grow."""

    iterations: int = 0  # that nothing was done to, without the first of each run
    told: list[Told] = field(default_factory=list)  # verdicts on them: they took NOTABLE × the usual by themselves

    def add(self, truth: Truth, told: Sequence[Told]) -> None:
        """One more run. told: verdicts on its job."""
        self.iterations += len(truth.undisturbed)
        self.told += [each for each in told if not _met(truth, each)]

    def document(self) -> dict[str, Any]:
        """For JSON: by cause, how many there were, and what the surest of them was said with."""
        causes = sorted({str(each["cause"]) for each in self.told})
        of = {cause: [each for each in self.told if each["cause"] == cause] for cause in causes}
        return {
            "iterations": self.iterations,
            "stood_out": len(self.told),
            "told": {cause: {"count": len(own), "surest": _surest(own)} for cause, own in of.items()},
        }

    def words(self) -> str:
        """The same in a line."""
        told = self.document()["told"]
        parts = [f"{each['count']} {cause.replace('_', ' ')}" for cause, each in told.items()]
        return f"{len(self.told)} of {self.iterations}{': ' if parts else ''}{', '.join(parts)}"


def _met(truth: Truth, verdict: Told) -> bool:
    """Whether something was done while the iteration lasted, or the one before."""
    middle = (int(verdict["start_ns"]) + int(verdict["end_ns"])) // 2
    since = int(truth.start_ns[max(0, int(np.searchsorted(truth.start_ns, middle, "right")) - 2)])
    return any(
        each["start_ns"] < verdict["end_ns"] and (each["end_ns"] or np.iinfo(np.int64).max) > since
        for each in truth.injections
    )


def _surest(told: Sequence[Told]) -> float:
    return max(float(each["confidence"]) for each in told)
