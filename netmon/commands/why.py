# SPDX-License-Identifier: Apache-2.0
"""`netmon why`: who slowed whom, and why single iterations were slow, with the arithmetic."""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

from netmon.errors import DataError, UsageError
from netmon.options import DIR, declare, read_options
from netmon.units import format_duration
from netmon.wire.security import Security

if TYPE_CHECKING:
    from pathlib import Path

    from netmon.terminal import FittingTable
    from netmon.views import GroupLine, Hang, Incident, RankTimes, Verdict

HELP = "show why iterations were slow: whose traffic, which rank, or no network cause, and how much time each took"
EXAMPLES = """\
  netmon why --data out                     # who slowed whom, since when and by how much, and the five worst steps
  netmon why --data out --all
  netmon why training --iteration 812 --data /var/lib/netmon
  netmon why --collector collector.example:9400 --tls ~/.netmon
  netmon why --data out --groups            # what groups of ranks exchange in a step, and where its time goes
  netmon why --data out --json
"""

_MOST_HANGS, _MOST_INCIDENTS, _WORST = 5, 20, 5  # that are shown where there are more: hangs, incidents, and steps
_MOST_EXPOSED = 20  # steps of which it is shown in which group ranks waited


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
    parser.add_argument("--all", action="store_true", help="every incident, and every iteration that stands out")
    groups = (
        "instead: each group of ranks, what it is for, who sends what to whom in a step, and who waits; needs --data"
    )
    parser.add_argument("--groups", action="store_true", help=groups)
    declare(parser, Security)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    if args.data and args.collector:
        raise UsageError("cannot show why: give either the dataset's --data or a --collector")
    if not args.data:
        args.collector = args.collector or "localhost:9400"
    if args.data:
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())  # the other ones keep what has been read: a quarter of the memory
    if args.groups:
        return _groups(args)
    if args.data and args.iteration is not None:
        from netmon.history.dataset import job_names, requested_job
        from netmon.history.judging import explained

        job = requested_job(args.job, job_names(args.data)) if args.job else None
        return _show(list(explained(args.data, job, args.iteration)), args.json, args.data)
    found = _lately(args) if args.collector else _stored(args)
    if args.iteration is not None:
        return _show([(one, one.ranks) for one in found.verdicts], args.json)
    if args.json:
        from netmon.dl.verdict import incidents, verdict_text

        extra: dict[str, object] = {"not_understood": found.unclear} if found.unclear else {}
        if found.hangs:
            extra["hangs"] = [{**asdict(one), "what": one.what.name.lower()} for one in found.hangs]
        lines = [incidents.columns(one) for one in found.incidents]
        verdicts = [verdict_text.columns(one) for one in found.verdicts]
        print(json.dumps({"incidents": lines, "verdicts": verdicts, **extra}, indent=1))
    else:
        where = f"--collector {args.collector}" if args.collector else f"--data {shlex.quote(str(args.data))}"
        _print_summary(found, where, args.all, args.data)
    return 0


def _groups(args: argparse.Namespace) -> int:
    if not args.data or args.iteration is not None:
        raise UsageError("cannot show groups: give the dataset's --data, and no --iteration")
    from netmon.dl.groups import in_words
    from netmon.history.dataset import job_names, requested_job
    from netmon.history.groups import group_lines, groups_of
    from netmon.terminal import console, say

    names = job_names(args.data)
    found = groups_of(args.data, requested_job(args.job, names) if args.job else None, by_traffic=True)
    if args.json:
        print(
            json.dumps({"groups": {job: [asdict(use) for use in uses] for job, (uses, _) in found.items()}}, indent=1)
        )
        return 0
    for job, (uses, rows) in found.items():
        basis = "what its ranks call in a step, typically" if len(rows) else "as its first minute of traffic shows"
        say(f"job {names.get(job, job)}: {basis}")
        console().print(groups_table(group_lines(uses)))
        for line in in_words(rows, uses):
            say(f"  {line}")
    if not found:
        say("no calls are reported, and traffic shows no groups: calls take PyTorch 2.7 or later over Gloo, steps that")
        say("are understood, and agents with --evidence all")
    return 0


