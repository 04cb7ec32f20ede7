# SPDX-License-Identifier: Apache-2.0
"""The report's exhibits one by one: their tables and figures, for a notebook."""

from typing import TYPE_CHECKING

import pandas as pd

from netmon.analysis.plots import plot_style
from netmon.errors import DataError, UnsupportedError
from netmon.own_module import to_install
from netmon.report.study import Chapter, Exhibit, Frames, GapError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from netmon.report.study import Study


def contents() -> pd.DataFrame:
    """A row per exhibit: chapter, name, title, follows (the figure or equation that it repeats)."""
    return pd.DataFrame(
        [
            (chapter.title, exhibit.name, exhibit.title, exhibit.follows)
            for chapter in _chapters()
            for exhibit in chapter.exhibits
        ],
        columns=["chapter", "name", "title", "follows"],
    )


def tables(study: "Study", name: str) -> dict[str, pd.DataFrame]:
    """By name. Raises DataError where there is no such exhibit, or the dataset does not have what it shows."""
    return dict(_frames(study, _named(name)))


def figure(study: "Study", name: str) -> "Figure":
    """Drawn. Raises DataError, also where the exhibit is a table only."""
    exhibit = _named(name)
    if exhibit.draw is None:
        raise DataError(f"cannot draw {name}: it is a table; ask for exhibit({name!r})")
    with plot_style():
        from matplotlib.figure import Figure

        from netmon.report.style import without_mathematics

        drawn = Figure(figsize=(8.6, 3.6), layout="constrained")
        frames = {part: without_mathematics(frame) for part, frame in _frames(study, exhibit).items()}
        try:
            exhibit.draw(drawn, **frames)
        except GapError as gap:
            raise DataError(f"cannot draw {name}: {gap}") from None
        return drawn


def _frames(study: "Study", exhibit: Exhibit) -> Frames:
    try:
        return exhibit.tables(study)
    except GapError as gap:
        raise DataError(f"cannot show {exhibit.name}: {gap}") from None


def _named(name: str) -> Exhibit:
    known = {exhibit.name: exhibit for chapter in _chapters() for exhibit in chapter.exhibits}
    if name not in known:
        raise DataError(f"no exhibit {name}: there are {', '.join(known)}")
    return known[name]


def _chapters() -> tuple[Chapter, ...]:
    try:
        from netmon.report.report import chapters

        return chapters()
    except ImportError as error:
        raise UnsupportedError(
            f"cannot show an exhibit: {error.name} is not installed; {to_install('report')}"
        ) from None
