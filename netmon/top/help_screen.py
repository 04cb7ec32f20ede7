# SPDX-License-Identifier: Apache-2.0
"""What the keys do, what filters can ask for, and what the words mean."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from netmon.top.filters import FIELDS

_KEYS = (
    ("Enter Esc", "into the row, and back: jobs → iterations → ranks → flows; links; groups"),
    ("← →", "one iteration back or on, of the job that is chosen; from now on into the past"),
    ("/ \\", "the slow iteration before, or after, this moment"),
    ("l", "live: back to now"),
    ("v", "verdicts: Enter goes to the moment of one"),
    ("+ − , .", "in the past: zoom the time axis, down to 10 µs a character; move it"),
    ("f", "filter the rows, as below; empty: all of them"),
    ("g", "group the flows by process, container, user, job, peer host, prefix, host"),
    ("s S", "sort by the next, the previous column; s on the last one and so on; or click a heading"),
    ("tab", "the next table; also a click"),
    ("y Y", "copy the row as JSON; as a filter"),
    ("n p", "the next and the previous page of links or jobs, where there are too many for one"),
    ("b", "rates in bit/s or in byte/s"),
    ("space", "pause the view, and go on"),
    ("?", "this page"),
    ("q", "quit"),
)
_FILTERS = (
    ("host:h3", "text is a regular expression, found anywhere; ^h3$ is h3 only"),
    ("port:80,443", "also port:5000-5300 and port:>1024"),
    ("rate:>100mbit", "rates, bytes:>1GB, duration:>300ms, rtt:>1ms are compared"),
    ("-proc:python", "not so"),
    ("iperf3", "any text of the row"),
    ("fields", " ".join(FIELDS)),
)
_WORDS = (
    ("DL-only", "a training flow whose link carries no cross traffic in the window; live with hysteresis"),
    ("DL-shared", "a training flow whose link does; also a node any of whose links does"),
    ("cross", "every other flow on the link, those of other jobs included where a rank's are counted"),
    ("control", "a training flow of short messages: negotiation, rendezvous; the others carry gradients"),
    ("unclassified", "not known, and not guessed"),
    ("coverage", "bytes attributed to flows / bytes counted by the NIC, since the agent's start"),
    ("theory (3.1)", "2·(N−1)/N · parameters · 4 bytes sent by each of N ranks (ring all-reduce)"),
    ("~ iteration", "counted from when the agent began to look, not from the job's start"),
    ("exposed", "communication during which the training thread had nothing left but to wait"),
    ("held up", "waited for gradients for longer than usual, with every rank there"),
    ("F1", "of a source's iterations, held against those of the source that decides; and how far apart"),
    ("source ±", "who told about the iteration, and how far off its boundaries can be"),
    ("↑ ↓ ?", "sent, received, unknown"),
)


class HelpScreen(ModalScreen[None]):
    """The page; any of its keys leads back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "back"),
        Binding("ctrl+c", "app.quit", "quit", priority=True),
    ]
    DEFAULT_CSS = "HelpScreen { background: $background; } HelpScreen VerticalScroll { height: 1fr; }"

    def compose(self) -> ComposeResult:
        """A page that scrolls."""
        with VerticalScroll():
            yield Static(page())


def page() -> Text:
    """All of it."""
    text = Text()
    for title, lines in (("netmon top: keys", _KEYS), ("Filters", _FILTERS), ("Words", _WORDS)):
        text.append(f"{title}\n", "bold")
        for word, meaning in lines:
            text.append(f"  {word:<14}").append(f"{meaning}\n", "dim")
        text.append("\n")
    return text.append("? back", "dim")
