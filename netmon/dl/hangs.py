# SPDX-License-Identifier: Apache-2.0
"""Whether a job stands still, and who is missing in which collective.

A rank waits for others: in a collective for those of its group that have not called it, in a transfer for the one at
its other end. A rank is missing if others wait for it and it waits for none. If no rank is missing, the ranks wait for
each other crosswise, or all are in the collective and it does not end.

A missing rank is reported once the wait is longer than this job's waits before. How much longer depends on what the
missing rank does, because a report on a rank that is only late would be false:

- It has left, died, or is stopped in reports 1.5 s apart; or it has called something else: SURE_NS.
- It sleeps, neither computes nor reads nor writes: SURE_NS, or half as long again as the job's longest wait.
- It waits for its disk, or has done so, read or written since its last call: DISK_NS, or three times the longest wait.
- It, or another missing rank, makes progress: PATIENCE_NS, or three times the longest wait.
- Its host reports nothing: SILENT_NS.
- Transfers wait for each other crosswise: SURE_NS later than collectives that do.
- Packets to it or from it are not acknowledged: SURE_NS.
- All ranks are in the collective and no bytes flow: DISK_NS, or three times the longest wait.

Who was last reported CURRENT_NS ago is not known to wait. A present rank is reported no sooner after its last call than
1.5 × the pause that this job's ranks repeatedly make.

Before that, once the wait is longer than this job's waits before, viewers are told that ranks wait, and for whom: a
fact, and no hang yet. Then the rank may still be only late.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netmon.dl.operations import TRANSFERS, Operation
from netmon.dl.rank_activity import HOROVOD, OVER, UNNAMED, WAITED, Work
from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.units import format_duration
from netmon.views import Hang, Hung

_S = 1_000_000_000
SURE_NS, SILENT_NS, DISK_NS, PATIENCE_NS = 3 * _S, 10 * _S, 20 * _S, 60 * _S

CURRENT_NS = 20 * _S
"""A rank whose last report is older is not known to wait. A quiet one is reported every 8 s; reports come late from an
agent that was cut off or kept from its CPU."""

_NAMES = {int(one): one.word for one in Operation}
_ROOTED = (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)
"""A rank may be through while others wait."""
_SAME_SIZE = (Operation.BROADCAST, Operation.ALL_REDUCE, Operation.REDUCE)  # all ranks hand over as much
_HASH_SEED, _HASH_PRIME, _HASHED_WORDS, _NUMBERED = 0xCBF29CE484222325, 0x100000001B3, 32, 256
_DISK_BYTES = 65_536  # less is a log
_MOST_NAMED = 4  # ranks in a line


@dataclass(frozen=True)
class RankNow:
    """A rank as it is known now. Times are UTC."""

    rank: int
    host: str
    size: int = 0  # ranks of the job
    quiet: bool = False  # it has called nothing for a second or more
    since_ns: int = 0  # its last call
    state: ProcessState = ProcessState.UNKNOWN
    waits_for: WaitsFor = WaitsFor.UNKNOWN
    progress_ns: int = 0  # when it was last seen to make progress; 0: not known yet
    works: Sequence[Work] = ()  # begun_ns in UTC
    left_ns: int = 0  # since when its process has been gone; 0: it is there
    silent_ns: int = 0  # since when its host reports nothing; 0: it reports
    received_ns: int = 0  # when this was reported
    io_bytes: int = 0  # that it has read and written since its last call
    waited_for_disk: bool = False  # since its last call it was seen in disk I/O before
    stopped_ns: int = 0  # since when all reports have it stopped; `state` is STOPPED once that is no moment any more

    @property
    def makes_progress(self) -> bool:
        """By its last report."""
        seen = self.progress_ns >= self.received_ns or self.state in (ProcessState.RUNS, ProcessState.UNKNOWN)
        return not self.quiet or seen

    @property
    def gone(self) -> bool:
        return self.left_ns > 0


@dataclass(frozen=True)
class Known:
    """What is known of the job, besides its ranks."""

    longest_ns: int = 0  # of the waits that have ended
    pause_ns: int = 0  # longest time between two calls of a rank that has occurred repeatedly
    bytes_flow: bool = False  # its ranks exchange data
    cut: Collection[tuple[int, int]] = ()  # ranks: nothing that the first one sends to the second is acknowledged


class _Missing(NamedTuple):
    """Who waits for whom."""

    work: Work
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    what: Hung


def judge(job: str, ranks: Mapping[int, RankNow], now_ns: int, known: Known) -> Hang | None:
    """The hang of a job, or with reported_ns 0 a wait that may become one; None: there is neither."""
    ranks = _same_groups(ranks)
    current = {number: one for number, one in ranks.items() if now_ns - one.received_ns <= CURRENT_NS}
    waits = {number: work for number, one in current.items() if (work := _waited(one))}
    if not waits:
        return None
    found = _other_calls(ranks, waits) or _cut_off(ranks, waits, known.cut) or _missing(ranks, waits)
    if found is None:
        return None
    since_ns = min(waits[number].begun_ns for number in found.waiting)
    due_ns = unusual_ns = since_ns + max(SURE_NS, known.longest_ns * 3 // 2)
    if found.what is Hung.NOT_ENTERED:
        culprit, what, due_ns = _culprit(ranks, found.missing, since_ns, known)
        unusual_ns = max(unusual_ns, ranks[culprit].since_ns + known.pause_ns * 3 // 2)
        if what is Hung.NOT_ENTERED and is_inactive(ranks[culprit]) and _has_entered(ranks[culprit], found.work):
            what = Hung.STOPPED_IN_IT
    else:
        culprit, what = found.missing[0] if found.missing else -1, found.what
        if what is Hung.CROSSWISE and not _is_collective(found.work):
            due_ns += SURE_NS  # the data may be on a link that is cut: that is seen by then
        if what is Hung.CUT_OFF:
            due_ns = since_ns + SURE_NS
            one = ranks.get(culprit)
            what = Hung.GONE if one and one.gone else Hung.HOST_SILENT if one and one.silent_ns else what
        elif what is Hung.NOT_ENDING:
            if known.bytes_flow:
                return None
            due_ns = since_ns + max(DISK_NS, 3 * known.longest_ns)
    only_late = what is Hung.NOT_ENTERED and not is_inactive(ranks[culprit])
    if now_ns < (min(due_ns, unusual_ns) if only_late else due_ns):
        return None
    missing = tuple(sorted(found.missing, key=lambda number: number != culprit))
    one = ranks.get(culprit)
    reported_ns = now_ns if now_ns >= due_ns else 0
    return Hang(
        *(job, since_ns, 0, reported_ns, what, operation_name(found.work.operation), found.work.sequence),
        _group_name(found.work, max(r.size for r in ranks.values())),
        *(culprit, one.host if one else "", _why(ranks, found, culprit, now_ns), missing, found.waiting),
    )


def ended(job: str, ranks: Mapping[int, RankNow], now_ns: int) -> Hang | None:
    """Whether a job has ended because a rank's last collective of a group differed from that of the others. Libraries
    end such a job where they notice it."""
    ranks = _same_groups(ranks)
    last = {number: _last_calls(one) for number, one in ranks.items()}
    for group in sorted({group for own in last.values() for group in own}):
        there = {number: own[group] for number, own in last.items() if group in own}
        position = max(work.position for work in there.values())
        there = {number: work for number, work in there.items() if work.position == position != UNKNOWN}
        differ = _differ(there) if len(there) > 1 else None
        if differ is None:
            continue
        alike, others = differ
        work, one = there[alike[0]], ranks[others[0]]
        return Hang(
            since_ns=min(each.begun_ns for each in there.values()),
            until_ns=now_ns,
            reported_ns=now_ns,
            job=job,
            what=Hung.ENDED,
            host=one.host,
            why=_other_call(there[others[0]], work),
            collective=operation_name(work.operation),
            sequence=work.sequence,
            group=_group_name(work, max(each.size for each in ranks.values())),
            rank=others[0],
            missing=others,
            waiting=alike,
        )
    return None


def _last_calls(one: RankNow) -> dict[int, Work]:
    """The last collective of a rank, by group."""
    found: dict[int, Work] = {}
    for work in one.works:
        if _is_collective(work) and (work.group not in found or work.position > found[work.group].position):
            found[work.group] = work
    return found


def _differ(there: Mapping[int, Work], gone: Collection[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ranks that made the majority's call, and the others; None: all made the same call. In a tie, the call of a
    rank that is not gone wins."""
    first = min(there, key=lambda number: (number in gone, number))
    for same in (_operation, _size):
        calls = Counter(map(same, there.values()))
        if len(calls) > 1:
            majority = max(calls, key=lambda call: (calls[call], call == same(there[first])))
            alike = tuple(sorted(number for number, work in there.items() if same(work) == majority))
            return alike, tuple(sorted(there.keys() - set(alike)))
    return None


