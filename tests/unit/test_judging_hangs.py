# SPDX-License-Identifier: Apache-2.0
"""What a collector makes of the rows of quiet ranks: a hang is shown, stored, and over."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from collector.host.tables import Lately
from collector.judging.hangs import Hangs
from netmon.dl.hangs import line
from netmon.dl.operations import Operation
from netmon.dl.rank_activity import OVER, WAITED
from netmon.evidence import UNKNOWN, WAIT, ProcessState, WaitsFor
from netmon.records import Columns, Direction
from netmon.views import Hang, Hung

ALL_REDUCE = Operation.ALL_REDUCE

S = 1_000_000_000
SIZE, GROUP = 3, 99


class Collector:
    """Three hosts with a rank each, whose clocks are UTC."""

    def __init__(self) -> None:
        self.begun_ns = time.time_ns() - 10 * S
        self.rows: list[Columns] = []
        self.left: set[int] = set()
        self.shown: list[tuple[Hang, ...]] = []
        self.stored: list[Hang] = []
        self.sessions = {n: self._session(n) for n in range(SIZE)}
        state = np.zeros(0, [(name, "<i8") for name in ("job", "session", "rank", "link", "flow_id", "payload_bytes")])
        self.state = state
        self.transport = Lately()
        tables = SimpleNamespace(
            evidence=SimpleNamespace(take_waits=self._take, lately={"transport": self.transport}),
            flows=SimpleNamespace(jobs=["", "job"], state=state, flows=[]),
            sessions=SimpleNamespace(utc=lambda session, mono_ns: mono_ns),
        )
        self.late_s = 0.0
        self.hangs = Hangs(
            tables, self.sessions, lambda _, hangs: self.shown.append(hangs), self.stored.append, self._silent_s
        )

    def _session(self, number: int) -> SimpleNamespace:
        ranks = SimpleNamespace(processes=lambda: [] if number in self.left else [("job", number)])
        hello = SimpleNamespace(host=f"h{number}")
        window = SimpleNamespace(ranks=ranks, horizon_ns=1)
        return SimpleNamespace(index=number, hello=hello, window=window, last_batch_s=time.monotonic())

    def _silent_s(self, since_s: float) -> float:
        return time.monotonic() - max(since_s, self.late_s)

    def _take(self) -> list[Columns]:
        rows, self.rows = self.rows, []
        return rows

    def tell(self, rank: int, second: float, position: int, pending: int, quiet: bool = True, **known: int) -> None:
        end_ns = self.begun_ns + int(second * S)
        row = dict.fromkeys(WAIT.names or (), 0) | {
            **{"session": rank, "job": 1, "rank": rank, "pid": 10 + rank, "size": SIZE, "quiet": int(quiet)},
            **{"start_ns": self.begun_ns, "end_ns": end_ns, "state": int(ProcessState.SLEEPS)},
            **{"waits_for": int(WaitsFor.TIME), "cpu_ns": UNKNOWN, "io_bytes": UNKNOWN, "group": GROUP},
            **{"group_rank": rank, "group_size": SIZE, "operation": ALL_REDUCE, "sequence": position},
            **{"position": position, "peer": UNKNOWN, "bytes": 4, "age_ns": int(second * S), "pending": pending},
            **known,
        }
        self.rows.append(Columns({name: np.array([value], np.int64) for name, value in row.items()}))

    def receive(self, *hosts: int) -> None:
        """A batch of a second from these hosts."""
        for number in hosts or range(SIZE):
            self.sessions[number].window.horizon_ns += S

    def tick(self) -> None:
        self.hangs._checked_ns = 0
        self.hangs.tick(list(self.sessions.values()))

    def stands_still(self, **known: int) -> None:
        """Rank 2 has not called what the others wait in; all of them have been looked at twice."""
        for second, cpu in ((1, {}), (3, {"cpu_ns": 0})):
            for rank in (0, 1):
                self.tell(rank, second, 8, WAITED, **cpu)
            self.tell(2, second, 7, OVER, **cpu | known)
            self.tick()


def test_a_hang_is_shown_and_stored_when_it_begins_and_when_it_is_over() -> None:
    collector = Collector()
    collector.stands_still()
    [told] = collector.stored
    assert (told.what, told.rank, told.host, told.waiting) == (Hung.NOT_ENTERED, 2, "h2", (0, 1))
    assert (told.since_ns, told.until_ns) == (collector.begun_ns, 0)
    [(waits,), (shown,)] = collector.shown
    assert (waits.rank, waits.reported_ns, shown) == (2, 0, told)  # before it had been looked at twice
    assert collector.hangs.current() == [told]
    collector.tick()
    assert len(collector.stored) == 1
    for rank in range(SIZE):
        collector.tell(rank, 9, 8, WAITED, quiet=False)
    collector.tick()
    over = collector.stored[1]
    assert (over.rank, over.since_ns, over.until_ns) == (2, told.since_ns, collector.begun_ns + 9 * S)
    assert collector.shown[-1] == (over,)
    assert collector.hangs.current() == []


def test_a_rank_that_computes_is_told_to_be_waited_for_and_nothing_is_stored() -> None:
    collector = Collector()
    collector.stands_still(state=int(ProcessState.RUNS), cpu_ns=2 * S)
    assert collector.stored == collector.hangs.current() == []
    [(wait,)] = collector.shown
    assert (wait.rank, wait.why, wait.reported_ns, wait.until_ns) == (2, "it computes", 0, 0)
    collector.tick()
    assert len(collector.shown) == 1
    for rank in range(SIZE):
        collector.tell(rank, 9, 8, WAITED, quiet=False)
    collector.tick()
    assert collector.shown[1:] == [()]
    assert collector.stored == []


def test_a_job_that_cannot_be_judged_is_left_out_and_the_others_go_on(monkeypatch, caplog) -> None:
    collector = Collector()
    with monkeypatch.context() as broken:
        broken.setattr(Hangs, "_check", lambda *_: 1 // 0)
        collector.stands_still()
    assert "cannot judge what job job waits for" in caplog.text
    assert not any(collector.shown)
    assert not collector.stored
    collector.stands_still()
    assert [hang.rank for hang in collector.stored] == [2]


def test_what_was_waited_for_once_is_waited_for_again() -> None:
    collector = Collector()
    collector.tell(0, 1, 8, WAITED)
    collector.tick()
    collector.tell(0, 9, 8, WAITED, quiet=False)  # it has waited 9 s, and goes on
    collector.stands_still()
    assert collector.stored == []


def test_of_one_that_computes_nothing_is_told() -> None:
    collector = Collector()
    collector.stands_still(cpu_ns=2 * S)
    assert collector.stored == []


@pytest.mark.parametrize(("ours_s", "told"), [(30.0, [Hung.HOST_SILENT]), (1.0, [])])
def test_a_host_that_is_silent_as_all_were_a_moment_ago_is_not_gone(ours_s: float, told: list[Hung]) -> None:
    collector = Collector()
    collector.sessions[2].last_batch_s -= 12
    collector.late_s = time.monotonic() - ours_s
    collector.stands_still(cpu_ns=2 * S)  # when it was last heard of
    assert [hang.what for hang in collector.stored] == told


@pytest.mark.parametrize(("later", "told"), [(ProcessState.RUNS, 0), (ProcessState.STOPPED, 1)])
def test_of_one_that_was_stopped_for_a_moment_nothing_is_told(later: ProcessState, told: int) -> None:
    """As by a debugger that is attached, and lets it go on."""
    collector = Collector()
    collector.stands_still(cpu_ns=2 * S)
    for second, state in ((5, ProcessState.STOPPED), (8, later)):
        for rank in (0, 1):
            collector.tell(rank, second, 8, WAITED, cpu_ns=0)
        collector.tell(2, second, 7, OVER, cpu_ns=0, state=int(state))
        collector.tick()
        assert len(collector.stored) == (told if second == 8 else 0)


@pytest.mark.parametrize(("again_s", "told"), [(6, 0), (7, 1)])
def test_two_looks_at_one_moment_do_not_make_it_longer(again_s: int, told: int) -> None:
    """Where a processor is scarce, a debugger's moment may take a second."""
    collector = Collector()
    collector.stands_still(cpu_ns=2 * S)
    for second in (5, again_s):
        for rank in (0, 1):
            collector.tell(rank, second, 8, WAITED, cpu_ns=0)
        collector.tell(2, second, 7, OVER, cpu_ns=0, state=int(ProcessState.STOPPED))
        collector.tick()
    assert len(collector.stored) == told


