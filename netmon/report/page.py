# SPDX-License-Identifier: Apache-2.0
"""One page that stands alone: the images are in it."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pandas as pd

from netmon.report.study import Study
from netmon.report.template import PAGE
from netmon.units import format_duration, format_rate
from netmon.version import __version__


@dataclass(frozen=True)
class Item:
    """One exhibit as the page shows it."""

    name: str
    title: str
    follows: str
    text: str
    basis: str = ""
    image: str = ""  # PNG, base64
    html: str = ""  # a table
    files: tuple[str, ...] = ()  # relative to the page
    gap: str = ""  # why it is not shown


@dataclass(frozen=True)
class ShownChapter:
    """A heading and its items."""

    title: str
    items: Sequence[Item]

    @property
    def anchor(self) -> str:
        """What a link to it names."""
        return re.sub(r"\W+", "-", self.title.lower())


def encoded(png: bytes) -> str:
    """An image as it stands in the page."""
    return base64.b64encode(png).decode()


def as_html(table: pd.DataFrame, rows: int) -> str:
    """The first rows of a table, escaped."""
    shown: str = table.head(rows).to_html(
        index=False, border=0, na_rep="", float_format=lambda x: f"{x:.4g}", justify="right"
    )
    more = f"<p class='basis'>{rows} of {len(table)} rows; the file has all.</p>" if len(table) > rows else ""
    return shown + more


def basis(study: Study, command: str, runs: Sequence[str] = (), iterations: int | None = None) -> str:
    """What a figure rests on: runs, models, link rate, bucket, byte basis, iterations and the command."""
    known = study.runs[study.runs["run"].isin(runs)] if runs else study.runs
    count = len(study.times) if iterations is None else iterations
    parts = [
        f"{'run' if len(known) == 1 else 'runs'}: {_listed(list(known['run']))}",
        f"model: {_listed(sorted(known['model'].unique()))}",
        f"link rate: {format_rate(study.rate_bps) if study.rate_bps else 'not known'}",
        f"bucket: {format_duration(study.bucket_ns)}",
        f"bytes: {byte_basis(study)}",
        f"iterations: {count}",
    ]
    return " · ".join(parts) + (f" · {command}" if command else "")


def byte_basis(study: Study) -> str:
    """Which bytes are counted, by the files' own words."""
    told = {str(text) for value in study.tables.metadata.get("byte_basis", []) for text in value.values()}
    wire = "; ".join(sorted(told)) or "not told by the files"
    return f"wire bytes are {wire}; payload is the transport's"


def _listed(names: Sequence[str], most: int = 4) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def render(
    study: Study,
    command: str,
    chapters: Sequence[ShownChapter],
    findings: Sequence[str],
    missing: Sequence[str],
    title: str,
) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(PAGE)
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return page.render(
        title=title,
        basis=basis(study, ""),
        command=command,
        version=__version__,
        made=made,
        chapters=chapters,
        findings=findings,
        missing=missing,
    )
