# SPDX-License-Identifier: Apache-2.0
"""Why an iteration took as long as it did.

Its slowest rank is compared with the same rank's baseline iterations. What it did longer besides waiting for gradients
is its own (or everybody's: a pause). What it waited longer is first the wait for a rank whose first gradient was later
than in the baseline, then the transfer. The bytes on the links at that time show what delayed the transfer (see
netmon.dl.verdict.blame). Without the culprit's bytes the iteration would have taken its duration less the cells lost
in which that culprit filled a link. The interval (90 %) is the baseline iterations' own spread, and the clocks'
bounds. If the remaining excess is within the spread, it has no culprit: without the culprit, the iteration would have
taken the baseline time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import (
    FEWEST,
    Matrix,
    baseline_by,
    baseline_durations,
    baseline_rows,
    matrix,
    median,
    ns_per_byte,
    spread,
)
from netmon.dl.verdict.blame import SILENT, blame_shares
from netmon.dl.verdict.by_transfers import Sent, Slow, Transfers, no_transfers, weigh, with_cells
from netmon.dl.verdict.connections import limited
from netmon.dl.verdict.evidence import CELL_NS, Link, LinkTotals, Steps
from netmon.dl.verdict.host_part import (
    KEPT,
    Counted,
    alike,
    explains,
    kept_more,
    nobody_counts,
    stopped_in,
    why_slow,
    within,
)
from netmon.dl.verdict.phases import Blamed, Judged, Phases, phases
from netmon.dl.verdict.window import JobTraffic, Window
from netmon.views import CAUSE_OF, NETWORK, SHARES, Cause, Verdict

# --- From the shares of an excess to a verdict: the cause, the culprit and its place, and the duration without it.

_LEAST_SHARE = 0.3  # of the excess: the least share of a verdict's cause
_SECOND_SHARE = 0.2
_KNOWN = 0.5  # of what is not known: as much has to be known of a cause, and of one that blames others all of it
_OTHERS = ("cross", "other_job")
_MAY_BE_HIS = ("unknown", "loss", "slow_link")
_INTERVAL = 1.645  # standard deviations: 90 %


def conclude(
    verdict: Verdict,
    shares: dict[str, float],
    of_ranks: Mapping[str, Mapping[int, float]],
    blamed: Blamed | None,
    noise_ns: float,
    one: Judged,
    steps: Steps,
) -> Verdict:
    """shares: ns, by SHARES; of_ranks: of the shares that are ranks' (they were late, their hosts slow), ns by rank."""
    excess = float(verdict.excess_ns)
    names = sorted(CAUSE_OF, key=lambda name: -shares[name])
    first, second = names[0], names[1]
    whole: dict[str, Any] = {f"{name}_ns": round(shares[name]) for name in SHARES}
    whole["unknown_ns"] += verdict.excess_ns - sum(whole.values())
    verdict = replace(verdict, **whole, error_ns=round(noise_ns))
    doubt = shares["unknown"] * (1.0 if first in _OTHERS else _KNOWN)
    if first in _OTHERS and blamed:  # the culprit may have cost more than the time of its bytes
        doubt -= next(each.most_ns - each.ns for each in blamed.culprits if each.cause == first)
    if shares[first] < max(_LEAST_SHARE * excess, noise_ns, doubt):
        return replace(verdict, confidence=round(max(0.0, shares[first] / excess) / 2, 3))
    verdict = replace(verdict, cause=CAUSE_OF[first])
    if shares[second] >= max(_SECOND_SHARE * excess, noise_ns):
        verdict = replace(
            verdict,
            second_cause=CAUSE_OF[second],
            second_culprit=_who(second, of_ranks.get(second, {}), blamed),
        )
    others = shares[second] + shares["transfer"]  # what there was more to transfer is known, too
    sure = float(np.clip(shares[first] / max(excess - others, 1.0), 0.0, 1.0))
    sure *= float(np.clip(1.0 - noise_ns / excess, 0.0, 1.0))
    return replace(_placed(verdict, first, of_ranks.get(first, {}), blamed, one, steps), confidence=round(sure, 3))


def _who(name: str, of_rank: Mapping[int, float], blamed: Blamed | None) -> str:
    if of_rank:
        return f"rank {max(of_rank, key=lambda rank: of_rank[rank])}"
    return next((each.name for each in blamed.culprits if each.cause == name), "") if blamed else ""