def test_who_computes_no_more_than_those_who_wait_does_nothing() -> None:
    """Horovod's threads look for work all the time."""
    collector = Collector()
    for second, cpu in ((1, {}), (3, {"cpu_ns": 400_000_000})):
        for rank in range(SIZE):
            collector.tell(rank, second, 7 if rank == SIZE - 1 else 8, OVER if rank == SIZE - 1 else WAITED, **cpu)
        collector.tick()
    assert [hang.rank for hang in collector.stored] == [2]


def test_of_one_that_writes_slowly_nothing_is_told() -> None:
    """A checkpoint on a disk that is so slow that nothing is written for seconds."""
    collector = Collector()
    collector.stands_still(io_bytes=60_000)
    for second, io_bytes in ((5, 30_000), (8, 0)):
        collector.tell(2, second, 7, OVER, cpu_ns=0, io_bytes=io_bytes)
        collector.tick()
    assert collector.stored == []


def test_of_one_whose_disk_took_seconds_nothing_is_told() -> None:
    """Seen between two writes, of which the first one is as old as the wait."""
    collector = Collector()
    collector.stands_still(state=int(ProcessState.DISK), io_bytes=0)
    for second in (5, 8):
        since_ns = collector.begun_ns + second  # by another offset between the clocks
        collector.tell(2, second, 7, OVER, cpu_ns=0, io_bytes=0, start_ns=since_ns)
        collector.tick()
    assert collector.stored == []


