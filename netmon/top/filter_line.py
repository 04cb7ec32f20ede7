# SPDX-License-Identifier: Apache-2.0
"""The line in which a filter is typed: it is applied as soon as it can be, and says where it cannot."""

import re

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from netmon.top.filters import FIELDS, Filter, FilterError, hint, parse


class FilterLine(Vertical):
    """Two lines while it is open: what is typed, and what is possible there."""

    DEFAULT_CSS = """
    FilterLine { height: 2; }
    FilterLine Input { height: 1; border: none; padding: 0; background: $surface; }
    """

    class Changed(Message):
        """Another filter holds."""

        def __init__(self, filter: Filter) -> None:
            """filter: the one that parses."""
            super().__init__()
            self.filter = filter

    class Closed(Message):
        """The reader has finished."""

    def compose(self) -> ComposeResult:
        """The line and the one below."""
        yield Input(placeholder="host:h3 class:cross proc:iperf3 port:5201", compact=True)
        yield Static()

    def on_mount(self) -> None:
        """It is opened by a key."""
        self.display = False

    def open(self, text: str) -> None:
        """Go on with this filter."""
        line = self.query_one(Input)
        self.display, line.value = True, text
        line.cursor_position = len(text)
        line.focus(scroll_visible=False)
        self._show_message(text)

    def close(self) -> None:
        """The filter that holds stays."""
        self.display = False
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.display:
            self._show_message(message.value)

    @on(Input.Submitted)
    def _typed_all(self, message: Input.Submitted) -> None:
        message.stop()
        try:
            self.post_message(self.Changed(parse(message.value)))
        except FilterError:
            return  # the line below says what is wrong
        self.close()

    def _show_message(self, text: str) -> None:
        message = hint(text) or "Enter keeps it, Esc closes the line"
        try:
            self.post_message(self.Changed(parse(_finished(text))))
        except FilterError as error:
            index = min(error.place, max(self.size.width // 2, 1))
            message = f"{' ' * index}^ {error.problem}; possible: {error.possible}"
        self.query_one(Static).update(Text(message, "dim", no_wrap=True, overflow="ellipsis"))


def _finished(text: str) -> str:
    """Without a last word that may become a field's name, or a field without its value yet: it would hide all rows."""
    *before, last = re.split(r"(\s+)", text)
    word = last.lstrip("-!")
    begins = bool(word) and any(f"{field}:".startswith(word) for field in FIELDS)
    return "".join(before) if begins or not word else text
