# SPDX-License-Identifier: Apache-2.0
"""What the links cannot tell: who was stopped while a ring stood still, and whether a sender waited for its timer."""

import json
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_verdict import BEGIN, CELLS, COMPUTING, LINKS, MS, RANKS, SLOW, TRANSFER, Run
from test_verdict_recorded import RECORDED, TRUTHS

from netmon.cli import main
from netmon.dl.verdict import Link, LinkTotals, Steps, Whose, judge, standing_out
from netmon.dl.verdict.cells import Cells
from netmon.dl.verdict.connections import SAID, Connections, limited, sent_again, who_waited
from netmon.dl.verdict.evidence import CELL_NS, LINK_TOTAL, with_waits
from netmon.dl.verdict.host_part import WAITED
from netmon.dl.verdict.judge import conclude
from netmon.dl.verdict.links import lossy_link, slow_link
from netmon.dl.verdict.rank_times import most_relevant, path_of, rank_times
from netmon.dl.verdict.verdict_text import sentence
from netmon.dl.verdict.window import JobTraffic
from netmon.records import Direction
from netmon.views import SHARES, Cause, RankTimes, Verdict

STANDS_STILL = BEGIN + (SLOW * 2_000 + COMPUTING + 40) * MS


def watched(*stopped: int, ms: int = 200) -> np.ndarray:
    """Ranks are looked at ten times a second; some of them are stopped while the transfer stands still."""
    times = np.arange(SLOW * 2_000 - 1_000, SLOW * 2_000 + 2_000, 100)
    rows = np.zeros(RANKS * len(times), WAITED)
    rows["rank"], rows["start_ns"] = np.repeat(np.arange(RANKS), len(times)), BEGIN + np.tile(times, RANKS) * MS
    rows["end_ns"] = rows["start_ns"] + 100 * MS
    within = np.minimum(rows["end_ns"], STANDS_STILL + ms * MS) - np.maximum(rows["start_ns"], STANDS_STILL)
    rows["stopped_ns"] = np.where(np.isin(rows["rank"], stopped), np.clip(within, 0, None), 0)
    return rows


@pytest.mark.parametrize(
    ("stopped", "cause"),
    [((1,), Cause.STRAGGLER), ((0, 1, 2), Cause.PAUSE), ((0, 2), Cause.PAUSE), ((), Cause.UNKNOWN)],
)
def test_who_was_stopped_while_the_ring_stood_still(stopped, cause):
    run = Run()
    run.stopped(40, 200)
    run.waited = watched(*stopped)
    verdict = run.judged()
    assert verdict.cause == cause
    assert verdict.rank == (1 if cause == Cause.STRAGGLER else -1)
    share = {Cause.STRAGGLER: verdict.late_ns, Cause.PAUSE: verdict.pause_ns, Cause.UNKNOWN: verdict.unknown_ns}[cause]
    assert share == pytest.approx(200 * MS, rel=0.15)


def test_who_did_not_wait_while_the_ring_stood_still():
    """As one whose garbage is collected in its backward pass, after its first gradients have left."""
    run = Run()
    run.stopped(40, 200)
    run.busy[1] = 190
    verdict = run.judged()
    assert (verdict.cause, verdict.rank) == (Cause.STRAGGLER, 1)
    some = 40 * CELLS
    run.paces = [1.0] * some + [0.01] * (200 * CELLS) + run.paces[:some]  # the others still say that they wait
    verdict = run.judged()
    assert (verdict.cause, verdict.rank) == (Cause.STRAGGLER, 1)
    run.busy[0] = run.busy[2] = 190
    assert run.judged().cause == Cause.PAUSE


@pytest.mark.parametrize(
    ("kept", "cause"), [((1,), Cause.HOST), ((0, 1, 2), Cause.PAUSE), ((), Cause.UNKNOWN)], ids=["one", "all", "nobody"]
)
def test_who_was_kept_from_a_cpu_while_the_ring_stood_still(kept, cause):
    """The others only wait for it: that is no pause of all ranks."""
    run = Run()
    run.stopped(40, 200)
    run.waited = watched(*kept, ms=190)
    run.waited["waited_ns"], run.waited["stopped_ns"] = run.waited["stopped_ns"] + 2 * MS, 0
    run.waited = np.concatenate([run.waited, usually_waited()])
    verdict = run.judged()
    assert verdict.cause == cause
    if cause == Cause.HOST:
        assert (verdict.host, verdict.rank) == ("h1", 1)
        assert verdict.host_ns == pytest.approx(190 * MS, rel=0.15)
        assert verdict.pause_ns < 20 * MS


