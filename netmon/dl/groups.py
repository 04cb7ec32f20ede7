# SPDX-License-Identifier: Apache-2.0
"""What a job's groups are for, by what their ranks call in a step; and where the time of its steps goes, by group.

A group is known by its name's hash, which is the same on all ranks. What is called in it falls into families that are
judged each for itself: sums, gathers with what they are summed by, exchanges of all with all, transfers between two.
What these do not show is unknown, except where other groups of the job call the same:

- Sums of activations come in the forward pass, too: tensor. Sums of gradients do not: data.
- All-gathers of parameters, and sums of as many gradients, after the forward pass: sharded data.
  Gathers and sums in both passes: tensor (with split sequences).
- What goes from all to all in different sizes goes to experts. In equal sizes it may be attention, too: unknown.
- Ranks that send to a next one and get back from it: pipeline. Ranks in a ring that send one way only: context.

Where time goes is added up rank by rank (StageFrontier): what a rank did not wait in a step it computed. A rank that
computes longer than its baseline by as much as the others wait longer has delayed them; no clocks are compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from netmon.dl.hangs import group_number
from netmon.dl.operations import ALL_TRANSFERS, EXCHANGES, GATHERS, SUMS, Operation
from netmon.dl.rank_activity import UNNAMED
from netmon.evidence import GROUP_COLUMNS, SAME_STEP_NS, UNKNOWN
from netmon.records import Table
from netmon.units import format_bytes, format_duration
from netmon.views import Cause, Verdict

DATA, SHARDED, TENSOR, PIPELINE, EXPERT, CONTEXT, UNCLEAR = (
    *("data", "sharded data", "tensor", "pipeline", "expert", "context"),
    "unknown",
)
"""Kinds of groups."""

_FAMILIES = ((*SUMS, *GATHERS), EXCHANGES, ALL_TRANSFERS)
_LEAST_BYTES = 1 << 10  # of gradients that are summed in a step: less is a count, a norm or a loss
_SUM_TO_GATHER_RATIO = 0.4, 2.5  # of the gradients' and the parameters' bytes: they may have different types
_UNEVEN, _MOSTLY = 1.02, 0.9  # bytes of a step, by the median; of so many of them
_STEPS = 200  # with which one is compared, on either side
_FEWEST = 5
_MOST_SENT = 32  # lines of a group
_SLOWEST = 1.1  # as long as any other stage
_PART = 0.25  # of a longer wait, that an operation must have of it to be named
_LONGER = 0.5  # of what a step took longer, that a rank must compute or wait longer to be named

_NAMES = {int(one): f"{one.word}s" for one in Operation}


@dataclass(frozen=True)
class OperationUse:
    """What the ranks of a group call in a step, typically."""

    name: str
    calls: tuple[float, float]  # of the ranks the least and the most
    bytes: tuple[float, float]  # −1: not known
    forward: float  # of the calls, those before the first backward pass, the most; −1: not known
    waited_ns: float  # the mean


@dataclass(frozen=True)
class Sent:
    """From rank to rank in a step, typically."""

    sender: int
    receiver: int
    calls: float
    bytes: float  # −1: not known


@dataclass(frozen=True)
class GroupUse:
    """A group, and one thing that it is for."""

    group: int
    name: str  # in words
    kind: str
    ranks: tuple[int, ...]  # in their order in the group; those that are known
    size: int
    operations: tuple[OperationUse, ...]
    sent: tuple[Sent, ...] = ()
    imbalance: float = 1.0  # of exchanges: bytes of the rank that gets most, by the mean
    codes: tuple[int, ...] = field(default=(), compare=False)  # operations
    longest: tuple[int, float] = (-1, 0.0)  # the rank that waits longest in a step, typically, and for how long (ns)

    @property
    def waited_ns(self) -> float:
        """Of a rank in a step, the mean."""
        return sum(one.waited_ns for one in self.operations)

    @property
    def whole(self) -> bool:
        """Whether all its ranks are known."""
        return len(self.ranks) == self.size

    @property
    def phase(self) -> str:
        """When in a step it is used; empty: not known."""
        forward = sum(one.forward for one in self.operations)
        if any(one.forward < 0 for one in self.operations):
            return ""
        calls = sum(one.calls[1] for one in self.operations)
        return "backward" if not forward else "forward" if forward >= calls else "forward, backward"


# --- kinds


def group_uses(rows: pd.DataFrame) -> list[GroupUse]:
    """rows: of the table `collectives`, of one job; what is not known is null, but of groups −1.

    Typical is the median of steps.
    """
    rows = rows[(rows["group"] != UNKNOWN) & (rows["group_size"] > 1)]
    found = list[GroupUse]()
    named = rows.loc[(rows["group_size"] == rows["size"]) & (rows["group"] != UNNAMED), "group"].unique()
    if len(named) == 1:
        rows = rows.assign(group=rows["group"].replace(UNNAMED, named[0]))
    rows = _without_blind(_typical(rows))
    for group, own in _by(rows, "group"):
        members = own.groupby("group_rank")["rank"].agg(["nunique", "last"])
        if (members["nunique"] > 1).any() or members["last"].duplicated().any():
            members = members[:0]  # two groups of one name, or ranks that have changed
        ranks = dict(zip(members.index.astype(int).tolist(), members["last"].astype(int).tolist(), strict=True))
        size = int(own["group_size"].iloc[-1])
        left = own
        for codes in _FAMILIES:
            some = left[left["operation"].isin(codes)]
            left = left[~left["operation"].isin(codes)]
            if len(some):
                found.append(_use(group, some, ranks, size, int(own["size"].iloc[-1])))
        if len(left):
            found.append(_use(group, left, ranks, size, int(own["size"].iloc[-1])))
    found = list(_alike(found))
    order = (DATA, SHARDED, TENSOR, PIPELINE, EXPERT, CONTEXT, UNCLEAR)
    return sorted(found, key=lambda use: (order.index(use.kind), use.ranks, use.group))


def _typical(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each rank what it calls in half of its steps or more."""
    steps = rows["rank"].map(rows.groupby("rank")["end_ns"].nunique())
    which = [rows["rank"], rows["group"], rows["operation"], rows["peer"].fillna(UNKNOWN)]
    return rows[2 * rows.groupby(which)["end_ns"].transform("nunique") >= steps]


