# SPDX-License-Identifier: Apache-2.0
"""The byte-conservation account: NIC counter = attributed + overflow + lost in kernel + lost in agent + not visible."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import GroupedValues, starts
from netmon.records import Columns, Table, empty

_Numbers = npt.NDArray[np.int64]

TOTALS = ("nic_bytes", "attributed_bytes", "overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes")
COUNTERS = (
    *("nic_bytes", "nic_packets", "frames", "packets", "frame_bytes", "wire_bytes"),
    *("overflow_wire_bytes", "lost_kernel_wire_bytes", "lost_agent_wire_bytes"),
)


ROWS = {
    **dict.fromkeys(("link", "start_ns", "end_ns", "nic_bytes", "attributed_bytes"), np.int64),
    **dict.fromkeys(("overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes", "invisible_bytes"), np.int64),
    **dict.fromkeys(("nic_counter_bytes", "nic_packets"), np.int64),
    **{"watched": np.bool_, "coverage": np.float64},
}
"""Columns of the ledger: a link and interval [start, end) in mono time. All bytes are wire bytes but nic_counter_bytes,
which are as the NIC counts.

invisible_bytes: what the NIC counted and nothing accounts for; below 0 where a bucket straddles the interval's edge, or
came too late for the interval before. watched: by an agent, all the time. coverage: attributed / NIC; nan where the
NIC counted nothing.
"""

SAMPLE = np.dtype(
    [(name, "<i8") for name in ("link", "time_ns", "nic_header_bytes", "uncounted", *COUNTERS)]
    + [("attributed_bytes", "<i8")]
)
"""The counters of a link, of all sessions' links; attributed_bytes: of the rows from here to the next sample."""

_OPEN = [name for name in SAMPLE.names or () if name != "link"]  # of a sample, as it is kept for a restart


def account(before: Table, after: Table, link: _Numbers) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """The account between pairs of samples, of ROWS, and which of them have one: none where a counter went backwards.

    But for what was lost in the kernel: an agent takes off what it finds to have delivered. link: as rows call it.
    """
    delta = {name: after[name] - before[name] for name in COUNTERS}
    counted = after["uncounted"] == 0
    for name in ("frames", "packets"):
        delta[name] = np.where(counted, delta[name], delta["nic_packets"])
    good = np.all([delta[name] >= 0 for name in COUNTERS if name != "lost_kernel_wire_bytes"], axis=0)
    nic, attributed = _nic_wire_bytes(delta, after["nic_header_bytes"]), before["attributed_bytes"]
    lost = [delta[f"{name}_wire_bytes"] for name in ("overflow", "lost_kernel", "lost_agent")]
    invisible = nic - attributed - sum(lost)
    columns = link, before["time_ns"], after["time_ns"], nic, attributed, *lost, invisible
    coverage = np.divide(attributed, nic, out=np.full(len(nic), np.nan), where=nic != 0)
    counts = delta["nic_bytes"], delta["nic_packets"], counted, coverage
    return Columns(dict(zip(ROWS, columns + counts, strict=True))).take(np.flatnonzero(good)), good


def _nic_wire_bytes(delta: Mapping[str, _Numbers], header_bytes: _Numbers) -> _Numbers:
    """The NICs' figures in wire bytes.

    A NIC whose packets are the segments that the hook saw counts what is on the link, but for header_bytes of each
    (hardware, or an interface without offloads). One whose packets are the frames, as software interfaces pass
    them on, counts a super-packet with one header: the hook knows both the bytes and the wire bytes of those frames.
    """
    frames, segments, counted = delta["frames"], delta["packets"], delta["nic_packets"]
    return np.where(
        np.abs(counted - segments) < np.abs(counted - frames),
        delta["nic_bytes"] + header_bytes * segments,
        delta["nic_bytes"] + delta["wire_bytes"] - (delta["frame_bytes"] - header_bytes * frames),
    )