def _other_call(mine: Work, theirs: Work, who: str = "it") -> str:
    if operation_name(mine.operation) == operation_name(theirs.operation):
        return f"{who} has called it with {mine.bytes:,} bytes, the others with {theirs.bytes:,}"
    return f"{who} has called {operation_name(mine.operation)}"


def _waited(one: RankNow) -> Work | None:
    """The oldest call that a quiet rank waits in; None: it waits in none."""
    if not one.quiet or is_inactive(one):
        return None
    waited = [work for work in one.works if work.state == WAITED]
    if not waited:
        return None
    first = min(waited, key=lambda work: work.begun_ns)
    if first.operation in TRANSFERS:
        return first
    return _first_open(one, first.group) or first


def is_inactive(one: RankNow) -> bool:
    """Whether it does nothing any more, whatever its last call."""
    return one.gone or one.state is ProcessState.STOPPED or bool(one.silent_ns)


def _first_open(one: RankNow, group: int) -> Work | None:
    """The first collective of a group that is not over: they are in order."""
    mine = [work for work in one.works if work.group == group and work.state != OVER and _is_collective(work)]
    return min(mine, key=lambda work: work.begun_ns, default=None)


def _is_collective(work: Work) -> bool:
    return work.operation not in TRANSFERS


def _same_groups(ranks: Mapping[int, RankNow]) -> Mapping[int, RankNow]:
    """Match the group of all ranks where some ranks lack its name: it is the only named group of that size on the
    others. If there is more than one, calls in these groups are dropped."""
    works = [work for one in ranks.values() for work in one.works]
    if not any(work.group == UNNAMED for work in works):
        return ranks
    size = max(one.size for one in ranks.values())
    named = {work.group for work in works if work.group_size == size and work.group not in (UNNAMED, HOROVOD)}
    if not named:
        return ranks

    def known(work: Work) -> Work | None:
        if work.group == UNNAMED or work.group in named:
            return work._replace(group=UNNAMED, position=UNKNOWN) if len(named) == 1 else None
        return work

    return {
        number: RankNow(**{**vars(one), "works": [k for work in one.works if (k := known(work))]})
        for number, one in ranks.items()
    }