def _alike(uses: Sequence[GroupUse]) -> Iterator[GroupUse]:
    """Groups that share no rank, and call the same in every step, are for the same."""
    for use in uses:
        same = [one for one in uses if _signature(one) == _signature(use)]
        ranks = [rank for one in same for rank in one.ranks]
        kinds = Counter(one.kind for one in same if one.kind != UNCLEAR)
        if len(same) > 1 and kinds and len(ranks) == len(set(ranks)):
            kind, count = kinds.most_common(1)[0]
            use = replace(use, kind=kind if len(kinds) == 1 or 2 * count > len(same) else UNCLEAR)
        yield use


def _signature(use: GroupUse) -> tuple[object, ...]:
    return use.size, tuple((one.name, one.calls, one.bytes) for one in use.operations)


def _without_blind(rows: pd.DataFrame) -> pd.DataFrame:
    """A rank may be seen to call nothing at all before its first backward pass, while others of its group do: its steps
    are taken to begin there, and do not show what is forward."""
    steps = rows.groupby(["rank", "end_ns"])["forward_calls"].sum(min_count=1)
    blind = steps.groupby("rank").median() == 0
    of_row = rows["rank"].map(blind)
    mixed = (~of_row).groupby(rows["group"]).transform("any")
    return rows.assign(forward_calls=rows["forward_calls"].where(~(of_row & mixed)))


def _use(group: int, rows: pd.DataFrame, ranks: Mapping[int, int], size: int, job_size: int) -> GroupUse:
    operations, sent = tuple(_operations(rows)), tuple(_sent(rows, ranks))
    imbalance = _imbalance(rows)
    codes = tuple(sorted(int(one) for one in rows["operation"].unique()))
    members = tuple(ranks[place] for place in sorted(ranks))
    number = group_number(group)
    name = "all ranks" if size == job_size else f"group {number}" if number is not None else f"a group of {size}"
    kind = _kind(rows, codes, operations, sent, size, len(members) == size)
    waited = rows.groupby(["rank", "end_ns"])["waited_ns"].sum().groupby("rank").median()
    longest = int(waited.index[int(waited.argmax())]), float(waited.max())
    return GroupUse(group, name, kind, members, size, operations, sent, imbalance, codes, longest)


