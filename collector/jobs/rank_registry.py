# SPDX-License-Identifier: Apache-2.0
"""What the job stage answers within a tick: who is which rank, common numbers, remote ends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass

from collector.messages import (
    BY_PEER,
    BY_TRAFFIC,
    NO_NUMBERS,
    About,
    Count,
    Holder,
    PeerUpdate,
    Step,
    StepEvents,
    TickAnswer,
    TickNews,
)
from netmon.dl.numbering import JobNumbers, RankEvents, Trust, number_jobs
from netmon.records import Flow

# --- Which process is which rank of which job, where two jobs call themselves by one name or a job changes its ranks.

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


class _Holders:
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
        """Those that may not be alongside the holder as it steps; of those that have all been silent since then, none.

        Where all are of one size, as mostly, there is one lookup.
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
    One whose rival has not stepped since has to wait: an elastic job gives its ranks out anew, and its hosts report
    it one after the other.
    """

    def __init__(self) -> None:
        self._claims: dict[str, _Holders] = {}  # by the name that was given
        self._of_session: dict[str, set[tuple[str, int]]] = {}  # name and rank

    def claim(self, job: str, step: Step, holder: Holder, wait: bool = True) -> str:
        """The name under which the holder is this rank: the job's own, or `job#2`, `job#3`, …; empty: not known yet.

        wait: False where there is no later.
        """
        number = 1
        while True:
            name = job if number == 1 else f"{job}#{number}"
            claimed = self._claims.get(name)
            if claimed is None or next(claimed.rivals(holder, step, _EVER), None) is None:
                self._put(name, step, holder)
                return name
            stepped_since = next(claimed.rivals(holder, step, step.since_ns), None) is not None
            if not holder.pid or (wait and not stepped_since and step.last_ns - step.since_ns < _PATIENCE_NS):
                return ""
            number += 1

    def hold(self, name: str, step: Step, holder: Holder) -> bool:
        """Step on under the name that the holder was given; claims it again, as after its agent was cut off.

        False where another one has it now.
        """
        claimed = self._claims.get(name)
        claim = claimed.claims.get(step.rank) if claimed else None
        if claimed is None or claim is None:
            self._put(name, step, holder)
            return True
        if claim.holder == holder:
            claim.last_ns = max(claim.last_ns, step.last_ns)
            claimed.stepped(claim)
        return claim.holder == holder

    def __len__(self) -> int:
        return len(self._claims)

    def holder(self, name: str, rank: int) -> Holder | None:
        return self._claims[name].claims[rank].holder if self.is_claimed(name, rank) else None

    def is_claimed(self, name: str, rank: int) -> bool:
        return name in self._claims and rank in self._claims[name].claims

    def release(self, name: str, rank: int, holder: Holder) -> None:
        """The holder steps no more as this rank."""
        claimed = self._claims.get(name)
        if claimed and rank in claimed.claims and claimed.claims[rank].holder == holder:
            self._remove(name, rank)

    def release_session(self, session: str) -> None:
        """A session's processes are silent: others may take their ranks."""
        for name, rank in list(self._of_session.get(session, ())):
            self._remove(name, rank)

    def _put(self, name: str, step: Step, holder: Holder) -> None:
        if self.is_claimed(name, step.rank):
            self._remove(name, step.rank)
        self._claims.setdefault(name, _Holders()).put(step.rank, _Claim(holder, step.size, step.last_ns))
        self._of_session.setdefault(holder.session, set()).add((name, step.rank))

    def _remove(self, name: str, rank: int) -> None:
        claimed = self._claims[name]
        session = claimed.claims[rank].holder.session
        claimed.remove(rank)
        if not claimed.claims:
            del self._claims[name]
        own = self._of_session[session]
        own.discard((name, rank))
        if not own:
            del self._of_session[session]


# --- Who is at the other end of a flow: the rank that owns the same 5-tuple in the opposite direction.

_Key = tuple[int, str, str, int, int, int]
_Owner = tuple[str, int]  # job and rank

