# SPDX-License-Identifier: Apache-2.0
"""Which process is which rank of which job, where two jobs call themselves by one name or a job changes its ranks."""

from dataclasses import dataclass
from typing import NamedTuple

_PATIENCE_NS = 10_000_000_000  # a process that has given its rank up, or died, is known to have by then


class Holder(NamedTuple):
    """A process that trains, as an agent knows it; pid 0: only its traffic is known."""

    host: str
    session: str
    pid: int


class Step(NamedTuple):
    """What a process steps as, and when: UTC (ns)."""

    rank: int
    size: int  # of its job; 0: unknown
    since_ns: int  # its first step as this rank
    last_ns: int


@dataclass
class _Claim:
    holder: Holder
    size: int
    last_ns: int

    def rivals(self, holder: Holder, rank: int, step: Step) -> bool:
        """Whether both cannot be of one job, while this one's claim is valid.

        Void are a claim of an earlier session of the same host, whose agent sees the processes anew, and one by traffic
        alone against a process.
        """
        if self.holder == holder or (self.holder.host == holder.host and self.holder.session != holder.session):
            return False
        if holder.pid and not self.holder.pid:
            return False
        return rank == step.rank or (0 not in (self.size, step.size) and self.size != step.size)


class Claims:
    """The ranks of all jobs and who holds them; a rank has one holder at a time.

    A process that steps as a rank of a job while another process does, or while others step as ranks of a job of
    another size, belongs to another job of the same name: it is given the name `job#2`, so that the two are not mixed.
    One whose rival has not stepped since has to wait: an elastic job gives its ranks out anew, and its hosts tell of
    it one after the other.
    """

    def __init__(self) -> None:
        """Begin without jobs."""
        self._held: dict[str, dict[int, _Claim]] = {}  # by the name that was given, and rank

    def claim(self, job: str, step: Step, holder: Holder, wait: bool = True) -> str:
        """The name under which the holder is this rank: the job's own, or `job#2`, `job#3`, …; empty: not known yet.

        wait: False where there is no later.
        """
        number = 1
        while True:
            name = job if number == 1 else f"{job}#{number}"
            held = self._held.get(name, {})
            rivals = [claim for rank, claim in held.items() if claim.rivals(holder, rank, step)]
            if not rivals:
                self._held.setdefault(name, {})[step.rank] = _Claim(holder, step.size, step.last_ns)
                return name
            stepped_since = any(rival.last_ns > step.since_ns for rival in rivals)
            if not holder.pid or (wait and not stepped_since and step.last_ns - step.since_ns < _PATIENCE_NS):
                return ""
            number += 1

    def hold(self, name: str, step: Step, holder: Holder) -> bool:
        """Step on under the name that the holder was given; claims it again, as after its agent was cut off.

        False where another one has it now.
        """
        claim = self._held.setdefault(name, {}).setdefault(step.rank, _Claim(holder, step.size, step.last_ns))
        if claim.holder == holder:
            claim.last_ns = max(claim.last_ns, step.last_ns)
        return claim.holder == holder

    def held(self, name: str, rank: int) -> bool:
        """Whether somebody is this rank."""
        return rank in self._held.get(name, {})

    def release(self, name: str, rank: int, holder: Holder) -> None:
        """The holder steps no more as this rank."""
        ranks = self._held.get(name, {})
        if rank in ranks and ranks[rank].holder == holder:
            del ranks[rank]
            if not ranks:
                del self._held[name]

    def release_session(self, session: str) -> None:
        """Nothing is heard of a session's processes any more: others may take their ranks."""
        held = {
            name: {rank: claim for rank, claim in ranks.items() if claim.holder.session != session}
            for name, ranks in self._held.items()
        }
        self._held = {name: ranks for name, ranks in held.items() if ranks}
