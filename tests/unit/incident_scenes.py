# SPDX-License-Identifier: Apache-2.0
"""What slows jobs in six ways, as a collector tells it: two jobs on four hosts, for viewers."""

from dataclasses import replace

import numpy as np
from snapshot_example import example

from netmon.dl.verdict.incidents import incidents
from netmon.records import Direction
from netmon.views import Cause, JobView, Snapshot, Verdict

NOW_NS = example().time_ns
_SECOND_NS, _MS = 1_000_000_000, 1_000_000
_USUAL_NS = 312 * _MS
_FIRST = 350


def _steps(job: str, seconds_ago: int, count: int, every_ns: int, cause: Cause, **of: object) -> list[Verdict]:
    """So many slow steps, one after the other; `excess_ns` of each."""
    excess = int(of.pop("excess_ns", 150 * _MS))  # type: ignore[call-overload]
    share = {Cause.CROSS: "cross", Cause.STRAGGLER: "late", Cause.HOST: "host", Cause.LOSS: "loss"}[cause]
    begins = [NOW_NS - seconds_ago * _SECOND_NS + step * every_ns for step in range(count)]
    return [
        Verdict(
            *(job, _FIRST + step, begin, begin + _USUAL_NS + excess, _USUAL_NS + excess, _USUAL_NS, excess, cause),
            **({f"{share}_ns": excess, "confidence": 0.9, "host": "h0", "rank": 0} | of),  # type: ignore[arg-type]
        )
        for step, begin in enumerate(begins)
    ]


_IPERF = {"culprit": "iperf3", "culprit_user": "root", "sender": "h2", "receiver": "h0", "interface": "eth0"}
_BACKUP = {"culprit": "rsync (backup.service)", "culprit_user": "backup", "sender": "198.51.100.17", "receiver": "h1"}

VERDICTS: dict[str, list[Verdict]] = {
    "cross": _steps("resnet", 30, 60, 500 * _MS, Cause.CROSS, excess_ns=170 * _MS, **_IPERF),
    "late": _steps("resnet", 25, 50, 500 * _MS, Cause.STRAGGLER, culprit="rank 1", host="h1", rank=1),
    "quota": _steps("resnet", 20, 40, 500 * _MS, Cause.HOST, host="h3", rank=2, excess_ns=210 * _MS),
    "loss": _steps(
        "resnet", 15, 9, 1_600 * _MS, Cause.LOSS, interface="eth0", direction=Direction.TX, excess_ns=900 * _MS
    ),
    "two": [
        *_steps("resnet", 12, 24, 500 * _MS, Cause.CROSS, **_IPERF),
        *_steps("bert", 9, 18, 500 * _MS, Cause.CROSS, host="h1", interface="eth0", excess_ns=400 * _MS, **_BACKUP),
        *_steps("resnet", 500, 7, 500 * _MS, Cause.STRAGGLER, culprit="rank 1", host="h1", rank=1),
    ],
    "nothing": [],
}


def scene(name: str) -> Snapshot:
    """A snapshot in which these are the verdicts until now."""
    whole = example(NOW_NS)
    jobs = tuple(_job(job, [one for one in VERDICTS[name] if one.job == job]) for job in ("resnet", "bert"))
    return replace(whole, jobs=jobs, hosts=tuple(replace(host, connected=True, age_ns=0) for host in whole.hosts))


def _job(name: str, verdicts: list[Verdict]) -> JobView:
    slow = max((one.duration_ns for one in verdicts if one.end_ns > NOW_NS - 3 * _SECOND_NS), default=_USUAL_NS)
    durations = np.full(60, _USUAL_NS, np.int64)
    durations[45:] = slow
    number = _FIRST + 60
    return replace(
        example().jobs[0],
        job=name,
        iteration=number,
        last_ns=slow,
        median_ns=_USUAL_NS,
        durations_ns=durations,
        verdicts=tuple(sorted(verdicts, key=lambda one: -one.end_ns)[:5]),
        incidents=tuple(reversed(incidents(verdicts, {name: (NOW_NS, number)}))),
    )
