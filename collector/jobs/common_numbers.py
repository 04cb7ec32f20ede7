# SPDX-License-Identifier: Apache-2.0
"""The common iteration numbers of every job, over all hosts."""

from collections.abc import Callable

from netmon.dl.numbering import JobNumbers, RankEvents, Trust, tell_all


class Numbers:
    """JobNumbers by job; a job is there while one of its ranks is.

    What the ranks tell is compared together, when the next one asks.
    """

    def __init__(self) -> None:
        """Begin without jobs."""
        self._jobs: dict[str, JobNumbers] = {}
        self._told: list[tuple[str, RankEvents, Callable[[int], None]]] = []

    def tell(self, job: str, told: RankEvents, moved: Callable[[int], None]) -> None:
        """What a rank tells; moved: called with its shift where numbers that were used have moved."""
        self._told.append((job, told, moved))

    def decide(self) -> None:
        """About all that was told, in the order in which it was."""
        if self._told:
            told, self._told = self._told, []
            decided = tell_all([(self._jobs.setdefault(job, JobNumbers()), events) for job, events, _ in told])
            for (_, _, moved), one in zip(told, decided, strict=True):
                if one.moved:
                    moved(one.shift)

    def __len__(self) -> int:
        """Jobs."""
        return len(self._jobs)

    def version(self, job: str) -> int:
        """Another one than before where what is said of a rank of the job may have changed; 0: there is no such job."""
        self.decide()
        return self._jobs[job].version if job in self._jobs else 0

    def resume(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        """As JobNumbers.resume."""
        self.decide()
        self._jobs.setdefault(job, JobNumbers()).resume(rank, trust, shift)

    def go_on(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        """As JobNumbers.go_on."""
        self.decide()
        self._jobs.setdefault(job, JobNumbers()).go_on(rank, trust, shift)

    def shift(self, job: str, rank: int) -> int:
        """What to add to the rank's own numbers."""
        self.decide()
        return self._jobs[job].shift(rank) if job in self._jobs else 0

    def relative(self, job: str, rank: int) -> bool:
        """Whether the rank's numbers count only from when somebody began to look."""
        self.decide()
        return job not in self._jobs or self._jobs[job].relative(rank)

    def state(self, job: str, rank: int) -> tuple[Trust, int]:
        """What JobNumbers.resume has to know of the rank: its trust and shift."""
        self.decide()
        return self._jobs[job].state(rank) if job in self._jobs else (Trust.RELATIVE, 0)

    def forget(self, job: str, rank: int) -> None:
        """The rank is gone."""
        self.decide()
        if job in self._jobs:
            self._jobs[job].forget(rank)
            if not len(self._jobs[job]):
                del self._jobs[job]
