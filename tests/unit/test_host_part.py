# SPDX-License-Identifier: Apache-2.0
"""The host's row and the ranks', on this very machine; what the kernel has no name for is unknown."""

import os
import signal
import subprocess
import time

import pytest

from netmon.agent.host_part import INTERVAL_NS, MOST_RANKS, STEP_NS, HostPart, Links, NicSamples
from netmon.evidence import UNKNOWN
from netmon.kernel.load import OpenFiles, Softnet
from netmon.kernel.stops import RankStops
from netmon.records import Mark, Moment, NicSample, Source

S = INTERVAL_NS


def mark(pid: int, moment: Moment = Moment.JOIN, rank: int = 3) -> Mark:
    return Mark("job", rank, 4, pid, 0, moment, 1, Source.HOOK, 0)


@pytest.fixture
def part() -> HostPart:
    return HostPart(NicSamples(Links([1], ["lo"]), 1, S), RankStops(None))


def test_there_is_a_row_of_the_host_and_one_of_each_rank(part: HostPart) -> None:
    part.add_marks([mark(os.getpid())])
    now = time.monotonic_ns()
    part.watch(now)
    assert len(part.due(now, idle=False)[0]) == 0  # the first look: nothing has been seen yet
    while time.process_time_ns() % 2 and time.monotonic_ns() < now:
        pass
    before = time.process_time_ns()
    while time.process_time_ns() < before + 20_000_000:
        pass
    part.watch(now + S)
    (host, rank), jobs = part.due(now + S, idle=False)
    assert jobs == ("job",)
    assert (host["job"], host["rank"], host["pid"], host["cpu_ns"]) == (UNKNOWN,) * 4
    assert (host["start_ns"], host["end_ns"]) == (now, now + S)
    assert host["softnet_dropped"] >= 0
    assert host["softnet_squeezed"] >= 0
    assert (rank["job"], rank["rank"], rank["pid"]) == (0, 3, os.getpid())
    assert rank["cpu_ns"] >= 20_000_000
    assert rank["run_delay_ns"] >= 0
    assert rank["missed_packets"] == rank["softnet_dropped"] == UNKNOWN


def test_who_has_left_or_is_gone_is_not_told_of(part: HostPart) -> None:
    child = subprocess.Popen(["sleep", "600"])
    part.add_marks([mark(os.getpid(), rank=0), mark(child.pid, rank=1)])
    now = time.monotonic_ns()

    def told(seconds: int) -> list[int]:
        part.watch(now + seconds * S)
        return sorted(part.due(now + seconds * S, idle=False)[0]["rank"])

    told(0)
    assert told(1) == [UNKNOWN, 0, 1]
    child.kill()
    child.wait()
    assert told(2) == [UNKNOWN, 0]
    part.add_marks([mark(os.getpid(), Moment.LEAVE)])
    assert told(3) == [UNKNOWN]
    part.close()


def test_a_rank_that_is_stopped_has_rows_of_its_own_for_that_time(part: HostPart) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        part.add_marks([mark(child.pid)])
        now = time.monotonic_ns()
        for step in range(18):
            if step == 5:
                child.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            if step == 7:
                child.send_signal(signal.SIGCONT)
                os.waitid(os.P_PID, child.pid, os.WCONTINUED)
            part.watch(now + step * STEP_NS)
        table = part.due(now + 18 * STEP_NS, idle=True)[0]
    finally:
        child.kill()
        child.wait()
        part.close()
    rows = table[table["rank"] == 3]
    began, length = (rows["start_ns"] - now) // STEP_NS, (rows["end_ns"] - rows["start_ns"]) // STEP_NS
    stopped = rows["stopped_ns"] * 2 // STEP_NS
    # Three steps of which it was stopped for half, all and half. A busy machine may give the others rows of their own.
    told = list(zip(began, length, stopped, strict=True))
    assert [row for row in told if row[2]] == [(4, 1, 1), (5, 1, 2), (6, 1, 1)]
    assert [row[0] for row in told[1:]] == [row[0] + row[1] for row in told[:-1]]