@pytest.mark.parametrize(("state", "told"), [(ProcessState.DISK, 1), (ProcessState.SLEEPS, 0)])
def test_of_one_in_disk_io_its_other_threads_that_look_for_work_are_no_progress(state, told) -> None:
    """Horovod's do, in all ranks: here for most of the time."""
    collector = Collector()
    collector.begun_ns -= 20 * S
    for second in range(1, 27, 2):
        for rank in (0, 1):
            collector.tell(rank, second, 8, WAITED, cpu_ns=int(0.8 * 2 * S))
        collector.tell(2, second, 7, OVER, cpu_ns=int(0.9 * 2 * S), io_bytes=0, state=int(state))
        collector.tick()
    assert len(collector.stored) == told


def test_of_one_that_transfers_something_else_nothing_is_told() -> None:
    """A checkpoint on its way to a file server: that takes little CPU time."""
    collector = Collector()
    state = np.zeros(1, collector.state.dtype)
    state["job"], state["rank"], state["session"] = 1, 2, 2
    collector.hangs._tables.flows.state = state

    def sends(payload_bytes: int) -> None:
        state["payload_bytes"] += payload_bytes
        collector.receive()
        collector.tick()

    collector.tell(0, 0.9, 8, WAITED)
    collector.tick()
    sends(10_000_000)
    collector.stands_still()
    assert collector.stored == []
    job = collector.hangs._jobs["job"]
    job.flowed_ns = {2: job.ranks[2].received_ns - 1}  # it is long ago
    sends(0)
    assert [hang.rank for hang in collector.stored] == [2]