def _operations(rows: pd.DataFrame) -> Iterator[OperationUse]:
    """Of each, what a rank typically has of it."""
    named = rows.assign(name=rows["operation"].map(_NAMES).fillna("others"))
    steps = named.groupby(["rank", "end_ns", "name"])
    columns = ["calls", "bytes", "forward_calls", "waited_ns"]
    summed = steps[columns].sum(min_count=1)
    summed["unknown"] = named.assign(unknown=named["bytes"].isna()).groupby(["rank", "end_ns", "name"])["unknown"].max()
    typical = summed.groupby(["rank", "name"]).median()
    for name, own in typical.groupby("name"):
        least, most = own.min(), own.max()
        yield OperationUse(
            str(name),
            (float(least["calls"]), float(most["calls"])),
            (-1.0, -1.0) if own["unknown"].any() else (float(least["bytes"]), float(most["bytes"])),
            -1.0 if own["forward_calls"].isna().all() else float(most["forward_calls"]),
            float(own["waited_ns"].mean()),
        )


def _sent(rows: pd.DataFrame, ranks: Mapping[int, int]) -> Iterator[Sent]:
    """As the senders report it."""
    some = rows[(rows["operation"] == Operation.SEND) & rows["peer"].notna()]
    for rank, of_rank in _by(some, "rank"):
        for peer, own in _by(of_rank, "peer"):
            if peer in ranks:
                size = float(own["bytes"].median()) if own["bytes"].notna().all() else -1.0
                yield Sent(rank, ranks[peer], float(own["calls"].median()), size)


def _by(rows: pd.DataFrame, column: str) -> Iterator[tuple[int, pd.DataFrame]]:
    """As groupby, of a column of numbers."""
    key: Any
    for key, own in rows.groupby(column):
        yield int(key), own


def _imbalance(rows: pd.DataFrame) -> float:
    """Bytes that the rank gets which gets most, by the mean; of the typical step. Steps are identified by their order
    on each rank."""
    some = rows[rows["operation"].isin(EXCHANGES)]
    if not len(some) or some["bytes"].isna().any():
        return 1.0
    shares = _exchanged(some)
    return float((shares.max(axis=1) / shares.mean(axis=1)).median()) if len(shares) else 1.0


def _exchanged(rows: pd.DataFrame) -> pd.DataFrame:
    """(steps, ranks) bytes: of the last steps, as all ranks have them."""
    summed = rows.groupby(["rank", "end_ns"])["bytes"].sum().reset_index()
    summed["back"] = summed.groupby("rank")["end_ns"].rank(ascending=False)
    table = summed.pivot(index="back", columns="rank", values="bytes").dropna()
    return table[table.sum(axis=1) > 0]


def _kind(
    rows: pd.DataFrame,
    codes: Sequence[int],
    operations: Sequence[OperationUse],
    sent: Sequence[Sent],
    size: int,
    whole: bool,
) -> str:
    if set(codes) <= {*ALL_TRANSFERS}:
        return _kind_of_transfers(rows, sent, size) if whole else UNCLEAR
    if set(codes) <= {*EXCHANGES}:
        return EXPERT if _varies(rows) else UNCLEAR
    gathers, sums = (_of(rows, which) for which in (GATHERS, SUMS))
    if not sums or sums.forward < 0 or not set(codes) <= {*SUMS, *GATHERS}:
        return UNCLEAR
    if gathers:
        if sums.forward > 0:
            return TENSOR if 0 < gathers.forward < gathers.calls and sums.forward < sums.calls else UNCLEAR
        return SHARDED if _sums_what_it_gathers(gathers, sums, size) else UNCLEAR
    if sums.forward > 0:
        return TENSOR if sums.forward < sums.calls else UNCLEAR
    return DATA if sums.bytes >= _LEAST_BYTES else UNCLEAR


