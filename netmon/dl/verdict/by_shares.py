# SPDX-License-Identifier: Apache-2.0
"""Why the slowest iteration was slow, as far as marks and traffic tell, and no further.

Where the time went comes first, and only then who was there. Of each rank, the iteration is held against the same
rank's usual one: how much longer it only waited for gradients (exposed communication), and how much longer it did
anything else. What all ranks waited longer, the transfer took; what all ranks did longer, the job paused; what some
rank did longer while another one waited for it, that rank came late. The rest is not known.

Traffic is accused only of what the transfer took, only for bytes beyond those that are usual there, and only if these
bytes can have taken half of that time at the pace at which the rank's own gradients usually pass. A program that was
merely present is no cause. What this does not see: all ranks that are stopped in the midst of a transfer look as if it
took longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.account import JOB
from netmon.records import Direction
from netmon.units import format_bytes, format_duration
from netmon.views import Cause, SlowIteration

NOTABLE = 1.2
"""An iteration that takes so many times the median stands out."""

_FEWEST = 5  # iterations from which on there is a usual
_MOSTLY = 0.5  # of the excess: what makes a cause the cause

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankSteps:
    """Finished iterations of the ranks of one job, one entry per rank and iteration, in any order."""

    number: _Numbers
    rank: _Numbers
    duration_ns: _Numbers
    exposed_ns: _Numbers  # of the communication, in which nothing was computed; −1: unknown
    communication_ns: _Numbers  # first enqueue to last wait; −1: unknown
    dl_bytes: _Numbers  # payload of the rank itself, in the direction that carried more
    other: Sequence[str]  # whose cross traffic was the most
    other_tx_bytes: _Numbers
    other_rx_bytes: _Numbers
    host: Sequence[str]


@dataclass(frozen=True)
class _Excess:
    """What each rank of the slow iteration spent beyond its usual, ns. Arrays (ranks,)."""

    waiting: npt.NDArray[np.float64]  # for gradients only
    elsewhere: npt.NDArray[np.float64]
    transfer: npt.NDArray[np.float64]  # the longest that its foreign bytes beyond the usual ones can have taken
    more_bytes: npt.NDArray[np.float64]  # foreign payload beyond the usual


def slowest(steps: RankSteps) -> SlowIteration:
    """The iteration whose slowest rank took longest, if it stands out (NOTABLE × the median of all, at least 5)."""
    numbers, of_step = np.unique(steps.number, return_inverse=True)
    if len(numbers) < _FEWEST:
        return SlowIteration()
    durations = np.zeros(len(numbers), np.int64)
    np.maximum.at(durations, of_step, steps.duration_ns)
    worst, median = int(durations.argmax()), float(np.median(durations))
    if durations[worst] < NOTABLE * median:
        return SlowIteration()
    slow = SlowIteration(int(numbers[worst]), int(durations[worst]), int(median))
    of_worst = np.flatnonzero(of_step == worst)
    excess = _excess(steps, of_worst)
    if excess is None:
        return _with_bytes(replace(slow, told=False), steps, _most_met(steps, of_worst))
    total = durations[worst] - median
    transfer = _within(excess.waiting.min(), total)
    pause = _within(excess.elsewhere.min(), total - transfer)
    late = _late(excess, pause, total - transfer)
    slow = replace(slow, transfer_ns=int(transfer), late_ns=int(late), pause_ns=int(pause))
    if transfer >= _MOSTLY * total:
        enough = np.flatnonzero((excess.more_bytes > 0) & (excess.transfer >= _MOSTLY * transfer))
        if len(enough):
            culprit = int(of_worst[enough[excess.more_bytes[enough].argmax()]])
            job = steps.other[culprit].startswith(JOB)
            return _with_bytes(replace(slow, cause=Cause.OTHER_JOB if job else Cause.CROSS), steps, culprit)
    elif late >= _MOSTLY * total:
        latest = int(of_worst[excess.elsewhere.argmax()])
        return replace(slow, cause=Cause.STRAGGLER, host=steps.host[latest], rank=int(steps.rank[latest]))
    elif pause >= _MOSTLY * total:
        return replace(slow, cause=Cause.PAUSE if len(of_worst) > 1 else Cause.COMPUTE)
    return _with_bytes(slow, steps, _most_met(steps, of_worst))


def _excess(steps: RankSteps, of_worst: npt.NDArray[np.intp]) -> _Excess | None:
    """None where it is not known of every rank that the job had."""
    if len(of_worst) < len(np.unique(steps.rank)):
        return None
    columns = []
    for place in of_worst.tolist():
        usual = (steps.rank == steps.rank[place]) & (steps.exposed_ns >= 0)
        if steps.exposed_ns[place] < 0 or usual.sum() < _FEWEST:
            return None
        rest_ns = steps.duration_ns - steps.exposed_ns
        foreign = np.maximum(steps.other_tx_bytes, steps.other_rx_bytes)
        more = foreign[place] - np.median(foreign[usual])
        carried = float(np.median(steps.dl_bytes[usual]))
        busy_ns = float(np.median(np.maximum(steps.communication_ns, steps.exposed_ns)[usual]))
        columns.append(
            (
                steps.exposed_ns[place] - np.median(steps.exposed_ns[usual]),
                rest_ns[place] - np.median(rest_ns[usual]),
                more * busy_ns / carried if carried else 0.0,
                more,
            )
        )
    return _Excess(*np.array(columns, np.float64).T)


def _late(excess: _Excess, pause: float, most: float) -> float:
    """What the latest rank made the others wait, beyond what all did."""
    latest = int(excess.elsewhere.argmax())
    waited = np.delete(excess.waiting - excess.waiting.min(), latest)
    return _within(min(excess.elsewhere[latest] - pause, waited.max()), most - pause) if len(waited) else 0.0


def _most_met(steps: RankSteps, places: npt.NDArray[np.intp]) -> int:
    """Where the most foreign bytes went over a rank's links, whether that mattered or not."""
    return int(places[np.maximum(steps.other_tx_bytes, steps.other_rx_bytes)[places].argmax()])


