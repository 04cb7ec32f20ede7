# SPDX-License-Identifier: Apache-2.0
"""A job of 4,096 ranks on 512 hosts: what belongs to all of them costs each rank no more than in a small job."""

from collections.abc import Callable

import numpy as np
from lines_run import lines_run

from collector.jobs.rank_registry import Claims, Numbers
from collector.messages import Holder, Step
from netmon.dl.inference.topology import blocks, strongly_connected
from netmon.dl.numbering import RankEvents, Trust
from netmon.dl.step_alignment import Events, StepMoment

RANKS, HOSTS = 4096, 512
S = 1_000_000_000


def holder(rank: int) -> Holder:
    return Holder(f"h{rank % HOSTS}", f"s{rank % HOSTS}", 1000 + rank)


def claiming(claims: Claims, ranks: int, size: int, now: int) -> Callable[[], None]:
    def work() -> None:
        for rank in range(ranks):
            step = Step(rank, size, now, now + S)
            assert claims.claim("train", step, holder(rank)) == "train"
            assert claims.hold("train", Step(rank, size, now, now + 2 * S), holder(rank))

    return work


def telling(numbers: Numbers, ranks: int, begin: int) -> Callable[[], None]:
    def work() -> None:
        for rank in range(ranks):
            number = np.arange(8)
            events = {StepMoment.END: Events(number, begin + number * S + rank)}
            numbers.add_events([(rank, "train", RankEvents(rank, Trust.COUNTED, events, 1_000))])
            numbers.state("train", rank)
            numbers.relative("train", rank)

    return work


def test_claims_of_many_ranks():
    few = lines_run(claiming(Claims(), RANKS // 16, RANKS // 16, 0))
    claims = Claims()
    assert lines_run(claiming(claims, RANKS, RANKS, 0)) < 2 * 16 * few
    waiting = Step(0, RANKS - 1, 4 * S, 4 * S)  # the job begins anew, one rank smaller: nobody steps as before
    assert lines_run(lambda: claims.claim("train", waiting, holder(0)._replace(pid=1))) < 2 * RANKS
    other = Step(0, RANKS - 1, 0, S)
    assert claims.claim("train", other, holder(1)) == "train#2"  # while all those step
    assert lines_run(lambda: [claims.release_session(f"s{host}") for host in range(HOSTS)]) < 2 * 16 * few
    assert not claims.is_claimed("train", 5)


def test_common_numbers_of_many_ranks():
    small, numbers = Numbers(), Numbers()
    few = lines_run(telling(small, RANKS // 16, 0))
    assert lines_run(telling(numbers, RANKS, 0)) < 2 * 16 * few
    assert {numbers.state("train", rank)[1] for rank in range(RANKS)} == {0}

    def leaving(of: Numbers, ranks: int) -> Callable[[], None]:
        return lambda: [of.forget("train", rank) for rank in range(ranks)]

    few = lines_run(leaving(small, RANKS // 16))
    assert lines_run(leaving(numbers, RANKS)) < 2 * 16 * few


def test_who_reaches_whom_is_found_in_one_pass():
    """One host that exchanges messages with very many: a star, of which every spoke is a block."""

    def star(spokes: int) -> set[tuple[str, str]]:
        return {edge for k in range(spokes) for edge in (("hub", f"h{k:05}"), (f"h{k:05}", "hub"))}

    small, large = star(500), star(8_000)
    for work in (strongly_connected, blocks):
        assert lines_run(lambda of=work: of(large)) < 2 * 16 * lines_run(lambda of=work: of(small))
    assert len(strongly_connected(large)) == 1
    assert len(blocks(large)) == 8_000
