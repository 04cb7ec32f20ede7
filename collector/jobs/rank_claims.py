# SPDX-License-Identifier: Apache-2.0
"""Which process is which rank of which job, where two jobs call themselves by one name or a job changes its ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

from collector.messages import Holder, Step

_EVER = -(1 << 63)
_PATIENCE_NS = 10_000_000_000  # a process that has given its rank up, or died, is known to have by then


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


class _Held:
    """The ranks of one name, and who holds them."""

    def __init__(self) -> None:
        self.claims: dict[int, _Claim] = {}
        self._of_size: dict[int, dict[int, _Claim]] = {}  # by size of the job, and rank
        self._newest_ns: dict[int, int] = {}  # by size: nobody has stepped since

    def put(self, rank: int, claim: _Claim) -> None:
        self.remove(rank)
        self.claims[rank] = claim
        self._of_size.setdefault(claim.size, {})[rank] = claim
        self.stepped(claim)

    def stepped(self, claim: _Claim) -> None:
        self._newest_ns[claim.size] = max(self._newest_ns.get(claim.size, claim.last_ns), claim.last_ns)

    def remove(self, rank: int) -> None:
        claim = self.claims.pop(rank, None)
        if claim:
            alike = self._of_size[claim.size]
            del alike[rank]
            if not alike:
                del self._of_size[claim.size], self._newest_ns[claim.size]

    def rivals(self, holder: Holder, step: Step, since_ns: int) -> Iterator[_Claim]:
        """Those that may not be beside the holder as it steps; of those that have all been silent since then, none.

        Where all are of one size, as mostly, there is one to ask.
        """
        own = self.claims.get(step.rank)
        if own and own.last_ns > since_ns and own.rivals(holder, step.rank, step):
            yield own
        if step.size:
            for size, claims in self._of_size.items():
                if size not in (0, step.size) and self._newest_ns[size] > since_ns:
                    for rank, claim in claims.items():
                        if claim.last_ns > since_ns and claim.rivals(holder, rank, step):
                            yield claim


class Claims:
    """The ranks of all jobs and who holds them; a rank has one holder at a time.

    A process that steps as a rank of a job while another process does, or while others step as ranks of a job of
    another size, belongs to another job of the same name: it is given the name `job#2`, so that the two are not mixed.
    One whose rival has not stepped since has to wait: an elastic job gives its ranks out anew, and its hosts tell of
    it one after the other.
    """

    def __init__(self) -> None:
        """Begin without jobs."""
        self._held: dict[str, _Held] = {}  # by the name that was given
        self._of_session: dict[str, set[tuple[str, int]]] = {}  # name and rank

    def claim(self, job: str, step: Step, holder: Holder, wait: bool = True) -> str:
        """The name under which the holder is this rank: the job's own, or `job#2`, `job#3`, …; empty: not known yet.

        wait: False where there is no later.
        """
        number = 1
        while True:
            name = job if number == 1 else f"{job}#{number}"
            held = self._held.get(name)
            if held is None or next(held.rivals(holder, step, _EVER), None) is None:
                self._put(name, step, holder)
                return name
            stepped_since = next(held.rivals(holder, step, step.since_ns), None) is not None
            if not holder.pid or (wait and not stepped_since and step.last_ns - step.since_ns < _PATIENCE_NS):
                return ""
            number += 1

    def hold(self, name: str, step: Step, holder: Holder) -> bool:
        """Step on under the name that the holder was given; claims it again, as after its agent was cut off.

        False where another one has it now.
        """
        held = self._held.get(name)
        claim = held.claims.get(step.rank) if held else None
        if held is None or claim is None:
            self._put(name, step, holder)
            return True
        if claim.holder == holder:
            claim.last_ns = max(claim.last_ns, step.last_ns)
            held.stepped(claim)
        return claim.holder == holder

    def __len__(self) -> int:
        """Jobs of which somebody is a rank."""
        return len(self._held)

    def holder(self, name: str, rank: int) -> Holder | None:
        """Who is this rank."""
        return self._held[name].claims[rank].holder if self.held(name, rank) else None

    def held(self, name: str, rank: int) -> bool:
        """Whether somebody is this rank."""
        return name in self._held and rank in self._held[name].claims

    def release(self, name: str, rank: int, holder: Holder) -> None:
        """The holder steps no more as this rank."""
        held = self._held.get(name)
        if held and rank in held.claims and held.claims[rank].holder == holder:
            self._remove(name, rank)

    def release_session(self, session: str) -> None:
        """Nothing is heard of a session's processes any more: others may take their ranks."""
        for name, rank in list(self._of_session.get(session, ())):
            self._remove(name, rank)

    def _put(self, name: str, step: Step, holder: Holder) -> None:
        if self.held(name, step.rank):
            self._remove(name, step.rank)
        self._held.setdefault(name, _Held()).put(step.rank, _Claim(holder, step.size, step.last_ns))
        self._of_session.setdefault(holder.session, set()).add((name, step.rank))

    def _remove(self, name: str, rank: int) -> None:
        held = self._held[name]
        session = held.claims[rank].holder.session
        held.remove(rank)
        if not held.claims:
            del self._held[name]
        own = self._of_session[session]
        own.discard((name, rank))
        if not own:
            del self._of_session[session]
