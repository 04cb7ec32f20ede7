# SPDX-License-Identifier: Apache-2.0
"""Verdicts where the interfaces show nothing of what ranks send: by what NCCL's proxies tell, and NICs of others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from test_stored_transfers import store

from collector.host.tables import Lately
from collector.judging.judging import RecentTransfers
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.dl.verdict import Steps, matrix, no_link_totals, sentence, standing_out
from netmon.dl.verdict.by_transfers import OTHERS, SENT, Other, Transfers
from netmon.dl.verdict.judge import judge_input, verdict_on, worth_reporting
from netmon.history.judging import verdicts
from netmon.records import TRANSFER_ONE, TRANSFER_OPERATION, Columns, Direction
from netmon.views import Cause, Verdict

MS = 1_000_000
AT = 1_790_000_000_000_000_000
RANKS, OPERATIONS, SLICES = 4, 3, 6
COMPUTE_MS, SLICE_MS, SLICE_BYTES = 60.0, 2.0, 1 << 20
JOB = "train"


@dataclass
class Training:
    """A ring of ranks: in each step they compute, then do collectives, whose slices go round; the slowest decides."""

    seed: int = 1
    steps: int = 24
    each: bool = True  # each transfer is told
    rdma: bool = False  # who sends waits for whoever receives
    late_ms: float = 0.0
    late_rank: int = -1
    pairs: Sequence[int] = ()  # senders, whose transfers are slow
    factor: float = 1.0
    slow_slices: int = OPERATIONS * SLICES  # of them, that are slow
    since: int = 0  # slices of the step, before which none is slow
    uneven: bool = False  # some of them are much slower than others
    others_factor: float = 1.0
    stall_ms: float = 0.0  # of the first sender's first transfer
    all_slow: int = 0  # steps, the slow one the last, in which all compute longer
    other: Other | None = None
    other_ms: float = 0.0  # that his bytes take in the slow step
    receives: Other | None = None  # the same one at the other end
    hosts: int = RANKS  # ranks take turns on them
    slow_step: int = 20
    scatter_ms: float = 0.5

    def run(self) -> tuple[Steps, Transfers]:
        noise = np.random.default_rng(self.seed)
        rows, steps, others, at = [], [], [], float(AT)
        for step in range(self.steps):
            slow = step == self.slow_step
            begun = [at] * RANKS
            ready = [at + MS * (COMPUTE_MS + abs(noise.normal(0, self.scatter_ms))) for _ in range(RANKS)]
            if slow and self.late_rank >= 0:
                ready[self.late_rank] += self.late_ms * MS
            if self.slow_step - self.all_slow < step <= self.slow_step:
                ready = [one + 80 * MS for one in ready]
            for operation in range(OPERATIONS):
                now = [max(ready[rank], ready[(rank + 1) % RANKS] if self.rdma else 0.0) for rank in range(RANKS)]
                for slice_ in range(SLICES):
                    took = [MS * (SLICE_MS + abs(noise.normal(0, 0.05))) for _ in range(RANKS)]
                    if slow and 0 <= operation * SLICES + slice_ - self.since < self.slow_slices:
                        factor = [self.factor if rank in self.pairs else self.others_factor for rank in range(RANKS)]
                        factor = [one * (1 + 2 * (slice_ % 3 == 0)) if self.uneven else one for one in factor]
                        took = [t * more for t, more in zip(took, factor, strict=True)]
                        took[0] += self.stall_ms * MS * (operation == slice_ == 0)
                    for rank in range(RANKS):
                        row = {"rank": rank, "peer": (rank + 1) % RANKS, "sends": 1, "collective": 5}
                        row |= {"number": step * OPERATIONS + operation, "group_rank": rank, "level": TRANSFER_ONE}
                        row |= {"queued_ns": int(ready[rank]), "start_ns": int(now[rank]), "bytes": SLICE_BYTES}
                        row |= {"end_ns": int(now[rank] + took[rank])}
                        rows.append(row)
                    over = max(now[rank] + took[rank] for rank in range(RANKS))  # the ring goes round
                    now = [over + abs(noise.normal(0, 0.05)) * MS for _ in range(RANKS)]
                ready = [one + 0.2 * MS for one in now]
            end = max(ready)
            if slow and self.other is not None:
                bytes_ = int(self.other_ms / SLICE_MS * SLICE_BYTES)
                others += [(of, int(at + COMPUTE_MS * MS), int(end), bytes_) for of in range(2 if self.receives else 1)]
            steps += [(step, rank, int(begun[rank]), int(end)) for rank in range(RANKS)]
            at = end
        sent = np.array([tuple(row[name] for name in SENT.names or ()) for row in rows], SENT)
        if not self.each:
            sent = _operations(sent)
        number, rank, start, finish = np.array(steps, np.int64).T
        nothing = np.zeros(len(number), np.int64)
        made = Steps(
            *(number, rank, start, finish, nothing, nothing, nothing - 1, nothing + 100_000, nothing > 0),
            host=rank % self.hosts,
            hosts=[f"h{n}" for n in range(self.hosts)],
            size=RANKS,
        )
        posted = np.array(others, OTHERS) if others else np.empty(0, OTHERS)
        devices = {rank: f"mlx5_{rank}" for rank in range(RANKS)}
        whose = tuple(other for other in (self.other, self.receives) if other)
        return made, Transfers(sent, posted, whose, devices, 20_000)

    def verdict(self) -> Verdict:
        steps, transfers = self.run()
        one = judge_input(JOB, matrix(steps), no_link_totals(), self.slow_step, lambda: transfers)
        return verdict_on(one, steps)


def _operations(sent: np.ndarray) -> np.ndarray:
    """The same with a row for each operation."""
    _, first, of = np.unique(sent[["rank", "number"]], return_index=True, return_inverse=True)
    rows = sent[first]
    rows["level"] = TRANSFER_OPERATION
    for name, by, at in (
        ("start_ns", np.minimum, np.iinfo(np.int64).max),
        ("end_ns", np.maximum, 0),
        ("bytes", np.add, 0),
    ):
        column = np.full(len(rows), at, np.int64)
        by.at(column, of.reshape(-1), sent[name])
        rows[name] = column
    return rows


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("rdma", [True, False])
def test_a_rank_whose_transfers_begin_late(each: bool, rdma: bool) -> None:
    found = Training(late_rank=2, late_ms=90, each=each, rdma=rdma).verdict()
    assert (found.cause, found.rank, found.host, found.culprit) == (Cause.STRAGGLER, 2, "h2", "rank 2")
    assert 80 * MS < found.late_ns <= found.excess_ns
    assert "rank 2 (h2) was" in sentence(found)


def test_a_pair_whose_transfers_take_longer() -> None:
    found = Training(pairs=[1], factor=6).verdict()
    assert (found.cause, found.host, found.interface, found.direction) == (
        Cause.SLOW_LINK,
        "h1",
        "mlx5_1",
        Direction.TX,
    )
    assert found.slow_link_ns > 0.9 * found.excess_ns
    assert "with no other traffic on it" in sentence(found)


def test_pairs_that_have_a_host_in_common_show_whose_link_it_is() -> None:
    found = Training(pairs=[1, 2], factor=6).verdict()
    assert (found.cause, found.host) == (Cause.SLOW_LINK, "h2")
    assert Training(pairs=[1, 3], factor=6).verdict().cause == Cause.UNKNOWN
    assert Training(pairs=[1], factor=6, others_factor=1.5).verdict().cause == Cause.SLOW_LINK
    assert Training(pairs=[1], factor=6, others_factor=2.5).verdict().cause == Cause.UNKNOWN


def test_a_transfer_that_stands_still_once_is_no_slow_link() -> None:
    found = Training(stall_ms=120).verdict()
    assert found.excess_ns > 100 * MS
    assert found.cause == Cause.UNKNOWN


@pytest.mark.parametrize(
    ("factor", "slices", "cause"), [(3, 18, Cause.SLOW_LINK), (6, 8, Cause.SLOW_LINK), (10, 4, Cause.UNKNOWN)]
)
def test_between_two_hosts_a_link_is_slow_if_transfers_one_after_the_other_are_alike(
    factor: float, slices: int, cause: Cause
) -> None:
    """No other pair shows whether it is the link or all hosts."""
    every = Training(pairs=range(RANKS), factor=factor, slow_slices=slices, hosts=2)
    assert every.verdict().cause == cause
    for since in (5, 18 - slices):
        assert replace(every, since=min(since, 18 - slices)).verdict().cause == cause
    assert replace(every, slow_slices=min(slices, 8), uneven=True).verdict().cause == Cause.UNKNOWN
    half = replace(every, pairs=[0, 2], factor=max(factor, 6))
    assert (half.verdict().cause, half.verdict().host) == (Cause.SLOW_LINK, "h0")


def test_operations_without_their_transfers_say_of_no_link_that_it_is_slow() -> None:
    found = Training(pairs=[1], factor=6, each=False).verdict()
    assert found.cause == Cause.UNKNOWN
    assert not found.host


@pytest.mark.parametrize(("job", "cause"), [("", Cause.CROSS), ("other", Cause.OTHER_JOB)])
@pytest.mark.parametrize("each", [True, False])
def test_others_whose_bytes_take_as_long(job: str, cause: Cause, each: bool) -> None:
    capacity = int(8e9 * SLICE_BYTES / (SLICE_MS * MS))
    other = Other("h1", "mlx5_1", Direction.TX, capacity, job, job or "backup")
    training = Training(pairs=[1], factor=6, other=other, other_ms=140, each=each)
    found = training.verdict()
    assert (found.cause, found.culprit, found.host, found.interface) == (cause, job or "backup", "h1", "mlx5_1")
    assert found.bytes == 70 * SLICE_BYTES
    assert found.baseline_ns <= found.counterfactual_ns < 1.3 * found.baseline_ns
    assert "without it, it would have taken" in sentence(found)


def test_others_between_two_hosts_hold_up_what_one_sends_and_the_other_receives() -> None:
    """Pairs of ranks that have no host in common are slow."""
    other = Other("h1", "mlx5_1", Direction.TX, 0, "", "backup")
    training = Training(pairs=[1, 3], factor=6, other=other, other_ms=140)
    found = replace(training, receives=Other("h0", "mlx5_0", Direction.RX, 0, "", "backup")).verdict()
    assert (found.cause, found.culprit) == (Cause.CROSS, "backup")
    assert found.host in ("h0", "h1")
    assert training.verdict().cause == Cause.UNKNOWN  # what slowed the other pair is not known


def test_others_hold_up_pairs_that_have_another_host_in_common() -> None:
    """What rank 1 sends and what rank 3 receives; both pairs have rank 2 in common, on whose link nobody else is."""
    other = Other("h1", "mlx5_1", Direction.TX, 0, "", "backup")
    training = Training(pairs=[1, 2], factor=6, other=other, other_ms=140)
    found = replace(training, receives=Other("h3", "mlx5_3", Direction.RX, 0, "", "backup")).verdict()
    assert (found.cause, found.culprit) == (Cause.CROSS, "backup")
    assert found.host in ("h1", "h3")
    assert training.verdict().cause == Cause.UNKNOWN


def test_others_hold_up_pairs_and_these_the_ones_behind_them() -> None:
    """Rank 2 receives late, and rank 3 sends late: what the ring's others send in turn takes longer, too."""
    other = Other("h2", "mlx5_2", Direction.RX, 0, "", "backup")
    training = Training(pairs=[1, 3], factor=6, others_factor=4, other=other, other_ms=140)
    found = replace(training, receives=Other("h3", "mlx5_3", Direction.TX, 0, "", "backup")).verdict()
    assert (found.cause, found.culprit) == (Cause.CROSS, "backup")
    assert found.host in ("h2", "h3")
    assert training.verdict().cause == Cause.UNKNOWN