def test_who_sends_no_more_than_those_who_wait_does_nothing() -> None:
    """Horovod's ranks ask each other all the time whether there is something to do."""
    collector = Collector()
    state = np.zeros(SIZE, collector.state.dtype)
    state["job"], state["rank"], state["session"] = 1, range(SIZE), range(SIZE)
    collector.hangs._tables.flows.state = state
    collector.tell(0, 0.9, 8, WAITED)
    collector.tick()
    for host in (0, 1, 2, 1, 2, 0):  # their batches come one after the other
        state["payload_bytes"][host] += 10_000_000
        collector.receive(host)
        collector.tick()
    collector.stands_still()
    assert [hang.rank for hang in collector.stored] == [2]


def test_one_that_is_cut_off() -> None:
    """What it sends is sent again and again, and what it is sent, too; the others reach each other."""
    collector = Collector()
    pairs = ((0, 1), (1, 2), (2, 0))
    flows = collector.hangs._tables.flows
    flows.state = state = np.zeros(len(pairs), collector.state.dtype)
    state["job"], state["link"], state["flow_id"] = 1, int(Direction.TX), 7
    state["session"] = state["rank"] = [sender for sender, _ in pairs]
    flows.flows = [SimpleNamespace(src=f"h{sender}", dst=f"h{receiver}") for sender, receiver in pairs]

    def sends(
        second: float, sent: tuple[int, ...], again: tuple[int, ...], timeouts: tuple[int, ...] = (0,) * 3
    ) -> None:
        columns = {"session": [0, 1, 2], "flow_id": [7] * 3, "sent_bytes": sent, "retransmitted_bytes": again}
        columns["timeouts"] = timeouts
        end_ns = [collector.begun_ns + int(second * S)] * 3
        rows = {name: np.array(values, np.int64) for name, values in (columns | {"end_ns": end_ns}).items()}
        collector.transport.append(Columns(rows))

    for rank in range(SIZE):
        collector.tell(rank, 4, 8, WAITED)
    collector.tick()
    sends(1, (9_000,) * 3, (0, 3_000, 3_000))
    collector.tick()
    assert not collector.stored
    sends(4, (0, 0, 3_000), (0, 0, 3_000))
    collector.tick()
    assert [hang.missing for hang in collector.stored] == [(0, 2)]  # either of them may be
    sends(5, (0, 0, 3_000), (0, 0, 3_000), timeouts=(-1, 1, 1))  # of one nothing leaves its host
    collector.tick()
    collector.transport._single.clear()
    collector.tick()  # it stands still as it did
    assert len(collector.stored) == 1
    [[hang]] = collector.shown[-1:]
    assert (hang.what, hang.rank, hang.missing, hang.waiting) == (Hung.CUT_OFF, 2, (2,), (0, 1, 2))
    for rank in range(SIZE):
        collector.tell(rank, 30, 8, WAITED, quiet=False)
    collector.tick()
    assert collector.hangs._jobs["job"].longest_ns == 0  # nobody waits for that


def test_what_a_rank_takes_again_and_again_is_usual() -> None:
    collector = Collector()
    for _ in range(3):
        collector.tell(2, 1, 7, OVER)
        collector.tick()
        collector.tell(2, 8, 7, OVER, quiet=False)
        collector.tick()
    assert collector.hangs._jobs["job"].pause_ns == 8 * S
    collector.stands_still()
    assert collector.stored == []


def test_one_that_has_left() -> None:
    collector = Collector()
    collector.tell(2, 0.5, 7, OVER, quiet=False)
    collector.left = {2}
    for rank in (0, 1):
        collector.tell(rank, 1, 8, WAITED)
    collector.tick()
    assert collector.stored == []
    collector.hangs._jobs["job"].left_ns[2] -= 3 * S
    collector.tick()
    [told] = collector.stored
    assert (told.what, told.rank) == (Hung.GONE, 2)


