# SPDX-License-Identifier: Apache-2.0
"""Which rank is reported where a job stands still, and after how long; and where none is."""

from dataclasses import replace
from typing import Any

import pytest

from netmon.dl.hangs import DISK_NS, PATIENCE_NS, SILENT_NS, SURE_NS, Known, RankNow, judge, line
from netmon.dl.operations import Operation
from netmon.dl.rank_activity import HOROVOD, OPEN, OVER, UNNAMED, WAITED, Work
from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.views import Hang, Hung

ALL_REDUCE, RECEIVE, SEND = Operation.ALL_REDUCE, Operation.RECEIVE, Operation.SEND

S = 1_000_000_000
T0 = 1_000 * S
SIZE, WORLD, SUB = 4, 77, 88
BROADCAST, ALL_GATHER, BARRIER = 0, 4, 15


def work(number: int, position: int, state: int, **other: int) -> Work:
    known = {"group": WORLD, "group_rank": number, "group_size": SIZE, "operation": ALL_REDUCE} | other
    rest = {"sequence": position, "position": position, "peer": UNKNOWN, "bytes": 4000, "begun_ns": T0} | known
    return Work(**{**rest, "state": state})


def rank(number: int, *works: Work, **known: object) -> RankNow:
    about = {"size": SIZE, "quiet": True, "since_ns": T0, "state": ProcessState.SLEEPS, "progress_ns": T0}
    about |= {"received_ns": T0 + 1}
    return RankNow(number, f"h{number}", works=works, **about | known)


def waiting(number: int, position: int = 8, **other: int) -> RankNow:
    return rank(number, work(number, position, WAITED, **other))


def late(number: int = 3, **known: object) -> RankNow:
    """It has not called what the others wait in."""
    return rank(number, work(number, 7, OVER, begun_ns=T0 - S), **known)


def others(*but: int) -> dict[int, RankNow]:
    return {number: waiting(number) for number in range(SIZE) if number not in but}


def reported_after(ranks: dict[int, RankNow], **known: Any) -> tuple[int, Hang | None]:
    """After how many seconds a hang is reported; −1: never. Those that wait go on being reported."""
    for second in range(300):
        now_ns = T0 + second * S
        there = {number: replace(one, received_ns=now_ns) if waits(one) else one for number, one in ranks.items()}
        if (hang := judge("a", there, now_ns, Known(**known))) and hang.reported_ns:
            return second, hang
    return -1, None


def waits(one: RankNow) -> bool:
    return any(work.state == WAITED for work in one.works)


def test_who_has_not_been_reported_for_long_is_not_known_to_wait() -> None:
    """The reports of an agent that was cut off come late."""
    computes = late(progress_ns=T0 + 200 * S, received_ns=T0 + 200 * S)
    assert reported_after(others(3) | {3: computes})[0] * S == PATIENCE_NS
    assert judge("a", others(3) | {3: computes}, T0 + PATIENCE_NS + S, Known()) is None  # nor a wait
    stopped = others(3) | {3: late(state=ProcessState.STOPPED)}
    assert judge("a", stopped, T0 + 10 * S, Known()) is not None
    assert judge("a", stopped, T0 + 30 * S, Known()) is None


def test_a_rank_that_sleeps_and_has_not_entered() -> None:
    seconds, hang = reported_after(others(3) | {3: late(waits_for=WaitsFor.TIME)})
    assert hang is not None
    assert seconds * S == SURE_NS
    assert (hang.what, hang.rank, hang.host, hang.missing, hang.waiting) == (
        *(Hung.NOT_ENTERED, 3, "h3"),
        *((3,), (0, 1, 2)),
    )
    assert line(hang, lambda ns: f"{ns // S}") == (
        "a stands still: rank 3 on h3 has not entered all-reduce 8 of a group of 4; 3 ranks wait since 1000; it sleeps"
    )
    over = line(replace(hang, until_ns=T0 + 9 * S), lambda ns: f"{ns // S}")
    assert over.startswith("a stood still: ")
    assert "3 ranks waited from 1000 to 1009" in over