def test_rows_of_ranks_wait_for_the_hosts_unless_something_kept_a_rank(part: HostPart) -> None:
    part.add_marks([mark(os.getpid())])
    now = time.monotonic_ns()
    part.watch(now)
    part.due(now, idle=False)
    ((pid, rank),) = part._rows.items()
    rank._over = [row := {"start_ns": now, "end_ns": now + STEP_NS}]
    assert len(part.due(now + S // 2, idle=False)[0]) == 0
    rank.telling = True
    assert part.due(now + S // 2, idle=False)[0]["pid"].tolist() == [pid]
    rank._over = [row]
    assert part.due(now + S, idle=False)[0]["pid"].tolist() == [UNKNOWN, pid]


def test_more_ranks_than_are_looked_at_cost_no_other_its_place(part: HostPart) -> None:
    for pid in range(1 << 22, (1 << 22) + MOST_RANKS - 4):
        part.add_marks([mark(pid)])
    assert len(part._ranks) == MOST_RANKS - 4


def test_nobody_looks_while_there_is_nothing_to_hold_up(part: HostPart) -> None:
    now = time.monotonic_ns()
    part.due(now, idle=False)
    assert len(part.due(now + S, idle=True)[0]) == 0
    assert len(part.due(now + 60 * S, idle=False)[0]) == 0  # a minute is nobody's interval: it begins anew
    assert len(part.due(now + 61 * S, idle=False)[0]) == 1
    part.add_marks([mark(pid) for pid in range(1 << 22, (1 << 22) + 10_000)])
    assert len(part._ranks) == MOST_RANKS


def test_drops_of_the_cards_are_those_that_their_drivers_name(part: HostPart) -> None:
    names = ("rx_missed_errors", "rx_out_of_buffer", "rx_no_buffer_count", "rx_alloc_failed", "rx_bytes")
    for grown in (0, 5):
        values = (100 + grown, 7, 3 + 2 * grown, 0, 10**9)
        part._nic._latest = [NicSample("eth0", "ethtool", 1, names, values), NicSample("x/1", "rdma", 1, names, values)]
        now = time.monotonic_ns() + 2 * grown * S
        part.due(now, idle=False)
        (row,) = part.due(now + S, idle=False)[0] if not grown else [*part.due(now + S, idle=False)[0]]
    assert row["missed_packets"] == 0
    part._nic._latest = [NicSample("eth0", "ethtool", 1, names, (112, 30, 3, 0, 1))]
    (row,) = part.due(now + 2 * S, idle=False)[0]
    assert (row["missed_packets"], row["no_buffer_packets"]) == (7, 17)


def test_what_holds_a_card_back_is_counted_from_whoever_tells_it(part: HostPart) -> None:
    limits = ("bw_in_allowance_exceeded", "bw_out_allowance_exceeded", "pps_allowance_exceeded")
    pauses = ("rx_prio3_pause", "rx_prio3_pause_duration", "tx_prio3_pause", "rx_pause_ctrl_phy")
    now = time.monotonic_ns()
    for seconds, grown in ((0, 0), (1, 5)):
        samples = [NicSample("eth0", "ethtool", 1, limits, (10**6, 3 + grown, 0))]
        samples += [NicSample("eth1", "ethtool", 1, pauses, (7 + grown, 9 + 100 * grown, 5 * grown, 0))]
        samples += [NicSample("mlx5_0/1", "rdma", 1, ("np_cnp_sent", "rp_cnp_handled"), (9 * grown, 2 * grown))]
        part._nic._latest = samples
        rows = part.due(now + seconds * S, idle=False)[0]
    (row,) = rows
    assert [row[name] for name in ("limited_packets", "pause_packets", "congestion_packets")] == [5, 5, 10]


def test_softnet_counts_wrap_and_a_cpu_that_comes_is_no_drop(tmp_path) -> None:
    file = tmp_path / "softnet_stat"
    softnet = Softnet(OpenFiles())
    softnet._path = str(file)

    def told(*cpus: tuple[int, int]) -> tuple[int, int]:
        file.write_text("".join(f"{1:08x} {dropped:08x} {squeezed:08x} {0:08x}\n" for dropped, squeezed in cpus))
        return softnet.read()

    told((0xFFFFFFFE, 7), (3, 3))
    assert told((1, 9), (4, 3)) == (4, 2)
    assert told((1, 9), (4, 3), (900, 900)) == (UNKNOWN, UNKNOWN)
    assert told((2, 9), (4, 3), (900, 901)) == (1, 1)