_NOBODY: _Owner = ("", -1)
_OTHERS = (BY_PEER, BY_TRAFFIC)  # what they say of a flow says nothing of its other end


class RemoteEnds:
    """The flows of all hosts whose other end is requested, or is a rank's, by 5-tuple and direction."""

    def __init__(self) -> None:
        self._at: dict[
            _Key, dict[int, _Owner]
        ] = {}  # flows by number, and whose they are: more than one where links are joined
        self._keys: dict[int, _Key] = {}  # by flow
        self._reported: dict[int, _Owner] = {}  # what was said of each flow's other end, but nobody

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, over: Iterable[int], flows: Iterable[tuple[int, Flow]]) -> list[PeerUpdate]:
        """Forget some flows, take in others or what is new of them; gives what has changed."""
        changed: dict[_Key, None] = {}  # whose owners may have
        asking: dict[int, _Key] = {}
        for number in over:
            key = self._forget(number)
            if key:
                changed[key] = None
        for number, flow in flows:
            key = asking[number] = _key(flow)
            if self._keys.get(number, key) != key:  # an agent should not do that
                changed[self._keys[number]] = None
                self._forget(number)
            self._keys[number] = key
            owner = flow.owner
            owned = bool(owner.job) and owner.source not in _OTHERS
            at = self._at.setdefault(key, {})
            at.pop(number, None)  # the latest report is the last
            at[number] = (owner.job, owner.rank) if owned else _NOBODY
            changed[key] = None
        for key in changed:
            asking |= dict.fromkeys(self._at.get(_opposite(key), ()), _opposite(key))
        return list(self._say(asking))

    def _say(self, asking: dict[int, _Key]) -> Iterator[PeerUpdate]:
        for number, key in asking.items():
            owner = self._owner(_opposite(key))
            if owner != self._reported.get(number, _NOBODY) and number in self._keys:
                self._reported[number] = owner
                if owner == _NOBODY:
                    del self._reported[number]
                yield PeerUpdate(number, *owner)

    def _owner(self, key: _Key) -> _Owner:
        return next((owner for owner in reversed(self._at.get(key, {}).values()) if owner != _NOBODY), _NOBODY)

    def _forget(self, number: int) -> _Key | None:
        key = self._keys.pop(number, None)
        if key:
            self._reported.pop(number, None)
            del self._at[key][number]
            if not self._at[key]:
                del self._at[key]
        return key


def _key(flow: Flow) -> _Key:
    return (flow.direction, flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol)


def _opposite(key: _Key) -> _Key:
    return (1 - key[0], *key[1:])


# --- The common iteration numbers of every job, over all hosts.


class Numbers:
    """JobNumbers by job; a job is there while one of its ranks is."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobNumbers] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add_events(self, events: Sequence[tuple[int, str, RankEvents]]) -> list[tuple[int, int]]:
        """What ranks report, with their serials and jobs, compared together and decided in this order.

        Returns the serials of those whose numbers were used and have moved, and their shifts.
        """
        if not events:
            return []
        decided = number_jobs([(self._of(job), one) for _, job, one in events])
        return [(serial, one.shift) for (serial, _, _), one in zip(events, decided, strict=True) if one.moved]

    def _of(self, job: str) -> JobNumbers:
        return self._jobs.setdefault(job, JobNumbers())

    def version(self, job: str) -> int:
        """Another one than before where what is said of a rank of the job may have changed; 0: there is no such job."""
        return self._jobs[job].version if job in self._jobs else 0

    def resume(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        self._of(job).resume(rank, trust, shift)

    def take_over(self, job: str, rank: int, trust: Trust, shift: int) -> None:
        self._of(job).take_over(rank, trust, shift)

    def relative(self, job: str, rank: int) -> bool:
        """Whether the rank's numbers count only from when somebody began to look."""
        return job not in self._jobs or self._jobs[job].relative(rank)

    def compared(self, job: str, rank: int) -> bool:
        """Whether the rank's numbers have been compared with those of the others, as far as there are others."""
        return job in self._jobs and self._jobs[job].compared(rank)

    def state(self, job: str, rank: int) -> tuple[Trust, int]:
        """What JobNumbers.resume has to know of the rank: its trust, and what to add to its own numbers."""
        return self._jobs[job].state(rank) if job in self._jobs else (Trust.RELATIVE, 0)

    def forget(self, job: str, rank: int) -> None:
        if job in self._jobs:
            self._jobs[job].forget(rank)
            if not len(self._jobs[job]):
                del self._jobs[job]


