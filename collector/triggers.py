# SPDX-License-Identifier: Apache-2.0
"""When the collector asks for full resolution by itself: a slow iteration, a burst, a change of class."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collector.host.iteration_rows import IterationRows
from collector.host.session import Session
from collector.host.window import Output
from collector.settings import Settings
from collector.view.job_views import Jobs
from netmon.columnar import Columns
from netmon.dl.classify import NS_PER_S
from netmon.records import Class

_HOUR_S = 3600.0
_MOST_NS = 10 * NS_PER_S  # of a window: its end
_AROUND_NS = 50_000_000  # a burst, and on either side


@dataclass(frozen=True)
class PullRequest:
    """A window and hosts of which full resolution is to be stored."""

    reason: str
    hosts: tuple[str, ...]
    since_ns: int  # utc
    until_ns: int


class Triggers:
    """Looks at what settles; bounded by a rest after each reason, and by rows per hour."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._quiet_until: dict[str, float] = {}
        self._stored: deque[tuple[float, int]] = deque()
        self._shared: dict[tuple[str, int], bool] = {}  # by session and link

    @property
    def watches_rows(self) -> bool:
        """Whether `look` can find anything."""
        return "burst" in self._settings.full_on or "class" in self._settings.full_on

    def check_rows(self, session: Session, output: Output) -> list[PullRequest]:
        """Which rows of a session that have settled make more worth storing."""
        if not _coarse(session):
            return []
        found = [*self._burst(session, output.buckets), *self._class(session, output)]
        now = time.monotonic()
        return [wanted for key, wanted in found if self._may(key, now)]

    def slow(self, sessions: Mapping[int, Session], rows: IterationRows, jobs: Jobs) -> list[PullRequest]:
        """Which iterations that have settled make more worth storing; sessions: by index."""
        if "slow" not in self._settings.full_on:
            return []
        now, wanted = time.monotonic(), []
        for row in jobs.standing_out(rows).tolist():
            session, one = sessions[int(rows.session[row])], rows.iteration(row)
            if _coarse(session) and self._may(f"slow {one.job}", now):
                utc, reason = session.window.alignment.utc, f"iteration {one.number} of job {one.job} was slow"
                wanted.append(_wanted(reason, jobs.hosts(one.job), utc(one.start_ns), utc(one.end_ns)))
        return wanted

    def forget(self, session: str) -> None:
        """It is over."""
        for key in [key for key in self._shared if key[0] == session]:
            del self._shared[key]

    def stored(self, rows: int) -> None:
        """So many rows have been got."""
        self._stored.append((time.monotonic(), rows))

    def _may(self, key: str, now: float) -> bool:
        while self._stored and self._stored[0][0] < now - _HOUR_S:
            self._stored.popleft()
        rows = sum(rows for _, rows in self._stored)
        if now < self._quiet_until.get(key, 0) or rows >= self._settings.full_rows:
            return False
        self._quiet_until = {k: until for k, until in self._quiet_until.items() if until > now}
        self._quiet_until[key] = now + self._settings.full_rest_ns / NS_PER_S
        return True

    def _burst(self, session: Session, rows: Columns) -> list[tuple[str, PullRequest]]:
        if "burst" not in self._settings.full_on or not len(rows):
            return []
        links, host = session.window.links, session.hello.host
        limit = links.capacity_bps[rows["link"]] * (self._settings.full_burst * session.hello.bucket_ns / 8 / NS_PER_S)
        beyond = rows["peak_bytes"] > np.where(limit > 0, limit, np.inf)
        if not beyond.any():
            return []
        start, link, width_ns = (int(rows[name][beyond.argmax()]) for name in ("bucket_start_ns", "link", "bucket_ns"))
        name, until = links.interface(link).name, start + width_ns + _AROUND_NS
        return [(f"burst {host}", _wanted(f"a burst on {host} {name}", (host,), start - _AROUND_NS, until))]

    def _class(self, session: Session, output: Output) -> list[tuple[str, PullRequest]]:
        if "class" not in self._settings.full_on:
            return []
        rows, host, found = output.buckets, session.hello.host, []
        dl = rows[np.isin(rows["class"], (Class.DL_ONLY, Class.DL_SHARED))]
        for link in np.unique(dl["link"]).tolist():
            own = dl[dl["link"] == link]
            shared = own["class"] == Class.DL_SHARED
            before, now = self._shared.get((session.hello.session, link)), bool(shared[-1])
            self._shared[session.hello.session, link] = now
            if before is not None and before != now:
                at = int(own["bucket_start_ns"][int(np.argmax(shared == now))])
                name = session.window.links.interface(link).name
                reason = f"{host} {name} is DL-{'shared' if now else 'only'} from here on"
                found.append((f"class {host} {link}", _wanted(reason, (host,), at - _AROUND_NS, at + _AROUND_NS)))
        return found


def _coarse(session: Session) -> bool:
    """Whether its host has more than it sends."""
    return session.hello.streamed_ns != session.hello.bucket_ns


def _wanted(reason: str, hosts: tuple[str, ...], since_ns: int, until_ns: int) -> PullRequest:
    return PullRequest(reason, hosts, max(since_ns, until_ns - _MOST_NS), until_ns)
