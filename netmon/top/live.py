# SPDX-License-Identifier: Apache-2.0
"""The live view: snapshots come in on one thread, keys and drawing happen on the caller's."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from netmon.top import overview
from netmon.top.frame import plan, render, shown_rows
from netmon.top.keys import Keys
from netmon.top.options import Options, arrange
from netmon.top.places import Places
from netmon.views import Snapshot
from netmon.wire.watch import Outage

_TICK_S = 0.1
"""How often keys, the terminal's size and new snapshots are looked for."""

_SILENCE_NS = 5_000_000_000
"""Without a snapshot for so long, the view says that it is old."""

_JOIN_S = 0.5


class _Latest:
    """The newest update of an iterator that is read on a thread of its own."""

    def __init__(self, updates: Iterable[Snapshot | Outage]) -> None:
        self.update: Snapshot | Outage | None = None
        self.received_ns = time.time_ns()
        self.error: Exception | None = None
        self.ended = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(updates,), name="snapshots", daemon=True)
        self._thread.start()

    def _read(self, updates: Iterable[Snapshot | Outage]) -> None:
        try:
            for self.update in updates:
                self.received_ns = time.time_ns()
                if self._stopped.is_set():
                    return
        except Exception as error:
            self.error = error
        finally:
            self.ended = True

    def stop(self) -> None:
        """Let the reading end with its next update; a reading that waits for ever ends with the process."""
        self._stopped.set()
        self._thread.join(_JOIN_S)


class _View:
    """What is on the screen: the last snapshot, the reader's choices, and which flow has which row."""

    def __init__(self, console: Console) -> None:
        self.options = Options(colour=not console.no_color and console.is_terminal, live=True)
        self.snapshot: Snapshot | None = None
        self._places = Places()

    def press(self, key: str, width: int, height: int) -> None:
        before, self.options = self.options, self.options.press(key)
        if self.snapshot and overview.wanted(self.snapshot):
            on_screen = shown_rows(self.snapshot, self.options, width, height)
            self.options = self.options.turn(key, *on_screen, self.snapshot.page)
        if (before.sort, before.class_) != (self.options.sort, self.options.class_):
            self._places.clear()

    def receive(self, update: Snapshot | Outage | None, received_ns: int) -> None:
        """Take over a snapshot unless paused; an outage leaves the last one standing and says so."""
        notice = ""
        if isinstance(update, Outage):
            notice = f"collector gone since {_clock(update.since_ns)}, retrying"
        elif update is not None and not self.options.paused:
            self.snapshot = update
        if not notice and time.time_ns() - received_ns > _SILENCE_NS:
            notice = f"no news since {_clock(received_ns)}"
        self.options = replace(self.options, notice=notice)

    def draw(self, width: int, height: int) -> RenderableType:
        if self.snapshot is None:
            return Text("waiting for the first snapshot …", "dim")
        rows = plan(self.snapshot, self.options, width, height).flows - 1
        arranged = arrange(self.snapshot, self.options)
        placed = self._places.place(arranged.flows, max(rows, 0), self.snapshot.time_ns)
        return render(replace(arranged, flows=placed), self.options, width, height)


def run_live(
    updates: Iterable[Snapshot | Outage],
    console: Console,
    until: Callable[[], bool] = lambda: False,
    turned: Callable[[Options], None] = lambda options: None,
) -> None:
    """Draw each snapshot as it comes, full screen; blocks until q is pressed, `until()` holds or the updates end.

    turned: told what the reader has chosen after every key: another page has to be asked for.
    The terminal is put back as it was, whatever happens. What the iterator raises is raised here. An iterator
    that blocks is read on a daemon thread and left behind at the end.
    """
    view = _View(console)
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        latest = _Latest(updates)
        drawn: tuple[object, ...] = ()
        try:
            while not (latest.ended or until()):
                view.receive(latest.update, latest.received_ns)
                width, height = console.size
                state = (view.snapshot, view.options, width, height)
                if any(new is not old for new, old in zip(state, drawn, strict=False)) or not drawn:
                    live.update(view.draw(width, height), refresh=True)
                    drawn = state
                for key in keys.read(_TICK_S):
                    if key == "q":
                        return
                    view.press(key, width, height)
                    turned(view.options)
        finally:
            latest.stop()
    if latest.error:
        raise latest.error


def _clock(utc_ns: int) -> str:
    return f"{datetime.fromtimestamp(utc_ns // 1_000_000_000, timezone.utc):%H:%M:%S}"