def test_who_is_only_present_is_not_accused() -> None:
    other = Other("h1", "mlx5_1", Direction.TX, 0, "", "backup")
    for ms in (1.0, 40.0):
        found = Training(pairs=[1], factor=6, other=other, other_ms=ms).verdict()
        assert found.culprit == ""
        assert found.cause in (Cause.SLOW_LINK, Cause.UNKNOWN)
    elsewhere = replace(Training(late_rank=2, late_ms=90), other=other, other_ms=200).verdict()
    assert (elsewhere.cause, elsewhere.rank) == (Cause.STRAGGLER, 2)
    far = Other("h3", "mlx5_3", Direction.TX, 0, "", "backup")
    assert replace(Training(pairs=[1], factor=6), other=far, other_ms=140).verdict().cause == Cause.SLOW_LINK


def test_what_all_do_longer_once_is_a_pause() -> None:
    found = Training(all_slow=1).verdict()
    assert (found.cause, found.culprit, found.rank) == (Cause.PAUSE, "", -1)
    assert found.pause_ns == pytest.approx(80 * MS, rel=0.1)
    assert Training(all_slow=2).verdict().cause == Cause.UNKNOWN  # the job does something else from now on
    assert Training(all_slow=2, pairs=range(RANKS), factor=0.5).verdict().cause == Cause.UNKNOWN


