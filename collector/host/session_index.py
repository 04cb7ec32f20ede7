# SPDX-License-Identifier: Apache-2.0
"""What is known of each session and each link, as columns over all of them."""

import numpy as np
import numpy.typing as npt

from collector.dataset.resume import Resume
from collector.host.flows import Links
from collector.settings import Settings
from netmon.dl.classify import window_width
from netmon.dl.timemap import TimeMap
from netmon.records import Hello, Table

NEVER = np.iinfo(np.int64).max
_LONG_AGO = -(2**62)

SESSION = np.dtype(
    [
        ("used", "?"),
        ("trains", "?"),  # it has ranks
        ("horizon_ns", "<i8"),  # all times are mono
        ("settled_ns", "<i8"),
        ("bucket_ns", "<i8"),  # of the newest rows
        ("full_ns", "<i8"),  # of the agent's buckets
        ("window_ns", "<i8"),  # of a share window
        ("first_link", "<i8"),
        ("onsets_ns", "<i8"),  # from when on a flow's first bucket is the flow's
        ("due_ns", "<i8"),  # when its ranks have something to settle
        ("needed_ns", "<i8"),  # start of the earliest iteration that is open or waits for its rows
        ("stored_complete", "<i8"),  # what the dataset holds of the session: see Resume
        ("stored_last", "<i8"),
        ("stored_settled_ns", "<i8"),
        # The last two knots of the map to UTC, and its slope from there on.
        *((name, "<i8") for name in ("earlier_knot_ns", "earlier_offset_ns", "knot_ns", "offset_ns")),
        ("slope", "<f8"),
        # What the agent itself used lately.
        ("cpu_fraction", "<f8"),
        *((name, "<i8") for name in ("rss_bytes", "spool_bytes", "warnings")),
    ]
)

LINK = np.dtype([("session", "<i8"), ("capacity_bps", "<i8"), ("window_ns", "<i8")])
"""A link: index of its session, −1: of none; width of its share windows."""


class SessionIndex:
    """Sessions by index, and links by a number over all sessions: those of a session follow each other."""

    def __init__(self) -> None:
        self._table = np.zeros(16, SESSION)
        self._links = np.zeros(32, LINK)
        self._count = self._link_count = 0
        self._free: list[int] = []
        self._free_links: dict[int, list[int]] = {}  # first links by how many

    @property
    def table(self) -> Table:
        """A view, dtype SESSION, one row per place."""
        return self._table[: self._count]

    @property
    def links(self) -> Table:
        """A view, dtype LINK, one row per link."""
        return self._links[: self._link_count]

    def add(self, hello: Hello, links: Links, settings: Settings, resume: Resume) -> int:
        """Give a session a place, and its links their numbers."""
        session_index = self._free.pop() if self._free else self._count
        self._count = max(self._count, session_index + 1)
        if session_index == len(self._table):
            self._table = np.concatenate([self._table, np.zeros(session_index, SESSION)])
        self._table[session_index] = 0
        row = self._table[session_index]
        width = window_width(settings.share_window_ns, hello.streamed_ns)
        begin_ns = hello.clock.mono_ns
        for name, value in (
            *(("used", True), ("horizon_ns", begin_ns), ("settled_ns", -1), ("onsets_ns", begin_ns)),
            *(("bucket_ns", hello.streamed_ns), ("full_ns", hello.bucket_ns), ("window_ns", width)),
            *(("due_ns", NEVER), ("needed_ns", NEVER)),
            ("first_link", self._first_link(session_index, links, width)),
            *(("stored_complete", resume.complete_sequence), ("stored_last", resume.last_sequence)),
            ("stored_settled_ns", resume.settled_ns),
        ):
            row[name] = value
        return session_index

    def _first_link(self, session_index: int, links: Links, width_ns: int) -> int:
        free = self._free_links.get(len(links))
        first = free.pop() if free else self._link_count
        end = first + len(links)
        self._link_count = max(self._link_count, end)
        while end > len(self._links):
            self._links = np.concatenate([self._links, np.zeros(len(self._links), LINK)])
        own = self._links[first:end]
        own["session"], own["capacity_bps"], own["window_ns"] = session_index, links.capacity_bps, width_ns
        return first

    def remove(self, session_index: int, links: int) -> None:
        """The session is gone; links: how many it had."""
        first = int(self._table[session_index]["first_link"])
        self._links[first : first + links] = 0
        self._links["session"][first : first + links] = -1
        self._free_links.setdefault(links, []).append(first)
        self._table[session_index] = 0
        self._table["needed_ns"][session_index] = self._table["due_ns"][session_index] = NEVER
        self._free.append(session_index)

    def use_map(self, session_index: int, clock: TimeMap) -> None:
        """From now on the session's clock is mapped so."""
        row, several = self._table[session_index], len(clock.knots_ns) > 1
        row["knot_ns"], row["offset_ns"], row["slope"] = clock.knots_ns[-1], clock.offsets_ns[-1], clock.slope
        row["earlier_knot_ns"] = clock.knots_ns[-2] if several else _LONG_AGO
        row["earlier_offset_ns"] = clock.offsets_ns[-2] if several else clock.offsets_ns[-1]

    def utc(self, session: npt.NDArray[np.signedinteger], mono_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Mono times of sessions in UTC; of times before the last two knots of a map see `older`."""
        own = {name: self.table[name][session] for name in ("knot_ns", "offset_ns", "slope")}
        since = mono_ns - own["knot_ns"]
        offsets = own["offset_ns"] + np.round(np.maximum(since, 0) * own["slope"]).astype(np.int64)
        inside = np.flatnonzero((since < 0) & (self.table["earlier_offset_ns"][session] != own["offset_ns"]))
        if len(inside):
            first, base = (self.table[n][session[inside]] for n in ("earlier_knot_ns", "earlier_offset_ns"))
            rise, span = own["offset_ns"][inside] - base, np.maximum(own["knot_ns"][inside] - first, 1)
            offsets[inside] = base + np.round((mono_ns[inside] - first) * (rise / span)).astype(np.int64)
        found: npt.NDArray[np.int64] = mono_ns + offsets
        return found

    def older(self, session: npt.NDArray[np.signedinteger], mono_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Which of the times lie before what `utc` knows of the sessions' maps."""
        return np.flatnonzero(mono_ns < self.table["earlier_knot_ns"][session])