@pytest.mark.parametrize(
    ("throttled", "usually", "cause"),
    [((1,), 0, Cause.HOST), ((0, 1, 2), 0, Cause.PAUSE), ((1,), 90, Cause.UNKNOWN), ((), 0, Cause.UNKNOWN)],
    ids=["one", "all", "as usual", "nobody"],
)
def test_who_was_throttled_where_all_wait_for_cpus_anyway(throttled, usually, cause):
    """Waits of four fifths of the time, now more, now less, tell nothing; a quota that is hardly ever used up does."""
    run = Run()
    run.stopped(40, 200)
    run.waited = np.concatenate([watched(*throttled, ms=190), usually_waited()])
    run.waited["throttled_ns"], run.waited["stopped_ns"] = 2 * run.waited["stopped_ns"], 0  # of two threads
    run.waited["throttled_ns"][run.waited["rank"] == 1] += usually * MS
    run.waited["waited_ns"] = np.random.default_rng(1).uniform(60, 100, len(run.waited)) * MS
    verdict = run.judged()
    assert verdict.cause == cause
    if cause == Cause.HOST:
        assert (verdict.host, verdict.rank) == ("h1", 1)
        assert verdict.host_ns == pytest.approx(190 * MS, rel=0.15)


def test_for_what_all_ranks_did_longer_nobody_answers_alone():
    """As in an evaluation, in which one of them shares its CPU with somebody."""
    run = Run()
    run.late = dict.fromkeys(range(RANKS), 200)
    run.waited = watched(1, ms=150)
    run.waited["waited_ns"], run.waited["stopped_ns"] = run.waited["stopped_ns"] + 2 * MS, 0
    run.waited = np.concatenate([run.waited, usually_waited()])
    verdict = run.judged()
    assert (verdict.cause, verdict.pause_ns, verdict.host_ns) == (Cause.PAUSE, 200 * MS, 0)


def usually_waited() -> np.ndarray:
    """Of all ranks before, as they are looked at."""
    times = np.arange(0, SLOW * 2_000 - 1_000, 100)
    rows = np.zeros(RANKS * len(times), WAITED)
    rows["rank"], rows["start_ns"] = np.repeat(np.arange(RANKS), len(times)), BEGIN + np.tile(times, RANKS) * MS
    rows["end_ns"] = rows["start_ns"] + 100 * MS
    rows["waited_ns"] = 2 * MS
    return rows


def test_a_stop_answers_for_no_more_than_its_length_and_never_for_anothers_bytes():
    run = Run()
    run.beside(0)
    run.waited = watched(1, ms=60)
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit) == (Cause.CROSS, "backup")
    assert verdict.late_ns <= 60 * MS


def test_who_stopped_is_not_told_where_the_others_were_not_seen():
    run = Run()
    run.stopped(40, 200)
    run.waited = watched(0, 1, 2)
    hidden = (run.waited["rank"] != 1) & (run.waited["stopped_ns"] > 0)
    run.waited = run.waited[~hidden]
    assert run.judged().cause == Cause.UNKNOWN


def said(*rows: tuple[int, ...]) -> np.ndarray:
    """Of each second: payload sent, of that sent again, ms busy, ms limited by the receiver's window."""
    table = np.zeros(len(rows), SAID)
    table["start_ns"] = BEGIN + np.arange(len(rows)) * 1_000 * MS
    table["end_ns"] = table["start_ns"] + 1_000 * MS
    for name, column, unit in (("sent_bytes", 0, 1), ("again_bytes", 1, 1), ("busy_ns", 2, MS), ("receiver_ns", 3, MS)):
        table[name] = [row[column] * unit for row in rows]
    return table


@pytest.mark.parametrize(
    ("busy_ms", "receiver_ms", "again", "waits"),
    [(800, 0, 1448, True), (600, 0, 1448, False), (800, 200, 1448, False), (-1, 0, 1448, False), (800, 0, 0, False)],
    ids=["unacknowledged", "nothing outstanding", "the receiver's window", "not known", "nothing was sent again"],
)
def test_a_silence_in_which_something_was_unacknowledged(busy_ms, receiver_ms, again, waits):
    usual = (20_000_000, 0, 800, 0)
    table = said(usual, usual, usual, (15_000_000, again, busy_ms, receiver_ms), usual)
    if busy_ms < 0:
        table["busy_ns"] = -1
    told = Connections(
        table, np.full(len(table), 2), np.full(len(table), 1), np.zeros(len(table), bool), np.ones(len(table), bool)
    )
    since = BEGIN + 3_300 * MS
    assert who_waited(told, since, since + 200 * MS) == ({(2, 1)} if waits else set())


@pytest.mark.parametrize(
    ("resumed", "again", "waits"),
    [(1, 0, True), (0, 0, False), (1, 48, False)],
    ids=["its receiver", "another rank", "messages are often sent again"],
)
def test_a_small_message_was_lost_and_its_receiver_went_on_first(resumed, again, waits):
    """Such a connection is idle now and busy then, so that the rest of a row tells nothing of the silence."""
    rows = [(1_500, again, busy, 0) for busy in (300, 700, 200)]
    table = said(*rows, (1_500, 96, 350, 0), *rows)
    told = Connections(
        table, np.full(len(table), 2), np.full(len(table), 1), np.ones(len(table), bool), np.ones(len(table), bool)
    )
    since = BEGIN + 3_300 * MS
    assert who_waited(told, since, since + 200 * MS, resumed) == ({(2, 1)} if waits else set())


