# SPDX-License-Identifier: Apache-2.0
"""What the keys do and what the words mean."""

from rich.console import Group, RenderableType
from rich.text import Text

from netmon.top.screenful import Screenful

_KEYS = (
    ("q", "quit"),
    ("space", "pause the view, and go on"),
    ("b", "rates in bit/s or in byte/s"),
    ("s", "sort the flows by rate, bytes, host, process"),
    ("c", "show the flows of one class only"),
    ("n p", "the next and the previous links, where there are too many for the screen; also the page keys"),
    ("N P", "the next and the previous jobs"),
    ("?", "this page"),
)
_WORDS = (
    ("DL-only", "a training flow whose link carries no cross traffic in the window; here with hysteresis"),
    ("DL-shared", "a training flow whose link does; also a node any of whose links does"),
    ("cross", "every other flow on the link, those of other jobs included where a rank's are counted"),
    ("control", "a training flow of short messages: negotiation, rendezvous; the others carry gradients"),
    ("unclassified", "not known, and not guessed"),
    ("coverage", "bytes attributed to flows / bytes counted by the NIC, since the agent's start"),
    ("theory (3.1)", "2·(N−1)/N · parameters · 4 bytes sent by each of N ranks (ring all-reduce)"),
    ("~ iteration", "counted from when the agent began to look, not from the job's start"),
    ("exposed", "communication during which the training thread had nothing left but to wait"),
    ("F1", "of a source's iterations, held against those of the source that decides; and how far apart"),
    ("source ±", "who told about the iteration, and how far off its boundaries can be"),
    ("↑ ↓ ?", "sent, received, unknown"),
)


def draw(width: int, height: int) -> RenderableType:
    """The page, as high as the screen."""
    lines = [Text("netmon top: keys", "bold"), Text()]
    lines += [_line(key, what, width) for key, what in _KEYS]
    lines += [Text(), Text("Words", "bold"), Text()]
    lines += [_line(word, meaning, width) for word, meaning in _WORDS]
    return Screenful(Group(*lines), Text("? back", "dim"), height)


def _line(word: str, meaning: str, width: int) -> Text:
    line = Text.assemble(f"  {word:<14}", (meaning, "dim"), no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