@pytest.mark.parametrize(
    ("known", "seconds", "what", "why"),
    [
        ({"state": ProcessState.STOPPED}, SURE_NS, Hung.NOT_ENTERED, "stopped"),
        ({"left_ns": T0 - S}, SURE_NS, Hung.GONE, "ended"),
        ({"left_ns": T0 + 4 * S}, 4 * S + SURE_NS, Hung.GONE, "ended"),  # the others may be ending, too
        ({"silent_ns": T0 + 2 * S}, SILENT_NS + 2 * S, Hung.HOST_SILENT, "h3 has reported nothing for"),
        ({"io_bytes": 1 << 20}, DISK_NS, Hung.NOT_ENTERED, "it sleeps"),  # between two pieces of a checkpoint
        ({"state": ProcessState.DISK}, DISK_NS, Hung.NOT_ENTERED, "it is in disk I/O"),
        ({"state": ProcessState.RUNS}, PATIENCE_NS, Hung.NOT_ENTERED, "it computes"),
        ({"quiet": False}, PATIENCE_NS, Hung.NOT_ENTERED, "it calls something else"),
        ({"progress_ns": 0}, PATIENCE_NS, Hung.NOT_ENTERED, "it sleeps"),  # it has been looked at once
        # Its children compute; it did, and does not any more.
        ({"progress_ns": T0 + 12 * S, "received_ns": T0 + 12 * S}, PATIENCE_NS, Hung.NOT_ENTERED, "it computes"),
        ({"progress_ns": T0 + 12 * S, "received_ns": T0 + 13 * S}, 12 * S + SURE_NS, Hung.NOT_ENTERED, "it sleeps"),
    ],
)
def test_how_long_a_missing_rank_is_waited_for(known: dict[str, object], seconds: int, what: Hung, why: str) -> None:
    after, hang = reported_after(others(3) | {3: late(**known)})
    assert hang is not None
    assert (after * S, hang.what, hang.rank) == (seconds, what, 3)
    assert why in hang.why


def test_what_the_job_has_waited_for_before_is_no_hang() -> None:
    asleep, busy = others(3) | {3: late()}, others(3) | {3: late(state=ProcessState.RUNS)}
    assert reported_after(asleep, longest_ns=20 * S)[0] == 30
    assert reported_after(busy, longest_ns=40 * S)[0] == 120
    assert reported_after(others(3) | {3: late(state=ProcessState.STOPPED)}, longest_ns=20 * S)[0] * S == SURE_NS


@pytest.mark.parametrize("known", [{"state": ProcessState.RUNS}, {"state": ProcessState.DISK}, {"io_bytes": 1 << 20}])
def test_a_wait_that_is_no_hang_yet_is_told(known: dict[str, object]) -> None:
    ranks = others(3) | {3: late(**known)}
    assert judge("a", ranks, T0 + SURE_NS - 1, Known()) is None
    wait = judge("a", ranks, T0 + SURE_NS, Known())
    assert wait is not None
    assert (wait.what, wait.rank, wait.waiting, wait.reported_ns) == (Hung.NOT_ENTERED, 3, (0, 1, 2), 0)
    assert line(wait, lambda ns: f"{ns // S}").startswith("a waits: rank 3 on h3 has not entered all-reduce 8 of")
    assert judge("a", ranks, T0 + SURE_NS, Known(longest_ns=10 * S)) is None  # it has waited so long before
    assert judge("a", ranks, T0 + SURE_NS, Known(pause_ns=10 * S)) is None


def test_of_who_is_gone_or_silent_nothing_is_told_before_it_is_sure() -> None:
    for known in ({"left_ns": T0 + 2 * S}, {"silent_ns": T0 + 2 * S}):
        assert judge("a", others(3) | {3: late(**known)}, T0 + SURE_NS + S, Known()) is None


def test_one_that_gets_on_may_be_what_the_other_waits_for() -> None:
    ranks = others(2, 3) | {2: late(2), 3: late(3, state=ProcessState.RUNS)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.missing) == (PATIENCE_NS, (2, 3))
    stopped = ranks | {2: late(2, state=ProcessState.STOPPED)}
    assert reported_after(stopped)[0] * S == SURE_NS


def test_nobody_waits() -> None:
    computing = {number: late(number) for number in range(SIZE)}
    assert reported_after(computing) == (-1, None)
    going_on = {number: rank(number, work(number, 8, OPEN)) for number in range(SIZE - 1)}
    assert reported_after(going_on | {3: late()}) == (-1, None)  # they compute beside what they have begun


def test_a_wait_that_is_over() -> None:
    assert reported_after({number: replace(one, quiet=False) for number, one in others().items()}) == (-1, None)


def test_another_operation() -> None:
    ranks = others(1) | {1: waiting(1, operation=ALL_GATHER)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what, hang.rank, hang.why) == (SURE_NS, Hung.OTHER_CALL, 1, "it has called all-gather")
    assert hang.waiting == (0, 2, 3)


