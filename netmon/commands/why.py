# SPDX-License-Identifier: Apache-2.0
"""`netmon why`: why iterations were slow, with the arithmetic."""

import argparse
import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from netmon.errors import DataError, UsageError
from netmon.options import DIR, declare, read_options
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.terminal import FittingTable
    from netmon.views import RankTimes, Verdict

HELP = "tell why iterations were slow: whose traffic, which rank, or no network cause, and how much time each took"
EXAMPLES = """\
  netmon why --data out                     # which causes took how much, and the five worst iterations
  netmon why --data out --all
  netmon why training --iteration 812 --data /var/lib/netmon
  netmon why --collector collector.example:9400 --tls ~/.netmon
  netmon why --data out --json
"""

_WORST = 5  # iterations that are told of where there are more


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="only this job, by either of its names (all)")
    which = "this iteration, with the time of each rank; in a dataset even if it does not stand out"
    parser.add_argument("--iteration", type=int, metavar="K", help=which)
    parser.add_argument("--data", **DIR, help="the dataset's directory")
    parser.add_argument(
        "--collector",
        metavar="ADDR",
        help="instead of --data: the recent verdicts of a collector; HOST:PORT or unix:PATH (localhost:9400)",
    )
    parser.add_argument("--all", action="store_true", help="every iteration that stands out, by job and time")
    declare(parser, Security)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    if args.data and args.collector:
        raise UsageError("cannot tell why: give either the dataset's --data or a --collector")
    if not args.data:
        args.collector = args.collector or "localhost:9400"
    if args.data and args.iteration is not None:
        from netmon.history.judging import explained

        return _show(list(explained(args.data, args.job, args.iteration)), args.json)
    if args.collector and args.iteration is not None:
        return _show([(one, one.ranks) for one in _lately(args)[0]], args.json)
    found, unclear = _lately(args) if args.collector else _stored(args)
    if args.json:
        from netmon.dl.verdict.verdict_text import columns

        extra = {"not_understood": unclear} if unclear else {}
        print(json.dumps({"verdicts": [columns(one) for one in found], **extra}, indent=1))
    elif args.all:
        _print(found, unclear)
    else:
        _print_summary(found, unclear)
    return 0


def _show(found: "Sequence[tuple[Verdict, Sequence[RankTimes]]]", as_json: bool) -> int:
    """Each with where the time of each rank went."""
    from netmon.dl.verdict import path_of
    from netmon.terminal import console, say

    if as_json:
        from netmon.dl.verdict.verdict_text import columns

        rows = [{**columns(one), "ranks": [asdict(each) for each in times]} for one, times in found]
        print(json.dumps({"verdicts": rows}, indent=1))
        return 0
    for one, times in found:
        _print([one])
        console().print(ranks_table(times))
        if path := path_of(times, one):
            say(f"  {path}")
    return 0


def ranks_table(times: "Sequence[RankTimes]") -> "FittingTable":
    """Where the time of an iteration went, a row per rank."""
    from netmon.terminal import Column, FittingTable
    from netmon.units import format_duration

    heads = ("rank", "host", "took", "computed", "waited", "for", "transfer", "held up", "by", "afterwards")
    table = FittingTable(Column(head, head not in ("rank", "host", "for", "by"), prose=head == "by") for head in heads)
    for each in times:
        parts = (each.computed_ns, each.waited_ns, each.transfer_ns, each.held_ns, each.after_ns)
        one, two, three, four, five = (format_duration(ns) if each.known else "?" for ns in parts)
        whom = f"rank {each.waited_for}" if each.waited_for >= 0 else ""
        took = format_duration(each.duration_ns)
        table.add_row(str(each.rank), each.host, took, one, two, whom, three, four, each.held_by, five)
    return table


def _stored(args: argparse.Namespace) -> "tuple[Iterable[Verdict], list[str]]":
    """Verdicts, and the jobs whose steps are not understood."""
    from netmon.history.job_names import job_names, not_understood, requested_job, with_names
    from netmon.history.judging import verdicts

    names, unclear = job_names(args.data), not_understood(args.data)
    job = requested_job(args.job, names)
    unclear = [name for name in unclear if job in (None, name)]
    found = verdicts(args.data, job, args.iteration)
    return found if args.json else with_names(found, names), unclear


def _lately(args: argparse.Namespace) -> "tuple[list[Verdict], list[str]]":
    from netmon.top.options import called
    from netmon.views import Selection
    from netmon.wire.watch import watch_once

    chosen = (args.job,) if args.job else ()
    selection = Selection(jobs=chosen, most_links=1, most_ranks=1, most_hosts=1)
    snapshot = watch_once(args.collector, selection, read_options(Security, args))
    if args.job in snapshot.page.unknown:
        raise DataError(f"cannot judge job {args.job}: the collector at {args.collector} knows no such job")
    shown = snapshot if args.json else called(snapshot)
    found = [verdict for job in shown.jobs for verdict in reversed(job.verdicts)]
    if args.iteration is None:
        return found, [job.job for job in shown.jobs if job.not_understood]
    if not (found := [verdict for verdict in found if verdict.iteration == args.iteration]):
        raise DataError(
            f"cannot judge iteration {args.iteration}: a collector knows the last few that stood out; give its --data"
        )
    return found, []


def _print_summary(found: "Iterable[Verdict]", unclear: Sequence[str]) -> None:
    """Of each job its causes, those that took most first; then the iterations that took the most beyond their usual."""
    from netmon.dl.verdict.verdict_text import cause_words
    from netmon.terminal import say
    from netmon.units import format_duration
    from netmon.views import Cause

    worst: list[tuple[int, int, Verdict]] = []  # a heap
    by_cause: dict[str, dict[str, list[int]]] = {}
    count = 0
    for count, verdict in enumerate(found, 1):
        if verdict.cause == Cause.CHANGE:
            _print([verdict])
            continue
        by_cause.setdefault(verdict.job, {}).setdefault(cause_words(verdict), []).append(verdict.excess_ns)
        heapq.heappush(worst, (verdict.excess_ns, -count, verdict))
        if len(worst) > _WORST:
            heapq.heappop(worst)
    if count <= _WORST:
        if worst or unclear or not count:
            _print([verdict for _, _, verdict in sorted(worst, key=lambda one: -one[1])], unclear)
        return
    for job in unclear:
        _print([], [job])
    for job, causes in by_cause.items():
        lost = [ns for own in causes.values() for ns in own]
        say(f"job {job}: {len(lost)} iterations stood out, {format_duration(sum(lost))} lost")
        for cause, own in sorted(causes.items(), key=lambda item: -sum(item[1])):
            say(f"  {len(own):>5,} because of {cause}: {format_duration(sum(own))}")
    say(f"the {_WORST} that lost most (--all: every one):")
    _print([verdict for _, _, verdict in sorted(worst, reverse=True)])


def _print(found: "Iterable[Verdict]", unclear: Sequence[str] = ()) -> None:
    from netmon.dl.verdict.verdict_text import arithmetic, sentence
    from netmon.terminal import say
    from netmon.views import NOT_UNDERSTOOD

    for job in unclear:
        say(f"job {job}: {NOT_UNDERSTOOD}: no verdicts")
    any_found = bool(unclear)
    for verdict in found:
        any_found = True
        say(sentence(verdict))
        for line in arithmetic(verdict):
            say(f"  {line}")
    if not any_found:
        print("no iteration stands out: none took 1.2 × the job's usual time, or there are too few to tell")
