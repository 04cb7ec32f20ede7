# SPDX-License-Identifier: Apache-2.0
"""The common iteration numbers of every job, over all hosts."""

from collections.abc import Mapping

from netmon.dl.numbering import Beat, Events, JobNumbers, Trust


class Numbers:
    """JobNumbers by job; a job is there while one of its ranks is."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self._jobs: dict[str, JobNumbers] = {}

    def tell(self, job: str, rank: int, trust: Trust, events: Mapping[Beat, Events], error_ns: int) -> bool:
        """As JobNumbers.tell."""
        return self._jobs.setdefault(job, JobNumbers()).tell(rank, trust, events, error_ns)

    def resume(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        """As JobNumbers.resume."""
        self._jobs.setdefault(job, JobNumbers()).resume(rank, trust, shift)

    def go_on(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        """As JobNumbers.go_on."""
        self._jobs.setdefault(job, JobNumbers()).go_on(rank, trust, shift)

    def shift(self, job: str, rank: int) -> int:
        """What to add to the rank's own numbers."""
        return self._jobs[job].shift(rank) if job in self._jobs else 0

    def relative(self, job: str, rank: int) -> bool:
        """Whether the rank's numbers count only from when somebody began to look."""
        return job not in self._jobs or self._jobs[job].relative(rank)

    def state(self, job: str, rank: int) -> tuple[Trust, int]:
        """What JobNumbers.resume has to know of the rank: its trust and shift."""
        return self._jobs[job].state(rank) if job in self._jobs else (Trust.RELATIVE, 0)

    def forget(self, job: str, rank: int) -> None:
        """The rank is gone."""
        if job in self._jobs:
            self._jobs[job].forget(rank)
            if not len(self._jobs[job]):
                del self._jobs[job]
