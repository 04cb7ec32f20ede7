# SPDX-License-Identifier: Apache-2.0
"""Jobs as people call them, each by another name."""

from collections import Counter
from collections.abc import Mapping


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """names: by job, what people call it, "" where that is what all of its ranks have in common → what to show.

    Where several are called the same, what their ranks have in common stands behind it, so that no two are alike.
    """
    wanted = {job: name or job for job, name in names.items()}
    times = Counter(wanted.values())
    shown: dict[str, str] = {}
    taken = {job for job, name in wanted.items() if name == job}  # a job's own name is nobody else's
    for job in sorted(wanted):
        name = wanted[job]
        if name != job and (times[name] > 1 or name in taken):
            name = f"{name} [{job}]"
        candidate, number = name, 1
        while name != job and candidate in taken:
            number += 1
            candidate = f"{name} ({number})"
        shown[job] = candidate
        taken.add(candidate)
    return shown
