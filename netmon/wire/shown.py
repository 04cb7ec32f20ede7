# SPDX-License-Identifier: Apache-2.0
"""What of a snapshot a viewer may see who may see jobs, classes and rates only: no addresses, processes or warnings."""

from dataclasses import replace

from netmon.views import Cause, JobView, Selection, Snapshot, Verdict

_NAMES_A_JOB = (Cause.OTHER_JOB, Cause.STRAGGLER)  # or one of its ranks; all others name processes


def request_without_flows(selection: Selection) -> Selection:
    """The same selection without flows, so that the collector does not collect them."""
    return replace(selection, flows=0)


def without_names(snapshot: Snapshot) -> Snapshot:
    """The same without what is not said above."""
    return replace(snapshot, flows=(), warnings=(), jobs=tuple(map(_job, snapshot.jobs)))


def _job(job: JobView) -> JobView:
    return replace(job, verdicts=tuple(map(verdict_without_names, job.verdicts)))


def verdict_without_names(verdict: Verdict) -> Verdict:
    """The same for one verdict."""
    first = verdict.culprit if verdict.cause in _NAMES_A_JOB else ""
    second = verdict.second_culprit if verdict.second_cause in _NAMES_A_JOB else ""
    return replace(verdict, culprit=first, second_culprit=second)
