# SPDX-License-Identifier: Apache-2.0
"""The live view on a real pseudo-terminal: it draws, obeys its keys and puts the terminal back."""

import io
import os
import pty
import re
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from snapshot_example import cluster, example

from netmon.errors import WireError
from netmon.top.frame import shown_rows
from netmon.top.keys import Keys
from netmon.top.live import run_live
from netmon.top.options import Options
from netmon.views import Snapshot
from netmon.wire.watch import Outage


class Screen:
    """A pseudo-terminal; what the view writes is kept."""

    def __init__(self) -> None:
        self.keyboard, terminal = pty.openpty()
        self.input = os.fdopen(terminal, "r")
        self.output = io.StringIO()
        self.console = Console(
            file=self.output, force_terminal=True, width=120, height=40, highlight=False, color_system=None
        )

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self.input.fileno())

    def press(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output.getvalue())

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + 60
        while words not in self.text():
            assert time.monotonic() < until, f"{words!r} was not drawn"
            time.sleep(0.02)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen()
    monkeypatch.setattr(sys, "stdin", screen.input)
    yield screen
    screen.input.close()
    os.close(screen.keyboard)


def endless(stop: threading.Event) -> Iterator[Snapshot]:
    count = 0
    while not stop.wait(0.05):
        yield example(shift=count)
        count += 1


def test_it_draws_obeys_keys_and_restores_the_terminal(screen: Screen) -> None:
    before, stop, failures = screen.mode(), threading.Event(), []

    def reader() -> None:
        try:
            for keys, words in (("", "FLOWS"), (" ", "PAUSED"), (" ", "tcp"), ("b", "rates in B/s"), ("?", "keys")):
                screen.press(keys)
                screen.wait_for(words)
            screen.press("?c")
            screen.wait_for("class DL-only")
        except AssertionError as error:
            failures.append(error)
        finally:
            screen.press("q")

    hands = threading.Thread(target=reader)
    hands.start()
    with Keys(screen.input):
        assert screen.mode() != before
    run_live(endless(stop), screen.console)
    stop.set()
    hands.join()
    assert not failures
    assert screen.mode() == before


def test_it_ends_with_its_iterator(screen: Screen) -> None:
    run_live(iter([example()]), screen.console)


def test_it_ends_when_told(screen: Screen) -> None:
    stop = threading.Event()
    run_live(endless(stop), screen.console, until=lambda: "FLOWS" in screen.text())
    stop.set()


def test_it_raises_what_the_iterator_raises_and_restores_the_terminal(screen: Screen) -> None:
    before = screen.mode()

    def broken() -> Iterator[Snapshot]:
        yield example()
        raise WireError("nonsense")

    with pytest.raises(WireError, match="nonsense"):
        run_live(broken(), screen.console)
    assert screen.mode() == before


def test_an_outage_leaves_the_last_snapshot_and_says_so(screen: Screen) -> None:
    def gone() -> Iterator[Snapshot | Outage]:
        yield example()
        screen.wait_for("FLOWS")
        yield Outage(example().time_ns, "gone")
        screen.wait_for("collector gone since 10:12:13, retrying")
        yield example()

    run_live(gone(), screen.console)


def test_turning_a_page_asks_for_what_comes_next(screen: Screen) -> None:
    asked, stop, failures = [Options()], threading.Event(), []

    def endless() -> Iterator[Snapshot]:
        while not stop.wait(0.05):
            yield cluster(asked[0].links_from, asked[0].jobs_from)

    def reader() -> None:
        try:
            for keys, words in (
                ("", "links 1–"),
                ("\x1b[6~", f"links {1 + (page := self_shown())}–"),
                ("N", "jobs "),
                ("p", "links 1–"),
            ):
                screen.press(keys)
                screen.wait_for(words)
            assert page > 1
        except AssertionError as error:
            failures.append(error)
        finally:
            screen.press("q")

    def self_shown() -> int:
        return shown_rows(cluster(), Options(live=True), 120, 40)[0]

    hands = threading.Thread(target=reader)
    hands.start()
    run_live(endless(), screen.console, turned=lambda options: asked.__setitem__(0, options))
    stop.set()
    hands.join()
    assert not failures
    assert asked[0].links_from == 0
    assert asked[0].jobs_from > 0
