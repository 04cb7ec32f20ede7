# SPDX-License-Identifier: Apache-2.0
"""TCP's own counters of the connections of a job's gradients (struct tcp_info, as differences of two readings).

While a sender waits for its timer, its data is unacknowledged, and TCP counts that time as busy. Where a rank has
stopped, its data is acknowledged, and no connection is busy. So the busy time shows which of the two caused a silence,
even if none of the lost bytes were captured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median, spread
from netmon.dl.verdict.evidence import Whose
from netmon.dl.verdict.host_part import within
from netmon.records import Table

SAID = np.dtype(
    [
        *((name, "<i8") for name in ("of", "start_ns", "end_ns", "sent_bytes", "again_bytes", "timeouts")),
        *((name, "<i8") for name in ("busy_ns", "receiver_ns", "sender_ns")),
    ]
)
"""Of one connection in a time (UTC): whose it is (an index), payload sent, and of that sent again; how often its timer
ran out; and while something was unacknowledged, and of that while the receiver's window and the send buffer delayed it.
−1: not known."""

COLUMNS = {
    "sent_bytes": "sent_bytes",
    "again_bytes": "retransmitted_bytes",
    "timeouts": "timeouts",
    "busy_ns": "busy_ns",
    "receiver_ns": "receiver_limited_ns",
    "sender_ns": "sender_limited_ns",
}
"""Of SAID, and what netmon.evidence.TRANSPORT calls them."""

_FEWEST = 3  # rows, that there is a baseline
_WAITING = 0.5  # of a silence, in which something was unacknowledged
_RESUMED_NS = 50_000_000  # after a silence: what ends it, or is reported with what follows
_LOSSY, _LOSSY_BYTES = 0.001, 4_500  # of what was sent, sent again
_CLEAR, _CLEAR_PART = 2.0, 1.0  # standard deviations; of a row of which the silence is a _PART
_PART = 0.2
_SELDOM = 0.1  # of the other rows
_BEYOND = 5.0  # times the baseline
_COVERED = 0.9  # of a time
_FEWEST_SHARES = 10  # of which one in ten is more than the others
_MOSTLY, _NOT_MERELY = 0.9, 2.0  # of the other rows; times what these show at the most


@dataclass(frozen=True)
class Connections:
    """TCP's counters of one job's connections."""

    rows: Table  # dtype SAID
    rank: npt.NDArray[np.int64]  # (rows,) that sends
    peer: npt.NDArray[np.int64]  # (rows,) that receives; −1: not known
    control: npt.NDArray[np.bool_]  # (rows,) it carries no gradients
    in_baseline: npt.NDArray[np.bool_]  # (rows,) of a time in which the job's quick iterations ran

    @property
    def gradients(self) -> Table:
        """The rows of those that carry gradients."""
        found: Table = self.rows[~self.control]
        return found


def no_tcp_rows() -> npt.NDArray[np.void]:
    """For jobs of which TCP's counters are not read."""
    return np.empty(0, SAID)


def of_job(
    said: Table, whose: Sequence[Whose], job: str, baseline_spans: Sequence[tuple[int, int]] = ()
) -> Connections:
    """The rows of a job's connections. baseline_spans: of quick iterations (UTC), ascending; none: not known."""
    ours = np.array([one.job == job and not one.far for one in whose], np.bool_)
    kept = said[ours[said["of"]]] if len(said) else said
    of = kept["of"]
    columns = (np.array([getattr(one, name) for one in whose])[of] for name in ("rank", "peer", "control"))
    rank, peer, control = columns
    in_baseline = np.ones(len(kept), np.bool_)
    if len(baseline_spans):
        begin, end = np.array(baseline_spans, np.int64).T
        middle = (kept["start_ns"] + kept["end_ns"]) // 2
        in_baseline = middle < end[np.maximum(np.searchsorted(begin, middle, "right") - 1, 0)]
        in_baseline &= middle >= begin[0]
    return Connections(kept, rank.astype(np.int64), peer.astype(np.int64), control.astype(np.bool_), in_baseline)


def limited(said: Table, name: str, span: tuple[float, float], baseline: Sequence[tuple[float, float]]) -> float:
    """The most ns beyond the baseline that a connection was limited in a time. name: a column of SAID.

    Times are UTC; baseline: those to compare with. Rows count by the part of them that lies in a time.
    """
    most = 0.0
    known = said[said[name] > 0]  # what is 0, or not known, adds nothing
    for of in np.unique(known["of"]).tolist():
        limited_ns = within(known[known["of"] == of], name, [span, *baseline])
        most = max(most, float(limited_ns[0]) - (median(limited_ns[1:]) if len(baseline) else 0.0))
    return min(most, span[1] - span[0])