class _Typical(NamedTuple):
    calls: float
    bytes: float
    forward: float  # calls


def _of(rows: pd.DataFrame, codes: Sequence[int]) -> _Typical | None:
    """Of a rank in a step, −1: not known; None: nothing."""
    some = rows[rows["operation"].isin(codes)]
    if not len(some):
        return None
    names = ["calls", "bytes", "forward_calls"]
    typical = some.groupby(["rank", "end_ns"])[names].sum(min_count=1).groupby("rank").median()
    forward = typical["forward_calls"].dropna()
    if (forward > 0).nunique() > 1:  # ranks do not agree on what is forward
        typical["forward_calls"] = np.nan
    median = typical.median()
    values = [float(median[name]) for name in names]
    return _Typical(*(-1.0 if np.isnan(value) else value for value in values))


def _sums_what_it_gathers(gathers: _Typical, sums: _Typical, size: int) -> bool:
    """Call by call: of a gather the bytes are a rank's share, of a sum they are all that is summed."""
    if gathers.bytes <= 0 or sums.bytes < _LEAST_BYTES:
        return False
    least, most = _SUM_TO_GATHER_RATIO
    return least <= (sums.bytes / sums.calls) / (gathers.bytes / gathers.calls * size) <= most


def _varies(rows: pd.DataFrame) -> bool:
    """Whether what ranks get differs from rank to rank, or from step to step."""
    if rows["bytes"].isna().any():
        return False
    summed = rows.groupby(["rank", "end_ns"])["bytes"].sum()
    return bool(summed.quantile(_MOSTLY) > _UNEVEN * max(1.0, float(summed.median())))


def _kind_of_transfers(rows: pd.DataFrame, sent: Sequence[Sent], size: int) -> str:
    edges = {(one.sender, one.receiver) for one in sent}
    ranks = {rank for edge in edges for rank in edge}
    if len(ranks) < size:
        return UNCLEAR
    both = {edge for edge in edges if edge[::-1] in edges}
    next_of = {rank: {to for sender, to in edges if sender == rank} for rank in ranks}
    if size == 2:
        sends = rows[rows["operation"] == Operation.SEND]
        first = sends.groupby("rank")["forward_calls"].median()
        known = len(first) == 2 and first.notna().all()
        return PIPELINE if known and (first > 0).sum() == 1 and both else UNCLEAR
    neighbours = {rank: {one for edge in edges if rank in edge for one in edge} - {rank} for rank in ranks}
    if max(map(len, neighbours.values())) > 2 or not _connected(neighbours):
        return UNCLEAR
    path = sum(len(one) == 1 for one in neighbours.values()) == 2
    if both == edges or (not both and path):
        return PIPELINE
    return CONTEXT if not both and not path and all(len(one) == 1 for one in next_of.values()) else UNCLEAR


def _connected(neighbours: Mapping[int, set[int]]) -> bool:
    reached, new = set[int](), {next(iter(neighbours))}
    while new:
        reached |= new
        new = {one for rank in new for one in neighbours[rank]} - reached
    return len(reached) == len(neighbours)


# --- where the time of steps goes


_Key = tuple[int, int]
"""A group and an operation."""


@dataclass(frozen=True)
class Growth:
    """A rank in a step, compared with its baseline."""

    rank: int
    computed_ns: float  # longer than the baseline
    waited_ns: Mapping[_Key, float]  # the same

    def waited_in(self, use: GroupUse) -> float:
        """Longer than the baseline, in what this group is used for."""
        return sum(self.waited_ns.get((use.group, code), 0.0) for code in use.codes)


def growths(rows: pd.DataFrame, iteration: int) -> list[Growth]:
    """rows: as group_uses takes them, with the column `iteration`. Of the ranks that have enough steps to compare."""
    near = rows[(rows["iteration"] - iteration).abs() <= _STEPS]
    found = list[Growth]()
    for rank, own in _by(near, "rank"):
        spans = own.groupby("iteration")[["start_ns", "end_ns"]].first()
        took = (spans["end_ns"] - spans["start_ns"]).astype(float)
        if iteration not in took.index or len(took) < _FEWEST + 1:
            continue
        waits, computed = dict[_Key, float](), took.copy()
        for group, of_group in _by(own, "group"):
            for code, calls in _by(of_group, "operation"):
                each = calls.groupby("iteration")["waited_ns"].sum().reindex(took.index).fillna(0.0)
                computed -= each
                waits[group, code] = float(each[iteration] - each.drop(iteration).median())
        baseline = computed.drop(iteration).median()
        found.append(Growth(rank, float(computed[iteration] - baseline), waits))
    return found