def test_clocks_that_err_accuse_nobody() -> None:
    training = Training(late_rank=2, late_ms=90)
    steps, transfers = training.run()
    one = judge_input(JOB, matrix(steps), no_link_totals(), 20, lambda: replace(transfers, clock_error_ns=100 * MS))
    assert verdict_on(one, steps).cause == Cause.UNKNOWN


def test_two_groups_with_the_same_numbers_accuse_nobody() -> None:
    steps, transfers = Training(late_rank=2, late_ms=90).run()
    rows = transfers.rows.copy()
    rows["group_rank"] = rows["rank"] % 2
    one = judge_input(JOB, matrix(steps), no_link_totals(), 20, lambda: replace(transfers, rows=rows))
    assert verdict_on(one, steps).cause == Cause.UNKNOWN


def test_three_hundred_causes() -> None:
    """At least 99 % are told right, and nobody is accused who has done nothing."""
    draw = np.random.default_rng(7)
    right = accused = 0
    kinds = ("late", "slow", "cross", "other_job", "all")
    for seed in range(300):
        kind, rank = kinds[seed % len(kinds)], int(draw.integers(RANKS))
        strength = float(draw.uniform(60, 240))
        training = Training(seed=seed, scatter_ms=float(draw.uniform(0.1, 3)), rdma=seed % 2 > 0)
        wanted: tuple[Cause, str] = Cause.UNKNOWN, ""
        if kind == "late":
            training, wanted = replace(training, late_rank=rank, late_ms=strength), (Cause.STRAGGLER, f"rank {rank}")
        elif kind == "all":
            training, wanted = replace(training, all_slow=1), (Cause.PAUSE, "")
        else:
            training = replace(training, pairs=[rank], factor=1 + strength / (SLICE_MS * SLICES * OPERATIONS))
            wanted = Cause.SLOW_LINK, ""
            if kind != "slow":
                job = "other" if kind == "other_job" else ""
                other = Other(f"h{rank}", f"mlx5_{rank}", Direction.TX, 0, job, job or "backup")
                training = replace(training, other=other, other_ms=strength * float(draw.uniform(0.8, 1.1)))
                wanted = (Cause.OTHER_JOB if job else Cause.CROSS), other.name
        found = training.verdict()
        same = (found.cause, found.culprit) == wanted
        right += same
        accused += not same and found.cause != Cause.UNKNOWN
    assert right >= 297
    assert accused == 0


