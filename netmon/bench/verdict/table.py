# SPDX-License-Identifier: Apache-2.0
"""What came of a campaign, for a terminal."""

from rich.console import Console

from netmon.bench.tables import figures_table
from netmon.bench.verdict.campaign import LeftOut, VerdictResult
from netmon.bench.verdict.rerun import RerunResult
from netmon.bench.verdict.scoring import MISSED, NO_EFFECT, NOTHING, SCORED_FROM, WRONG_CAUSE, WRONG_CULPRIT, Outcome
from netmon.bench.verdict.shifting import ShiftResult
from netmon.lab.injections.spec import CAUSES
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_duration

ORDER = (*dict.fromkeys(cause for cause in CAUSES.values() if cause), "compute", "unknown", NOTHING)
"""Of causes, in tables and pictures."""
_MOST_NAMED = 20


def print_verdicts(result: VerdictResult, console: Console) -> None:
    """The confusion matrix, the figures, and what was wrong."""
    for table in verdict_tables(result):
        console.print(table)
        console.print()
    for line in _wrong(result):
        console.print(line, soft_wrap=True, markup=False)


def verdict_tables(result: VerdictResult) -> tuple[FittingTable, FittingTable]:
    """The confusion matrix and the figures."""
    return _confusion(result), _figures(result)


def print_reruns(result: RerunResult, console: Console) -> None:
    """What was predicted, and what it was when it was done."""
    console.print(reruns_table(result))
    document = result.document()
    console.print(
        f"{document['predicted']} of {result.planned} predicted; error: median {_share(result.error(50))}, "
        f"largest {_share(result.error(100))}; within 5 %: {document['within_5_percent']}, and "
        f"{document['alike_within_5_percent']} of the {document['alike']} whose two runs were alike within 5 %; two "
        f"runs differ by {_share(document['apart'])} (median) before there is a culprit",
        soft_wrap=True,
    )
    for line in result.failed:
        console.print(line, soft_wrap=True, markup=False)


def reruns_table(result: RerunResult) -> FittingTable:
    """A row per configuration."""
    medians = ("before", "with culprit", "predicted", "measured")
    columns = [*labels("run", "trainer", "culprit"), *figures(*medians, "error", "two runs differ by")]
    table = FittingTable(columns, "iteration time without the culprit: predicted, and measured")
    for each in result.reruns:
        predicted = "nothing" if each.predicted_ns is None else format_duration(each.predicted_ns)
        medians = (
            format_duration(each.before_ns),
            format_duration(each.slowed_ns),
            predicted,
            format_duration(each.measured_ns),
        )
        table.add_row(each.run, each.trainer, each.culprit, *medians, _share(each.error), _share(each.spread))
    return table


def print_shifts(result: ShiftResult, console: Console) -> None:
    """What a shift was said to save, and what it saved."""
    console.print(shifts_table(result))
    document = result.document()
    console.print(
        f"within 20 %: {document['within_20_percent']} of {result.planned}; from 1.3 × or more to 1.1 × or less: "
        f"{document['from_1.3_to_1.1']}",
        soft_wrap=True,
    )
    for line in result.failed:
        console.print(line, soft_wrap=True, markup=False)


def shifts_table(result: ShiftResult) -> FittingTable:
    """A row per pair of jobs."""
    times = ("shift", "alone", "unshifted", "shifted")
    ratios = ("unshifted / alone", "shifted / alone", "predicted gain", "measured gain", "error")
    columns = [*labels("run"), *figures(*times, *ratios)]
    table = FittingTable(columns, "two jobs on a link: unshifted, and shifted as advised")
    for one in result.done:
        medians = (format_duration(ns) for ns in (one.shift_ns, one.alone_ns, one.before_ns, one.after_ns))
        costs = (f"{cost:.2f}" for cost in (one.cost_before, one.cost_after))
        table.add_row(one.run, *medians, *costs, *map(_share, (one.predicted_gain, one.gain, one.error)))
    return table


def _confusion(result: VerdictResult) -> FittingTable:
    confusion = result.confusion
    causes = [cause for cause in ORDER if any(cause in row for row in confusion.values())]
    columns = [*labels("cause"), *figures(*(cause.replace("_", " ") for cause in causes), "no effect")]
    table = FittingTable(columns, "rows: injected; columns: told")
    for cause in ORDER:
        without = sum(each.cause == cause and each.outcome == NO_EFFECT for each in result.outcomes)
        if cause in confusion or without:
            row = confusion.get(cause, {})
            table.add_row(cause.replace("_", " "), *(str(row.get(each) or "") for each in causes), str(without or ""))
    return table


def _figures(result: VerdictResult) -> FittingTable:
    table = figures_table("")
    scored = f"{len(result.scored)} of {len(result.outcomes)}"
    table.add_row("injections that made an iteration stand out", scored)
    for kind, each in result.left_out.items():
        table.add_row(f"left out: {kind}", _why_left_out(each))
    table.add_row("right cause", _share(result.right_cause_share))
    table.add_row("right culprit, where the cause was right", _share(result.right_culprit_share))
    table.add_row("network accused, and it was not", f"{len(result.accusations)} of {result.verdicts} verdicts")
    table.add_row("share of the delay against the truth: median error", _share(result.share_error(50)))
    after = [result.told_delay_s(share) for share in (50, 99)]
    table.add_row("told after, s: median, p99", ", ".join("not told" if s is None else f"{s:.2f}" for s in after))
    otherwise, both = result.misjudged
    table.add_row("another cause was told at once", f"{otherwise} of {both}")
    if result.undisturbed.iterations:
        table.add_row("stood out with nothing done, and told why", result.undisturbed.words())
    if result.failed:
        table.add_row("runs that failed", str(len(result.failed)))
    return table


def _why_left_out(each: LeftOut) -> str:
    if not each.done:
        return f"{each.count}, nothing was done"
    short, noise = each.count - each.as_undisturbed, each.as_undisturbed
    parts = [f"{short} took less than {SCORED_FROM:g} × the usual"] if short else []
    parts += [f"{noise} took no longer than some that nothing was done to"] if noise else []
    return f"{'; '.join(parts)}; the longest {each.most:.2f} ×"


def _wrong(result: VerdictResult) -> list[str]:
    wrong = [each for each in result.outcomes if each.outcome in (WRONG_CAUSE, WRONG_CULPRIT, MISSED)]
    lines = [_line(each) for each in wrong[:_MOST_NAMED]]
    lines += [
        f"{each.run}, iteration {each.verdict['iteration']}: {each.verdict['cause']} "
        f"({each.verdict['culprit'] or each.verdict['host']}) accused, done: {', '.join(each.injected) or 'nothing'}"
        for each in result.accusations[:_MOST_NAMED]
    ]
    lines += result.failed
    if result.interrupted:
        lines.append("interrupted: this is what was there")
    return lines


def _line(each: Outcome) -> str:
    verdict = each.verdict
    said = f"{each.told} ({verdict['culprit'] or verdict['host']})" if verdict else "no verdict"
    number = f", iteration {verdict['iteration']}" if verdict else ""
    longer = f"{format_duration(max(0.0, each.excess_ns))} longer than {format_duration(each.usual_ns)}"
    return f"{each.run}{number} ({each.trainer}): {each.outcome}: {each.kind}, {longer}; told: {said}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