@dataclass(frozen=True)
class Exposed:
    """In which group ranks waited longer than their baseline in a step, and who entered last."""

    use: GroupUse | None  # None: nothing stands out
    codes: tuple[int, ...] = ()  # the operations in which they did
    waited_ns: float = 0.0  # longer, at most
    waiting: tuple[int, ...] = ()
    late: int = -1  # rank that kept them; −1: nobody computed longer
    late_ns: float = 0.0  # that it computed longer
    sequence: int = -1  # of the collective that it entered last; −1: not known
    lag_ns: int = 0  # it did so long after the others, by the hosts' clocks; 0: these do not show it
    imbalance: float = 0.0  # of experts, in this step; 0: as in the baseline
    most: int = -1  # the rank that gets most then


def exposed(
    rows: pd.DataFrame, uses: Sequence[GroupUse], iteration: int, excess_ns: int, clock_error_ns: int = 0
) -> Exposed:
    """rows: as growths takes them; excess_ns: what the step took longer than its baseline, above 0; clock_error_ns: of
    the rows' times, between hosts."""
    ranks, nothing = growths(rows, iteration), Exposed(None)
    if not ranks or len(ranks) < int(rows["size"].max()) or excess_ns <= 0 or not uses:
        return nothing
    least = _LONGER * excess_ns
    late = [one for one in ranks if one.computed_ns >= least]
    others = [one for one in ranks if one not in late]
    most = {one.rank: max(uses, key=one.waited_in) for one in others}
    kept = [one for one in others if one.waited_in(most[one.rank]) >= least]
    if not kept or len(late) > 1 or len(late) + len(kept) < len(ranks):
        return nothing
    counts = [most[one.rank] for one in kept]
    use = max(counts, key=lambda one: (bool(late) and late[0].rank in one.ranks, counts.count(one), one.ranks))
    waiting = [one for one in kept if most[one.rank] == use]
    longest = max(waiting, key=lambda one: one.waited_in(use))
    total = longest.waited_in(use)
    grown = {code: longest.waited_ns.get((use.group, code), 0.0) for code in use.codes}
    codes = tuple(code for code, ns in grown.items() if ns >= _PART * total)
    numbers = tuple(sorted(one.rank for one in waiting))
    if not late:
        return Exposed(
            use, codes, total, numbers, imbalance=(uneven := _uneven(rows, use, iteration))[0], most=uneven[1]
        )
    step = rows[(rows["iteration"] == iteration) & (rows["group"] == use.group)]
    code = max(grown, key=lambda one: grown[one])
    entered = _entered(step[step["operation"] == code], numbers, late[0].rank, clock_error_ns)
    return Exposed(
        *(use, codes, total, numbers, late[0].rank, late[0].computed_ns, *entered, *_uneven(rows, use, iteration))
    )


def _entered(step: pd.DataFrame, waiting: Sequence[int], late: int, clock_error_ns: int) -> tuple[int, int]:
    """The number of the collective in which ranks waited longest, and before which the late one was busy for longest,
    if that is one; and by how much it entered that later. step: one operation of a group in a step."""
    by_rank = step.drop_duplicates("rank").set_index("rank")
    if late not in by_rank.index or not {*waiting} <= {*by_rank.index}:
        return -1, 0
    theirs, own = by_rank.loc[[*waiting]], by_rank["late_sequence"].loc[[late]].max()
    if not own >= 0 or (theirs["longest_sequence"] != own).any():
        return -1, 0
    begun_ns = by_rank["start_ns"] + by_rank["late_at_ns"]
    before_ns = theirs["start_ns"] + theirs["longest_at_ns"]
    lag_ns = int(begun_ns.loc[[late]].max() - before_ns.max())
    return int(own), lag_ns if lag_ns > clock_error_ns else 0