OTHER = Other("h1", "mlx5_1", Direction.TX, 0, "other", "")


def as_told(transfers: Transfers) -> list[dict[str, int]]:
    """Rows as an agent tells them: who is at the other end is not among them."""
    rows = []
    for sent in transfers.rows:
        row = {name: int(sent[name]) for name in SENT.names or ()} | {"communicator": 7, "channel": 0}
        row |= {"missed": 0, "operations": 0, "pid": 10 + row["rank"], "peer": (row["rank"] + 1) % RANKS}
        back = {
            "rank": row["peer"],
            "pid": 10 + row["peer"],
            "group_rank": row["peer"],
            "peer": row["rank"],
            "sends": 0,
        }
        rows += [row, row | back]
    return rows


@pytest.mark.parametrize("too_high", [0, 1, 3])
def test_a_dataset_has_the_same_verdict(tmp_path: Path, too_high: int) -> None:
    """too_high: by so much a rank's numbers are, until they are put right."""
    training = Training(pairs=[1], factor=6, other=OTHER, other_ms=140)
    steps, transfers = training.run()
    for rank in range(RANKS):
        same: dict[str, object] = {"host": f"h{rank}", "session": f"s{rank}", "job": JOB, "rank": rank}
        own = [{**row, **same} for row in as_told(transfers) if row["rank"] == rank]
        store(tmp_path, "transfers", own, f"h{rank}")
        own = [
            same
            | {"size": RANKS, "start_ns": int(steps.start_ns[at])}
            | {"iteration": int(steps.number[at]) + too_high * int(rank == 2 and steps.number[at] < 10)}
            | {"end_ns": int(steps.end_ns[at]), "exposed_ns": -1, "error_ns": 100_000, "source": "uprobe"}
            for at in np.flatnonzero(steps.rank == rank)
        ]
        store(tmp_path, "iterations", own, f"h{rank}")
        store(tmp_path, "sessions", [same | {"interface": "eth0", "clock_error_ns": 20_000}], f"h{rank}")
    _, start_ns, end_ns, bytes_ = transfers.posted[0].tolist()
    whose = {"host": "h1", "session": "s1", "job": "other", "rank": 0, "process": "python", "rdma_device": "mlx5_1"}
    posted = whose | {"verb": "write", "bytes": bytes_, "start_ns": start_ns, "end_ns": end_ns}
    store(tmp_path, "rdma", [posted], "h1")
    (found,) = verdicts(tmp_path, JOB)
    assert (found.iteration, found.cause, found.culprit) == (20, Cause.OTHER_JOB, "job other")
    assert (found.host, found.interface, found.bytes) == ("h1", "mlx5_1", bytes_)


