# SPDX-License-Identifier: Apache-2.0
"""What `netmon lab` shows: how far a run is, and what came of it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from netmon.lab.run import Progress
from netmon.lab.spec import RunSpec
from netmon.lab.sweep import SweepProgress
from netmon.own_module import typed
from netmon.report.summary import summarise
from netmon.terminal import BREAK, FittingTable, figures, labels
from netmon.units import format_bytes, format_duration, format_rate

# --- How far it is: a bar on a terminal, a line now and then elsewhere. On standard error.

_LINES = 10


@contextlib.contextmanager
def shown(spec: RunSpec) -> Iterator[Callable[[Progress], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        every, stage = max(1, spec.iterations // _LINES), (-1, False)

        def line(progress: Progress) -> None:
            """About ten in all, and one when the cross traffic begins."""
            nonlocal stage
            if (now := (progress.iterations_done // every, progress.cross)) != stage:
                stage = now
                cross = ", with cross traffic" if progress.cross else ""
                console.print(f"iteration {progress.iterations_done} of {progress.iterations}{cross}")

        yield line
        return
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=spec.iterations)
        yield lambda progress: bar.update(
            task, completed=progress.iterations_done, description="cross traffic" if progress.cross else "training"
        )


@contextlib.contextmanager
def sweep_shown() -> Iterator[Callable[[SweepProgress], None]]:
    """A function that shows the progress of a sweep: a bar with the time left, or a line for every run."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        begun = 0

        def line(progress: SweepProgress) -> None:
            nonlocal begun
            if progress.number != begun:
                begun = progress.number
                left = f"about {format_duration(1e9 * progress.seconds_left)} left"
                console.print(f"{_name(progress)}, {left}", soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1, left="")

        def show(progress: SweepProgress) -> None:
            done = progress.number - 1 + progress.iterations_done / progress.iterations
            left = f"about {format_duration(1e9 * progress.seconds_left)} left"
            bar.update(task, completed=done, total=progress.runs, description=_name(progress), left=left)

        yield show


def _name(progress: SweepProgress) -> str:
    return f"run {progress.number} of {progress.runs}: {progress.run.id}"


# --- What `netmon lab` prints when a sweep is over.

_QUALITY = "how well netmon measured it: iterations of all ranks, and distance from the trainers' log (median, p99)"


def print_sweep(document: Mapping[str, Any], console: Console) -> None:
    """A sweep, as netmon.lab.outcome.sweep_document() gives it: iteration times, and how well netmon measured them."""
    runs = [run for run in document["runs"] if "median_ns" in run]
    watched = [run for run in runs if "sources" in run]
    for table in sweep_tables(runs):
        console.print(table)
        console.print()
    for line in (*_models(document["models"]), *_overall(watched)):
        console.print(line, soft_wrap=True)
    data = _short(Path(document["data"]))
    console.print(f"dataset: {data}; next: {typed('netmon')} report {data} --out {data}/report", soft_wrap=True)


def sweep_tables(runs: list[dict[str, Any]]) -> Iterator[FittingTable]:
    """How well each run was measured, if any was watched, and iteration times."""
    if watched := [run for run in runs if "sources" in run]:
        yield _accuracy(watched)
    yield _times(runs)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> FittingTable:
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


# --- lab_results


def print_run(data: Path, document: Mapping[str, Any], console: Console) -> None:
    """A run, as netmon.lab.outcome.run_document() gives it, with the summary of its dataset."""
    monitored = document["spec"]["monitor"]
    if monitored:
        summarise(data).print(console)
    senders = [sender for sender in document["cross"] if "bytes_sent" in sender]
    for line in (*_model(document["spec"]), *map(_sender, senders), _log(document["log"])):
        console.print(line, soft_wrap=True)
    if monitored:
        if not document["sources"]:
            console.print("iterations found: none, by any source")
        for source in document["sources"]:
            _print_source(source, console)
        for score in document["scores"]:
            console.print(_score(score), soft_wrap=True)
        console.print(_classes(document["classification"]), soft_wrap=True)
        _print_next(data, console)


def _model(spec: Mapping[str, Any]) -> list[str]:
    if not spec["model"]:
        return []
    return [
        f"model: {spec['model']}, its tensors × {spec['size_scale']:g} (the link's rate / 10 Gbit/s), computing "
        f"{format_duration(spec['compute_ns'])} for {spec['batch']} samples, derived from published times of a V100"
    ]


def _sender(sender: Mapping[str, Any]) -> str:
    line = f"cross traffic, by its sender: {sender['from']} to {sender['to']}, {format_bytes(sender['bytes_sent'])}"
    if "achieved_bps" in sender:
        offered = sender["bytes_offered"] * 8 / sender["seconds"]
        line += f" in {sender['flows']} flows, {format_rate(sender['achieved_bps'])} of {format_rate(offered)} offered"
    if sender.get("lateness_us"):
        late = [format_duration(1000 * sender["lateness_us"][share]) for share in ("median", "p99")]
        line += f", begun {late[0]} late (median; p99 {late[1]})"
    return line


def _log(log: Mapping[str, Any]) -> str:
    lines = [
        f"{log[which]['iterations']} iterations {when} cross traffic, median {format_duration(log[which]['median_ns'])}"
        for which, when in (("quiet", "without"), ("disturbed", "with"))
        if log[which]["iterations"]
    ]
    return f"the trainers' own log: {'; '.join(lines)}"


def _print_source(source: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{source['source']}: iterations found: {source['found']} of {source['logged']}, invented: {source['invented']}"
    )
    for moment, errors in source["errors"].items():
        median, p99, worst = (format_duration(errors[f"{name}_ns"]) for name in ("median", "p99", "largest"))
        left_out = (
            f"; {errors['left_out']} left out, whose timestamp was delayed by preemption" if errors["left_out"] else ""
        )
        console.print(
            f"  {moment} against the log: median {median}, p99 {p99}, largest {worst}{left_out}", soft_wrap=True
        )


def _score(score: Mapping[str, Any]) -> str:
    return (
        f"{score['source']} against {score['reference']}: {score['matched']} of the last {score['iterations']} "
        f"iterations, {score['found'] - score['matched']} others, F1 {score['f1']:.3f}, "
        f"median distance {format_duration(score['error_ns'])}"
    )


def _classes(known: Mapping[str, Any]) -> str:
    return (
        f"bytes in the right class: {known['right_share']:.4%}; "
        f"wrong: {format_bytes(known['wrong_bytes'])}, unclassified: {format_bytes(known['unclassified_bytes'])}"
    )


def _print_next(data: Path, console: Console) -> None:
    data, netmon = _short(data), typed("netmon")
    console.print(
        f"dataset: {data}; next:\n"
        f"  {netmon} why --data {data}\n"
        f"  {netmon} advise --data {data}\n"
        f"  {netmon} top --data {data}\n"
        f"  {netmon} web --data {data}\n"
        f"  {netmon} report {data} --out {data}/report\n"
        f"  {netmon} export --data {data} --out iterations.csv\n"
        f"  {typed('python')} -c \"import pandas; print(pandas.read_parquet('{data}/iterations'))\"",
        soft_wrap=True,
    )


def _short(data: Path) -> Path:
    return data.relative_to(Path.cwd()) if data.is_relative_to(Path.cwd()) else data