def _placed(
    verdict: Verdict, first: str, of_rank: Mapping[int, float], blamed: Blamed | None, one: Judged, steps: Steps
) -> Verdict:
    """The verdict with its culprit and place, and the duration without the culprit's bytes."""
    table, row = one.table, one.row
    if of_rank:
        rank = max(of_rank, key=lambda rank: of_rank[rank])
        column = int(np.searchsorted(table.rank, rank))
        index = int(table.host[row, column]) if column < len(table.rank) else -1
        host = steps.hosts[index] if index >= 0 else ""
        return replace(verdict, rank=rank, host=host, culprit=f"rank {rank}")
    if first in ("cross", "other_job", "own_transfer") and blamed and one.seen:
        culprit = next(each for each in blamed.culprits if each.cause == first)
        blamed_ns = min(culprit.ns, getattr(verdict, f"{first}_ns"))
        without = max(float(verdict.duration_ns - blamed_ns), 0.0)
        half = _INTERVAL * float(np.hypot(spread(table.slowest[one.baseline]), verdict.error_ns / 2))
        if without - verdict.baseline_ns <= half:  # baseline iterations vary by as much
            without = float(verdict.baseline_ns)
        # On a link full of the culprit's bytes, it may have caused unknown time, losses, and more than its bytes take.
        maybe = culprit.most_ns - blamed_ns + sum(max(0, getattr(verdict, f"{name}_ns")) for name in _MAY_BE_HIS)
        low = without - half - min(maybe, max(0.0, without - verdict.baseline_ns))
        return replace(
            _at(verdict, one.seen.links[culprit.link], one, steps),
            culprit=culprit.name,
            bytes=round(culprit.payload),
            counterfactual_ns=round(without),
            counterfactual_low_ns=round(max(0.0, low)),
            counterfactual_high_ns=round(min(float(verdict.duration_ns), without + half)),
        )
    if first in ("slow_link", "loss") and blamed and blamed.links and one.seen:
        return _at(verdict, one.seen.links[blamed.links[0]], one, steps)
    return verdict


def _at(verdict: Verdict, link: Link, one: Judged, steps: Steps) -> Verdict:
    rank = _rank_at(one.table, one.row, steps, link.host)
    return replace(verdict, host=link.host, interface=link.interface, direction=link.direction, rank=rank)


def _rank_at(table: Matrix, row: int, steps: Steps, host: str) -> int:
    there = _ranks_at(table, row, steps, host)
    return there[0] if len(there) == 1 else -1


def _ranks_at(table: Matrix, row: int, steps: Steps, host: str) -> list[int]:
    return [int(table.rank[c]) for c, h in enumerate(table.host[row].tolist()) if h >= 0 and steps.hosts[h] == host]


# --- judge

NOTABLE = 1.2
"""An iteration that takes so many times the baseline stands out."""

SCATTERS = 8
"""Times the spread of the shorter half of a job's iterations: an excess within it is not reported."""

_UNKNOWN_FROM = 2.0  # times the baseline
_LONGER = 1.1  # times the baseline: an iteration without what it took because it received more
_LIKELY = 0.6  # confidence: else hardly more is known of the cause than that it is not known
_HALF, _PARTLY = 0.5, (Cause.LOSS, Cause.SLOW_LINK)  # confidence, of causes that show now and then on a busy host
_SURE, _SURE_FROM = 0.95, 1.4  # confidence that a rank was late, and times the baseline
_MOSTLY = 0.5  # of a share, from which on a stop of that length explains all of it
_NEARLY = 0.75  # of a time: the rest of it is what the waits brought about
_UNCLEAR = 0.1  # of the excess: a larger unknown part is examined further
_MOST_COMPARED = 24  # iterations, whose transfers are looked at
REFERENCES = 6
"""Baseline iterations whose traffic is looked at, at most."""


def standing_out(steps: Steps) -> list[int]:
    """Numbers of the whole iterations that took NOTABLE × the baseline, ascending; not the job's first.

    Includes those with which the job changed its pace.
    """
    if not len(steps.number):
        return []
    table = matrix(steps)
    baseline = baseline_durations(table.durations)
    stands_out = table.whole & (baseline > 0) & (table.slowest >= NOTABLE * baseline)
    stands_out[0], stands_out[table.changes] = False, True
    return table.number[stands_out].tolist()  # type: ignore[no-any-return]