class LedgerAccounts:
    """The ledger of all links: samples and settled rows in, rows of the dataset out."""

    def __init__(self) -> None:
        self._samples = empty(SAMPLE)  # by link and time: the open interval's start, then those that have not settled
        self._open: Mapping[int, Sequence[int]] | None = None  # of these; None: to be looked up again
        self._stored_until_ns: _Numbers = np.zeros(0, np.int64)
        self._reported_until_ns: _Numbers = np.zeros(0, np.int64)
        self.resumed: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Per link, whether its open interval was taken up: it has counted the rows that the dataset holds."""
        self.reported_until_ns: _Numbers = np.zeros(0, np.int64)
        """Per link, the end of the last interval that was given out, or that the dataset holds; −1: none."""
        self.resets = 0  # intervals left out because a counter went backwards
        self.totals: _Numbers = np.zeros((0, len(TOTALS)), np.int64)
        """Per link."""

    def open(
        self,
        first: int,
        links: int,
        stored_until_ns: Mapping[int, int],
        totals: Mapping[int, _Numbers],
        open_samples: Mapping[int, Sequence[int]],
    ) -> None:
        """Links first…first+links−1 begin; the mappings give per link of the session what the dataset has already.

        open_samples: as the method of this name returned it.
        """
        more = first + links - len(self.totals)
        if more > 0:
            self._stored_until_ns = np.append(self._stored_until_ns, np.zeros(more, np.int64))
            self._reported_until_ns = np.append(self._reported_until_ns, np.zeros(more, np.int64))
            self.reported_until_ns = np.append(self.reported_until_ns, np.zeros(more, np.int64))
            self.totals = np.concatenate([self.totals, np.zeros((more, 5), np.int64)])
            self.resumed = np.append(self.resumed, np.zeros(more, np.bool_))
        own = slice(first, first + links)
        self.resumed[own] = False
        self._stored_until_ns[own], self._reported_until_ns[own], self.totals[own] = -1, 0, 0
        for link, until_ns in stored_until_ns.items():
            self._stored_until_ns[first + link] = until_ns
        self.reported_until_ns[own] = self._stored_until_ns[own]
        for link, total in totals.items():
            self.totals[first + link] = total
        kept = np.zeros(len(open_samples), SAMPLE)
        for row, (link, sample) in zip(kept, open_samples.items(), strict=True):
            row["link"] = first + link
            self.resumed[first + link] = True
            for name, value in zip(_OPEN, sample, strict=True):
                row[name] = value
            if link in stored_until_ns:
                self._reported_until_ns[first + link] = row["time_ns"]
        self.sample(kept)

    def close(self, first: int, links: int) -> None:
        """Links first…first+links−1 are gone."""
        link = self._samples["link"]
        self._samples, self._open = self._samples[(link < first) | (link >= first + links)], None

    def sample(self, samples: Table) -> None:
        """Take in counters, dtype SAMPLE without attributed bytes, in the order of their arrival."""
        if not len(samples):
            return
        samples = samples[np.argsort(samples["link"], kind="stable")]
        both = np.concatenate([self._samples, samples])
        both = both[np.argsort(both["link"], kind="stable")]
        link, time_ns = np.ascontiguousarray(both["link"]), np.ascontiguousarray(both["time_ns"])
        while True:  # one that is not later than the one before it tells nothing
            late = np.flatnonzero((link[1:] == link[:-1]) & (time_ns[1:] <= time_ns[:-1])) + 1
            if not len(late):
                break
            late = late[np.append(True, np.diff(late) > 1)]
            both, link, time_ns = (np.delete(one, late) for one in (both, link, time_ns))
        self._samples, self._open = both, None

    def add(self, start_ns: _Numbers, link: _Numbers, wire: _Numbers) -> None:
        """Add settled bucket rows. One that comes after its interval was given out is counted in the next."""
        if not len(self._samples) or not len(start_ns):
            return
        links = np.ascontiguousarray(self._samples["link"])
        cuts = GroupedValues(links, np.ascontiguousarray(self._samples["time_ns"]), len(self.totals))
        at = cuts.positions(link, np.maximum(start_ns, self._reported_until_ns[link])) - 1
        within = (at >= 0) & (links[at] == link)
        sums = np.bincount(at[within], weights=wire[within], minlength=len(links))
        self._samples["attributed_bytes"] += sums.astype(np.int64)
        self._open = None

    def rows(self, settled_ns: _Numbers) -> Columns:
        """The intervals that ended by settled_ns (of each link) and are not in the dataset yet, of ROWS."""
        samples = self._samples
        link = np.ascontiguousarray(samples["link"])
        over = np.flatnonzero((link[1:] == link[:-1]) & (samples["time_ns"][1:] <= settled_ns[link[1:]]))
        if not len(over):
            return Columns({name: np.zeros(0, kind) for name, kind in ROWS.items()})
        before, after = samples.take(over), samples.take(over + 1)
        np.maximum.at(self._reported_until_ns, link[over], after["time_ns"])
        self._samples, self._open = np.delete(samples, over), None
        rows, good = account(before, after, link[over])
        self.resets += len(over) - int(good.sum())
        rows = rows[rows["end_ns"] > self._stored_until_ns[rows["link"]]]
        for column, name in enumerate(TOTALS):
            np.add.at(self.totals[:, column], rows["link"], rows[name])
        np.maximum.at(self.reported_until_ns, rows["link"], rows["end_ns"])
        return rows

    def open_samples(self, first: int, links: int) -> dict[int, Sequence[int]]:
        """Where the open interval of each of these links began, and what it has counted: SAMPLE but for the link.

        By the link's number in its session, for a restart: so that no agent has to keep the batch that reported its
        beginning. Looked up once between two ticks.
        """
        if self._open is None:
            link = self._samples["link"]
            begin = starts(link)
            self._open = dict(zip(link[begin].tolist(), self._samples[_OPEN][begin].tolist(), strict=True))
        known = self._open
        return {link - first: known[link] for link in range(first, first + links) if link in known}