def _with_bytes(slow: SlowIteration, steps: RankSteps, place: int) -> SlowIteration:
    """With the foreign bytes that this rank's host met, if any."""
    tx, rx = int(steps.other_tx_bytes[place]), int(steps.other_rx_bytes[place])
    if not tx and not rx:
        return slow
    return replace(
        slow,
        culprit=steps.other[place],
        culprit_bytes=max(tx, rx),
        direction=Direction.RX if rx >= tx else Direction.TX,
        host=steps.host[place],
        rank=int(steps.rank[place]),
    )


def _within(value: float, most: float) -> float:
    return float(np.clip(value, 0.0, max(most, 0.0)))


def sentence(job: str, slow: SlowIteration, relative: bool = False) -> str:
    """What an engineer wants to read; empty where no iteration stands out."""
    if slow.iteration < 0:
        return ""
    number = f"~{slow.iteration}" if relative else str(slow.iteration)
    factor = slow.duration_ns / slow.median_ns if slow.median_ns else float("inf")
    text = f"iteration {number} of job {job} took {factor:.1f} × its median ({format_duration(slow.median_ns)})"
    return f"{text}: {_reason(slow)}"


def _reason(slow: SlowIteration) -> str:
    way = "entered" if slow.direction == Direction.RX else "left"
    moved = f"{format_bytes(slow.culprit_bytes)} of {slow.culprit} {way} {slow.host} (rank {slow.rank})"
    if slow.cause in (Cause.CROSS, Cause.OTHER_JOB):
        return f"{moved} and held the transfer up by {format_duration(slow.transfer_ns)}"
    if slow.cause == Cause.STRAGGLER:
        return f"rank {slow.rank} ({slow.host}) came {format_duration(slow.late_ns)} late; no network cause"
    if slow.cause == Cause.PAUSE:
        return f"all ranks paused for {format_duration(slow.pause_ns)}; no network cause"
    if slow.cause == Cause.COMPUTE:
        return f"it computed {format_duration(slow.pause_ns)} longer; no network cause"
    met = f"; meanwhile {moved}" if slow.culprit else ""
    if not slow.told:
        return f"the cause is unknown, as the ranks' waiting is not told{met}"
    if slow.transfer_ns >= _MOSTLY * (slow.duration_ns - slow.median_ns):
        there = f"the {moved} cannot have taken so long" if slow.culprit else "no cross traffic met it"
        return f"the transfer took {format_duration(slow.transfer_ns)} longer, and {there}"
    return f"the cause is unknown{met}"
