# SPDX-License-Identifier: Apache-2.0
"""`netmon top` in a real terminal (tmux): it draws, obeys, puts the terminal back, and refuses one that cannot."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/data/verdict"
TOP = f"cd {ROOT} && {sys.executable} -m netmon top"

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """A tmux server of its own; it and what runs in it end with the test."""

    def __init__(self, folder: Path) -> None:
        self._server = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux.sock")]
        self.tmux("new-session", "-d", "-x", "100", "-y", "30", "sh")

    def tmux(self, *words: str) -> str:
        done = subprocess.run([*self._server, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, *words: str) -> str:
        try:
            wait_for(lambda: all(word in self.text() for word in words))
        except AssertionError:
            raise AssertionError(f"{words} not in:\n{self.text()}") from None
        return self.text()

    def close(self) -> None:
        subprocess.run([*self._server, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_it_is_driven_and_puts_the_terminal_back(terminal: Terminal) -> None:
    terminal.type(f"{TOP} --data {RECORDED}; echo over=$?", "Enter")
    terminal.until("PAST", "JOBS", "LINKS", "FLOWS", "rates in bit/s")
    terminal.tmux("resize-window", "-x", "20", "-y", "5")
    terminal.until("bit/s")
    terminal.tmux("resize-window", "-x", "120", "-y", "40")
    terminal.until("FLOWS", "1 character")
    terminal.type("f")
    terminal.until("fields: host:")
    terminal.type("port:abc")
    terminal.until("^ 'abc' is no number; possible: a number, a list (1,2), a range")
    terminal.type("C-u")
    terminal.until("fields: host:")
    terminal.type("host:nobody", "Enter")
    terminal.until("filter host:nobody hides")
    terminal.type("Escape")
    wait_for(lambda: "hides" not in terminal.text())
    terminal.type("q")
    assert "over=0" in terminal.until("over=0")
    terminal.type("stty -a | tr ' ' '\\n' | grep -cx -e icanon -e 'echo' | sed s/^/sane=/", "Enter")
    terminal.until("sane=2")


def test_a_signal_ends_it_and_the_terminal_is_put_back(terminal: Terminal, tmp_path: Path) -> None:
    number = tmp_path / "pid"
    terminal.type(
        f"sh -c 'echo $$ >{number}; {TOP.replace('&& ', '&& exec ')} --data {RECORDED}'; echo over=$?", "Enter"
    )
    terminal.until("PAST", "JOBS")
    os.kill(int(number.read_text()), signal.SIGTERM)
    terminal.until("over=143")
    assert "JOBS" not in terminal.text()


def test_a_terminal_that_cannot_move_its_cursor_is_refused(terminal: Terminal) -> None:
    terminal.type(f"clear; export TERM=dumb; {TOP} --data {RECORDED}; echo over=$?", "Enter")
    assert "cannot show a live view: TERM says" in terminal.until("over=1").replace("\n", "")
