# SPDX-License-Identifier: Apache-2.0
"""`netmon steps`: what a collector knows of a rank's steps, a line each, as they come."""

import argparse
import json
import math
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from netmon.errors import UsageError
from netmon.options import TIME, declare, read_options
from netmon.units import format_bytes, format_duration, format_moment
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.views import JobView, RankView, Verdict

HELP = "follow the steps of one rank: how long it waited for gradients, its bytes and others', and why steps were slow"
EXAMPLES = """\
  netmon steps training
  netmon steps training --rank 3 --collector collector.example:9400 --tls ~/.netmon
  netmon steps training --json --interval 500ms
"""
_MOST_KEPT = 64


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="by either of its names")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="whose steps (%(default)s)")
    parser.add_argument("--collector", default="localhost:9400", metavar="ADDR", help="HOST:PORT or unix:PATH")
    declare(parser, Security)
    parser.add_argument(
        "--interval", default="500ms", **TIME, help="how often to look: of shorter steps some are missed (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="a JSON document per line, times in ns")


def run(args: argparse.Namespace) -> int:
    """Print until nobody reads, or until interrupted."""
    from netmon.views import Selection
    from netmon.wire.watch import Outage, follow

    if args.interval < 100_000_000:
        raise UsageError("cannot look more often than every 100 ms: give a longer --interval")
    os.nice(10)  # it may run alongside a training
    selection = Selection(jobs=(args.job,), most_links=1, most_hosts=1)
    printed = _Printed(args.rank)
    for update in follow(
        args.collector, args.interval // 1_000_000, lambda: selection, security=read_options(Security, args)
    ):
        if _nobody_reads():
            break
        for job in () if isinstance(update, Outage) else update.jobs:
            for line in printed.news(job):
                print(json.dumps(line) if args.json else _words(line), flush=True)
    return 0


class _Printed:
    """What of a job has been reported."""

    def __init__(self, rank: int) -> None:
        self._rank, self._last = rank, -1
        self._judged: list[tuple[int, int]] = []

    def news(self, job: "JobView") -> Iterator[dict[str, Any]]:
        """The last step, if it is another one, and new verdicts."""
        own = next((view for view in job.ranks if view.rank == self._rank), None)
        if own is not None and own.iteration != self._last:
            self._last = own.iteration
            yield _step(job, own)
        for verdict in reversed(job.verdicts):
            if (which := (verdict.iteration, verdict.end_ns)) in self._judged:
                continue
            self._judged = [*self._judged[-_MOST_KEPT:], which]
            yield {"iteration": verdict.iteration, **_why(verdict), **_incident(job, verdict)}


def _step(job: "JobView", rank: "RankView") -> dict[str, Any]:
    from netmon.dl.verdict.baseline import baseline_of_job

    return {
        "iteration": rank.iteration,
        "duration_ns": rank.duration_ns,
        "communication_ns": rank.communication_ns or None,
        "exposed_ns": rank.exposed_ns if rank.exposed_ns >= 0 else None,
        "sent_bytes": rank.dl_tx_bytes,
        "others_bytes": rank.cross_tx_bytes + rank.cross_rx_bytes,
        "theory_bytes": None if math.isnan(job.theory_bytes) else job.theory_bytes,
        "baseline_ns": baseline_of_job(job) or None,
    }


def _why(verdict: "Verdict") -> dict[str, Any]:
    from netmon.dl.verdict.verdict_text import sentence

    cause = verdict.cause.name.lower()
    return {"cause": cause, "culprit": verdict.culprit, "excess_ns": verdict.excess_ns, "verdict": sentence(verdict)}


def _incident(job: "JobView", verdict: "Verdict") -> dict[str, Any]:
    """The one that the step belongs to; nothing where none is known."""
    from netmon.dl.verdict.incidents import line, of_verdict, renamed

    one = of_verdict(job.incidents, verdict)
    if one is None:
        return {}
    said = line(renamed(one, {job.job: job.name or job.job}), format_moment)
    return {"incident": said, "incident_since_ns": one.since_ns, "incident_lost_ns": one.lost_ns}


def _words(line: dict[str, Any]) -> str:
    if "verdict" in line:
        return " · ".join(str(line[name]) for name in ("verdict", "incident") if name in line)
    exposed = line["exposed_ns"] if line["exposed_ns"] is not None else line["communication_ns"]
    waited = f"waited {format_duration(exposed)} for gradients" if exposed is not None else "waited: not known"
    sent, others = format_bytes(line["sent_bytes"]), format_bytes(line["others_bytes"])
    return (
        f"iteration {line['iteration']}: {format_duration(line['duration_ns'])}, {waited}, sent {sent}, others {others}"
    )


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
