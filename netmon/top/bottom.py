# SPDX-License-Identifier: Apache-2.0
"""Single lines around the tables: title, where the reader is, and the keys."""

from collections.abc import Sequence
from datetime import datetime, timezone

from rich.text import Text

from netmon.top.glyphs import shown as printable
from netmon.top.levels import Level, Scene, Shown
from netmon.top.moments import MomentView
from netmon.top.step_kind import clock
from netmon.units import format_duration

_KEYS = ("? help", "q quit", "⏎ in", "esc out", "f filter", "s sort", "g group", "v verdicts", "space pause", "y copy")
_OF_PAST = ("← → iteration", "/ slow")
_IN_PAST = ("l live", "← → iteration", "/ \\ slow", "+ − zoom")


def title(state: tuple[str, str], scene: Scene, cost: str, width: int) -> Text:
    """When it is, what is the matter, and in the corner what the program itself takes. state: a word, a sentence."""
    word, notice = state
    snapshot, frame = scene.snapshot, scene.frame
    moment = datetime.fromtimestamp(snapshot.time_ns // 1_000_000_000, timezone.utc)
    day = f"{moment:%Y-%m-%d} " if width >= 60 else ""
    text = Text(no_wrap=True)
    if width >= 30:
        text.append("netmon  ", "bold")
    if frame:
        text.append(f" {word} ", "bold reverse yellow").append(f" {day}{clock(frame.since_ns)} UTC")
    elif snapshot.time_ns:
        text.append(f"{day}{moment:%H:%M:%S}" + (" UTC" if width >= 20 else ""))
        if word:
            text.append(" ").append(f" {word} ", "bold reverse yellow")
    if snapshot.insecure:
        text.append("  ").append("not encrypted", "bold yellow")
    if notice:
        text.append("  " if text else "").append(notice, "bold red")
    text.truncate(width, overflow="ellipsis")
    if text.cell_len + len(cost) + 2 <= width:
        text.pad_right(width - text.cell_len - len(cost))
        text.append(cost, "dim")
    return printable(text)


def path(path: Sequence[Level], shown: Sequence[Shown], scene: Scene, moments: MomentView, width: int) -> Text:
    """`all › resnet › iteration 412   filter host:h3: 12 rows hidden`."""
    text = Text(" › ".join(level.name for level in path), "bold", no_wrap=True)
    if moments.busy:
        text.append(f"  {moments.busy} …", "italic")
    if moments.problem:
        text.append(f"  {moments.problem}", "yellow")
    if scene.filter.text:
        hidden = sum(one.hidden for one in shown)
        text.append(f"  filter {scene.filter.text}", "reverse").append(f" hides {hidden:,} rows", "dim")
    if scene.grouped_by:
        text.append(f"  by {scene.grouped_by}", "reverse")
    page = scene.snapshot.page
    if len(path) == 1 and page.links > len(scene.snapshot.links) and scene.frame is None:
        last = page.links_from + len(scene.snapshot.links)
        text.append(f"  links {page.links_from + 1:,}–{last:,} of {page.links:,}, worst first; n p", "dim")
    if len(path) == 1 and page.jobs > len(scene.snapshot.jobs) and scene.frame is None:
        last = page.jobs_from + len(scene.snapshot.jobs)
        text.append(f"  jobs {page.jobs_from + 1:,}–{last:,} of {page.jobs:,}", "dim")
    if scene.frame:
        text.append(f"  {format_duration(scene.frame.until_ns - scene.frame.since_ns)} at {scene.frame.basis}", "dim")
    text = printable(text)
    text.truncate(width, overflow="ellipsis")
    return text


def keys(in_past: bool, has_past: bool, width: int) -> Text:
    """As many as there is room for."""
    first, rest = _KEYS[:2], _KEYS[2:]
    names = [
        *first,
        *(_IN_PAST if in_past else ()),
        *rest[:2],
        *(_OF_PAST if has_past and not in_past else ()),
        *rest[2:],
    ]
    text = Text(no_wrap=True, style="dim")
    for name in names:
        if text.cell_len + len(name) + 2 > width:
            break
        text.append(("  " if text else "") + name)
    return text