_Row = tuple[int, int, int, int, int, int, int, int, int, int, int]  # of RANK_UPDATE


@dataclass
class _Rank:
    """What is known of a rank that has claimed."""

    session: int
    holder: Holder
    number: int
    name: str = ""  # of its job, as given
    lost: bool = False  # as reported
    count: Count = NO_NUMBERS  # as reported


class RankRegistry:
    """The ranks and flows of all hosts, as far as they have to do with each other."""

    def __init__(self) -> None:
        self._numbers, self._claims, self._ends = Numbers(), Claims(), RemoteEnds()
        self._sessions: dict[int, tuple[Holder, set[int]]] = {}  # and the serials of its ranks
        self._ranks: dict[int, _Rank] = {}  # by serial
        self._named: dict[str, set[int]] = {}  # serials by job
        self._alike: Counter[tuple[str, int]] = Counter()  # serials, by job and rank
        self._by_traffic: set[int] = set()  # serials that were named, of no process
        self._versions: dict[str, int] = {}  # of the numbers of jobs, as reported
        self._touched: set[str] = set()  # jobs whose numbers may have changed
        self._names: dict[int, str] = {}  # given now

    def __len__(self) -> int:
        """How much is known: sessions, ranks, jobs and flows."""
        ranks: tuple[Sized, ...] = self._sessions, self._ranks, self._named, self._alike, self._by_traffic
        return sum(map(len, (*ranks, self._versions, self._ends, self._numbers, self._claims)))

    def answer(self, news: TickNews) -> TickAnswer:
        self._names, self._touched = {}, set()
        for session, holder in news.opened:
            self._sessions[session] = holder, set()
        self._add_ranks(news)
        moved = self._add_step_events(news.step_events)
        return TickAnswer(
            names=list(self._names.items()),
            lost=list(self._lost()),
            counts=self._counts(),
            moved=moved,
            peers=self._ends.update(news.flows_over.tolist(), news.flows),
        )

    def _add_ranks(self, news: TickNews) -> None:
        for serial, size, last_ns in news.steps.tolist():
            rank = self._ranks.get(serial)
            if rank and rank.name:
                self._claims.hold(rank.name, Step(rank.number, size, last_ns, last_ns), rank.holder)
        for row in news.ranks.tolist():
            self._take(row, news.jobs)

    def _take(self, row: _Row, jobs: Sequence[str]) -> None:
        about, session, serial, job, number, pid, size, since_ns, last_ns, trust, shift = row
        if about in (About.CLAIM, About.LAST_CLAIM):
            if session in self._sessions:
                whose = self._rank(serial, session, number, pid)
                step = Step(number, size, since_ns, last_ns)
                self._claim(serial, whose, jobs[job], step, wait=about == About.CLAIM)
        elif about == About.RESUME:
            name = jobs[job]
            self._touched.add(name)
            self._numbers.resume(name, number, Trust(trust), shift)
        elif about == About.SILENT:
            if session in self._sessions:
                self._claims.release_session(self._sessions[session][0].session)
        elif about == About.OVER:
            self._end_session(session)
        elif serial in self._ranks:
            self._change(serial, about, Trust(trust), shift)

    def _rank(self, serial: int, session: int, number: int, pid: int) -> _Rank:
        if serial not in self._ranks:
            holder, serials = self._sessions[session]
            serials.add(serial)
            self._ranks[serial] = _Rank(session, holder._replace(pid=pid), number)
        return self._ranks[serial]

    def _claim(self, serial: int, rank: _Rank, job: str, step: Step, wait: bool) -> None:
        if rank.name:
            return  # requested twice in one message
        rank.name = self._claims.claim(job, step, rank.holder, wait)
        if rank.name:
            self._names[serial] = rank.name
            self._named.setdefault(rank.name, set()).add(serial)
            self._alike[rank.name, rank.number] += 1
            self._touched.add(rank.name)
            self._versions.pop(rank.name, None)  # it has not got its count
            if not rank.holder.pid:
                self._by_traffic.add(serial)

    def _change(self, serial: int, about: int, trust: Trust, shift: int) -> None:
        rank = self._ranks[serial]
        if about in (About.FORGET, About.DROP):
            self._forget(serial, numbers=about == About.FORGET)
        elif rank.name:
            self._touched.add(rank.name)
            if about == About.RELEASE:
                self._claims.release(rank.name, rank.number, rank.holder)
            elif about == About.FRESH:
                self._numbers.forget(rank.name, rank.number)
            elif about == About.GO_ON:
                self._numbers.take_over(rank.name, rank.number, trust, shift)
            elif about == About.REJOIN:
                self._numbers.take_over(rank.name, rank.number, *self._numbers.state(rank.name, rank.number))

    def _forget(self, serial: int, numbers: bool) -> None:
        """Let go of a rank; numbers: and of its count, unless somebody else is that rank."""
        rank = self._ranks.pop(serial)
        self._sessions[rank.session][1].discard(serial)
        self._by_traffic.discard(serial)
        if not rank.name:
            return
        whose, serials = (rank.name, rank.number), self._named[rank.name]
        serials.discard(serial)
        self._alike[whose] -= 1
        if not self._alike[whose]:
            del self._alike[whose]
            if numbers and not self._claims.is_claimed(*whose):
                self._numbers.forget(*whose)
                self._touched.add(rank.name)
        if not serials:
            del self._named[rank.name]
            self._versions.pop(rank.name, None)

    def _end_session(self, session: int) -> None:
        if session not in self._sessions:
            return
        holder, serials = self._sessions[session]
        self._claims.release_session(holder.session)
        whose = {(self._ranks[serial].name, self._ranks[serial].number) for serial in serials}
        for serial in list(serials):
            self._forget(serial, numbers=False)
        for name, number in whose:
            if name and not self._claims.is_claimed(name, number):  # by a later session
                self._numbers.forget(name, number)
                self._touched.add(name)
        del self._sessions[session]

    def _add_step_events(self, step_events: Iterable[StepEvents]) -> list[tuple[int, int]]:
        """Returns the serials of ranks whose numbers have moved, and their shifts."""
        updates = []
        for serial, trust, events, error_ns in step_events:
            rank = self._ranks.get(serial)
            if rank and rank.name:
                self._touched.add(rank.name)
                updates.append((serial, rank.name, RankEvents(rank.number, trust, events, error_ns)))
        return self._numbers.add_events(updates)

    def _counts(self) -> list[tuple[int, Count]]:
        changed = []
        for name in self._touched:
            version = self._numbers.version(name)
            if name not in self._named or self._versions.get(name) == version:
                continue
            self._versions[name] = version
            for serial in self._named[name]:
                rank = self._ranks[serial]
                numbers, whose = self._numbers, (name, rank.number)
                count = Count(*numbers.state(*whose), numbers.relative(*whose), numbers.compared(*whose))
                if count != rank.count:
                    rank.count = count
                    changed.append((serial, count))
        return changed

    def _lost(self) -> Iterable[tuple[int, bool]]:
        for serial in self._by_traffic:
            rank = self._ranks[serial]
            lost = self._claims.holder(rank.name, rank.number) not in (None, rank.holder)
            if lost != rank.lost:
                rank.lost = lost
                yield serial, lost
