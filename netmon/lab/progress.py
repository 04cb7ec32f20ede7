# SPDX-License-Identifier: Apache-2.0
"""How far a run is, for its user: a bar on a terminal, a line now and then elsewhere. On standard error."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from netmon.lab.run import Progress
from netmon.lab.spec import RunSpec
from netmon.lab.sweep import SweepProgress

_LINES = 10


@contextlib.contextmanager
def shown(spec: RunSpec) -> Iterator[Callable[[Progress], None]]:
    """A function that shows the progress it is given."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(spec, console)
        return
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=spec.iterations)
        yield lambda progress: bar.update(
            task,
            completed=progress.iterations_done,
            description="cross traffic" if progress.cross else "training",
        )


@contextlib.contextmanager
def sweep_shown() -> Iterator[Callable[[SweepProgress], None]]:
    """A function that shows the progress of a sweep: a bar with the time left, or a line for every run."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _SweepLines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1, left="")

        def show(progress: SweepProgress) -> None:
            done = progress.number - 1 + progress.iterations_done / progress.iterations
            left = f"about {_minutes(progress.seconds_left)} left"
            bar.update(task, completed=done, total=progress.runs, description=_name(progress), left=left)

        yield show


class _SweepLines:
    """Prints a line when a run begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0

    def __call__(self, progress: SweepProgress) -> None:
        if progress.number != self._shown:
            self._shown = progress.number
            self._console.print(f"{_name(progress)}, about {_minutes(progress.seconds_left)} left", soft_wrap=True)


def _name(progress: SweepProgress) -> str:
    return f"run {progress.number} of {progress.runs}: {progress.run.id}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class _Lines:
    """Prints about ten lines in all, and one when the cross traffic begins."""

    def __init__(self, spec: RunSpec, console: Console) -> None:
        self._every = max(1, spec.iterations // _LINES)
        self._console = console
        self._shown: tuple[int, bool] = (-1, False)

    def __call__(self, progress: Progress) -> None:
        stage = (progress.iterations_done // self._every, progress.cross)
        if stage != self._shown:
            self._shown = stage
            cross = ", with cross traffic" if progress.cross else ""
            self._console.print(f"iteration {progress.iterations_done} of {progress.iterations}{cross}")
