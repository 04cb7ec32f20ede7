# SPDX-License-Identifier: Apache-2.0
"""A recorded run that several processes look at, each at a share of its points: python crash_share.py FOLDER KIND …

Every process has memory of its own where the run was recorded, for files name each other by path: a mount namespace.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from crash_checks import check_of
from crash_states import Result, Walk, nothing_to_wait_for, total
from crash_trace import Op
from waiting import DIES_WITH_US

POINTS = 50  # in turn
_APART = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
_OWN_MEMORY = 'mount -t tmpfs tmpfs "$0" && exec "$@"'


def in_shares(ops: list[Op], folder: Path, kind: str, draws: int, every: int) -> Result:
    """kind: of check_of. folder: the run was recorded in own/fs below it. One process where there are no namespaces."""
    possible = subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode == 0
    of = (os.cpu_count() or 1) if possible else 1
    (folder / "ops").write_bytes(pickle.dumps(ops))
    processes = []
    for number in range(of):
        command = [sys.executable, __file__, str(folder), kind, *map(str, (draws, every, number, of))]
        if possible:
            command = [*_APART, "sh", "-c", _OWN_MEMORY, str(folder / "own"), *command]
        processes.append(subprocess.Popen([*DIES_WITH_US, *command], cwd=Path(__file__).parent))
    ended = [process.wait() for process in processes]
    assert not any(ended), ended
    return total([pickle.loads((folder / f"result-{number}").read_bytes()) for number in range(of)])


def main(folder: str, kind: str, *numbers: str) -> None:
    draws, every, number, of = map(int, numbers)
    ops: list[Any] = pickle.loads(Path(folder, "ops").read_bytes())
    walk = Walk(ops, check_of(kind), Path(folder, "own/fs"), draws, every)
    with nothing_to_wait_for():
        for turn, begin in enumerate(range(0, len(ops), POINTS)):
            walk.to(begin + POINTS, look=turn % of == number)
            if turn % (20 * of) == number:
                print(f"{begin} of {len(ops)} points; {walk.result}", flush=True)
    Path(folder, f"result-{number}").write_bytes(pickle.dumps(walk.over()))


if __name__ == "__main__":
    main(*sys.argv[1:])