def test_of_two_that_differ_others_say_who_is_right() -> None:
    ranks = {0: waiting(0, operation=ALL_GATHER), 1: waiting(1)}
    computing = {number: late(number, state=ProcessState.RUNS) for number in (2, 3)}
    assert reported_after(ranks | computing)[0] * S >= PATIENCE_NS  # they have called nothing yet
    _, hang = reported_after(ranks | computing | {2: waiting(2)})
    assert hang is not None
    assert (hang.what, hang.rank) == (Hung.OTHER_CALL, 0)


def test_of_two_that_differ_in_a_group_of_two_nobody_is_accused_alone() -> None:
    pair = {"group": SUB, "group_size": 2}
    ranks = {0: waiting(0, operation=ALL_GATHER, **pair), 1: waiting(1, **pair), 2: late(2), 3: late()}
    _, hang = reported_after(ranks)
    assert hang is not None
    assert (hang.what, hang.missing, hang.waiting) == (Hung.OTHER_CALL, (1, 0), (0, 1))
    words = line(hang, str)
    assert "ranks 1, 0 have made different calls, one all-gather 8 of a group of 2; 2 ranks wait" in words
    assert words.endswith("rank 1 has called all-reduce")


def test_horovods_ranks_that_wait_for_different_operations() -> None:
    def waits(number: int, operation: int) -> RankNow:
        return waiting(number, UNKNOWN, group=HOROVOD, bytes=UNKNOWN, operation=operation)

    ranks = {number: waits(number, ALL_GATHER if number == 2 else ALL_REDUCE) for number in range(SIZE)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what, hang.rank, hang.why) == (SURE_NS, Hung.OTHER_CALL, 2, "it has called all-gather")
    _, hang = reported_after(ranks | {3: late(state=ProcessState.RUNS)})
    assert hang is not None
    assert hang.what is not Hung.OTHER_CALL  # it may come


def test_another_size() -> None:
    _, hang = reported_after(others(1) | {1: waiting(1, bytes=8)})
    assert hang is not None
    assert (hang.what, hang.rank) == (Hung.OTHER_CALL, 1)
    assert hang.why == "it has called it with 8 bytes, the others with 4,000"
    gathers = {n: waiting(n, operation=ALL_GATHER, bytes=1000 + n) for n in range(SIZE)}  # as all-gathers may
    after, hang = reported_after(gathers)
    assert hang is not None
    assert (after * S, hang.what) == (DISK_NS, Hung.NOT_ENDING)


def test_all_are_in_it_and_it_does_not_end() -> None:
    seconds, hang = reported_after(others())
    assert hang is not None
    assert (seconds * S, hang.what, hang.rank) == (DISK_NS, Hung.NOT_ENDING, -1)
    assert "all ranks are in all-reduce 8" in line(hang, str)
    assert reported_after(others(), bytes_flow=True) == (-1, None)  # a transfer that takes long
    assert reported_after(others(3)) == (-1, None)  # of a rank on a host without an agent nothing is known


def test_some_are_in_the_next_one_already() -> None:
    ranks = {number: waiting(number, 8 + (number == 1), begun_ns=T0 + number) for number in range(SIZE)}
    ranks[1] = rank(1, work(1, 9, WAITED), work(1, 8, OVER))
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what, hang.sequence) == (DISK_NS, Hung.NOT_ENDING, 8)


@pytest.mark.parametrize(
    ("cut", "known", "what", "missing", "words"),
    [
        ({(1, 2), (3, 1)}, {}, Hung.CUT_OFF, (1,), "rank 1 on h1 is cut off in all-reduce 8"),
        ({(1, 2)}, {}, Hung.CUT_OFF, (1, 2), "ranks 1, 2 do not reach each other in all-reduce 8"),
        ({(1, 2), (3, 1)}, {"silent_ns": T0}, Hung.HOST_SILENT, (1,), "rank 1 on h1 has not entered"),
        ({(1, 2)}, {"left_ns": T0}, Hung.GONE, (1,), "rank 1 on h1 is gone"),
    ],
)
def test_one_that_is_cut_off(
    cut: set[tuple[int, int]], known: dict[str, int], what: Hung, missing: tuple[int, ...], words: str
) -> None:
    ranks = {number: waiting(number) for number in range(SIZE)}
    ranks[1] = replace(ranks[1], **known)
    seconds, hang = reported_after(ranks, cut=cut, longest_ns=30 * S)
    assert hang is not None
    assert (seconds * S, hang.what, hang.missing) == (SURE_NS, what, missing)
    assert words in line(hang, str)