def groups_table(lines: "Sequence[GroupLine]") -> "FittingTable":
    """A row per group and what it is for."""
    from netmon.terminal import Column, FittingTable

    heads = ("group", "kind", "ranks", "in a step, per rank", "when", "waits")
    table = FittingTable(Column(head, head == "waits", prose=head == "in a step, per rank") for head in heads)
    for one in lines:
        table.add_row(one.group, one.kind, one.ranks, one.calls, one.when, one.waits)
    return table


class _Found(NamedTuple):
    incidents: "Sequence[Incident]"
    verdicts: "Sequence[Verdict]"
    unclear: Sequence[str]  # jobs whose steps are not understood
    names: Mapping[str, str]  # what people call jobs
    calm: Sequence[str] = ()  # what is said where nothing stands out
    hangs: "Sequence[Hang]" = ()  # newest first
    before: Sequence[str] = ()  # of the newest of these: what was there before; a line, or none


def _show(found: "Sequence[tuple[Verdict, Sequence[RankTimes]]]", as_json: bool, data: "Path | None" = None) -> int:
    """Each with where the time of each rank went."""
    from netmon.dl.verdict import path_of
    from netmon.terminal import console, say

    if as_json:
        from netmon.dl.verdict.verdict_text import columns

        rows = [{**columns(one), "ranks": [asdict(each) for each in times]} for one, times in found]
        print(json.dumps({"verdicts": rows}, indent=1))
        return 0
    for one, times in found:
        _print([one], data=data)
        console().print(ranks_table(times))
        if path := path_of(times, one):
            say(f"  {path}")
    return 0


def ranks_table(times: "Sequence[RankTimes]") -> "FittingTable":
    """Where the time of an iteration went, a row per rank."""
    from netmon.terminal import Column, FittingTable

    heads = ("rank", "host", "took", "computed", "waited", "for", "transfer", "held up", "by", "afterwards")
    table = FittingTable(Column(head, head not in ("rank", "host", "for", "by"), prose=head == "by") for head in heads)
    for each in times:
        parts = (each.computed_ns, each.waited_ns, each.transfer_ns, each.stalled_ns, each.after_ns)
        one, two, three, four, five = (format_duration(ns) if each.known else "?" for ns in parts)
        whom = f"rank {each.waited_for}" if each.waited_for >= 0 else ""
        took = format_duration(each.duration_ns)
        table.add_row(str(each.rank), each.host, took, one, two, whom, three, four, each.stalled_by, five)
    return table


def _stored(args: argparse.Namespace) -> _Found:
    from netmon.errors import NoRowsError
    from netmon.history.dataset import jobs_of, not_understood, requested_job
    from netmon.history.groups import before as before_hang
    from netmon.history.groups import read_hangs
    from netmon.history.judging import ALWAYS, incidents_of, read_verdicts, understood_jobs, verdicts
    from netmon.units import format_moment

    unclear, hangs = not_understood(args.data), read_hangs(args.data)
    try:
        trained, names = jobs_of(args.data)
    except NoRowsError:
        if not (unclear or hangs):
            raise
        trained, names = [], {}
    job = requested_job(args.job, names)
    at_once = {hang.job for hang in hangs}.difference(trained)  # they hung before their first step was over
    found = read_verdicts(args.data, job, ALWAYS) if understood_jobs(job, trained, [*unclear, *at_once]) else []
    if found is None:
        found = list(verdicts(args.data, job))
    lines = incidents_of(args.data, found)
    unclear = [name for name in unclear if job in (None, name)]
    hangs = [hang for hang in hangs if job in (None, hang.job)]
    calm = [] if found or unclear or hangs else _calm(args.data, job)
    before = [line for hang in hangs[:1] if (line := before_hang(args.data, hang).line(format_moment))]
    return _Found(lines, found, unclear, names, calm, hangs, before)


def _calm(data: "Path", job: str | None) -> list[str]:
    """How long the steps of the dataset's last hour took, where none stands out; a line for each job."""
    from netmon.history.past import DatasetPast, StoredRows

    past = DatasetPast(StoredRows(data)).steps()
    lines = []
    for name, steps in past.jobs.items():
        baseline_ns, longest_ns = int(steps["baseline_ns"][-1]), int(steps["longest_ns"].max())
        baseline = f"usually {format_duration(baseline_ns)}, at most {format_duration(longest_ns)}"
        if job in (None, name):
            about = baseline if baseline_ns else "too few to tell what is usual"
            lines.append(f"no iteration of job {past.names.get(name, name)} stands out, of {len(steps):,}: {about}")
    return lines


