# SPDX-License-Identifier: Apache-2.0
"""What netmon knows of each step, where experiments are logged: TensorBoard, Weights & Biases, MLflow.

    optimizer = watch(optimizer)
    scalars = Scalars(optimizer, "collector:9400", SummaryWriter("runs/1"))
    for batch in loader:
        …
        scalars.write()

A writer is what the script has already: a SummaryWriter (torch.utils.tensorboard, tensorboardX), a run of wandb, the
module mlflow. Nothing is imported; who cannot be written to is left out, counted, and the training goes on.
"""

from collections.abc import Callable, Mapping
from typing import Any

from netmon.training.known import Known
from netmon.training.steps import Steps

PREFIX = "netmon/"
_SECONDS = {
    "duration_ns": "step_s",
    "exposed_ns": "waited_for_gradients_s",
    "communication_ns": "communication_s",
    "excess_ns": "beyond_usual_s",
}
_BYTES = ("sent_bytes", "others_bytes")

Write = Callable[[int, Mapping[str, float], str], None]
"""Of a step: its number, scalars by name, and why it was slow (empty: it was not, or nobody knows yet)."""


def scalars_of(step: Mapping[str, Any]) -> dict[str, float]:
    """A step, as Known.take gives it → name → value: seconds and bytes."""
    found = {PREFIX + name: step[key] / 1e9 for key, name in _SECONDS.items() if step.get(key) is not None}
    return found | {PREFIX + key: float(step[key]) for key in _BYTES if step.get(key) is not None}


class Scalars:
    """Writes what is new of the last steps whenever `write` is called; only rank 0 asks, unless set otherwise."""

    def __init__(
        self, watched: Any, collector: str, *writers: Any, tls: str = "", every_rank: bool = False, known: Any = None
    ) -> None:
        """watched: an optimizer that was given to `watch`, or Steps. collector, tls: as of Known. Never raises."""
        self.failures = 0
        self._writes: list[Write] = []
        steps = getattr(watched, "netmon", watched)
        ours = isinstance(steps, Steps) and (every_rank or steps.rank == 0)
        self.known = known or Known(steps, collector if ours else "", tls)
        for writer in writers:
            try:
                self._writes.append(_writing(writer))
            except Exception:
                self.failures += 1

    def write(self) -> None:
        """What has come since the last call; never waits for netmon, never raises."""
        for step in self.known.take():
            values, why = scalars_of(step), str(step.get("verdict", ""))
            for write in self._writes:
                try:
                    write(int(step["iteration"]), values, why)
                except Exception:
                    self.failures += 1

    def close(self) -> None:
        """Write the rest, and ask no more."""
        self.write()
        self.known.close()


def _writing(writer: Any) -> Write:
    if callable(getattr(writer, "add_scalar", None)):  # TensorBoard

        def to_tensorboard(number: int, values: Mapping[str, float], why: str) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, number)
            if why:
                writer.add_text(f"{PREFIX}verdict", why, number)

        return to_tensorboard
    if callable(getattr(writer, "log_metrics", None)):  # MLflow: nothing is waited for

        def to_mlflow(number: int, values: Mapping[str, float], why: str) -> None:
            writer.log_metrics(dict(values), step=number, synchronous=False)

        return to_mlflow
    if callable(getattr(writer, "log", None)):  # Weights & Biases: its own step only grows, and ours comes late
        axis = f"{PREFIX}iteration"
        if callable(getattr(writer, "define_metric", None)):
            writer.define_metric(axis)
            writer.define_metric(f"{PREFIX}*", step_metric=axis)

        def to_wandb(number: int, values: Mapping[str, float], why: str) -> None:
            writer.log({axis: number, **values, **({f"{PREFIX}verdict": why} if why else {})})

        return to_wandb
    if callable(writer):
        given: Write = writer
        return given
    raise TypeError(f"nothing can be written to a {type(writer).__name__}")
