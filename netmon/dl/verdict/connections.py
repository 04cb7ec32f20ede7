# SPDX-License-Identifier: Apache-2.0
"""What TCP itself says of the connections that carry a job's gradients (struct tcp_info, as differences of two looks).

While a sender waits for its timer, its data is unacknowledged, and TCP counts that time as busy. Where a rank has
stopped, what it had sent is acknowledged, and nobody's connection is busy. So a silence tells which of the two it was,
without any of the bytes that were lost having been seen.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.evidence import Whose
from netmon.records import Table

SAID = np.dtype(
    [
        (name, "<i8")
        for name in ("of", "start_ns", "end_ns", "sent_bytes", "again_bytes", "busy_ns", "receiver_ns", "sender_ns")
    ]
)
"""Of one connection in a time (UTC): whose it is (an index), payload sent, and of that sent again; and while something
was unacknowledged, and of that while the receiver's window and the send buffer held it up. −1: not known."""

COLUMNS = {
    "sent_bytes": "sent_bytes",
    "again_bytes": "retransmitted_bytes",
    "busy_ns": "busy_ns",
    "receiver_ns": "receiver_limited_ns",
    "sender_ns": "sender_limited_ns",
}
"""Of SAID, and what netmon.evidence.TRANSPORT calls them."""

_FEWEST = 3  # rows, that something is usual
_WAITING = 0.5  # of a silence, in which something was unacknowledged
_LOSSY, _LOSSY_BYTES = 0.0005, 4_500  # of what was sent, sent again
_BEYOND = 5.0  # times what is usual


def nothing_said() -> npt.NDArray[np.void]:
    """Where nobody asks TCP."""
    return np.empty(0, SAID)


def of_gradients(said: Table, whose: Sequence[Whose], job: str) -> Table:
    """The rows of a job's connections that carry gradients."""
    own = np.array([one.job == job and not one.control for one in whose], np.bool_)
    kept: Table = said[own[said["of"]]] if len(said) else said
    return kept


def was_waiting(said: Table, begin_ns: float, end_ns: float) -> bool:
    """Whether a connection waited for an acknowledgement for most of a silence, and not for the receiver's window.

    A row may be longer: in the rest of it the connection had nothing to send for as long as it usually has.
    """
    length = said["end_ns"] - said["start_ns"]
    overlap = np.minimum(said["end_ns"], end_ns) - np.maximum(said["start_ns"], begin_ns)
    idle = length - said["busy_ns"]
    known = (said["busy_ns"] >= 0) & (length > 0)
    for row in np.flatnonzero(known & (overlap >= _WAITING * (end_ns - begin_ns))).tolist():
        others = known & (overlap <= 0) & (said["of"] == said["of"][row])
        usual = float(np.median(idle[others] / length[others])) if others.sum() >= _FEWEST else 0.0
        idle_then = idle[row] - usual * (length[row] - overlap[row])
        if max(idle_then, said["receiver_ns"][row]) < (1 - _WAITING) * overlap[row]:
            return True
    return False


def sent_again(said: Table, begin_ns: float, end_ns: float) -> bool:
    """Whether clearly more than usual was sent again in a time: where a sender only believed so, it is little."""
    share = said["again_bytes"] / np.maximum(said["sent_bytes"], 1)
    inside = (said["end_ns"] > begin_ns) & (said["start_ns"] < end_ns)
    for of in np.unique(said["of"][inside]).tolist():
        own = said["of"] == of
        usual = float(np.median(share[own & ~inside])) if (own & ~inside).any() else 0.0
        most = own & inside & (said["again_bytes"] >= _LOSSY_BYTES)
        if (share[most] > max(_LOSSY, _BEYOND * usual)).any():
            return True
    return False
