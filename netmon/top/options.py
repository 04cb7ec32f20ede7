# SPDX-License-Identifier: Apache-2.0
"""How a frame is drawn, as the reader has chosen it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from netmon.records import Class
from netmon.top.names import called
from netmon.top.staleness import present_flows
from netmon.views import FlowView, Page, Snapshot

SORTS: dict[str, Callable[[FlowView], Any]] = {
    "rate": lambda view: (math.isnan(view.wire_bps), -view.wire_bps),
    "bytes": lambda view: -view.wire_bytes,
    "host": lambda view: (view.host, view.interface, view.flow.direction),
    "process": lambda view: view.flow.owner.process or "\U0010ffff",  # the unknown last
}
"""What flows can be sorted by; the first is the default."""

FILTERS: tuple[Class | None, ...] = (None, Class.DL_ONLY, Class.DL_SHARED, Class.CROSS, Class.UNCLASSIFIED)
"""Which class of flows is shown; None is all of them."""


@dataclass(frozen=True)
class Options:
    """The reader's choices; a key press makes new ones."""

    colour: bool = True
    bytes_: bool = False  # rates in byte/s instead of bit/s
    sort: str = "rate"
    class_: Class | None = None
    paused: bool = False
    help: bool = False
    live: bool = False  # fill the screen and name the keys
    links_from: int = 0  # of an overview: links and jobs that come before those on the screen
    jobs_from: int = 0
    notice: str = ""  # what has become of the source of the snapshots; empty: all is well

    def turn(self, key: str, links: int, jobs: int, page: Page) -> "Options":
        """The options after a key that turns a page; so many links and jobs are on the screen now."""
        if key == "n" and page.links_from + links < page.links:
            return replace(self, links_from=page.links_from + links)
        if key == "p":
            return replace(self, links_from=max(0, page.links_from - max(links, 1)))
        if key == "N" and page.jobs_from + jobs < page.jobs:
            return replace(self, jobs_from=page.jobs_from + jobs)
        if key == "P":
            return replace(self, jobs_from=max(0, page.jobs_from - max(jobs, 1)))
        return self

    def press(self, key: str) -> "Options":
        """The options after a key; other keys than those of the help change nothing."""
        if key == " ":
            return replace(self, paused=not self.paused)
        if key == "b":
            return replace(self, bytes_=not self.bytes_)
        if key == "s":
            return replace(self, sort=_next(tuple(SORTS), self.sort))
        if key == "c":
            return replace(self, class_=_next(FILTERS, self.class_))
        if key == "?":
            return replace(self, help=not self.help)
        return self


def arrange(snapshot: Snapshot, options: Options) -> Snapshot:
    """The snapshot with the flows of the chosen class only, in the chosen order, larger rates first among equals.

    Its jobs are called what people call them.
    """
    snapshot = called(snapshot)
    wanted = [view for view in present_flows(snapshot) if options.class_ in (None, view.class_)]
    wanted.sort(key=SORTS["rate"])
    return replace(snapshot, flows=tuple(sorted(wanted, key=SORTS[options.sort])))


def _next(choices: tuple[Any, ...], current: Any) -> Any:
    return choices[(choices.index(current) + 1) % len(choices)]
