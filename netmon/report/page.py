# SPDX-License-Identifier: Apache-2.0
"""One page that stands alone: the images are in it."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pandas as pd

from netmon.report.study import Study
from netmon.units import format_duration, format_rate
from netmon.version import __version__

# --- The page.

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; } h3 { margin: 2rem 0 .2rem; }
nav ol { columns: 2; } nav li { break-inside: avoid; } a { color: #0072B2; }
img { max-width: 100%; height: auto; }
figure { margin: .5rem 0 0; } figcaption, .basis { color: #555; font-size: .82rem; }
.gap { border-left: 4px solid #E69F00; padding: .3rem .8rem; background: #fdf6e7; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #e5e5e5; white-space: nowrap; }
code { background: #f3f3f3; padding: 0 .25rem; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="basis">{{ basis }}<br>made by <code>{{ command }}</code>, netmon {{ version }}, {{ made }}</p>
<nav><ol>
<li><a href="#findings">Findings</a></li>
{% for chapter in chapters %}<li><a href="#{{ chapter.anchor }}">{{ chapter.title }}</a><ul>
{% for item in chapter.items %}<li><a href="#{{ item.name }}">{{ item.title }}</a>
{%- if item.gap %} (not shown){% endif %}</li>
{% endfor %}</ul></li>
{% endfor %}<li><a href="#missing">What is missing and why</a></li>
</ol></nav>
<h2 id="findings">Findings</h2>
<ul>{% for sentence in findings %}<li>{{ sentence }}</li>
{% endfor %}</ul>
{% for chapter in chapters %}<h2 id="{{ chapter.anchor }}">{{ chapter.title }}</h2>
{% for item in chapter.items %}<section id="{{ item.name }}">
<h3>{{ item.title }}</h3>
<p>{{ item.text }}{% if item.follows %} <span class="basis">After: {{ item.follows }}.</span>{% endif %}</p>
{% if item.gap %}<p class="gap">Not shown: {{ item.gap }}.</p>{% endif %}
{% if item.image %}<figure><img src="data:image/png;base64,{{ item.image }}" alt="{{ item.title }}">
<figcaption>{{ item.basis }}</figcaption></figure>{% endif %}
{% if item.html %}<div class="table">{{ item.html | safe }}</div>{% endif %}
{% if item.files %}<p class="basis">Tables:
{%- for file in item.files %} <a href="{{ file }}">{{ file }}</a>{{ "," if not loop.last }}{% endfor %}</p>{% endif %}
</section>
{% endfor %}{% endfor %}
<h2 id="missing">What is missing and why</h2>
{% if missing %}<ul>{% for sentence in missing %}<li>{{ sentence }}</li>
{% endfor %}</ul>{% else %}<p>Nothing: every table could be read, and every exhibit is shown.</p>{% endif %}
</body>
</html>
"""

# --- page


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
    bases = {str(text) for text in study.tables.sessions["byte_basis"] if text}
    wire = "; ".join(sorted(bases)) or "not told by the files"
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
