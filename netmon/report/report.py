# SPDX-License-Identifier: Apache-2.0
"""Making the report: every exhibit's tables and figure, and the page."""

import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.errors import DataError
from netmon.history.frames import without_formulas
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError
from netmon.report.page import Item, ShownChapter, as_html, basis, encoded, render
from netmon.report.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PAGE, TABLES, FIGURES = "report.html", "tables", "figures"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """What a report consists of."""

    page: Path
    tables: int
    figures: int
    findings: list[str]
    missing: list[str]


def chapters() -> tuple[Chapter, ...]:
    """The table of contents."""
    from netmon.report.chapters import (
        accounts,
        bandwidth,
        burstiness,
        patterns,
        sharing,
        slowdown,
        throughput,
        traces,
        volumes,
    )

    modules = (slowdown, bandwidth, traces, volumes, throughput, patterns, sharing, burstiness, accounts)
    return tuple(module.CHAPTER for module in modules)


def write_report(
    study: Study, out: Path, command: str, title: str, progress: Callable[[str], None] = lambda name: None
) -> Written:
    """Write OUT/report.html, OUT/tables/*.csv and OUT/figures/*.png; blocks. Files of an earlier report are replaced.

    progress is called with each exhibit before it is made. Raises DataError where nothing can be shown, or not be
    written.
    """
    from netmon.report.findings import findings

    nothing = not len(study.ranks) and study.traffic is None and not study.tables.rows("ledger")
    if nothing:
        reasons = "; ".join(study.tables.missing) or "no table has a row"
        raise DataError(f"cannot make a report: nothing in the dataset can be shown: {reasons}")
    try:
        for folder in (out / TABLES, out / FIGURES):
            folder.mkdir(parents=True, exist_ok=True)
        shown = [_chapter(study, chapter, out, command, progress) for chapter in chapters()]
        items = [item for chapter in shown for item in chapter.items]
        missing = [*study.tables.missing, *(f"{item.title}: {item.gap}" for item in items if item.gap)]
        sentences = findings(study)
        (out / PAGE).write_text(render(study, command, shown, sentences, missing, title), encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write the report to {out}: {error.strerror}; choose another --out") from None
    tables, figures = sum(len(item.files) for item in items), sum(bool(item.image) for item in items)
    return Written(out / PAGE, tables, figures, sentences, missing)


def _chapter(study: Study, chapter: Chapter, out: Path, command: str, progress: Callable[[str], None]) -> ShownChapter:
    items = []
    for exhibit in chapter.exhibits:
        progress(exhibit.title)
        items.append(_item(study, exhibit, out, command))
    return ShownChapter(chapter.title, items)


def _item(study: Study, exhibit: Exhibit, out: Path, command: str) -> Item:
    """The exhibit with what can be shown of it: data that one cannot make sense of do not take the others along."""
    same: Any = {"name": exhibit.name, "title": exhibit.title, "follows": exhibit.follows, "text": exhibit.text}
    for earlier in [*(out / TABLES).glob(f"{exhibit.name}.csv"), out / FIGURES / f"{exhibit.name}.png"]:
        earlier.unlink(missing_ok=True)
    try:
        frames = {name: _with_names(frame, study.job_names) for name, frame in exhibit.tables(study).items()}
    except Exception as error:
        return Item(**same, gap=_reason(exhibit, error))
    files = _write_tables(exhibit.name, frames, out)
    about = _basis(study, frames, command)
    first = next(iter(frames.values()))
    if exhibit.draw is None:
        return Item(**same, basis=about, html=as_html(first, exhibit.rows), files=files)
    try:
        plain, with_basis, about = _draw(exhibit.draw, frames, about)
    except Exception as error:
        return Item(**same, files=files, gap=_reason(exhibit, error))
    (out / FIGURES / f"{exhibit.name}.png").write_bytes(with_basis)
    return Item(**same, basis=about, image=encoded(plain), files=files)


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
    return basis(study, command, known, iterations)


def _draw(draw: Callable[..., None], frames: Frames, about: str) -> tuple[bytes, bytes, str]:
    """The figure as PNG, for the page; with its basis below it, so that it can be passed on alone; and the basis."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from netmon.report.figures.style import SETTINGS, add_foot, without_mathematics

    with rc_context(SETTINGS):
        figure = Figure(figsize=(8.6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, **{name: without_mathematics(frame) for name, frame in frames.items()})
        plain = _png(figure)
        whole = " · ".join(text for text in (str(figure.get_label()), about) if text)
        add_foot(figure, whole)
        return plain, _png(figure), whole


def _png(figure: "Figure") -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()