_CLEARLY = 1.25  # × the baseline's unevenness


def _uneven(rows: pd.DataFrame, use: GroupUse, iteration: int) -> tuple[float, int]:
    if use.kind != EXPERT:
        return 0.0, -1
    own = rows[(rows["group"] == use.group) & rows["operation"].isin(use.codes) & (rows["iteration"] == iteration)]
    got = own.groupby("rank")["bytes"].sum()
    imbalance = float(got.max() / got.mean()) if len(got) == use.size and got.mean() else 0.0
    return (imbalance, int(got.index[int(got.argmax())])) if imbalance >= _CLEARLY * use.imbalance else (0.0, -1)


# --- in words


def ranks_in_words(ranks: Sequence[int]) -> str:
    """0–3, 6."""
    parts, ordered = list[str](), sorted(ranks)
    while ordered:
        run = next((n for n in range(1, len(ordered)) if ordered[n] != ordered[0] + n), len(ordered))
        first, last = ordered[0], ordered[run - 1]
        parts.append(str(first) if run == 1 else f"{first}, {last}" if run == 2 else f"{first}–{last}")
        ordered = ordered[run:]
    return ", ".join(parts)


def calls_of(rows: Table) -> pd.DataFrame:
    """GROUP_COLUMNS of rows of COLLECTIVE as a dataset has them: what is not known is null, but of groups."""
    columns = {name: np.ascontiguousarray(rows[name]) for name in GROUP_COLUMNS}
    for name in set(columns) - {"rank", "size", "start_ns", "end_ns", "group"}:  # a group is a hash: no float holds it
        if (unknown := columns[name] == UNKNOWN).any():
            columns[name] = np.where(unknown, np.nan, columns[name])
    return pd.DataFrame(columns)


def group_waits(rows: pd.DataFrame, steps: Mapping[str, Any], verdict: Verdict, clock_error_ns: int) -> str:
    """In which group ranks waited longer in a step that was slow, and who kept them; empty: that is not clear.

    rows: GROUP_COLUMNS, of the steps around it; steps: `rank`, `end_ns` and `iteration` of these. Times of both are by
    the same clocks, whose error between hosts is clock_error_ns.
    """
    if not len(rows) or verdict.excess_ns <= 0 or verdict.cause == Cause.CHANGE:
        return ""
    known = pd.DataFrame({name: steps[name] for name in ("rank", "end_ns", "iteration")})
    rows = pd.merge_asof(
        rows.sort_values("end_ns"),
        known.astype("int64").sort_values("end_ns"),
        on="end_ns",
        by="rank",
        direction="nearest",
        tolerance=SAME_STEP_NS,
    )
    rows = rows[rows["iteration"].notna()]
    found = exposed(rows, group_uses(rows), verdict.iteration, verdict.excess_ns, clock_error_ns)
    return sentence(found, clock_error_ns)


def sentence(found: Exposed, clock_error_ns: int = 0) -> str:
    """Empty: there is nothing to say."""
    use = found.use
    if use is None:
        return ""
    what = " and ".join(dict.fromkeys(_NAMES.get(code, "calls") for code in found.codes))
    what = f"{what[:-1]} {found.sequence:,}" if found.sequence >= 0 and len(found.codes) == 1 else f"the {what}"
    named = "group" if use.name == "all ranks" else use.name if use.name.startswith("group") else f"group of {use.size}"
    ranks = f" (ranks {ranks_in_words(use.ranks)})" if use.whole and use.name != "all ranks" else ""
    group = f"{named}{ranks}" if use.kind == UNCLEAR else f"{use.kind} {named}{ranks}"
    who = f"rank{'s' * (len(found.waiting) > 1)} {ranks_in_words(found.waiting)}"
    text = f"{who} waited up to {format_duration(found.waited_ns)} longer than usual in {what} of the {group}"
    late = f"rank {found.late}"
    if found.late < 0:
        text += "; no rank computed longer"
    elif found.late not in use.ranks:
        text += f"; {late}, of another group, computed {format_duration(found.late_ns)} longer"
    elif use.codes[0] in ALL_TRANSFERS:
        text += f"; {late} computed {format_duration(found.late_ns)} longer, and they waited for it"
    else:
        text += f"; {late} entered last: it computed {format_duration(found.late_ns)} longer"
    if found.lag_ns:
        text += f", and entered {format_duration(found.lag_ns)} after the others (± {format_duration(clock_error_ns)})"
    if found.imbalance:
        text += f"; rank {found.most} got {found.imbalance:.1f} × the mean of what was exchanged"
    return text


