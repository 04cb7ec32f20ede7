# SPDX-License-Identifier: Apache-2.0
"""What the trainers and the senders of a run wrote down themselves, read back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError
from netmon.lab.record import FOLDER
from netmon.records import Table

MOMENTS = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("rank", "iteration", "step_start_ns", "first_enqueue_ns", "last_wait_ns", "step_end_ns"),
            "interrupted",
        )
    ]
)
"""One iteration of one rank, in the machine's CLOCK_MONOTONIC. interrupted: the note may be later than the moment."""


def lasted(run: dict[str, Any]) -> tuple[int, int]:
    """When a run began and ended, ns of UTC, by its run.json; a run that is not over ends never."""
    moments = [event["utc_ns"] for event in run["events"]]
    return moments[0], moments[-1] if run["events"][-1]["event"] == "end" else np.iinfo(np.int64).max


def read_rank(data: Path, rank: int, folder: Path | None = None) -> Table:
    """Iterations of one rank, dtype MOMENTS, shape (iterations,). folder: a sweep's run's. Raises DataError."""
    path = (folder or data / FOLDER) / f"rank-{rank}.csv"
    try:
        table: Table = np.loadtxt(path, dtype=MOMENTS, delimiter=",", skiprows=1, ndmin=1)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the truth of rank {rank}: {error}") from None
    return table


def read_cross(data: Path, folder: Path | None = None) -> list[dict[str, Any]]:
    """What each sender of cross traffic sent, and when. folder: a sweep's run's. Raises DataError."""
    path = (folder or data / FOLDER) / "cross.json"
    try:
        senders: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the truth about cross traffic: {error}") from None
    return senders


def quiet_and_disturbed(
    data: Path, rank: int = 0, folder: Path | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Durations in ns of a rank's steps that ended before any cross traffic, and of those wholly within it."""
    steps = read_rank(data, rank, folder)
    durations = steps["step_end_ns"] - steps["step_start_ns"]
    senders = [sender for sender in read_cross(data, folder) if "ended" in sender]
    if not senders:
        return durations, durations[:0]
    begin = min(sender["started"]["mono_ns"] for sender in senders)
    end = max(sender["ended"]["mono_ns"] for sender in senders)
    within = (steps["step_start_ns"] >= begin) & (steps["step_end_ns"] <= end)
    return durations[steps["step_end_ns"] <= begin], durations[within]
