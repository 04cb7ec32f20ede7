# SPDX-License-Identifier: Apache-2.0
"""Making the report: every exhibit's tables and figure, and one page that stands alone: the images are in it."""

import base64
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from netmon.errors import DataError
from netmon.history.dataset import without_formulas
from netmon.history.judging import worst_lines
from netmon.report.study import Chapter, Exhibit, Frames, GapError, Study
from netmon.units import format_bytes, format_duration, format_rate, format_utc
from netmon.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

# --- The page.

_PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Item:
    exhibit: Exhibit
    basis: str = ""
    image: str = ""  # PNG, base64
    html: str = ""  # a table
    files: tuple[str, ...] = ()  # relative to the page
    gap: str = ""  # why it is not shown


@dataclass(frozen=True)
class ShownChapter:
    title: str
    items: Sequence[Item]

    @property
    def shown(self) -> list[Item]:
        return [item for item in self.items if not item.gap]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower())


def _as_html(table: pd.DataFrame, rows: int) -> str:
    """The first rows of a table, escaped, with units for people: the files have the plain numbers."""
    shown: str = (
        pd.DataFrame(dict(_for_people(str(name), table[name].head(rows)) for name in table))
        .astype(object)
        .to_html(index=False, border=0, na_rep="", float_format=lambda x: f"{x:.4g}", justify="right")
    )
    more = f"<p class='basis'>{rows} of {len(table)} rows; the file has all.</p>" if len(table) > rows else ""
    return shown + more


_MOMENTS = ("since_ns", "until_ns", "start_ns", "end_ns", "begin_ns", "first_ns", "last_ns", "time_ns")
_SHORT = 30  # characters
_UNITS: Mapping[str, Callable[[float], str]] = {
    **{"ns": format_duration, "s": lambda seconds: format_duration(seconds * 1e9)},
    **{"bytes": format_bytes, "bps": format_rate},
}


def _for_people(name: str, column: "pd.Series[Any]") -> "tuple[str, pd.Series[Any]]":
    """A column's name without its unit, and its values with it."""
    stem, _, unit = name.rpartition("_")
    form = format_utc if name in _MOMENTS else _UNITS.get(unit)
    if form is None or column.dtype.kind not in "iuf":
        return name.replace("_", " "), column.map(lambda value: _unbroken(value) if isinstance(value, str) else value)
    texts = ["" if pd.isna(value) else _unbroken(form(value)) for value in column.tolist()]
    return (stem or name).replace("_", " "), pd.Series(texts, column.index, dtype=object)


def _unbroken(text: str) -> str:
    """A short text stays on one line of its cell."""
    return text.replace(" ", "\u00a0") if len(text) <= _SHORT else text


def _marked(text: str) -> "Markup":
    """What stands between backticks as code; all else escaped."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _basis_of(study: Study, command: str, runs: Sequence[str] = (), iterations: int | None = None) -> str:
    """What a figure rests on: runs, models, link rate, bucket, byte basis, iterations and the command."""
    known = study.runs[study.runs["run"].isin(runs)] if runs else study.runs
    count = len(study.times) if iterations is None else iterations
    counted = {str(text) for text in study.tables.sessions["byte_basis"] if text}  # by the files' own words
    wire = "; ".join(sorted(counted)) or "not stated in the files"
    parts = [
        f"{'run' if len(known) == 1 else 'runs'}: {_listed(list(known['run']))}",
        f"model: {_listed(sorted(known['model'].unique()))}",
        f"link rate: {format_rate(study.rate_bps) if study.rate_bps else 'not known'}",
        f"bucket: {format_duration(study.bucket_ns)}",
        f"bytes: wire bytes are {wire}; payload is the transport's",
        f"iterations: {count}",
    ]
    return " · ".join(parts) + (f" · {command}" if command else "")


def _listed(names: Sequence[str], most: int = 4) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- The report.

PAGE, TABLES, FIGURES = "report.html", "tables", "figures"
_MOST_LINES = 10
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    page: Path
    tables: int
    figures: int
    findings: list[str]
    missing: list[str]


def chapters(study: bool = False) -> tuple[Chapter, ...]:
    """study: only those that repeat the papers' measurements."""
    from netmon.report.chapters import (
        accounts,
        bandwidth,
        burstiness,
        incidents,
        patterns,
        sharing,
        slowdown,
        traces,
        traffic,
    )

    return (
        *(() if study else (incidents.INCIDENTS, incidents.JOBS, incidents.LINKS)),
        *(slowdown.CHAPTER, bandwidth.CHAPTER, traces.CHAPTER, traffic.VOLUMES, traffic.RATES, patterns.CHAPTER),
        *(sharing.CHAPTER, burstiness.CHAPTER, accounts.CHAPTER),
    )