def _members(ranks: Mapping[int, RankNow], work: Work) -> dict[int, int]:
    """Ranks by their ranks in a group, as far as they are known."""
    found: dict[int, tuple[int, int]] = {}
    for number, one in ranks.items():
        for each in one.works:
            if each.group == work.group and 0 <= each.group_rank < work.group_size:
                found[each.group_rank] = max(found.get(each.group_rank, (0, 0)), (one.since_ns, number))
    members = {group_rank: number for group_rank, (_, number) in found.items()}
    same = all(group_rank == number for group_rank, number in members.items())
    if same and work.group_size == ranks[next(iter(ranks))].size:
        members |= {number: number for number in ranks if number < work.group_size}
    return members


def _has_entered(one: RankNow, work: Work) -> bool | None:
    """Whether a rank is in a collective, or was; None: not known."""
    mine = [each for each in one.works if each.group == work.group and _is_collective(each)]
    if work.position != UNKNOWN and mine and all(each.position != UNKNOWN for each in mine):
        return any(each.position >= work.position for each in mine)
    if any(each.state != OVER for each in mine):
        return True
    return None if work.operation in _ROOTED else False


def _blockers(ranks: Mapping[int, RankNow], number: int, work: Work) -> set[int] | None:
    """The ranks that a rank waits for; None: not known."""
    members = _members(ranks, work)
    if not _is_collective(work):
        return {members[work.peer]} if work.peer in members and members[work.peer] != number else None
    found = set[int]()
    for member in members.values():
        entered = _has_entered(ranks[member], work) if member != number else True
        if entered is None:
            return None
        if not entered or is_inactive(ranks[member]):
            found.add(member)
    return found if found or len(members) >= work.group_size else None


