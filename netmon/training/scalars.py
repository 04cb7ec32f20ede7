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

import json
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from netmon.training.steps import Steps

if TYPE_CHECKING:
    import subprocess


_MOST_STEPS = 1000
_MOST_BYTES = 1 << 18  # at a look; what is left waits in the pipe
_LONGEST_LINE = 1 << 16
_AGAIN_S = 30.0
PYTHON_VARIABLE = "NETMON_PYTHON"


class Known:
    """Of one rank. `take` gives what is new."""

    def __init__(self, steps: Steps, collector: str = "", tls: str = "", command: list[str] | None = None) -> None:
        """collector: HOST:PORT or unix:PATH. tls: a folder with certificates (netmon certificates); "": plaintext.

        command: instead of `netmon steps`, run by this interpreter, or the one that NETMON_PYTHON names where the
        script's own lacks grpc.
        """
        self.failures = 0
        self.error = ""  # why nothing comes; empty: nothing is known to be wrong
        self._steps = steps
        self._command = command or _command(steps, collector, tls)
        self._process: subprocess.Popen[bytes] | None = None
        self._again_s = 0.0
        self._rest = b""
        self._pid = os.getpid()
        self._known: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read from a file, knows nothing."""
        return Known, (self._steps, "", "", [])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The last ones of which something is known, oldest first, at most 1,000: see `take`."""
        return list(self._known.values())

    def take(self) -> list[dict[str, Any]]:
        """Steps of which something new is known, oldest first; never waits, never raises.

        Each has `iteration` and, once known: duration_ns, communication_ns, exposed_ns (waited for gradients),
        sent_bytes, others_bytes (payload of others on the host's links meanwhile), theory_bytes, baseline_ns (by the
        durations of the steps before it only); cause, culprit, excess_ns and verdict (a sentence) where it was slow;
        incident (a line), incident_since_ns and incident_lost_ns where it is one of many with one culprit.
        """
        try:
            return self._take()
        except Exception as error:
            self.failures += 1
            self.error = f"{type(error).__name__}: {error}"
            return []

    def close(self) -> None:
        """Ends the process that asks."""
        process, self._process = self._process, None
        if process is not None and os.getpid() == self._pid:
            try:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()
            except Exception:
                self.failures += 1

    def _take(self) -> list[dict[str, Any]]:
        if os.getpid() != self._pid or not self._command:  # in a child, such as a data loader
            return []
        self._begin()
        process = self._process
        if process is None or process.stdout is None:
            return []
        try:
            data = os.read(process.stdout.fileno(), _MOST_BYTES)
        except BlockingIOError:
            return []
        if not data:
            self.error = f"netmon steps has ended with status {process.wait()}; it is tried again"
            self.close()
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        new = OrderedDict[int, None]()
        for line in lines:
            fact = json.loads(line)
            number = int(fact["iteration"])
            self._known.setdefault(number, {}).update(fact)
            new[number] = None
        found = [self._known[number] for number in new]
        while len(self._known) > _MOST_STEPS:
            self._known.popitem(last=False)
        return found

    def _begin(self) -> None:
        import subprocess

        now = time.monotonic()
        if self._process is not None or now < self._again_s:
            return
        self._again_s = now + _AGAIN_S
        self._rest = b""
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
        if self._process.stdout:
            os.set_blocking(self._process.stdout.fileno(), False)


def _command(steps: Steps, collector: str, tls: str) -> list[str]:
    if not collector:
        return []
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    where = ["--collector", collector, *(["--tls", tls] if tls else [])]
    return [python, "-m", "netmon", "steps", steps.job, "--rank", str(steps.rank), *where, "--json"]


PREFIX = "netmon/"
_SECONDS = {
    "duration_ns": "step_s",
    "exposed_ns": "waited_for_gradients_s",
    "communication_ns": "communication_s",
    "excess_ns": "beyond_baseline_s",
    "incident_lost_ns": "incident_lost_s",
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
            values = scalars_of(step)
            why = " · ".join(str(step[name]) for name in ("verdict", "incident") if step.get(name))
            for write in self._writes:
                try:
                    write(int(step["iteration"]), values, why)
                except Exception:
                    self.failures += 1

    def close(self) -> None:
        """Write the rest, and query no more."""
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


# --- Callbacks for the training loops of others: Lightning, Hugging Face's Trainer, Keras.
#
# Each takes its base class from what the script has imported.


_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(scalars: Scalars) -> Any:
    """For Trainer(callbacks=[…]). Raises LookupError where the script has not imported Lightning."""

    class _Lightning(_base(_LIGHTNING, "Callback")):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            scalars.write()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            scalars.close()

    return _Lightning()


def transformers_callback(scalars: Scalars) -> Any:
    """For Trainer(callbacks=[…]). Raises LookupError where the script has not imported transformers."""

    class _Transformers(_base(("transformers",), "TrainerCallback")):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            scalars.write()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            scalars.close()

    return _Transformers()


def keras_scalars(scalars: Scalars) -> Any:
    """For model.fit(callbacks=[…]). Raises LookupError where the script has not imported Keras."""

    class _Keras(_base(("keras.callbacks", "keras", "tensorflow.keras.callbacks"), "Callback")):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            scalars.write()

        def on_train_end(self, logs: Any = None) -> None:
            scalars.close()

    return _Keras()


def _base(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        if module in sys.modules and (found := getattr(sys.modules[module], name, None)) is not None:
            return found
    raise LookupError(f"none of {', '.join(modules)} is imported: import it before its callback is made")


def keras_callback(**identity: Any) -> Any:
    """A Keras callback that marks every training batch as a step. identity: as of Steps."""
    from keras.callbacks import Callback

    class _Callback(Callback):  # type: ignore[misc]
        _steps: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            if "parameters" not in identity:
                identity["parameters"] = int(self.model.count_params())
            if self._steps:  # it has failed, as an elastic job does, and trains again
                self._steps.close()
            self._steps = Steps(**identity)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._steps.end()

        def on_train_end(self, logs: Any = None) -> None:
            self._steps.close()

    return _Callback()