def write_report(
    study: Study,
    out: Path,
    command: str,
    title: str,
    shown_chapters: Sequence[Chapter],
    progress: Callable[[str], None] = lambda name: None,
) -> Written:
    """Write OUT/report.html, OUT/tables/*.csv and OUT/figures/*.png; blocks. Files of an earlier report are replaced.

    progress is called with each exhibit before it is made. Raises DataError where nothing can be shown, or not be
    written.
    """
    from jinja2 import Environment, StrictUndefined

    from netmon.report.findings import findings

    if not len(study.ranks) and study.traffic is None and not study.tables.rows("ledger"):
        reasons = "; ".join(study.tables.missing) or "no table has a row"
        raise DataError(f"cannot make a report: nothing in the dataset can be shown: {reasons}")
    try:
        for folder in (out / TABLES, out / FIGURES):
            folder.mkdir(parents=True, exist_ok=True)
        shown = []
        for chapter in shown_chapters:
            parts = []
            for exhibit in chapter.exhibits:
                progress(exhibit.title)
                parts.append(_item(study, exhibit, out, command))
            shown.append(ShownChapter(chapter.title, parts))
        items = [item for chapter in shown for item in chapter.items]
        missing = [*study.tables.missing, *(f"{item.exhibit.title}: {item.gap}" for item in items if item.gap)]
        sentences = findings(study)
        lines = worst_lines(study.incidents, study.job_names, _MOST_LINES, format_utc)
        environment = Environment(autoescape=True, undefined=StrictUndefined)
        environment.filters["marked"] = _marked
        page = environment.from_string(_PAGE.read_text(encoding="utf-8")).render(
            title=title,
            basis=_basis_of(study, ""),
            command=command,
            version=__version__,
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            chapters=[chapter for chapter in shown if chapter.shown],
            findings=sentences,
            incidents=lines,
            missing=missing,
        )
        (out / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write the report to {out}: {error.strerror}; choose another --out") from None
    tables, figures = sum(len(item.files) for item in items), sum(bool(item.image) for item in items)
    return Written(out / PAGE, tables, figures, [*lines, *sentences], missing)


def _item(study: Study, exhibit: Exhibit, out: Path, command: str) -> Item:
    """The exhibit with what can be shown of it: data that one cannot make sense of do not take the others along."""
    for earlier in [*(out / TABLES).glob(f"{exhibit.name}.csv"), out / FIGURES / f"{exhibit.name}.png"]:
        earlier.unlink(missing_ok=True)
    try:
        frames = {name: _with_names(frame, study.job_names) for name, frame in exhibit.tables(study).items()}
    except Exception as error:
        return Item(exhibit, gap=_reason(exhibit, error))
    files = _write_tables(exhibit.name, frames, out)
    about = _basis(study, frames, command)
    first = next(iter(frames.values()))
    if exhibit.draw is None:
        return Item(exhibit, basis=about, html=_as_html(first, exhibit.rows), files=files)
    try:
        image, about = _draw(exhibit.draw, frames, about)
    except Exception as error:
        return Item(exhibit, files=files, gap=_reason(exhibit, error))
    (out / FIGURES / f"{exhibit.name}.png").write_bytes(image)
    html = _as_html(first[[*exhibit.shown]], exhibit.rows) if exhibit.shown else ""
    return Item(exhibit, basis=about, image=base64.b64encode(image).decode(), html=html, files=files)


def _with_names(frame: "pd.DataFrame", names: Mapping[str, str]) -> "pd.DataFrame":
    """Jobs as people call them; where no lab was, a run is called as its job."""
    called = {name: frame[name].replace(dict(names)) for name in ("job", "run") if names and name in frame}
    return frame.assign(**called)


def _reason(exhibit: Exhibit, error: Exception) -> str:
    if isinstance(error, GapError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        raise error
    _LOG.debug("cannot show %s", exhibit.name, exc_info=error)
    return f"the data could not be understood ({type(error).__name__}: {error})"


def _write_tables(name: str, frames: Frames, out: Path) -> tuple[str, ...]:
    files = []
    for index, (part, frame) in enumerate(frames.items()):
        path = Path(TABLES, f"{name}.csv" if index == 0 else f"{name}-{part}.csv")
        without_formulas(frame).to_csv(out / path, index=False)
        files.append(path.as_posix())
    return tuple(files)


def _basis(study: Study, frames: Frames, command: str) -> str:
    """Names the runs of the first table, where it has them, and counts its own iterations."""
    first = next(iter(frames.values()))
    runs = sorted(set(first["run"].dropna().astype(str)) - {""}) if "run" in first else []
    known = [run for run in runs if run in set(study.runs["run"])]
    iterations = int(study.times["run"].isin(known).sum()) if known else len(study.times)
    return _basis_of(study, command, known, iterations)


def _draw(draw: Callable[..., None], frames: Frames, about: str) -> tuple[bytes, str]:
    """The figure as PNG with its basis below it, so that it can be passed on alone; and the basis."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from netmon.report.style import DPI, SETTINGS, add_foot, without_mathematics

    with rc_context(SETTINGS):
        figure = Figure(figsize=(8.6, 3.6), dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        draw(figure, **{name: without_mathematics(frame) for name, frame in frames.items()})
        whole = " · ".join(text for text in (str(figure.get_label()), about) if text)
        add_foot(figure, whole)
        image = io.BytesIO()
        # It draws once, where savefig() draws a second time for the layout.
        canvas.print_png(image)  # type: ignore[no-untyped-call]
        return image.getvalue(), whole
