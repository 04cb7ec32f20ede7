# SPDX-License-Identifier: Apache-2.0
"""Going back in time: from iteration to iteration, and to the slow ones."""

from bisect import bisect_left

from netmon.past import PastSteps
from netmon.top.step_kind import Step, step_of, steps_of
from netmon.views import Verdict


class Rewinding:
    """Which iteration is looked at. Without one it is now."""

    def __init__(self) -> None:
        """It is now, and nothing is known of the past."""
        self.past = PastSteps({})
        self.step: Step | None = None
        self._steps: dict[str, list[Step]] = {}

    def take(self, past: PastSteps) -> None:
        """What can be gone back to."""
        self.past = past
        self._steps.clear()

    def live(self) -> None:
        """It is now again."""
        self.step = None

    def by(self, job: str, count: int) -> Step | None:
        """So many iterations of a job later, or earlier; None where that is now, or there is none."""
        steps = self._of(job)
        if not steps:
            return None
        place = self._place(steps) + count
        self.step = steps[max(place, 0)] if place < len(steps) else None
        return self.step

    def to_slow(self, job: str, forward: bool) -> Step | None:
        """The next slow iteration of a job, backward from now or from where one is; None, and nothing moves: none."""
        steps = self._of(job)
        place = self._place(steps)
        ahead = steps[place + 1 :] if forward else steps[:place][::-1]
        found = next((step for step in ahead if step.slow or step.verdict), None)
        self.step = found or self.step
        return found

    def to(self, job: str, number: int, near_ns: int) -> Step | None:
        """That iteration."""
        self.step = step_of(self._of(job), number, near_ns) or self.step
        return self.step

    def to_verdict(self, verdict: Verdict) -> Step:
        """The iteration that it is about, even where it is not among those that are known."""
        found = step_of(
            [s for s in self._of(verdict.job) if s.number == verdict.iteration], verdict.iteration, verdict.start_ns
        )
        about = Step(
            *(verdict.job, verdict.iteration, verdict.start_ns, verdict.end_ns, verdict.duration_ns, verdict.usual_ns),
            *(verdict.relative, verdict),
        )
        self.step = found or about
        return self.step

    def _of(self, job: str) -> list[Step]:
        if job not in self._steps:
            self._steps[job] = steps_of(self.past, job)
        return self._steps[job]

    def _place(self, steps: list[Step]) -> int:
        """Of the present iteration; now is after the last."""
        if self.step is None:
            return len(steps)
        return bisect_left([step.end_ns for step in steps], self.step.end_ns)
