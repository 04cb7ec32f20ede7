# SPDX-License-Identifier: Apache-2.0
"""What `netmon lab` prints when a sweep is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.own_module import typed
from netmon.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from netmon.terminal import FittingTable

_QUALITY = "how well netmon told it: iterations of all ranks, and distance from the trainers' log (median, p99)"


def print_sweep(document: Mapping[str, Any], console: Console) -> None:
    """A sweep, as netmon.lab.outcome.sweep_document() gives it: iteration times, and how well netmon measured them."""
    runs = [run for run in document["runs"] if "median_ns" in run]
    watched = [run for run in runs if "sources" in run]
    for table in sweep_tables(runs):
        console.print(table)
        console.print()
    for line in (*_models(document["models"]), *_overall(watched)):
        console.print(line, soft_wrap=True)
    data = Path(document["data"])
    data = data.relative_to(Path.cwd()) if data.is_relative_to(Path.cwd()) else data
    console.print(f"dataset: {data}; next: {typed('netmon')} report {data} --out {data}/report", soft_wrap=True)


def sweep_tables(runs: list[dict[str, Any]]) -> Iterator[FittingTable]:
    """How well each run was measured, if any was watched, and iteration times."""
    if watched := [run for run in runs if "sources" in run]:
        yield _accuracy(watched)
    yield _times(runs)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> FittingTable:
    from netmon.terminal import FittingTable, figures, labels

    return FittingTable([*labels(*left), *figures(*right)], title)


def _times(runs: list[dict[str, Any]]) -> FittingTable:
    levels = sorted({run["level"] for run in runs})
    title = "Iteration time (median) by cross traffic, as the trainers logged it"
    table = _table(title, ("model", "cross traffic"), [f"{level:.0%}" for level in levels])
    for model, profile in dict.fromkeys((run["model"], run["profile"]) for run in runs):
        times = {run["level"]: run["median_ns"] for run in runs if (run["model"], run["profile"]) == (model, profile)}
        table.add_row(model, profile, *(format_duration(times[level]) if level in times else "" for level in levels))
    return table


def _accuracy(runs: list[dict[str, Any]]) -> FittingTable:
    headings = ("found", "invented", "start", "first enqueue", "last wait", "end", "right class")
    table = _table(f"Each run, {_QUALITY}", ("run", "source"), headings)
    for run in runs:
        for source in run["sources"]:
            moments = (_moment(source["errors"].get(name)) for name in _MOMENTS)
            found, right = f"{source['found']}/{source['logged']}", f"{run['classification']['right_share']:.3%}"
            table.add_row(run["id"], source["source"], found, str(source["invented"]), *moments, right)
    return table


_MOMENTS = ("step_start", "first_enqueue", "last_wait", "step_end")


def _moment(errors: Mapping[str, Any] | None) -> str:
    from netmon.terminal import BREAK

    return f"{format_duration(errors['median_ns'])},{BREAK}{format_duration(errors['p99_ns'])}" if errors else ""


def _overall(runs: list[dict[str, Any]]) -> Iterator[str]:
    """All runs together, source by source."""
    sources = [source for run in runs for source in run["sources"]]
    for name in dict.fromkeys(source["source"] for source in sources):
        total = _sums([source for source in sources if source["source"] == name])
        yield f"{name}: iterations found: {total('found')} of {total('logged')}, invented: {total('invented')}"
    scores = [score for run in runs for score in run["scores"]]
    for name, reference in dict.fromkeys((score["source"], score["reference"]) for score in scores):
        alike = [score for score in scores if (score["source"], score["reference"]) == (name, reference)]
        total, worst = _sums(alike), min(score["f1"] for score in alike)
        yield (
            f"{name} against {reference}: {total('matched')} of {total('iterations')} iterations, "
            f"{total('found') - total('matched')} others; the worst run's F1 {worst:.3f}"
        )
    if runs:
        total = _sums([run["classification"] for run in runs])
        right, wrong, unclassified = (total(f"{kind}_bytes") for kind in ("right", "wrong", "unclassified"))
        share = right / max(1, right + wrong + unclassified)
        yield (
            f"bytes in the right class: {share:.4%}; wrong: {format_bytes(wrong)}, "
            f"unclassified: {format_bytes(unclassified)}"
        )


def _sums(rows: list[dict[str, Any]]) -> Callable[[str], int]:
    return lambda name: sum(row[name] for row in rows)


def _models(models: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "sizes of tensors and flows are the published ones × the link's rate / 10 Gbit/s; computing is derived from "
        "published times of a V100 (see netmon/lab/spec.py)"
    )
    for model in models:
        yield (
            f"{model['model']}: a quiet iteration takes t₀ = {format_duration(model['quiet_ns'])} and sends "
            f"D = {format_bytes(model['theory_bytes'])} (3.1), so theory has the congestion point at "
            f"1 − 8·D/(t₀·C) = {model['congestion_point']:.0%} of the link"
        )
