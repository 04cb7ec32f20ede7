# SPDX-License-Identifier: Apache-2.0
"""Which of the processes that carry a rank's environment may be the one that trains.

Anybody can set that environment, and a rank's children inherit it: data loaders by the hundred. So those that were
started by a process that trains as the same rank are left out, and of each user only so many are looked at.
"""

from collections.abc import Collection, Sequence

from netmon.kernel.processes import Process, in_turn

MOST_OF_USER, MOST_OF_ALL = 128, 1024
_GENERATIONS = 8


def choose_candidates(ranks: Sequence[Process], training: Collection[int]) -> list[Process]:
    """ranks: oldest first; training: who maps a training library → those to be reported, oldest first.

    Who trains comes before who does not, and then the older one.
    """
    known = {process.pid: process for process in ranks}
    own = [process for process in ranks if not _is_child_of_trainer(process, known, training)]
    trainers = [process.pid for process in own if process.pid in training]
    others = [process.pid for process in own if process.pid not in training]
    of_user: dict[int, int] = {}
    chosen: set[int] = set()
    for pids in (trainers, others):
        for pid in in_turn(pids, lambda pid: known[pid].uid):
            uid = known[pid].uid
            of_user[uid] = of_user.get(uid, 0) + 1
            if of_user[uid] <= MOST_OF_USER and len(chosen) < MOST_OF_ALL:
                chosen.add(pid)
    return [process for process in own if process.pid in chosen]


def _is_child_of_trainer(process: Process, known: dict[int, Process], training: Collection[int]) -> bool:
    ancestor = known.get(process.parent)
    for _ in range(_GENERATIONS):
        if ancestor is None or ancestor.rank != process.rank:
            return False
        if ancestor.pid in training:
            return True
        ancestor = known.get(ancestor.parent)
    return False