def _other_calls(ranks: Mapping[int, RankNow], waits: Mapping[int, Work]) -> _Missing | None:
    """Ranks that are at the same position of a group, and made different calls there.

    The positions of Horovod's calls are not known: where all ranks wait, they are at the same one.
    """
    positions: dict[tuple[int, int], dict[int, Work]] = {}
    for number, one in ranks.items():
        for group in {work.group for work in one.works if work.state != OVER and _is_collective(work)}:
            first = _first_open(one, group)
            if first and (first.position != UNKNOWN or group == HOROVOD) and one.quiet and not one.gone:
                positions.setdefault((group, first.position), {})[number] = first
    for number, one in ranks.items():
        for group, last in _last_calls(one).items() if one.state is ProcessState.GONE else ():
            if (group, last.position) in positions:  # it may have ended because of that
                positions[group, last.position][number] = last
    for there in positions.values():
        waiting = [number for number in there if number in waits and waits[number] == there[number]]
        gone = [number for number in there if ranks[number].gone]
        if waiting and (differ := _differ(there, gone)) and not _too_few(there, *differ, gone):
            alike, others = differ
            if len(alike) == len(others) and not gone:  # nobody says whose call is the other one
                return _Missing(there[alike[0]], tuple(sorted(waiting)), (*others, *alike), Hung.OTHER_CALL)
            waiting = [number for number in waiting if number not in others] or waiting
            return _Missing(there[waiting[0]], tuple(sorted(waiting)), others, Hung.OTHER_CALL)
    return None


def _too_few(there: Mapping[int, Work], alike: Collection[int], others: Collection[int], gone: Collection[int]) -> bool:
    """Whether ranks that are not there yet decide which call is the other one."""
    one = next(iter(there.values()))
    whole = len(there) >= one.group_size
    return not whole and (one.group == HOROVOD or (len(alike) == len(others) and not gone))


def _operation(work: Work) -> tuple[str, int]:
    return operation_name(work.operation), 0


def _size(work: Work) -> tuple[str, int]:
    return operation_name(work.operation), work.bytes if work.operation in _SAME_SIZE else 0


def _cut_off(
    ranks: Mapping[int, RankNow], waits: Mapping[int, Work], cut: Collection[tuple[int, int]]
) -> _Missing | None:
    """The rank at an end of all connections on which nothing arrives. Of a single connection it is both ends, unless
    one of them is inactive."""
    if not cut:
        return None
    ends = Counter(rank for pair in cut for rank in set(pair))
    most = max(ends.values())
    first = min(waits.values(), key=lambda work: work.begun_ns)
    off = sorted(rank for rank in ends if ends[rank] == most)
    inactive = [rank for rank in off if rank in ranks and is_inactive(ranks[rank])]
    return _Missing(first, tuple(sorted(waits)), tuple(inactive or off), Hung.CUT_OFF)


def _missing(ranks: Mapping[int, RankNow], waits: Mapping[int, Work]) -> _Missing | None:
    known = {number: _blockers(ranks, number, work) for number, work in waits.items()}
    blockers = {number: found for number, found in known.items() if found is not None}
    roots = Counter(one for found in blockers.values() for one in found if one not in waits)
    if roots:
        waiting = [number for number, found in blockers.items() if found & roots.keys()]
        # Where ranks wait in different collectives, the one with most ranks counts: others wait for these.
        of = Counter((waits[number].group, waits[number].position) for number in waiting)
        key = max(of, key=lambda each: (of[each], -each[1]))
        first = next(number for number in waiting if (waits[number].group, waits[number].position) == key)
        missing = tuple(sorted(blockers[first] & roots.keys()))
        return _Missing(waits[first], tuple(sorted(waits)), missing, Hung.NOT_ENTERED)
    if cycle := _cycle(blockers):
        return _Missing(waits[cycle[0]], tuple(sorted(waits)), tuple(cycle), Hung.CROSSWISE)
    whole = [number for number, found in blockers.items() if not found]
    if whole:  # others may wait in a later one
        first = min(whole, key=lambda number: waits[number].begun_ns)
        return _Missing(waits[first], tuple(sorted(waits)), (), Hung.NOT_ENDING)
    return None