def wanted_times(table: Matrix, numbers: "list[int]") -> list[tuple[int, int]]:
    """When rows are needed to judge these iterations: theirs, and those of the baseline; (since, until) in UTC ns."""
    rows: set[int] = set()
    for number in numbers:
        row = int(np.searchsorted(table.number, number))
        rows |= {row, *_near(_faster_half(table, baseline_rows(table.durations, row)), row)}
    return _spans(table, sorted(rows))


def _near(faster: npt.NDArray[np.intp], row: int) -> list[int]:
    near = faster[np.argsort(np.abs(faster - row), kind="stable")[:REFERENCES]]
    return sorted(near.tolist())


def _faster_half(table: Matrix, baseline: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The faster half of the baseline for what they received: what slows one iteration may slow its neighbours, too."""
    if not len(baseline):
        return baseline
    pace = ns_per_byte(table, baseline)
    took = table.slowest[baseline] - (pace * table.received[baseline] if pace else 0.0)
    return baseline[took <= median(took)]


def judge_input(
    job: str,
    table: Matrix,
    link_totals: LinkTotals,
    number: int,
    sent: Sent = no_transfers,
    counted: Counted = nobody_counts,
) -> Judged:
    """An iteration alongside its baseline. Raises KeyError where there is no such iteration."""
    row = int(np.searchsorted(table.number, number))
    if row == len(table.number) or table.number[row] != number:
        raise KeyError(number)
    baseline = baseline_rows(table.durations, row)
    faster = _faster_half(table, baseline)
    traffic = JobTraffic(link_totals, job, _spans(table, faster))
    seen = traffic.window(*span_of(table, row))
    near = ((one, traffic.window(*span_of(table, one))) for one in _near(faster, row))
    references = {one: found for one, found in near if found}

    def transfers() -> Transfers | None:
        found = sent()
        return found and with_cells(found, link_totals, job)

    return Judged(job, table, row, baseline, seen, references, link_totals.waited, transfers, counted)


def judge(job: str, steps: Steps, link_totals: LinkTotals, number: int) -> Verdict:
    """The verdict on one iteration, which need not stand out. Raises KeyError where there is no such iteration."""
    return verdict_on(judge_input(job, matrix(steps), link_totals, number), steps)


def verdict_on(one: Judged, steps: Steps) -> Verdict:
    """The same, with the input at hand. steps: of its job."""
    table, row, baseline = one.table, one.row, one.baseline
    slow = int(np.nanargmax(table.duration[row]))
    start, end = (int(column[row, slow]) + table.base_ns for column in (table.start, table.end))
    normal = baseline_by(table.durations, baseline)
    excess = end - start - normal if normal else 0
    verdict = Verdict(one.job, int(table.number[row]), start, end, end - start, normal, excess, relative=steps.relative)
    if row in table.changes and normal:
        error = round(spread(table.slowest[baseline]))
        return replace(verdict, cause=Cause.CHANGE, compute_ns=excess, error_ns=error, confidence=1.0)
    if not normal or excess <= 0:
        return verdict if not normal else replace(verdict, unknown_ns=excess, confidence=1.0)
    found = _weigh(verdict, one, steps, phases(table, row, baseline, one.moments, one.seen, one.references))
    found = _by_transfers(verdict, one, steps) or found if found.cause == Cause.UNKNOWN else found
    if found.cause not in (Cause.SLOW_LINK, Cause.LOSS) or not found.host:
        return found
    counted = one.counted(found.host)
    return replace(found, culprit=why_slow(counted, span_of(table, row), _spans(table, baseline)))


def _by_transfers(verdict: Verdict, one: Judged, steps: Steps) -> Verdict | None:
    """The verdict by the reports of NCCL's proxies, where nothing else shows the cause; None: nor do they."""
    transfers = one.transfers()
    if transfers is None:
        return None
    regular = one.table.slowest < NOTABLE * verdict.baseline_ns  # what slows one iteration may slow its neighbours
    compared = [row for row in one.baseline.tolist() if regular[row] and (row in one.references or not one.references)]
    near = sorted(compared, key=lambda row: abs(row - one.row))[:_MOST_COMPARED]
    found = weigh(transfers, one.table, one.row, near, steps.hosts)
    if found is None:
        return None
    shares, slow = dict.fromkeys(SHARES, 0.0), found.slow
    shares["late"], shares["pause"] = sum(found.late.values()), found.paused
    share = _share_of(slow, transfers)
    if slow is not None:
        shares[share] = slow.ns
    shares["unknown"] = max(0.0, verdict.excess_ns - sum(shares.values()))
    noise_ns = found.error_ns
    if slow is not None and slow.other < 0:  # transfers are compared with their like, each by one clock
        noise_ns = max(noise_ns if found.late or found.paused else 0.0, slow.error_ns)
    elif not (found.late or found.paused):
        noise_ns = max(noise_ns, spread(one.table.slowest[one.baseline]))
    said = conclude(verdict, shares, {"late": found.late}, None, noise_ns, one, steps)
    if said.cause in (Cause.UNKNOWN, Cause.STRAGGLER, Cause.PAUSE) or slow is None:
        return said if said.cause != Cause.UNKNOWN else None
    host = steps.hosts[int(one.table.host[one.row, int(np.searchsorted(one.table.rank, slow.rank))])]
    said = replace(said, host=host, direction=slow.direction, rank=slow.rank)
    if slow.other < 0:
        clear = said.confidence >= _LIKELY and not _starved(one, near, slow.ns)
        return replace(said, interface=transfers.device_of.get(slow.rank, "")) if clear else None
    other = transfers.others[slow.other]
    without = max(float(verdict.duration_ns) - slow.ns, float(verdict.baseline_ns))
    half = _INTERVAL * float(np.hypot(spread(one.table.slowest[one.baseline]), noise_ns / 2))
    return replace(
        said,
        interface=other.interface,
        culprit=other.name,
        bytes=slow.bytes,
        counterfactual_ns=round(without),
        counterfactual_low_ns=round(max(0.0, without - half)),
        counterfactual_high_ns=round(min(float(verdict.duration_ns), without + half)),
    )


def _starved(one: Judged, compared: Sequence[int], ns: float) -> bool:
    """Whether a rank waited for a CPU so much longer than in the baseline that its proxy may have sent more slowly."""
    if one.waited is None:
        return False
    spans = _spans(one.table, [one.row, *compared])
    for rank in np.unique(one.waited["rank"]).tolist():
        now, *then = within(one.waited[one.waited["rank"] == rank], "waited_ns", spans)
        if now - median(then) >= _MOSTLY * ns:
            return True
    return False


def _share_of(slow: Slow | None, transfers: Transfers) -> str:
    if slow is None or slow.other < 0:
        return "slow_link"
    return "other_job" if transfers.others[slow.other].job else "cross"


def worth_reporting(one: Judged, verdict: Verdict) -> bool:
    """Whether the verdict is published without a request for this iteration.

    Its iteration takes NOTABLE × the baseline; if the cause is in the network, also without what there was more to
    transfer. If not, its excess is also more than the job's iterations always differ by; only their shorter half shows
    that, since the longer half has the disturbed ones. These are published in spite of such differences:

    * one late rank that explains all of the excess, from _SURE_FROM × the baseline on;
    * a rank's own work, or a pause of all ranks, if that hardly differs at other times, however much transfers do;
    * a rank that a quota throttled.

    A verdict with little or no knowledge of the cause is published only where the iteration took _UNKNOWN_FROM × the
    baseline, and exceeds twice those differences. Lost packets, or a slow link, that explain less than half, without
    what there was more to transfer, count as little knowledge.
    """
    if verdict.cause == Cause.CHANGE:
        return True
    if not verdict.baseline_ns:  # there is no baseline
        return False
    ratio = verdict.duration_ns / verdict.baseline_ns
    if verdict.cause in NETWORK and (verdict.cause not in _PARTLY or verdict.confidence >= _HALF):
        more_ns = _for_more_bytes(one) if verdict.cause in _PARTLY else 0.0
        longer = verdict.duration_ns - more_ns >= _LONGER * verdict.baseline_ns
        return longer and verdict.duration_ns - verdict.transfer_ns >= NOTABLE * verdict.baseline_ns
    if verdict.cause == Cause.STRAGGLER and verdict.confidence >= _SURE and ratio >= _SURE_FROM:
        return True
    took = one.table.slowest[one.baseline]
    differ_ns = SCATTERS * (median(took) - float(np.quantile(took, 0.16)))
    if verdict.cause != Cause.UNKNOWN and verdict.confidence >= _LIKELY:
        return ratio >= NOTABLE and (verdict.excess_ns >= differ_ns or _clearly_itself(one, verdict))
    return ratio >= _UNKNOWN_FROM and verdict.excess_ns >= 2 * differ_ns


def _for_more_bytes(one: Judged) -> float:
    """What an iteration takes longer, ns, as it received more than the baseline: what its ranks load counts, too."""
    pace = ns_per_byte(one.table, one.baseline)
    more = one.table.received[one.row] - median(one.table.received[one.baseline]) if pace else 0.0
    return pace * float(more) if more > 0 else 0.0


def _clearly_itself(one: Judged, verdict: Verdict) -> bool:
    """Whether a late rank, or all ranks in a pause, did longer what they do besides waiting for others: by most of the
    excess, and by SCATTERS times what that differs by; or were seen to be stopped for most of it, or a host's rank to
    be throttled."""
    table = one.table
    if verdict.cause == Cause.HOST and one.waited is not None:
        spans = np.array(_spans(table, one.baseline), np.int64).reshape(-1, 2)
        throttled = kept_more(one.waited, "throttled_ns", span_of(table, one.row), spans)
        return throttled.get(verdict.rank, 0.0) >= _MOSTLY * verdict.excess_ns
    if verdict.cause not in (Cause.STRAGGLER, Cause.PAUSE):
        return False
    stopped = stopped_in(one.waited, span_of(table, one.row)).ranks if one.waited is not None else {}
    alone = verdict.cause == Cause.STRAGGLER
    stopped_ns = max((ns for rank, ns in stopped.items() if rank == verdict.rank or not alone), default=0.0)
    if stopped_ns >= _MOSTLY * verdict.excess_ns:
        return True
    whose = table.rank == verdict.rank if alone else slice(None)
    exposed = np.where(np.isfinite(table.waited), table.waited, table.exposed)
    rest, before = table.duration - exposed, table.comm_start - table.start
    if not np.isfinite(exposed).any():  # by transfers: they differ by the error
        own_ns = verdict.late_ns if alone else verdict.pause_ns
        return own_ns >= max(_MOSTLY * verdict.excess_ns, SCATTERS * verdict.error_ns)
    own = np.where(np.isfinite(rest), rest, before)[:, whose]
    if not own.shape[1] or not np.isfinite(own[one.row]).all() or not np.isfinite(own[one.baseline]).all():
        return False
    more = own - np.median(own[one.baseline], axis=0)
    typical = np.median(more, axis=1)  # of a pause: what one of the ranks does longer now and then, it does alone
    differ_ns = SCATTERS * (median(typical[one.baseline]) - float(np.quantile(typical[one.baseline], 0.16)))
    return bool((more[one.row] >= _MOSTLY * verdict.excess_ns).all() and typical[one.row] >= differ_ns)


def span_of(table: Matrix, row: int) -> tuple[int, int]:
    """From the first rank's beginning of an iteration to the last one's end (UTC)."""
    return _spans(table, [row])[0]


def _spans(table: Matrix, rows: Sequence[int] | npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    begin, end = np.nanmin(table.start[rows], axis=1), np.nanmax(table.end[rows], axis=1)
    return [(int(b) + table.base_ns, int(e) + table.base_ns) for b, e in zip(begin, end, strict=True)]


def _weigh(verdict: Verdict, one: Judged, steps: Steps, phases: Phases) -> Verdict:
    """The verdict with the shares of the excess, the cause, and the duration without it."""
    excess = float(verdict.excess_ns)
    shares = dict.fromkeys((*SHARES, SILENT), 0.0)
    late_of: dict[int, float] = {}
    stalled: dict[int, float] = {}  # of it, by rank that kept all others from sending
    left = excess
    if phases.known:
        single = len(one.table.rank) == 1
        common = min(max(phases.pause_ns, 0.0), left)
        shares["compute" if single else "pause"] = common
        left -= common
        for rank, ns in phases.late:
            part = min(max(ns, 0.0), left)
            late_of[rank] = late_of.get(rank, 0.0) + part
            left -= part
    transfer = min(left, max(phases.waited_ns, 0.0)) if phases.known else 0.0
    noise_ns = phases.error_ns
    blamed: Blamed | None = None
    if transfer > 0 and one.seen is not None and phases.timed:
        receiver_ns, sender_ns = _windows(one.seen, phases, transfer)
        verdict = replace(verdict, receiver_ns=receiver_ns, sender_ns=sender_ns)
        parts, blamed = blame_shares(one, phases, transfer)
        for name, ns in parts.items():
            if name.startswith("late "):
                rank = int(name.split()[1])
                stalled[rank] = ns
                late_of[rank] = late_of.get(rank, 0.0) + ns
            else:
                shares[name] += ns
    all_stopped = _stopped(one, excess, shares, late_of)
    kept_of, all_kept = _hosts_part(one, excess, shares, late_of, stalled)
    silent = shares.pop(SILENT)
    if all_stopped or all_kept:
        shares["pause"] += silent
    shares |= {share: sum(of_rank.values()) for share, of_rank in kept_of.items()}
    _busy_meanwhile(phases, excess - sum(shares.values()) - sum(late_of.values()), late_of)
    if blamed and blamed.links and one.seen:
        there = _ranks_at(one.table, one.row, steps, one.seen.links[blamed.links[0]].host)
        if sum(late_of.get(rank, 0.0) for rank in there) >= _MOSTLY * shares["slow_link"]:
            shares["slow_link"] = 0.0  # a rank that does something else for longer sends more slowly, too
    shares["late"] = sum(late_of.values())
    shares["unknown"] = max(0.0, excess - sum(shares.values()))
    return conclude(verdict, shares, {"late": late_of, **kept_of}, blamed, noise_ns, one, steps)


def _busy_meanwhile(phases: Phases, unclear: float, late_of: dict[int, float]) -> None:
    """What of a transfer nothing else explains is the rank's that did something else in it while the others waited:
    garbage that is collected in the middle of a backward pass keeps back the gradients that come after it."""
    if len(phases.own) > 1 and unclear > 0:
        rank, second = sorted(phases.own, key=lambda one: -phases.own[one])[:2]
        more = phases.own[rank] - max(0.0, phases.own[second]) - late_of.get(rank, 0.0)
        if more > 0:
            late_of[rank] = late_of.get(rank, 0.0) + min(more, unclear)


def _windows(seen: Window, phases: Phases, transfer: float) -> tuple[int, int]:
    """How long TCP waited in the transfer, beyond the baseline, for the receiver's window and for the send buffer
    (ns)."""
    span, baseline = (phases.since_ns, phases.until_ns), list(phases.baseline_spans.values())
    receiver, sender = (limited(seen.said.gradients, name, span, baseline) for name in ("receiver_ns", "sender_ns"))
    return round(max(0.0, min(transfer, receiver))), round(max(0.0, min(transfer, sender)))


def _stopped(one: Judged, excess: float, shares: dict[str, float], late_of: dict[int, float]) -> bool:
    """Move the time for which ranks were stopped to these ranks, or to the pause. Returns whether it is a pause:
    half of all ranks or more, on more than one host.

    A ring stops whichever rank stops, so the links alone do not show which it was. A share with its own culprit stays.
    Where hosts of other ranks reported nothing, it may be either, and stays unknown.
    """
    stopped = stopped_in(one.waited, span_of(one.table, one.row)) if one.waited is not None else None
    if stopped is None or not stopped.ranks:
        return False
    ranks = stopped.ranks
    longest = max(ranks.values())
    all_of_them, may_be_all = (_all(one, who, stopped.watched) for who in ({*ranks}, {*ranks} | stopped.unseen))
    if may_be_all != all_of_them:
        for name in ("pause", SILENT):
            if longest >= _MOSTLY * shares[name]:
                shares[name] = 0.0
        return False
    found = 0.0
    for name in ("pause", SILENT, "loss", "slow_link"):
        if longest >= _MOSTLY * shares[name]:
            found, shares[name] = found + shares[name], 0.0
    for rank, ns in list(late_of.items()):
        if longest >= _MOSTLY * ns:
            found += late_of.pop(rank)
    unknown = max(0.0, excess - found - sum(shares.values()) - sum(late_of.values()))
    found += min(unknown, max(0.0, longest - found))
    if all_of_them:
        shares["pause"] += found
    else:
        rank = max(ranks, key=lambda one: ranks[one])
        late_of[rank] = late_of.get(rank, 0.0) + found
    return all_of_them


def _all(one: Judged, ranks: set[int], watched: int) -> bool:
    """Whether these are on more than one host, and half of the watched ranks, or more."""
    hosts = np.unique(one.table.host[one.row, np.isin(one.table.rank, list(ranks))])
    return len(hosts) > 1 and 2 * len(ranks) >= watched


def _hosts_part(
    one: Judged, excess: float, shares: dict[str, float], late_of: dict[int, float], stalled: Mapping[int, float]
) -> tuple[dict[str, dict[int, float]], bool]:
    """By share and rank, what kept it from running (KEPT): a quota that throttled it first, then waits for a CPU. And
    whether all ranks were kept from running while none sent anything."""
    found: dict[str, dict[int, float]] = {share: {} for share in KEPT.values()}
    answers: dict[int, float] = {}  # by rank, of all shares
    together = False
    if one.waited is None:
        return found, together
    table, baseline = one.table, one.baseline
    all_of_them = partial(_all, one, watched=len(np.unique(one.waited["rank"])))
    spans = np.array(_spans(table, baseline), np.int64).reshape(-1, 2)
    for name, share in KEPT.items():
        unknown = excess - sum(shares.values()) - sum(late_of.values()) - sum(answers.values())
        unclear = unknown > _UNCLEAR * excess
        if not (late_of or shares["pause"] > 0 or shares[SILENT] > 0 or unclear):
            break
        late = {rank for rank, ns in late_of.items() if ns > _UNCLEAR * excess}
        more = kept_more(one.waited, name, span_of(table, one.row), spans, late)
        more = {rank: max(0.0, ns - answers.get(rank, 0.0)) for rank, ns in more.items()}  # beyond what it answers for
        together |= explains(more, shares[SILENT]) >= 0 and all_of_them(alike(more))
        for rank, ns in _kept(more, all_of_them, shares, late_of, stalled, unknown if unclear else 0.0).items():
            answers[rank] = answers.get(rank, 0.0) + ns
            found[share][rank] = found[share].get(rank, 0.0) + ns
    return found, together


def _kept(
    more: Mapping[int, float],
    all_of_them: Callable[[set[int]], bool],
    shares: dict[str, float],
    late_of: dict[int, float],
    stalled: Mapping[int, float],
    unknown: float,
) -> dict[int, float]:
    """By rank that was kept from running so much more than in the baseline, the ns that this explains.

    They are taken from the rank's lateness, from silences in which all ranks only waited for it (even if another rank
    seemed to have stopped), and from the unknown part. A pause, in which each rank's own work took longer, is not
    explained by a single rank.
    """
    found = {
        rank: late_of.pop(rank) for rank in list(late_of) if explains({rank: more.get(rank, 0.0)}, late_of[rank]) >= 0
    }
    remaining = {rank: ns - found.get(rank, 0.0) for rank, ns in more.items()}
    for seemed in (None, *(rank for rank in stalled if rank in late_of)):
        ns = shares[SILENT] if seemed is None else min(stalled[seemed], late_of[seemed])
        rank = explains(remaining, ns)
        if rank < 0 or all_of_them(alike(remaining)):
            continue
        ns = _answered(ns, remaining[rank])
        found[rank], remaining[rank] = found.get(rank, 0.0) + ns, max(0.0, remaining[rank] - ns)
        if seemed is None:
            shares[SILENT] -= ns
        else:
            late_of[seemed] -= ns
    rank = explains(more, unknown)
    if rank >= 0:
        found[rank] = found.get(rank, 0.0) + _answered(unknown, more[rank])
    return found


def _answered(ns: float, waited_ns: float) -> float:
    """How much of a time a wait, or throttling, explains: its own length, or all of the time if it is nearly all."""
    return ns if waited_ns >= _NEARLY * ns else waited_ns


__all__ = [
    "CELL_NS",
    "FEWEST",
    "NOTABLE",
    "REFERENCES",
    "judge",
    "judge_input",
    "matrix",
    "standing_out",
    "verdict_on",
    "wanted_times",
    "worth_reporting",
]