def test_a_job_that_has_ended_is_let_go() -> None:
    collector = Collector()
    collector.stands_still()
    collector.left = set(range(SIZE))
    collector.tick()
    assert collector.hangs.current() == []
    assert collector.stored[-1].until_ns > 0
    for rank in range(SIZE):
        collector.hangs._jobs["job"].left_ns[rank] -= 4 * S
    collector.tick()
    assert collector.hangs._jobs == {}


def test_a_job_that_ends_because_a_rank_called_something_else() -> None:
    collector = Collector()
    for rank in range(SIZE):
        size = 4 if rank != 1 else 1
        collector.tell(rank, 1, 8, OVER, state=int(ProcessState.GONE), bytes=size)
    collector.left = set(range(SIZE))
    collector.tick()
    [told] = collector.stored
    assert (told.what, told.rank, told.missing, told.waiting) == (Hung.ENDED, 1, (1,), (0, 2))
    assert told.until_ns > 0
    assert line(told, str).endswith(
        "rank 1 on h1 did not call all-reduce 8 of a group of 3 as the others did; "
        "it has called it with 1 bytes, the others with 4"
    )
    assert collector.hangs._jobs == {}


def test_what_a_job_did_last_is_heard_after_its_ranks_have_left_and_told_once() -> None:
    collector = Collector()
    collector.tell(0, 1, 8, OVER, quiet=False)
    collector.left = set(range(SIZE))
    collector.tick()
    for again in range(2):  # the second time it is another run
        for _ in range(2):
            for rank in range(SIZE):
                about = {"state": int(ProcessState.GONE), "bytes": 4 if rank != 1 else 1, "pid": 10 * again + rank}
                collector.tell(rank, 1 + 20 * again, 8, OVER, **about)
            collector.tick()
        assert [(hang.what, hang.rank) for hang in collector.stored] == (again + 1) * [(Hung.ENDED, 1)]
    assert collector.hangs._jobs == {}


def test_one_that_seems_to_be_over_for_a_moment_is_the_same() -> None:
    collector = Collector()
    collector.stands_still()
    for rank in range(SIZE):
        collector.tell(rank, 4, 8, WAITED, quiet=False)
    collector.tick()
    [told, over] = collector.stored
    assert over.until_ns
    for rank in (0, 1):
        collector.tell(rank, 6, 8, WAITED, cpu_ns=0)
    collector.tell(2, 6, 7, OVER, cpu_ns=0)
    collector.tick()
    [again] = collector.hangs.current()
    assert (again.since_ns, again.reported_ns, again.until_ns) == (told.since_ns, told.reported_ns, 0)
    assert len(collector.stored) == 2


def test_a_rank_that_leaves_while_the_others_wait_for_another_one_is_no_hang_of_its_own() -> None:
    collector = Collector()
    collector.stands_still()
    collector.left = {2}
    collector.tick()
    collector.hangs._jobs["job"].left_ns[2] -= 3 * S
    collector.tick()
    collector.left = {1, 2}
    collector.hangs._jobs["job"].left_ns[1] = 1
    collector.tick()
    assert len(collector.stored) == 1
    assert collector.hangs.current()[0].since_ns == collector.stored[0].since_ns


@pytest.mark.parametrize("others", [(1, 2), (2,)])  # of which is known what they have called
def test_a_rank_that_is_gone_because_it_called_something_else(others: tuple[int, ...]) -> None:
    collector = Collector()
    collector.tell(0, 1, 8, OVER, state=int(ProcessState.GONE), bytes=1)
    collector.left = {0}
    for rank in others:
        collector.tell(rank, 4, 8, WAITED)
    collector.tick()
    [told] = collector.stored
    assert (told.what, told.rank, told.why) == (
        Hung.OTHER_CALL,
        0,
        "it has called it with 1 bytes, the others with 4, and has ended",
    )
