# SPDX-License-Identifier: Apache-2.0
"""What groups are for, by what is called in them; in which of them the others waited, and for whom."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from dataset_rows import table

from netmon.bench.inference import read, recorded_runs, true_groups
from netmon.dl.groups import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    SHARDED,
    TENSOR,
    UNCLEAR,
    calls_of,
    exposed,
    group_uses,
    group_waits,
    in_words,
    ranks_in_words,
    sentence,
)
from netmon.dl.rank_activity import UNNAMED
from netmon.dl.verdict.verdict_text import sentence as verdict_sentence
from netmon.evidence import COLLECTIVE, UNKNOWN
from netmon.history.groups import group_lines, groups_of
from netmon.records import Direction
from netmon.views import Cause, Verdict

MS = 1_000_000
SUM, GATHER, SCATTER_SUM, EXCHANGE, SEND, RECEIVE, BROADCAST = 1, 5, 16, 10, 12, 13, 0
STEP_NS, STEPS, MEGABYTE = 100 * MS, 12, 1_000_000
NAME = 77

Call = Mapping[str, float | None]


def call(operation: int, calls: int = 1, size: float = MEGABYTE, forward: float = 0, **others: float | None) -> Call:
    """size: of all; forward: calls, −1: not known."""
    found = {"operation": operation, "calls": calls, "bytes": size, "forward_calls": forward, "waited_ns": 5 * MS}
    return {**found, **others}


def rows(calls: Mapping[int, Iterable[Call]], job_size: int | None = None, steps: int = STEPS) -> pd.DataFrame:
    """By rank what it calls in each step; of one group, in the order of the ranks, unless they say otherwise."""
    found = []
    for step in range(steps):
        for place, (rank, own) in enumerate(sorted(calls.items())):
            for one in own:
                row = {"group": NAME, "group_rank": place, "group_size": len(calls), "peer": None}
                row |= {"rank": rank, "size": job_size or len(calls), "iteration": step}
                row |= {"start_ns": step * STEP_NS, "end_ns": (step + 1) * STEP_NS}
                row |= dict.fromkeys(("longest_sequence", "longest_at_ns", "late_sequence", "late_at_ns"), 0)
                row |= one
                row["forward_bytes"] = row["bytes"] * row["forward_calls"] / row["calls"]
                found.append(row)
    table = pd.DataFrame(found)
    return table.assign(forward_calls=table["forward_calls"].where(table["forward_calls"] >= 0))


def kinds(table: pd.DataFrame) -> list[tuple[str, tuple[int, ...]]]:
    return [(use.kind, use.ranks) for use in group_uses(table)]


def alike(*calls: Call, ranks: Iterable[int] = range(4)) -> pd.DataFrame:
    return rows(dict.fromkeys(ranks, calls))


ALL = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([call(SUM, 3)], DATA),
        ([call(SUM, 3, 40)], UNCLEAR),  # a loss, a norm
        ([call(SUM, 3, forward=-1)], UNCLEAR),
        ([call(SUM, 3, forward=3)], UNCLEAR),  # in the forward pass only
        ([call(SUM, 8, forward=4)], TENSOR),
        ([call(GATHER, 8, MEGABYTE, 4), call(SCATTER_SUM, 4, 2 * MEGABYTE)], SHARDED),
        ([call(GATHER, 8, MEGABYTE, 4), call(SUM, 4, 4 * MEGABYTE / 2)], SHARDED),  # as Gloo scatters
        ([call(GATHER, 8, 4_000, 4), call(SUM, 4)], UNCLEAR),  # statistics of batches, and gradients
        ([call(GATHER, 8, MEGABYTE, 4), call(SCATTER_SUM, 8, MEGABYTE, 4)], TENSOR),  # split sequences
        ([call(GATHER, 8, MEGABYTE, 8)], UNCLEAR),
        ([call(EXCHANGE, 8, MEGABYTE, 4)], UNCLEAR),  # tokens, or attention
        ([call(BROADCAST, 2)], UNCLEAR),
    ],
)
def test_the_kind_of_a_group_by_what_all_its_ranks_call(calls: list[Call], kind: str) -> None:
    assert kinds(alike(*calls)) == [(kind, ALL)]


def test_what_is_exchanged_unevenly_goes_to_experts() -> None:
    uneven = rows({rank: [call(EXCHANGE, 4, (1 + (rank == 2)) * MEGABYTE, 2)] for rank in range(4)})
    (use,) = group_uses(uneven)
    assert (use.kind, round(use.imbalance, 2)) == (EXPERT, 1.6)
    assert use.operations[0].bytes == (MEGABYTE, 2 * MEGABYTE)


def transfers(edges: Iterable[tuple[int, int, int]], forward: Iterable[tuple[int, int]] = ()) -> pd.DataFrame:
    """edges: sender, receiver, calls; forward: those that send before the first backward pass."""
    calls: dict[int, list[Call]] = {}
    first = {*forward}
    for sender, receiver, count in edges:
        forward = {"forward": count * ((sender, receiver) in first), "late_sequence": None}
        calls.setdefault(sender, []).append(call(SEND, count, peer=receiver, **forward))
        calls.setdefault(receiver, []).append(call(RECEIVE, count, peer=sender, **forward))
    return rows(calls)


def both(*edges: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(*edge, 4) for edge in edges] + [(*edge[::-1], 4) for edge in edges]


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (transfers(both((0, 1), (1, 2), (2, 3))), PIPELINE),
        (transfers(both((0, 1), (1, 2), (2, 3), (3, 0))), PIPELINE),  # interleaved
        (transfers([(0, 1, 4), (1, 2, 4)]), PIPELINE),
        (transfers([(0, 1, 4), (1, 2, 4), (2, 0, 4)]), CONTEXT),
        (transfers(both((0, 1)), [(0, 1)]), PIPELINE),
        (transfers(both((0, 1)), [(0, 1), (1, 0)]), UNCLEAR),  # a ring of two, or two stages with two parts each
        (transfers(both((0, 1))), UNCLEAR),
        (transfers(both((0, 1), (2, 3))), UNCLEAR),
        (transfers(both((0, 1), (0, 2), (0, 3))), UNCLEAR),
    ],
)
def test_the_kind_of_a_group_by_who_sends_to_whom(table: pd.DataFrame, kind: str) -> None:
    (use,) = group_uses(table)
    assert use.kind == kind
    assert {(one.sender, one.receiver) for one in use.sent} == {
        (int(row["rank"]), int(row["peer"])) for _, row in table[table["operation"] == SEND].iterrows()
    }


def test_a_group_may_be_for_several_things() -> None:
    uneven = [call(EXCHANGE, 4, (1 + rank) * MEGABYTE, 2) for rank in range(2)]
    assert kinds(rows({rank: [uneven[rank], call(SUM)] for rank in range(2)})) == [(DATA, (0, 1)), (EXPERT, (0, 1))]


def test_the_group_of_all_ranks_is_one_whether_its_name_was_seen_or_not() -> None:
    table = alike(call(SUM))
    assert kinds(table.assign(group=table["group"].where(table["rank"] != 1, UNNAMED))) == [(DATA, ALL)]


def test_what_is_called_in_few_steps_is_not_typical() -> None:
    table = alike(call(SUM), call(BROADCAST))
    assert kinds(table[(table["operation"] == SUM) | (table["iteration"] < 3)]) == [(DATA, ALL)]


def test_ranks_that_are_not_known_are_not_named_and_groups_of_one_name_are_not_mixed() -> None:
    whole = alike(call(SUM))
    (use,) = group_uses(whole[whole["rank"] != 2])
    assert (use.kind, use.ranks, use.whole) == (DATA, (0, 1, 3), False)
    twice = pd.concat([whole, whole.assign(rank=whole["rank"] + 4)])
    assert [use.ranks for use in group_uses(twice)] == [()]


def test_ranks_whose_steps_begin_elsewhere_do_not_tell_what_is_forward() -> None:
    table = rows({0: [call(SUM, 8, forward=4)], 1: [call(SUM, 8, forward=0)]})
    assert kinds(table) == [(TENSOR, (0, 1))]
    table = pd.concat([table, alike(call(SUM, forward=1), ranks=[0, 1]).assign(group=NAME + 1)])
    mixed = table.assign(forward_calls=table["forward_calls"].where(table["group"] != NAME, 8 * table["rank"]))
    assert (UNCLEAR, (0, 1)) in kinds(mixed)


def test_groups_that_call_the_same_are_for_the_same() -> None:
    known, unknown = (
        rows({0: [call(SUM, 8, forward=forward)], 1: [call(SUM, 8, forward=forward)]}) for forward in (4, -1)
    )
    other = unknown.assign(rank=unknown["rank"] + 2, group=NAME + 1)
    assert kinds(pd.concat([known, other])) == [(TENSOR, (0, 1)), (TENSOR, (2, 3))]
    shared = unknown.assign(group=NAME + 1)
    assert {kind for kind, _ in kinds(pd.concat([known, shared]))} == {TENSOR, UNCLEAR}


# --- a slow step

SLOW = STEPS // 2


def slowed(table: pd.DataFrame, waits: Mapping[int, int], operation: int, by_ns: int = 80 * MS) -> pd.DataFrame:
    """One step takes longer, and these ranks wait for so long in that operation."""
    table = table.copy()
    for name in ("start_ns", "end_ns"):
        table[name] += by_ns * (table["iteration"] > SLOW - (name == "end_ns"))
    for rank, ns in waits.items():
        chosen = (table["iteration"] == SLOW) & (table["rank"] == rank) & (table["operation"] == operation)
        table.loc[chosen, "waited_ns"] += ns
    return table


def said(table: pd.DataFrame, excess_ns: int = 80 * MS, clock_error_ns: int = 0) -> str:
    return sentence(exposed(table, group_uses(table), SLOW, excess_ns, clock_error_ns), clock_error_ns)


SHARDS = alike(call(GATHER, 8, MEGABYTE, 4), call(SCATTER_SUM, 4, 2 * MEGABYTE))


def test_who_entered_last_is_who_did_not_wait() -> None:
    table = slowed(SHARDS, dict.fromkeys((0, 1, 3), 80 * MS), GATHER)
    first = "ranks 0, 1, 3 waited up to 80 ms longer than usual in "
    assert said(table).startswith(
        first + "all-gather 0 of the sharded data group; rank 2 entered last: it computed 80 ms longer"
    )
    late = (table["iteration"] == SLOW) & (table["rank"] == 2)
    table.loc[late, "late_at_ns"] = 78 * MS
    assert said(table, clock_error_ns=MS).endswith(", and entered 78 ms after the others (± 1 ms)")
    assert "after the others" not in said(table, clock_error_ns=79 * MS)
    table.loc[late, "late_sequence"] = 9
    assert (
        said(table)
        == first + "the all-gathers of the sharded data group; rank 2 entered last: it computed 80 ms longer"
    )


def test_where_all_wait_longer_nobody_is_late() -> None:
    table = slowed(SHARDS, dict.fromkeys(range(4), 80 * MS), SCATTER_SUM)
    assert said(table) == (
        "ranks 0–3 waited up to 80 ms longer than usual in the reduce-scatters of the sharded data group; no rank "
        "computed longer"
    )


def test_where_that_does_not_add_up_nothing_is_said() -> None:
    assert said(slowed(SHARDS, {}, GATHER)) == ""  # all compute longer
    assert said(slowed(SHARDS, {0: 80 * MS, 1: 80 * MS}, GATHER)) == ""  # two do
    assert said(slowed(SHARDS, dict.fromkeys(range(4), 30 * MS), GATHER)) == ""
    assert said(SHARDS, excess_ns=0) == ""
    without = SHARDS[SHARDS["rank"] != 3]
    assert said(slowed(without, {0: 80 * MS, 1: 80 * MS}, GATHER)) == ""  # who knows what rank 3 did
    few = SHARDS[(SHARDS["iteration"] > SLOW - 3) & (SHARDS["iteration"] < SLOW + 3)]
    assert said(slowed(few, {0: 80 * MS, 1: 80 * MS, 3: 80 * MS}, GATHER)) == ""


def test_stages_wait_for_the_one_that_computes_longer() -> None:
    table = slowed(transfers(both((0, 1), (1, 2))), {0: 80 * MS, 2: 80 * MS}, RECEIVE)
    assert said(table) == (
        "ranks 0, 2 waited up to 80 ms longer than usual in the receives of the pipeline group; rank 1 computed 80 ms"
        " longer, and they waited for it"
    )


def test_a_rank_of_another_group_is_not_said_to_enter_this_one() -> None:
    other = alike(call(SUM, 8, forward=4), ranks=[0, 1]).assign(group=NAME + 1, size=3)
    alone = rows({2: [call(SUM, 8, forward=4)]}).assign(group=NAME + 2, group_size=1, size=3)
    table = slowed(pd.concat([other, alone]), {0: 80 * MS, 1: 80 * MS}, SUM)
    assert "rank 2, of another group, computed 80 ms longer" in said(table)


def test_experts_that_get_more_are_named() -> None:
    table = rows({rank: [call(EXCHANGE, 4, (1 + 0.1 * rank) * MEGABYTE, 2)] for rank in range(4)})
    table.loc[(table["iteration"] == SLOW) & (table["rank"] == 1), "bytes"] *= 4
    assert said(slowed(table, dict.fromkeys(range(4), 80 * MS), EXCHANGE)).endswith(
        "; rank 1 got 2.2 × the mean of what was exchanged"
    )


def test_a_typical_step_in_words() -> None:
    table = transfers(both((0, 1), (1, 2)))
    lines = list(in_words(table, group_uses(table)))
    assert lines[0].startswith("a step of 100 ms, on average of the ranks: ")
    assert "rank 0 sends to 1: 4 a step, 1 MB" in lines
    assert "pipeline of ranks 0–2: no stage is much slower than the others" in lines
    assert list(in_words(table[:0], ())) == []


def test_ranks_in_words() -> None:
    assert ranks_in_words([5, 0, 1, 2, 7]) == "0–2, 5, 7"
    assert ranks_in_words([]) == ""


def test_a_verdict_says_it_after_its_own_sentence() -> None:
    table = slowed(SHARDS, dict.fromkeys((0, 1, 3), 80 * MS), GATHER)
    steps = {
        name: table[name].to_numpy() + (1_000 if name == "end_ns" else 0) for name in ("rank", "end_ns", "iteration")
    }
    at = SLOW * STEP_NS
    verdict = Verdict("a", SLOW, at, at + STEP_NS + 80 * MS, STEP_NS + 80 * MS, STEP_NS, 80 * MS, Cause.STRAGGLER)
    found = group_waits(table.drop(columns="iteration"), steps, verdict, 0)
    assert found == said(table)
    assert verdict_sentence(replace(verdict, group_waits=found)).startswith(
        verdict_sentence(verdict) + ". Ranks 0, 1, 3"
    )
    assert group_waits(table, steps, replace(verdict, cause=Cause.CHANGE), 0) == ""


def test_what_an_agent_does_not_know_is_null_but_of_groups() -> None:
    rows_told = np.full(2, UNKNOWN, COLLECTIVE)
    rows_told["rank"], rows_told["bytes"] = 1, (7, UNKNOWN)
    found = calls_of(rows_told)
    assert found["group"].tolist() == [UNKNOWN, UNKNOWN]
    assert found["bytes"].isna().tolist() == [False, True]


def test_a_group_is_a_line_wherever_it_is_shown() -> None:
    table = SHARDS.assign(waited_ns=SHARDS["waited_ns"] * (1 + 9 * (SHARDS["rank"] == 2)))
    (line,) = group_lines(group_uses(table))
    assert (line.group, line.kind, line.ranks) == ("all ranks", "sharded data", "0–3")
    assert line.calls == "8 all-gathers (1 MB), 4 reduce-scatters (2 MB)"
    assert (line.when, line.waits) == ("forward, backward", "32.5 ms, rank 2 100 ms")


# --- Where nobody tells what is called: as the traffic of a dataset shows.


def stored(recorded: str, out: Path) -> Mapping[frozenset[int], str]:
    """Write a recorded run's traffic as a dataset → members and kind of the true groups."""
    run = read(recorded_runs() / "parallel" / recorded)
    job, traffic = run.jobs[0], run.traffic
    rank_of = {address: rank for rank, address in enumerate(job.address_of_rank)}
    ours = [number for number, whose in enumerate(run.whose) if whose == 0]
    flows = [run.flows[number] for number in ours]
    sends = [flow.direction == Direction.TX for flow in flows]
    local = [rank_of[flow.src if tx else flow.dst] for flow, tx in zip(flows, sends, strict=True)]
    ends = {name: [asdict(flow)[name] for flow in flows] for name in ("src", "dst", "src_port", "dst_port", "protocol")}
    hosts = sorted({flow.host for flow in flows})
    rows = traffic[np.isin(traffic["flow"], ours)]
    begin = int(rows["time_ns"].min())
    of = [run.flows[number].host for number in rows["flow"].tolist()]
    tables = {
        "flows": table(
            *("flows", len(flows)),
            **{"host": [flow.host for flow in flows], "session": [flow.host for flow in flows], "flow_id": ours},
            **{"direction": ["tx" if tx else "rx" for tx in sends], **ends, "job": "job", "rank": local},
            first_ns=begin,
        ),
        "buckets": table(
            *("buckets", len(rows)),
            **{"host": of, "session": of, "flow_id": rows["flow"], "bucket_start_ns": rows["time_ns"]},
            payload_bytes=rows["payload_bytes"],
        ),
        "sessions": table("sessions", len(hosts), host=hosts, session=hosts, start_ns=begin - 2_000 * MS),
        "iterations": table("iterations", 1, host=hosts[0], session=hosts[0], job="job", start_ns=begin, end_ns=begin),
    }
    for name, written in tables.items():
        folder = out / name / "date=2026-01-01" / "hour=all"
        folder.mkdir(parents=True)
        pq.write_table(written, folder / "part.parquet")
    return {frozenset(rank_of[member] for member in members): kind for members, kind in true_groups(job).items()}


@pytest.mark.parametrize(
    "recorded", ["experts-4.parquet", "fsdp-4.parquet", "hybrid-4.parquet", "pipeline-4.parquet", "tensor-4.parquet"]
)
def test_groups_of_which_nobody_tells_the_calls_show_in_the_traffic(recorded: str, tmp_path: Path) -> None:
    true = stored(recorded, tmp_path)
    assert groups_of(tmp_path) == {}
    uses, rows = groups_of(tmp_path, "job", by_traffic=True)["job"]
    assert {frozenset(use.ranks) for use in uses} == true.keys()
    assert all(use.kind in (UNCLEAR, true[frozenset(use.ranks)]) for use in uses)
    assert len(rows) == 0
    lines = group_lines(uses)
    assert {line.waits for line in lines} == {"?"}
    assert all(line.calls.endswith("B sent") for line in lines)
    assert groups_of(tmp_path, "another job", by_traffic=True) == {}
