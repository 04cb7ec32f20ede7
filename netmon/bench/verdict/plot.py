# SPDX-License-Identifier: Apache-2.0
"""The confusion matrix as a picture. Needs matplotlib."""

from pathlib import Path

import numpy as np

from netmon.bench.verdict.campaign import VerdictResult
from netmon.bench.verdict.table import ORDER
from netmon.errors import DataError


def plot(result: VerdictResult, path: Path) -> None:
    """Shares of each injected cause by the verdict's, with the counts; of nothing, an empty picture.

    The file's type is by its name. Raises DataError.
    """
    from matplotlib.figure import Figure

    confusion = result.confusion
    rows = [cause for cause in ORDER if cause in confusion]
    columns = [cause for cause in ORDER if any(cause in row for row in confusion.values())]
    counts = np.array([[confusion[row].get(column, 0) for column in columns] for row in rows]).reshape(
        len(rows), len(columns)
    )
    figure = Figure(figsize=(1.5 + 0.8 * max(1, len(columns)), 1.2 + 0.5 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    if counts.size:
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            dark = counts[row, column] > counts[row].sum() / 2
            axes.text(column, row, str(count), ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), [name.replace("_", " ") for name in columns], rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    axes.set_xlabel("told")
    axes.set_ylabel("injected")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw {path}: {error}") from None