def _lately(args: argparse.Namespace) -> _Found:
    from netmon.history.dataset import with_names
    from netmon.views import Selection
    from netmon.wire.watch import watch_once

    chosen = (args.job,) if args.job else ()
    selection = Selection(jobs=chosen, most_links=1, most_ranks=1, most_hosts=1)
    snapshot = watch_once(args.collector, selection, read_options(Security, args))
    if args.job in snapshot.page.unknown:
        raise DataError(f"cannot judge job {args.job}: the collector at {args.collector} knows no such job")
    names = {job.job: job.name for job in snapshot.jobs if job.name}
    lines = [one for job in snapshot.jobs for one in job.incidents]
    verdicts = [verdict for job in snapshot.jobs for verdict in reversed(job.verdicts)]
    if args.iteration is None:
        hangs = sorted((one for job in snapshot.jobs for one in job.hangs), key=lambda one: -one.since_ns)
        return _Found(lines, verdicts, [job.job for job in snapshot.jobs if job.not_understood], names, hangs=hangs)
    if not (verdicts := [verdict for verdict in verdicts if verdict.iteration == args.iteration]):
        raise DataError(
            f"cannot judge iteration {args.iteration}: a collector knows the last few slow ones only; give its --data"
        )
    return _Found((), verdicts if args.json else list(with_names(verdicts, names)), [], names)


def _print_summary(found: _Found, where: str, every: bool, data: "Path | None") -> None:
    """The incidents, and of the steps those that lost most."""
    from netmon.dl.hangs import line as hang_line
    from netmon.history.dataset import with_names
    from netmon.history.judging import worst_lines
    from netmon.own_module import typed
    from netmon.terminal import say
    from netmon.units import format_moment
    from netmon.views import NETWORK, Cause

    shown = found.hangs if every else found.hangs[:_MOST_HANGS]
    for hang in shown:
        say(hang_line(replace(hang, job=found.names.get(hang.job, hang.job)), format_moment))
        for line in found.before if hang is shown[0] else ():
            say(f"  {line}")
    lines = worst_lines(found.incidents, found.names, len(found.incidents) if every else _MOST_INCIDENTS)
    for line in lines:
        say(line)
    if any(one.cause in NETWORK for one in found.incidents):
        say(f"what to do: {typed('netmon')} advise {where}")
    faster = [one for one in found.verdicts if one.cause == Cause.CHANGE and one.excess_ns <= 0]
    slow = [one for one in found.verdicts if one.cause != Cause.CHANGE]
    worst = slow if every else sorted(slow, key=lambda one: -one.excess_ns)[:_WORST]
    if lines and worst:
        print(
            f"\nthe {_WORST} of {len(slow):,} slow steps that lost most (--all: every one):"
            if len(slow) > len(worst)
            else ""
        )
    if worst or faster or found.unclear or not (lines or shown):
        unclear = [found.names.get(job, job) for job in found.unclear]
        _print(list(with_names([*faster, *worst], found.names)), unclear, found.calm, data, [*faster, *worst])


def _print(
    found: "Sequence[Verdict]",
    unclear: Sequence[str] = (),
    calm: Sequence[str] = (),
    data: "Path | None" = None,
    identified: "Sequence[Verdict]" = (),
) -> None:
    """identified: the same verdicts, by jobs' identities; empty: so they are."""
    from netmon.dl.verdict.verdict_text import arithmetic, sentence
    from netmon.history.groups import exposed_in
    from netmon.terminal import say
    from netmon.views import NOT_UNDERSTOOD

    for job in unclear:
        say(f"job {job}: {NOT_UNDERSTOOD}: no verdicts")
    for place, verdict in enumerate(found):
        say(sentence(replace(verdict, group_waits="")))
        for line in arithmetic(verdict):
            say(f"  {line}")
        line = verdict.group_waits
        if data and not line and place < _MOST_EXPOSED:
            line = exposed_in(data, [*identified, *found][place])
        if line:
            say(f"  {line}")
    for line in calm:
        say(line)
    if not (unclear or found or calm):
        print("no iteration stands out: none took 1.2 × the job's baseline, or there are too few to judge")