def who_waited(connections: Connections, begin_ns: float, end_ns: float, resumed: int = -1) -> set[tuple[int, int]]:
    """Ranks that waited for another one's acknowledgement for most of a silence, and not for the receiver's window,
    and sent something again; and that other one.

    Its rows may be longer: in the rest of them the connection had something to send for as long as it clearly has
    otherwise. Connections that carry no gradients count, too: of what they agree on, nothing may be sent before. Of
    one of these to the rank that `resumed` after the silence it is enough that it may have been busy for all of it: a
    message was sent again, as seldom happens on it, and that rank went on.
    """
    said = connections.rows
    length = said["end_ns"] - said["start_ns"]
    overlap = np.maximum(0, np.minimum(said["end_ns"], end_ns) - np.maximum(said["start_ns"], begin_ns))
    idle = length - said["busy_ns"]
    known = (said["busy_ns"] >= 0) & (length > 0)
    again = (said["again_bytes"] > 0) & (said["end_ns"] > begin_ns) & (said["start_ns"] < end_ns + _RESUMED_NS)
    found = set()
    for of in np.unique(said["of"][again]).tolist():
        same = known & (said["of"] == of)
        now = same & (overlap > 0)
        within_ns, length_ns, idle_ns = (float(each[now].sum()) for each in (overlap, length, idle))
        if not now.any() or within_ns < _WAITING * (end_ns - begin_ns):
            continue
        rank, peer, control = (each[now][0] for each in (connections.rank, connections.peer, connections.control))
        shares = (idle / np.maximum(length, 1))[same & ~now]
        clear = (_CLEAR_PART if within_ns >= _PART * length_ns else _CLEAR) / now.sum() ** 0.5
        baseline = max(0.0, median(shares) - clear * spread(shares)) if len(shares) >= _FEWEST else 0.0
        idle_then = idle_ns - baseline * (length_ns - within_ns)
        if control and peer == resumed and length_ns - idle_ns >= within_ns:
            otherwise = said["again_bytes"][(said["of"] == of) & ~again] > 0
            if otherwise.sum() <= _SELDOM * len(otherwise):
                idle_then = 0.0
        if max(idle_then, float(said["receiver_ns"][now].sum())) < (1 - _WAITING) * within_ns:
            found.add((int(rank), int(peer)))
    return found


def known_throughout(connections: Connections, begin_ns: float, end_ns: float) -> bool:
    """Whether each connection that carries gradients has rows for all of a time, with what was sent again."""
    said = connections.gradients
    overlap = np.minimum(said["end_ns"], end_ns) - np.maximum(said["start_ns"], begin_ns)
    there = (said["again_bytes"] >= 0) & (overlap > 0)
    covered = np.bincount(said["of"][there], weights=overlap[there], minlength=int(said["of"].max(initial=-1)) + 1)
    return bool(there.any() and (covered[np.unique(said["of"])] >= _COVERED * (end_ns - begin_ns)).all())


def sent_again(connections: Connections, begin_ns: float, end_ns: float) -> dict[int, float]:
    """Ranks whose timers ran out, as they seldom do; where there are none, those that clearly sent more again in a time
    than in the baseline, and than now and then; and how much they sent again (bytes).

    Where a sender only believes that something was lost, it is little. A row counts by the part of it in that time.
    Where a connection has too few other rows to say what comes now and then, all of the job's say it.
    """
    said, found, waited = connections.gradients, dict[int, float](), set[int]()
    rank, in_baseline = (each[~connections.control] for each in (connections.rank, connections.in_baseline))
    share = said["again_bytes"] / np.maximum(said["sent_bytes"], 1)
    inside = (said["end_ns"] > begin_ns) & (said["start_ns"] < end_ns)
    middle = (said["start_ns"] + said["end_ns"]) // 2
    timed_out = said["timeouts"] > 0
    timed_out_now = timed_out & (middle >= begin_ns) & (middle < end_ns)
    for of in np.unique(said["of"][inside]).tolist():
        own = said["of"] == of
        others = own & ~inside & in_baseline
        if others.sum() < _FEWEST_SHARES:
            others = ~inside & in_baseline
        known = others.any()
        baseline, now_and_then = (median(share[others]), np.quantile(share[others], _MOSTLY)) if known else (0.0, 0.0)
        most = own & inside & (said["again_bytes"] >= _LOSSY_BYTES)
        lossy = (share[most] > max(_LOSSY, _BEYOND * baseline, _NOT_MERELY * now_and_then)).any()
        sender = int(rank[own][0])
        if (own & timed_out_now).any() and not (known and timed_out[others].mean() > _SELDOM):
            waited.add(sender)
        if lossy or sender in waited:
            again = float(within(said[own], "again_bytes", [(begin_ns, end_ns)])[0])
            found[sender] = found.get(sender, 0.0) + again
    return {sender: again for sender, again in found.items() if sender in waited or not waited}