def test_transfers_that_wait_for_each_other_may_be_on_a_cut_link() -> None:
    ranks = {0: transfer(0, RECEIVE, 1), 1: transfer(1, RECEIVE, 0)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what) == (2 * SURE_NS, Hung.CROSSWISE)
    seconds, hang = reported_after(ranks, cut={(0, 1)})
    assert hang is not None
    assert (seconds * S, hang.what) == (SURE_NS, Hung.CUT_OFF)


def test_one_that_usually_takes_its_time() -> None:
    assert reported_after(others(3) | {3: late(since_ns=T0 - S)}, pause_ns=8 * S)[0] == 11


def test_one_that_was_stopped_in_it() -> None:
    ranks = others(2) | {2: replace(waiting(2), state=ProcessState.STOPPED)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what, hang.rank, hang.waiting) == (SURE_NS, Hung.STOPPED_IN_IT, 2, (0, 1, 3))
    assert "rank 2 on h2 stands still in all-reduce 8" in line(hang, str)


def pair(number: int, group: int, members: tuple[int, int], state: int) -> Work:
    return work(number, 3, state, group=group, group_rank=members.index(number), group_size=2)


def test_two_groups_crosswise() -> None:
    one, other = 100, 101
    ranks = {
        0: rank(0, pair(0, one, (0, 1), WAITED), work(0, 2, OVER, group=other, group_size=2)),
        1: rank(1, pair(1, other, (0, 1), WAITED), work(1, 2, OVER, group=one, group_rank=1, group_size=2)),
    }
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.what, set(hang.missing)) == (SURE_NS, Hung.CROSSWISE, {0, 1})
    assert "ranks 0, 1 wait for each other" in line(hang, str)


def test_who_waits_in_another_group_for_the_one_that_is_missing() -> None:
    """Ranks 0 and 1 wait for 2, which waits in another group for 3."""
    ranks = {
        0: waiting(0),
        1: waiting(1),
        2: rank(2, pair(2, SUB, (2, 3), WAITED), work(2, 7, OVER)),
        3: rank(3, work(3, 7, OVER), pair(3, SUB, (2, 3), OVER)._replace(position=2)),
    }
    _, hang = reported_after(ranks)
    assert hang is not None
    assert (hang.rank, hang.missing) == (3, (3,))


def transfer(number: int, operation: int, peer: int) -> RankNow:
    return rank(number, work(number, 0, WAITED, operation=operation, peer=peer)._replace(position=UNKNOWN))


def test_a_stage_of_a_pipeline() -> None:
    ranks = {0: late(0), 1: transfer(1, RECEIVE, 0), 2: transfer(2, RECEIVE, 1), 3: transfer(3, RECEIVE, 2)}
    seconds, hang = reported_after(ranks)
    assert hang is not None
    assert (seconds * S, hang.rank, hang.collective, hang.waiting) == (SURE_NS, 0, "receive", (1, 2, 3))
    assert "rank 0 on h0 has not sent what is waited for; 3 ranks wait" in line(hang, str)
    _, hang = reported_after({0: transfer(0, SEND, 1), 1: transfer(1, SEND, 0)})
    assert hang is not None
    assert hang.what is Hung.CROSSWISE


def test_where_positions_are_not_known() -> None:
    ranks = {n: replace(one, works=[w._replace(position=UNKNOWN) for w in one.works]) for n, one in others(3).items()}
    missing = late()
    ranks[3] = replace(missing, works=[w._replace(position=UNKNOWN) for w in missing.works])
    _, hang = reported_after(ranks)
    assert hang is not None
    assert hang.rank == 3
    rooted = {n: replace(one, works=[w._replace(operation=BROADCAST) for w in one.works]) for n, one in ranks.items()}
    assert reported_after(rooted) == (-1, None)  # it may be through


def test_a_name_that_some_have_not_seen() -> None:
    ranks = others(3) | {0: waiting(0, group=UNNAMED), 3: late()}
    _, hang = reported_after(ranks)
    assert hang is not None
    assert (hang.rank, hang.waiting) == (3, (0, 1, 2))


def test_horovod() -> None:
    waits = {n: waiting(n, UNKNOWN, group=HOROVOD, sequence=UNKNOWN) for n in range(3)}
    seconds, hang = reported_after(waits | {3: rank(3)})
    assert hang is not None
    assert (seconds * S, hang.rank, hang.group) == (SURE_NS, 3, "")
    assert "has not entered all-reduce; 3 ranks wait" in line(hang, str)
