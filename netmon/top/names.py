# SPDX-License-Identifier: Apache-2.0
"""Long names in narrow columns: shortened in the middle, and never two of them alike."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from netmon.dl.verdict.verdict_text import renamed
from netmon.views import Snapshot


def called(snapshot: Snapshot) -> Snapshot:
    """The same, with jobs called what people call them: it is for reading only, questions are asked by `job`."""
    names = {job.job: job.name for job in snapshot.jobs if job.name and job.name != job.job}
    if not names:
        return snapshot
    jobs = tuple(
        replace(job, job=names.get(job.job, job.job), verdicts=tuple(renamed(one, names) for one in job.verdicts))
        for job in snapshot.jobs
    )
    flows = tuple(
        replace(view, flow=replace(view.flow, owner=replace(view.flow.owner, job=names[view.flow.owner.job])))
        if view.flow.owner.job in names
        else view
        for view in snapshot.flows
    )
    return replace(snapshot, jobs=jobs, flows=flows)


def short_names(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name in at most `width` (≥ 6) characters; with a number where the middle makes the difference."""
    distinct = sorted(set(names))
    short = {name: _shortened(name, width) for name in distinct}
    count = Counter(short.values())
    taken = {text for text, names_of_it in count.items() if names_of_it == 1}
    for name in distinct:
        if count[short[name]] > 1:
            short[name] = _numbered(name, width, taken)
            taken.add(short[name])
    return short


def _shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _numbered(name: str, width: int, taken: set[str]) -> str:
    number = 1
    while True:
        ending = f"…~{number}"
        text = name[: max(width - len(ending), 0)] + ending
        if text not in taken:
            return text
        number += 1