def test_a_collector_has_the_same_verdict() -> None:
    training = Training(pairs=[1], factor=6, other=OTHER, other_ms=140)
    steps, transfers = training.run()
    told = [row | {"session": row["rank"], "job": 1} for row in as_told(transfers)]
    columns = Columns({name: np.array([row[name] for row in told], np.int64) for name in told[0]})
    _, start_ns, end_ns, bytes_ = transfers.posted[0].tolist()
    row = {"session": 1, "job": 2, "rank": 0, "process": "python", "container": "", "rdma_device": "mlx5_1"}
    row |= {"verb": "write", "bytes": bytes_, "start_ns": start_ns, "end_ns": end_ns}
    posted = Columns(
        {name: np.array([value], None if isinstance(value, int) else object) for name, value in row.items()}
    )
    maps = TimeMaps([TimeMap.constant(0)] * RANKS)
    of_ranks, of_anybody = Lately(), Lately()
    of_ranks.append(columns)
    of_anybody.append(posted)
    recent = RecentTransfers(of_ranks, of_anybody, jobs=("", JOB, "other"))
    sent = recent.in_utc(JOB, RANKS, maps, np.arange(RANKS), {n: f"h{n}" for n in range(RANKS)}, 20_000)
    found = verdict_on(judge_input(JOB, matrix(steps), no_link_totals(), 20, lambda: sent), steps)
    assert (found.cause, found.culprit, found.host) == (Cause.OTHER_JOB, "job other", "h1")


def test_steps_that_are_usual_have_no_verdict() -> None:
    told = 0
    for seed in range(20):
        steps, transfers = Training(seed=seed, scatter_ms=3).run()
        for number in standing_out(steps):
            one = judge_input(JOB, matrix(steps), no_link_totals(), number, lambda found=transfers: found)
            told += worth_reporting(one, verdict_on(one, steps))
    assert told == 0