def _cycle(blockers: Mapping[int, set[int]]) -> list[int]:
    """Ranks each of which waits for the next one, and the last for the first; empty: there are none."""
    for start in sorted(blockers):
        path, at = [start], start
        while nexts := sorted(blockers.get(at, ())):
            at = nexts[0]
            if at in path:
                return path[path.index(at) :]
            path.append(at)
    return []


def _culprit(
    ranks: Mapping[int, RankNow], missing: Iterable[int], since_ns: int, known: Known
) -> tuple[int, Hung, int]:
    """The missing rank to name, what is wrong with it, and when it is due to be reported (UTC, ns)."""
    long_ns = 3 * known.longest_ns
    found = []
    for number in missing:
        one = ranks[number]
        if one.gone:
            found.append((0, max(since_ns, one.left_ns) + SURE_NS, number, Hung.GONE))
        elif one.silent_ns:
            found.append((2, max(since_ns, one.silent_ns) + SILENT_NS, number, Hung.HOST_SILENT))
        elif one.state is ProcessState.STOPPED:
            found.append((1, since_ns + SURE_NS, number, Hung.NOT_ENTERED))
        else:
            sure, from_ns, wait_ns = 3, max(since_ns, one.progress_ns), max(SURE_NS, known.longest_ns * 3 // 2)
            if one.makes_progress or not one.progress_ns:
                sure, from_ns, wait_ns = 9, since_ns, max(PATIENCE_NS, long_ns)
            elif one.state is ProcessState.DISK or one.waited_for_disk or one.io_bytes >= _DISK_BYTES:
                sure, wait_ns = 4, max(DISK_NS, long_ns)
            due_ns = max(from_ns + wait_ns, one.since_ns + known.pause_ns * 3 // 2)
            found.append((sure, due_ns, number, Hung.NOT_ENTERED))
    sure, due_ns, number, what = min(found)
    if sure > 1:  # it may wait, unseen, for another one that makes progress
        due_ns = max(each[1] for each in found)
    return number, what, due_ns


# --- in words


def operation_name(operation: int) -> str:
    return _NAMES.get(operation, "collective")


def _hash(name: str) -> int:
    """As bpf/cxx.h has it."""
    data, found = name.encode().ljust(8 * _HASHED_WORDS, b"\0"), _HASH_SEED
    for at in range(0, len(data), 8):
        found = (found ^ int.from_bytes(data[at : at + 8], "little")) * _HASH_PRIME % (1 << 64)
    return found % (1 << 62)


_GROUP_NUMBERS: dict[int, int] = {}


def group_number(group: int) -> int | None:
    """PyTorch's name of a group, if that is a number."""
    if not _GROUP_NUMBERS:
        _GROUP_NUMBERS.update((_hash(str(number)), number) for number in range(_NUMBERED))
    return _GROUP_NUMBERS.get(group)


def _group_name(work: Work, size: int) -> str:
    """Empty: it is the first one, of all ranks."""
    number = group_number(work.group)
    if work.group in (UNNAMED, HOROVOD) or (number == 0 and work.group_size == size):
        return ""
    return f"group {number}" if number is not None else f"a group of {work.group_size}"


_FOR = {
    WaitsFor.THREAD: "it waits for another thread",
    WaitsFor.TIME: "it sleeps",
    WaitsFor.EVENT: "it waits for events",
    WaitsFor.PIPE: "it waits for a pipe",
    WaitsFor.CHILD: "it waits for a child process",
    WaitsFor.SOCKET: "it waits for a socket",
    WaitsFor.LOCK: "it waits for a lock",
    WaitsFor.STORAGE: "it waits for storage",
    WaitsFor.UNKNOWN: "it sleeps",
}


_TRANSFERS = {
    "send": ("has not taken what is sent to it", "will not take what is sent to it"),
    "receive": ("has not sent what is waited for", "will not send what is waited for"),
}


def _why(ranks: Mapping[int, RankNow], found: _Missing, culprit: int, now_ns: int) -> str:
    one = ranks.get(culprit)
    if found.what is Hung.NOT_ENDING:
        return "nothing is transferred"
    if one is None:
        return ""
    if found.what is Hung.OTHER_CALL:
        mine = _first_open(one, found.work.group) or _last_calls(one).get(found.work.group)
        left = ", and has ended" if one.gone else ""
        who = f"rank {culprit}" if set(found.waiting) <= set(found.missing) else "it"
        return _other_call(mine, found.work, who) + left if mine else ""
    if found.what is Hung.CROSSWISE:
        return "they wait for each other"
    if found.what is Hung.CUT_OFF and not (one.gone or one.silent_ns):
        return "what is sent is not acknowledged"
    if one.gone:
        return "its process has ended"
    if one.silent_ns:
        return f"{one.host} has reported nothing for {format_duration(max(0, now_ns - one.silent_ns))}"
    if one.state is ProcessState.STOPPED:
        return "it is stopped by a signal or a debugger"
    if one.state is ProcessState.DISK:
        return "it is in disk I/O"
    if not one.quiet:
        return "it calls something else"
    if one.makes_progress:
        return "it computes"
    return _FOR[one.waits_for]


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def line(hang: Hang, moment: Callable[[int], str]) -> str:
    """moment: of UTC, in words."""
    what = hang.collective + (f" {hang.sequence:,}" if hang.sequence >= 0 else "")
    what += f" of {hang.group}" if hang.group else ""
    at = f" on {hang.host}" if hang.host else ""
    who = f"rank {hang.rank}{at}"
    others = f" (and {_named(hang.missing[1:])})" if len(hang.missing) > 1 else ""
    enters = _TRANSFERS.get(hang.collective, ("has not entered {what}", "will not enter {what}"))
    has_not, will_not = (words.format(what=what) for words in enters)
    whole = {
        Hung.NOT_ENTERED: f"{who}{others} {has_not}",
        Hung.OTHER_CALL: f"{who}{others} is not in {what}, as the others are"
        if not set(hang.waiting) <= set(hang.missing)
        else f"{_named(hang.missing)} have made different calls, one {what}",
        Hung.CROSSWISE: f"{_named(hang.missing)} wait for each other, one in {what}",
        Hung.GONE: f"{who}{others} is gone and {will_not}",
        Hung.HOST_SILENT: f"{who}{others} {has_not}",
        Hung.CUT_OFF: f"{who} is cut off in {what}"
        if len(hang.missing) < 2
        else f"{_named(hang.missing)} do not reach each other in {what}",
        Hung.STOPPED_IN_IT: f"{who} stands still in {what}",
        Hung.NOT_ENDING: f"all ranks are in {what}, and it does not end",
        Hung.ENDED: f"{who}{others} did not call {what} as the others did",
    }[hang.what]
    count = len(hang.waiting)
    waits = f"{count} rank{'s' if count > 1 else ''} {'waited' if hang.until_ns else 'wait' + 's' * (count == 1)}"
    times = (
        f"from {moment(hang.since_ns)} to {moment(hang.until_ns)}"
        if hang.until_ns
        else f"since {moment(hang.since_ns)}"
    )
    if hang.what is Hung.ENDED:
        return f"{hang.job} ended at {moment(hang.until_ns)}: {whole}; {hang.why}"
    why = f"; {hang.why}" if hang.why and hang.what is not Hung.CROSSWISE else ""
    stands = "stood still" if hang.until_ns else "stands still" if hang.reported_ns else "waits"
    return f"{hang.job} {stands}: {whole}; {waits} {times}{why}"