@dataclass(frozen=True)
class Stage:
    """A rank of a pipeline in a typical step."""

    rank: int
    computed_ns: float
    bubble_ns: float  # it waits for what others send
    waits_for: int  # for which rank most of that; −1: nobody


def stages(rows: pd.DataFrame, use: GroupUse) -> list[Stage]:
    """Of a pipeline, in the group's order. rows: as group_uses takes them."""
    found = list[Stage]()
    for rank in use.ranks:
        own = rows[rows["rank"] == rank]
        spans = own.groupby("end_ns")["start_ns"].first()
        took = pd.Series(spans.index - spans, spans.index).astype(float)
        waited = own.groupby("end_ns")["waited_ns"].sum().reindex(took.index).fillna(0.0)
        received = own[(own["group"] == use.group) & own["operation"].isin((Operation.RECEIVE, Operation.RECEIVE_ANY))]
        bubble = received.groupby("end_ns")["waited_ns"].sum().reindex(took.index).fillna(0.0)
        by_peer = received.groupby("peer")["waited_ns"].sum()
        peer = use.ranks[int(by_peer.index[int(by_peer.argmax())])] if len(by_peer) and by_peer.max() > 0 else -1
        found.append(Stage(rank, float((took - waited).median()), float(bubble.median()), peer))
    return found


def in_words(rows: pd.DataFrame, uses: Sequence[GroupUse]) -> Iterator[str]:
    """Where a typical step's time goes, who sends what to whom, and how unevenly. rows: as group_uses takes them."""
    if not len(rows):
        return
    spans = rows.groupby(["rank", "end_ns"])["start_ns"].first().reset_index()
    took = float((spans["end_ns"] - spans["start_ns"]).median())
    waited = dict[str, float]()
    for use in uses:
        of_all = sum(one.waited_ns for one in use.operations) * len(use.ranks) / rows["rank"].nunique()
        waited[use.kind] = waited.get(use.kind, 0.0) + of_all
    parts = [f"{format_duration(max(0.0, took - sum(waited.values())))} computing"]
    parts += [f"{format_duration(ns)} waiting in {kind} groups" for kind, ns in waited.items() if ns > 0]
    yield f"a step of {format_duration(took)}, on average of the ranks: {', '.join(parts)}"
    sent = [one for use in uses for one in use.sent]
    for one in sent[:_MOST_SENT]:
        size = f", {format_bytes(one.bytes)}" if one.bytes >= 0 else ""
        yield f"rank {one.sender} sends to {one.receiver}: {one.calls:.3g} a step{size}"
    if len(sent) > _MOST_SENT:
        yield f"and {len(sent) - _MOST_SENT} more"
    for use in uses:
        if use.kind == EXPERT:
            yield f"{use.name}: the rank that gets most gets {use.imbalance:.2f} × the mean"
        if use.kind == PIPELINE and use.whole and len(known := stages(rows, use)) > 1:
            slowest = max(known, key=lambda stage: stage.computed_ns)
            computed = sorted(stage.computed_ns for stage in known)
            clear = computed[-1] > _SLOWEST * computed[-2]
            which = f"rank {slowest.rank} is the slowest stage" if clear else "no stage is much slower than the others"
            yield f"pipeline of ranks {ranks_in_words(use.ranks)}: {which}"
            for stage in known[:_MOST_SENT]:
                whom = f", mostly for rank {stage.waits_for}" if stage.waits_for >= 0 else ""
                times = format_duration(stage.computed_ns), format_duration(stage.bubble_ns)
                yield f"  rank {stage.rank} computes {times[0]}, waits {times[1]} in receives{whom}"