def test_a_link_that_is_slow_for_many_iterations_is_held_against_what_it_was_before():
    run = Run()
    run.slow, run.paces = set(range(8, 16)), [0.5] * (2 * TRANSFER * CELLS)
    for number in (8, SLOW, 15):
        assert run.judged(number).cause == Cause.SLOW_LINK


def test_a_link_is_so_slow_that_every_packet_takes_milliseconds():
    run = Run()
    run.paces = ([2.0] + [0.0] * (6 * CELLS - 1)) * (TRANSFER * CELLS // 2)
    assert run.judged().cause == Cause.SLOW_LINK


def test_what_is_busy_now_more_and_now_less_tells_nothing_of_a_short_silence():
    """As on a machine with more ranks than CPUs: the silence is a tenth of a row, whose rest may have been anything."""
    rows = [(20_000_000, 1_448, busy, 0) for busy in (500, 900, 600, 850, 550, 800)]
    nobody = np.zeros(len(rows), int)
    told = Connections(said(*rows), nobody, nobody, np.zeros(len(rows), bool), np.ones(len(rows), bool))
    for second in range(len(rows)):
        begin = BEGIN + (1_000 * second + 450) * MS
        assert who_waited(told, begin, begin + 100 * MS) == ({(0, 0)} if rows[second][2] > 870 else set())


def test_what_a_sender_only_believed_to_be_lost_is_no_loss():
    usual = (20_000_000, 2_896, 800, 0)
    table = said(usual, usual, (20_000_000, 8_688, 800, 0), (20_000_000, 200_000, 800, 0), usual)
    told = Connections(
        table, np.full(len(table), 2), np.full(len(table), 1), np.zeros(len(table), bool), np.ones(len(table), bool)
    )
    assert not sent_again(told, BEGIN + 2_100 * MS, BEGIN + 2_900 * MS)
    assert sent_again(told, BEGIN + 3_100 * MS, BEGIN + 3_900 * MS) == {2: pytest.approx(160_000)}


def test_what_is_sent_again_now_and_then_is_no_loss_this_time_either():
    """As after a transfer whose last acknowledgement comes late: five segments, in every fifth row."""
    rows = [(11_000_000, 7_240 * (second % 5 == 0), 500, 0) for second in range(30)]
    rows[10], rows[17] = (10_000_000, 7_240, 500, 0), (11_000_000, 14_600, 500, 0)
    told = Connections(said(*rows), np.zeros(30, int), np.ones(30, int), np.zeros(30, bool), np.ones(30, bool))
    assert not sent_again(told, BEGIN + 10_100 * MS, BEGIN + 10_900 * MS)
    assert sent_again(told, BEGIN + 17_000 * MS, BEGIN + 18_000 * MS) == {0: pytest.approx(14_600)}


def test_what_is_sent_again_for_long_is_no_measure_of_itself():
    rows = [(11_000_000, 40_000 * (10 <= second < 25), 500, 0) for second in range(30)]
    quick = np.array([not 10 <= second < 25 for second in range(30)])
    told = Connections(said(*rows), np.zeros(30, int), np.ones(30, int), np.zeros(30, bool), quick)
    assert sent_again(told, BEGIN + 17_000 * MS, BEGIN + 18_000 * MS) == {0: pytest.approx(40_000)}
    assert not sent_again(replace(told, in_baseline=np.ones(30, bool)), BEGIN + 17_000 * MS, BEGIN + 18_000 * MS)


def test_a_connection_with_few_other_rows_is_compared_with_all_of_the_job():
    """An all-to-all that always loses 1 %, and now and then 3: of one connection there is only the row in question."""
    rows = [(10_000_000, 300_000 if second % 5 == 0 else 100_000, 500, 0) for second in range(20)]
    rows += [(10_000_000, 300_000, 500, 0), (10_000_000, 900_000, 500, 0)]
    table = said(*rows)
    table["of"][20:], table["start_ns"][20:], table["end_ns"][20:] = [1, 2], table["start_ns"][17], table["end_ns"][17]
    count = len(rows)
    told = Connections(table, table["of"], np.ones(count, int), np.zeros(count, bool), np.ones(count, bool))
    assert sent_again(told, BEGIN + 17_000 * MS, BEGIN + 18_000 * MS) == {2: pytest.approx(900_000)}


@pytest.mark.parametrize(("seldom", "sender"), [(True, 1), (False, 2)])
def test_a_timer_that_runs_out_as_it_seldom_does_says_more_than_bytes(seldom, sender):
    """Of two that sent something again clearly more than otherwise."""
    rows = [(10_000_000, 20_000, 500, 0) for _ in range(30)]
    table = said(*rows, *rows)
    table["of"] = np.repeat([1, 2], 30)
    for name in ("start_ns", "end_ns"):
        table[name][30:] = table[name][:30]
    table["again_bytes"][[17, 47]] = 300_000, 900_000
    table["timeouts"][17] = 1
    if not seldom:
        table["timeouts"][:30:5] = 1
    told = Connections(table, table["of"], np.ones(60, int), np.zeros(60, bool), np.ones(60, bool))
    again = sent_again(told, BEGIN + 17_100 * MS, BEGIN + 17_900 * MS)
    assert max(again, key=lambda rank: again[rank]) == sender
    assert len(again) == (1 if seldom else 2)


@pytest.mark.parametrize("known", [True, False])
def test_where_tcp_says_that_it_lost_what_it_always_loses_nobody_is_accused_of_lost_packets(known):
    run = Run()
    run.baseline_paces = ([1.0] * 10 * CELLS + [0.0] * 6 * CELLS) * 10
    run.paces = ([1.0] * 2 * CELLS + [0.15] * 20 * CELLS + [1.0] * 5 * CELLS + [0.0] * 6 * CELLS) * 10
    run.dropped = dict.fromkeys(range(0, 330 * CELLS, 33 * CELLS), 2896)
    if known:
        run.said = said(*[(20_000_000, 200_000, 300, 0)] * 30)
        run.said["start_ns"] -= 300 * MS
        run.said["end_ns"] -= 300 * MS
    verdict = run.judged()
    assert (verdict.cause == Cause.LOSS) == (verdict.loss_ns > 0) == (not known)


@pytest.mark.parametrize(("dropped", "loss"), [(0, False), (20_000, True)])
def test_what_is_under_way_when_the_iteration_ends_is_not_lost(dropped, loss):
    """TCP's row is longer than an iteration: what it sent again may have been lost in the next one."""
    run = Run()
    run.paces = ([1.0] * 16 + [0.0] * 15) * 25
    run.after, run.under_way = 10, 20_000
    run.dropped = {40: dropped}
    usual = (20_000_000, 0, 800, 0)
    run.said = said(*[usual] * 6, (20_000_000, 200_000, 800, 0), usual)
    moved = STANDS_STILL - 700 * MS - run.said["start_ns"][6]
    run.said["start_ns"] += moved
    run.said["end_ns"] += moved
    verdict = run.judged()
    assert (verdict.cause == Cause.LOSS) == (verdict.loss_ns > 0) == loss


def test_packets_that_are_lost_in_a_transfer_that_pauses_anyway():
    """Ranks that compute between their messages are silent for a third of it, now as ever."""
    run = Run()
    run.baseline_paces = ([1.0] * 10 * CELLS + [0.0] * 6 * CELLS) * 10
    run.paces = ([1.0] * 2 * CELLS + [0.15] * 20 * CELLS + [1.0] * 5 * CELLS + [0.0] * 6 * CELLS) * 10
    run.dropped = dict.fromkeys(range(0, 330 * CELLS, 33 * CELLS), 2896)
    usual = (20_000_000, 0, 800, 0)
    run.said = said(*[usual] * 6, (20_000_000, 200_000, 800, 0), usual)
    moved = STANDS_STILL - 300 * MS - run.said["start_ns"][6]
    run.said["start_ns"] += moved
    run.said["end_ns"] += moved
    verdict = run.judged()
    assert (verdict.cause, verdict.host) == (Cause.LOSS, "h0")
    assert verdict.loss_ns == pytest.approx(170 * MS, rel=0.1)


@pytest.mark.parametrize(("column", "words"), [(3, "its receiver's window"), (4, "room in its send buffer")])
def test_what_tcp_waited_for_beyond_the_usual_is_named(column, words):
    usual = (20_000_000, 0, 800, 20, 20)
    table = said(*((*usual[:column], 420, *usual[column + 1 :]) if row == 3 else usual for row in range(6)))
    table["sender_ns"] = [420 * MS if row == 3 and column == 4 else 20 * MS for row in range(6)]
    spans = [(BEGIN + second * 1_000 * MS, BEGIN + (second + 1) * 1_000 * MS) for second in (0, 1, 2, 4)]
    name = "receiver_ns" if column == 3 else "sender_ns"
    more = limited(table, name, (BEGIN + 3_000 * MS, BEGIN + 4_000 * MS), spans)
    assert more == pytest.approx(400 * MS)
    verdict = Verdict("job", 1, 0, 0, 600 * MS, 100 * MS, 500 * MS, Cause.SLOW_LINK, host="h1", slow_link_ns=450 * MS)
    assert f"TCP waited 400 ms for {words}" in sentence(replace(verdict, **{name: round(more)}))
    assert "TCP" not in sentence(replace(verdict, **{name: 50 * MS}))


def test_the_ranks_times_add_up_and_are_told_with_the_iteration(capsys):
    truth = next(each for each in TRUTHS if each["kind"] == "stop")
    data = ["--data", str(RECORDED), "--json"]
    assert main(["why", truth["job"], *data]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    number = str(max(verdicts, key=lambda each: each["duration_ns"])["iteration"])
    assert main(["why", truth["job"], "--iteration", number, *data]) == 0
    (found,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert len(found["ranks"]) > 1
    parts = ("computed_ns", "waited_ns", "transfer_ns", "stalled_ns", "after_ns")
    for rank in found["ranks"]:
        assert rank["known"]
        assert sum(rank[part] for part in parts) == rank["duration_ns"]
        assert min(rank[part] for part in parts) >= 0
    assert main(["why", truth["job"], "--iteration", number, *data[:2]]) == 0
    assert "afterwards" in capsys.readouterr().out


def test_incidents_are_told_first_and_then_the_worst_steps(capsys):
    assert main(["why", "--data", str(RECORDED), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = found["verdicts"]
    assert main(["why", "--data", str(RECORDED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("iteration ") for line in lines) == 5
    most = max(verdicts, key=lambda each: each["excess_ns"])
    told = next(line for line in lines if line.startswith("iteration "))
    assert told.startswith(f"iteration {most['iteration']} of job {most['job']} took ")
    counts = [int(steps) for line in lines for steps in re.findall(r"; (\d+) steps?, .* lost", line)]
    assert sum(counts) == sum(one["steps"] for one in found["incidents"]) == len(verdicts)
    assert lines.index(told) > len(counts) == len(found["incidents"])
    assert main(["why", "--data", str(RECORDED), "--all"]) == 0
    assert capsys.readouterr().out.count("\niteration ") == len(verdicts)


def test_the_critical_path_names_who_held_the_others_and_who_only_waited():
    verdict = Verdict("job", 1, 0, 0, 300, 100, 200, Cause.STRAGGLER, rank=2, host="h2")
    ahead = RankTimes(0, "h0", 300, True, 50, 150, waited_for=2, transfer_ns=100)
    late = RankTimes(2, "h2", 300, True, 200, 0, transfer_ns=100)
    assert path_of([ahead, late], verdict) == "rank 2 (h2) held the others up: rank 0 only waited for it"
    unknown = RankTimes(**{**asdict(ahead), "known": False})
    assert path_of([unknown, late], verdict) == ""


def steps(late_ms: int = 0, error_ms: float = 0.01, never_ends: int = -1) -> Steps:
    """Twelve iterations of three ranks; in the last one rank 1 is late, or a rank never ends any from the sixth on."""
    rows = []
    for number in range(12):
        late = late_ms * MS if number == 11 else 0
        for rank in range(3):
            start = BEGIN + number * 1_000 * MS
            arrives, end = start + 100 * MS + late * (rank == 1), start + 200 * MS + late
            if rank != never_ends or number < 6:
                done = end - 10 * MS
                rows.append((number, rank, start, end, arrives, done, done - arrives, error_ms * MS, 0, rank))
    columns = np.array(rows, np.int64).T
    return Steps(*columns[:8], columns[8].astype(bool), columns[9], hosts=["h0", "h1", "h2"], size=3)


def calls(late: int, late_ms: int, waits_ms: int = 0) -> dict[str, np.ndarray]:
    """What three ranks waited in two groups in each of `steps`; in the last one for a rank that computed longer in the
    midst of it, or all for what they transferred."""
    rows = []
    for number in range(12):
        last = number == 11
        for rank in range(3):
            end = BEGIN + (number * 1_000 + 200 + (late_ms + waits_ms) * last) * MS
            waited = 60 + last * (waits_ms + late_ms * (rank != late))
            rows += [(rank, end + 20_000, 20 * MS), (rank, end, (waited - 20) * MS)]
    columns = np.array(rows, np.int64).T
    return dict(zip(("rank", "end_ns", "waited_ns"), columns, strict=True))


@pytest.mark.parametrize(("late", "late_ms", "waits_ms"), [(1, 100, 0), (0, 100, 0), (-1, 0, 100)])
def test_who_computes_longer_in_the_midst_of_a_step_keeps_the_others(late, late_ms, waits_ms):
    of_sums = steps()
    ends = of_sums.end_ns + np.where(of_sums.number == 11, (late_ms + waits_ms) * MS, 0)
    by_calls = replace(of_sums, end_ns=ends, comm_end_ns=ends, exposed_ns=np.full(len(ends), -1))
    known = with_waits(by_calls, calls(late, late_ms, waits_ms))
    assert known.waited_ns[known.number < 11].tolist() == [60 * MS] * 33
    nothing = LinkTotals((), (), np.empty(0, LINK_TOTAL))
    verdict = judge("job", known, nothing, 11)
    assert (verdict.cause, verdict.rank) == ((Cause.STRAGGLER, late) if late_ms else (Cause.UNKNOWN, -1))
    assert verdict.late_ns == pytest.approx(late_ms * MS)
    for each in rank_times("job", known, nothing, verdict):
        parts = each.computed_ns, each.waited_ns, each.transfer_ns, each.stalled_ns, each.after_ns
        assert sum(parts) == each.duration_ns
        assert each.waited_ns == pytest.approx(late_ms * MS * (each.rank != late))


def test_what_ranks_waited_is_of_the_step_that_ended_then():
    later = replace(steps(), end_ns=steps().end_ns + 10 * MS)
    assert (with_waits(later, calls(-1, 0)).waited_ns == -1).all()


def test_clocks_that_err_by_as_much_as_is_to_be_told_make_it_unknown():
    told = [
        judge("job", steps(100, error), LinkTotals((), (), np.empty(0, LINK_TOTAL)), 11) for error in (0.01, 20, 150)
    ]
    assert [each.cause for each in told] == [Cause.STRAGGLER, Cause.STRAGGLER, Cause.UNKNOWN]
    assert told[0].error_ns < told[1].error_ns < told[2].error_ns
    assert told[0].confidence > told[1].confidence


def test_a_rank_that_never_ends_leaves_nothing_to_compare():
    assert standing_out(steps(100)) == [11]
    assert standing_out(steps(100, never_ends=2)) == []
    assert standing_out(Steps(*(np.empty(0, np.int64),) * 8, np.empty(0, bool), np.empty(0, np.int64), (), 0)) == []


@pytest.mark.parametrize(
    ("again", "busy_ms", "cross", "cause"),
    [
        (48, 430, False, Cause.LOSS),
        (48, 430, True, Cause.CROSS),
        (0, 430, True, Cause.UNKNOWN),
        (48, 200, True, Cause.UNKNOWN),
    ],
    ids=["lost", "lost to a crowded port", "nothing was sent again", "nothing was outstanding"],
)
def test_ranks_that_all_wait_for_what_was_lost_of_their_agreement(again, busy_ms, cross, cause):
    """A few bytes of a control connection, of which the links show nothing: all are silent until TCP's timer ends."""
    run = Run()
    if cross:
        run.beside(0, from_ms=0, for_ms=40)
        run.sent += [(0, 40 * 4 + cell, 25_000) for cell in range(210 * 4)]
        run.paces[40 * 4 : 40 * 4] = [0.0] * (210 * 4)
    else:
        run.stopped(40, 210)
    usual = (5_000, 0, 300, 0)
    table = said(*[usual] * 6, (5_000, again, busy_ms, 0), usual)
    table["of"] = 2 * RANKS + 1
    moved = STANDS_STILL - 700 * MS - table["start_ns"][6]
    table["start_ns"] += moved
    table["end_ns"] += moved
    run.said = table
    verdict = run.judged()
    assert verdict.cause == cause
    if cause == Cause.LOSS:
        assert (verdict.host, verdict.rank) == ("h0", 0)


@pytest.mark.parametrize(
    ("share", "cause"),
    [("pause", Cause.PAUSE), ("late", Cause.STRAGGLER), ("loss", Cause.LOSS), ("cross", Cause.UNKNOWN)],
)
def test_who_accuses_nobodys_traffic_needs_less_beside_what_is_unknown(share, cause):
    shares = dict.fromkeys(SHARES, 0.0) | {share: 40.0, "unknown": 60.0}
    nobody = Verdict("job", 1, 0, 200, 200, 100, 100)
    assert conclude(nobody, shares, {}, None, 1.0, one=SimpleNamespace(table=None, row=0), steps=None).cause == cause


@pytest.mark.parametrize(
    ("again", "place"),
    [({0: 100.0}, "h0 TX"), ({0: 100.0, 1: 120.0}, "h1 TX"), ({1: 120.0, 0: 140.0}, "h1 TX"), ({}, "h2 TX")],
    ids=[
        "who sent again",
        "who sent again, and was sent to again",
        "the same, less",
        "nobody: what left and never came",
    ],
)
def test_packets_were_lost_where_those_who_sent_again_meet(again, place):
    """Where acknowledgements are lost, too, whoever sends there sends again."""
    run = np.ones((len(LINKS), 4))
    run[[at for at, link in enumerate(LINKS) if (link.host, link.direction) == ("h2", Direction.TX)]] = 2
    ways = {Direction.RX: -1, Direction.TX: 1}
    ends = [(at // 2, (at // 2 + ways[link.direction]) % RANKS) for at, link in enumerate(LINKS)]
    found = lossy_link(SimpleNamespace(links=LINKS, ends=ends, own=run), again=again)
    assert f"{LINKS[found].host} {LINKS[found].direction.name}" == place


def test_a_link_that_was_slow_only_at_the_end_of_the_transfer_before_is_told():
    """Half a megabyte was left of it, an eighth of what the transfer itself carries at the usual pace."""
    link, usual, slow = LINKS[0]._replace(direction=Direction.RX), 6_250.0, 1_250.0

    def seen(*paces: tuple[float, int]) -> SimpleNamespace:
        own = np.repeat([pace for pace, _ in paces], [cells for _, cells in paces])[None]
        return SimpleNamespace(links=(link,), ends=((0, -1),), own=own, fine=True, sends_to=(), arrived={})

    def cells(begin: int, count: int) -> Cells:
        nobody = np.full(count, -1)
        return Cells(begin, np.zeros(count, np.uint8), np.zeros(count), nobody, nobody, ())

    one = seen((slow, 400), (0.0, 100), (usual, 700))
    found = slow_link(one, [cells(500, 700), cells(0, 400)], {1: seen((usual, 700)), 2: seen((usual, 700))})
    assert found is not None
    assert found[0] == 0
    assert found[1] == pytest.approx(400 * (1 - slow / usual) * CELL_NS, rel=0.2)
    even = seen((usual, 400), (0.0, 100), (usual, 700))
    assert slow_link(even, [cells(500, 700), cells(0, 400)], {1: seen((usual, 700))}) is None


def test_packets_that_were_dropped_with_nobody_there():
    run = Run()
    run.paces = [0.3 if cell % 40 > 19 else 1.0 for cell in range(600)]
    run.dropped = dict.fromkeys(range(0, 600, 40), 20000)
    verdict = run.judged()
    assert verdict.cause == Cause.LOSS


@pytest.mark.parametrize("silent_ms", [170, 205])
def test_after_a_dropped_packet_tcp_waits_for_its_timer(silent_ms):
    """The others may go on for a while; whoever begins again has sent nothing for 200 ms."""
    run = Run()
    run.stopped(40, silent_ms)
    run.quiet_before = (0, 205 - silent_ms)
    last = (40 - 205 + silent_ms) * CELLS
    run.dropped = dict.fromkeys(range(last - 4, last), 1448)
    verdict = run.judged()
    assert (verdict.cause, verdict.host, verdict.direction) == (Cause.LOSS, "h0", Direction.TX)
    assert verdict.loss_ns == pytest.approx(silent_ms * MS, rel=0.2)
    assert "packets that left h0 (rank 0) were lost" in sentence(verdict)


def test_the_timer_of_a_connection_runs_whatever_its_sender_sends_to_others():
    run = Run()
    run.stopped(40, 170)
    run.dropped = dict.fromkeys(range(5 * CELLS - 4, 5 * CELLS), 1448)
    assert run.judged().cause == Cause.LOSS


@pytest.mark.parametrize("fast", [False, True])
def test_a_link_is_not_slow_because_its_sender_sends_to_others_meanwhile(fast):
    usual, slow = 6_250.0, 2_000.0
    links = (LINKS[0]._replace(direction=Direction.RX), LINKS[2]._replace(direction=Direction.TX))

    def seen(taken: float, sent: float) -> SimpleNamespace:
        own = np.repeat([[taken], [sent]], 1_000, axis=1)
        there = (frozenset(), frozenset({0, 2}))
        return SimpleNamespace(links=links, ends=((0, 1), (1, 0)), own=own, fine=True, sends_to=there, arrived={})

    nobody = np.full(1_000, -1)
    cells = Cells(0, np.zeros(1_000, np.uint8), np.zeros(1_000), nobody, nobody, ())
    found = slow_link(seen(slow, usual if fast else slow), [cells], {1: seen(usual, usual), 2: seen(usual, usual)})
    assert (found is None) == fast


@pytest.mark.parametrize(("again", "place"), [({}, Direction.TX), ({1: 100_000.0}, Direction.RX)])
def test_a_slow_link_is_the_receivers_where_the_sender_sent_again(again, place):
    """As much arrived as had left: but what is dropped on the way, and sent again, may still be under way."""
    links = (LINKS[0]._replace(direction=Direction.RX), LINKS[2]._replace(direction=Direction.TX))

    def seen(pace: float) -> SimpleNamespace:
        own, there = np.full((2, 1_000), pace), (frozenset(), frozenset({0}))
        return SimpleNamespace(links=links, ends=((0, 1), (1, 0)), own=own, fine=True, sends_to=there, arrived={})

    nobody = np.full(1_000, -1)
    cells = Cells(0, np.zeros(1_000, np.uint8), np.zeros(1_000), nobody, nobody, ())
    found = slow_link(seen(2_000.0), [cells], {1: seen(6_250.0), 2: seen(6_250.0)}, again)
    assert found is not None
    assert links[found[0]].direction == place


@pytest.mark.parametrize(("little", "whom"), [(5_000, {2}), (100_000, {1, 2})])
def test_who_gets_little_of_what_he_gets_by_a_link_is_not_sent_to_by_it(little, whom):
    whose = [Whose("resnet", 0, 2, False, ""), Whose("resnet", 0, 1, False, ""), Whose("resnet", 2, 1, False, "")]
    rows = np.zeros(3, LINK_TOTAL)
    rows["link"], rows["of"], rows["cell"] = (0, 0, 1), (0, 1, 2), BEGIN // CELL_NS
    rows["payload_bytes"] = rows["wire_bytes"] = (600_000, little, 500_000)
    links = [Link(host, "eth0", Direction.TX, 10**9) for host in ("h0", "h2")]
    window = JobTraffic(LinkTotals(links, whose, rows, 0), "resnet").window(BEGIN, BEGIN + MS)
    assert window is not None
    assert window.sends_to == (whom, {1})


@pytest.mark.parametrize(
    ("came_in", "interfaces", "known"),
    [(1.0, 1, {0}), (0.5, 1, set()), (1.0, 2, set())],
    ids=["everywhere", "half of it is not seen", "which way it went is not known"],
)
def test_what_a_rank_sends_is_looked_at_where_it_comes_in(came_in, interfaces, known):
    links = [Link("h0", f"eth{at}", Direction.TX, 10**9) for at in range(interfaces)]
    links += [Link(host, "eth0", Direction.RX, 10**9) for host in ("h1", "h2")]
    ends = [(0, 1), (0, 2), (1, 0), (2, 0)]
    whose = [Whose("resnet", rank, peer, False, "") for rank, peer in ends]
    rows = np.zeros(4, LINK_TOTAL)
    rows["link"], rows["of"] = (0, interfaces - 1, interfaces, interfaces + 1), range(4)
    rows["cell"] = BEGIN // CELL_NS + np.array([0, 0, 1, 3])
    rows["payload_bytes"] = rows["wire_bytes"] = (60_000, 40_000, 60_000 * came_in, 40_000 * came_in)
    window = JobTraffic(LinkTotals(links, whose, rows, 0), "resnet").window(BEGIN, BEGIN + MS)
    assert window is not None
    assert window.arrived.keys() == known
    assert all(there.tolist() == [0, 60_000, 0, 40_000] for there in window.arrived.values())


@pytest.mark.parametrize(("slow", "told"), [(2_000.0, True), (6_250.0, False)])
def test_a_link_by_which_bursts_leave_is_slow_where_they_come_in_slowly(slow, told):
    """It queues them: they leave as fast as ever, and break off. Both who receive them receive others', too."""
    links = (LINKS[1], LINKS[0]._replace(host="h1"), LINKS[0]._replace(host="h2"))

    def seen(pace: float) -> SimpleNamespace:
        cells = round(6_250.0 / pace * 50) * 20
        bursts, half = np.tile([20.0 * pace] + [0.0] * 19, cells // 20), np.full(cells, pace / 2)
        own, there = np.array([bursts, half, half]), (frozenset({1, 2}), frozenset(), frozenset())
        arrived = {0: np.full(cells, pace)}
        ends = ((0, 1), (1, 0), (2, 0))
        return SimpleNamespace(links=links, ends=ends, own=own, fine=True, sends_to=there, arrived=arrived)

    one = seen(slow)
    count = one.own.shape[1]
    cells = Cells(0, np.zeros(count, np.uint8), np.zeros(count), np.full(count, -1), np.full(count, -1), ())
    one.own[1:, ::7] = 0.0  # others' bytes of these ranks leave gaps
    found = slow_link(one, [cells], {1: seen(6_250.0), 2: seen(6_250.0)})
    assert (found is not None and found[0] == 0) == told


@pytest.mark.parametrize(
    ("what", "cause"),
    [("slow", Cause.UNKNOWN), ("stop and go", Cause.UNKNOWN), ("dropped", Cause.UNKNOWN), ("beside", Cause.CROSS)],
)
def test_in_wide_buckets_only_who_fills_a_link_is_seen(what, cause):
    """Of 20 ms: what stops and goes looks even in them, and what is under way looks lost."""
    run = Run()
    run.bucket_ms = 20
    if what == "slow":
        run.paces = [0.4] * (TRANSFER * CELLS * 5 // 2)
    elif what == "stop and go":
        run.paces = ([1.0] * 16 + [0.0] * 15) * 50
    elif what == "dropped":
        run.paces = [0.3 if cell % 40 > 19 else 1.0 for cell in range(600)]
        run.dropped = dict.fromkeys(range(0, 600, 40), 20000)
    else:
        run.beside(0)
    assert run.judged().cause == cause


def test_of_a_large_job_those_ranks_are_told_that_others_waited_for_and_the_slowest():
    times = [RankTimes(rank, "h", 100 + rank, True, waited_for=3 if rank != 3 else -1) for rank in range(9)]
    assert [each.rank for each in most_relevant(times, 3)] == [3, 7, 8]
    assert most_relevant(times, 20) == tuple(times)
