# SPDX-License-Identifier: Apache-2.0
"""When an agent tells of a rank that is quiet, and what; and what a process is doing, as /proc shows it."""

import os
import signal
import subprocess
import sys
import time

from test_rank_activity import SIZE, begin, call, named

from netmon.agent.waits import Active, Waits
from netmon.dl.rank_activity import RankActivity
from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.kernel.processes import Look, look
from netmon.marks import RankIdentity
from netmon.records import STEP_WAIT_BEGIN, STEP_WAIT_END

S = 1_000_000_000
ME = RankIdentity("job", 1, SIZE)


def test_a_rank_that_is_quiet_is_told_of_seldom_and_once_when_it_goes_on() -> None:
    looks = iter(range(1, 100))
    waits = Waits(lambda _: Look(ProcessState.SLEEPS, WaitsFor.SOCKET, 10 * next(looks), UNKNOWN))
    activity, jobs = RankActivity(), dict[str, int]()
    for one in (named(S), begin(7, 2 * S, 1), call(STEP_WAIT_BEGIN, 2 * S, work=7)):
        activity.add(one)

    def due(second: float) -> list[tuple[int, ...]]:
        table = waits.due([Active(5, ME, activity)], int(second * S), jobs)
        return table[["rank", "quiet", "cpu_ns", "age_ns", "pending"]].tolist()

    assert due(2.1) == [(1, 0, UNKNOWN, 0, 2)]  # it has called something in a group
    assert due(2.5) == []
    told = {tenth / 10: rows for tenth in range(26, 260) if (rows := due(tenth / 10))}
    assert list(told) == [3.0, 4.0, 5.0, 7.0, 10.0, 18.0]
    assert told[3.0] == [(1, 1, UNKNOWN, S, 2)]
    assert told[18.0] == [(1, 1, 10, 16 * S, 2)]
    assert jobs == {"job": 0}
    activity.add(call(STEP_WAIT_END, 27 * S, work=7))
    assert due(27.1) == [(1, 0, UNKNOWN, 25 * S, 2)]
    assert due(27.2) == []


def test_who_may_see_more_is_asked_first() -> None:
    own = [Look(ProcessState.SLEEPS, WaitsFor.UNKNOWN, 0, UNKNOWN)]
    waits, activity = Waits(lambda _: own[0], helped=True), RankActivity()
    activity.add(named(S))
    activity.add(begin(7, 2 * S, 1))

    def due(second: float) -> list[tuple[int, ...]]:
        table = waits.due([Active(5, ME, activity)], int(second * S), {})
        return [row for row in table[["quiet", "state", "io_bytes"]].tolist() if row[0]]

    def answer(second: float, io_bytes: int) -> None:
        assert waits.asks
        waits.asks = False
        waits.answer([[5, ProcessState.SLEEPS, WaitsFor.TIME, 0, io_bytes]], int(second * S))

    assert due(3.0) == []
    answer(3.1, 1_000)
    assert due(3.2) == [(1, ProcessState.SLEEPS, UNKNOWN)]
    assert due(4.0) == []
    answer(4.1, 5_000)
    assert due(4.2) == [(1, ProcessState.SLEEPS, 4_000)]
    assert due(5.0) == []
    assert due(7.0) == [(1, ProcessState.SLEEPS, UNKNOWN)]  # nobody has answered
    assert due(7.1) == []
    answer(7.1, 9_000)
    assert due(7.2) == [(1, ProcessState.SLEEPS, 4_000)]
    own[0] = Look(ProcessState.STOPPED, WaitsFor.UNKNOWN, 0, UNKNOWN)
    assert due(10.0) == [(1, ProcessState.STOPPED, UNKNOWN)]  # no more is to be known


def test_a_process_that_goes_on_as_another_rank_has_called_since_the_batch_was_begun() -> None:
    waits, activity = Waits(lambda _: Look(ProcessState.RUNS, WaitsFor.UNKNOWN, 0, UNKNOWN)), RankActivity()
    activity.add(named(S))
    waits.due([Active(5, ME, activity)], 2 * S, {})
    activity.add(begin(7, 3 * S + 5, 1))  # as a set-up and what follows it are read together
    other = Active(5, ME._replace(rank=0), activity)
    *_, left = waits.due([other], 3 * S, {})[["rank", "state", "start_ns", "end_ns"]].tolist()
    assert left == (1, ProcessState.GONE, 3 * S + 5, 3 * S + 5)  # a collector refuses what ends before it begins


def test_nothing_is_told_or_looked_at_while_a_rank_gets_on() -> None:
    def never(_: int) -> Look:
        raise AssertionError

    waits, activity = Waits(never), RankActivity()
    activity.add(named(S))
    for tenth in range(11, 100):
        activity.add(begin(7, tenth * S // 10, tenth))
        activity.add(call(STEP_WAIT_END, tenth * S // 10 + 1, work=7))
        rows = waits.due([Active(5, ME, activity)], tenth * S // 10 + 2, {})
        assert len(rows) == (tenth == 11)


def test_a_process_as_proc_shows_it() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 60
            while (now := look(process.pid)).cpu_ns < S // 2:  # its child's
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert now.state is ProcessState.SLEEPS
            os.kill(process.pid, signal.SIGSTOP)
            while look(process.pid).state is not ProcessState.STOPPED:
                assert time.monotonic() < deadline
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert look(process.pid).state is ProcessState.GONE
