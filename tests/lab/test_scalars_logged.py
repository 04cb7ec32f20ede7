# SPDX-License-Identifier: Apache-2.0
"""What netmon knows of each step, in real training loops and written by the real libraries of experiments.

A real collector tells of a synthetic rank; the loops are PyTorch's own, Lightning's, Hugging Face's and Keras'.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from collector_thread import collecting
from sent_agent import Sent

HERE = Path(__file__).parent

SCRIPT = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
kind, address, folder = sys.argv[2:]
import mlflow, torch, wandb
from torch.utils.tensorboard import SummaryWriter
from netmon.training import Scalars, Steps, keras_callback, keras_scalars, watch
from netmon.training import lightning_callback, transformers_callback

torch.set_num_threads(1)
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
mine = mlflow.start_run()
run = wandb.init(mode="offline", dir=folder, project="x")
board = SummaryWriter(f"{folder}/board")
seen = []
ENOUGH, MOST = 3, 8_000

def scalars_of(watched):
    return Scalars(watched, address, board, run, mlflow, lambda number, values, why: seen.append((number, values)))

def done():
    time.sleep(0.02)
    return len(seen) >= ENOUGH

def loss_of(model, batch):
    return (model(batch) - batch.sum(-1, keepdim=True)).pow(2).mean()

def pytorch():
    model = torch.nn.Linear(4, 1)
    optimizer = watch(torch.optim.SGD(model.parameters(), lr=0.01), "train", 0, 2)
    scalars = scalars_of(optimizer)
    for _ in range(MOST):
        optimizer.zero_grad()
        loss_of(model, torch.randn(8, 4)).backward()
        optimizer.step()
        scalars.write()
        if done():
            break
    scalars.close()
    return scalars

def lightning():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            self.trainer.should_stop = done()
            return loss_of(self.model, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    scalars = scalars_of(Steps("train", 0, 2))
    loader = torch.utils.data.DataLoader(torch.randn(MOST, 4), batch_size=1)
    quiet = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
    common = dict(max_epochs=1, min_steps=1, accelerator="cpu", default_root_dir=folder)
    common |= dict.fromkeys(quiet, False)
    pl.Trainer(callbacks=[lightning_callback(scalars)], **common).fit(Module(), loader)
    return scalars

def transformers():
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(4, 1)

        def forward(self, batch):
            return {"loss": loss_of(self.model, batch)}

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            control.should_training_stop = done()

    scalars = scalars_of(Steps("train", 0, 2))
    arguments = transformers.TrainingArguments(
        folder + "/hf", max_steps=MOST, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=1, logging_strategy="no", remove_unused_columns=False,
    )
    rows = [{"batch": row} for row in torch.randn(64, 4)]
    callbacks = [transformers_callback(scalars), Stop()]
    transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=callbacks).train()
    return scalars

def keras():
    import keras, keras.callbacks, numpy

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = done()

    scalars = scalars_of(Steps("train", 0, 2))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    rows = numpy.random.rand(64, 4)
    callbacks = [keras_scalars(scalars), keras_callback(job="train", rank=0, size=2), Stop()]
    model.fit(rows, rows.sum(1), batch_size=4, epochs=MOST // 16, verbose=0, callbacks=callbacks)
    return scalars

scalars = {"pytorch": pytorch, "lightning": lightning, "transformers": transformers, "keras": keras}[kind]()
board.close()
mlflow.flush_async_logging()
history = {m.step: m.value for m in mlflow.MlflowClient().get_metric_history(mine.info.run_id, "netmon/step_s")}
last = dict(run.summary)
run.finish()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(f"{folder}/board")
events.Reload()
shown = {e.step: e.value for e in events.Scalars("netmon/step_s")}
told = dict(
    seen=[(number, values["netmon/step_s"]) for number, values in seen if "netmon/step_s" in values], mlflow=history,
    board=shown, wandb=[last.get("netmon/iteration"), last.get("netmon/step_s")], failures=scalars.failures,
    error=scalars.known.error, tags=sorted(events.Tags()["scalars"]),
)
print("TOLD", json.dumps(told))
"""


@pytest.fixture(scope="module")
def python() -> str:
    made = subprocess.run(["bash", HERE / "build_experiments.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["pytorch", "lightning", "transformers", "keras"])
def test_a_real_loop_writes_to_real_libraries(kind, python, tmp_path):
    address = f"unix:{tmp_path}/collector.sock"
    sent, over = Sent(tmp_path / "spool", address), threading.Event()

    def train() -> None:
        while not over.wait(0.1):
            sent.append()

    training = threading.Thread(target=train)
    imported = tmp_path / "import"
    imported.mkdir()
    (imported / "netmon").symlink_to(HERE.parents[1] / "netmon")
    environment = os.environ | {"NETMON_PYTHON": sys.executable, "NETMON_SOCKET": "/nowhere"}
    environment |= {
        "KERAS_BACKEND": "torch",
        "WANDB_SILENT": "true",
        "HF_HUB_OFFLINE": "1",
        "WANDB_ERROR_REPORTING": "false",
    }
    with collecting(address, tmp_path / "data"):
        sent.start()
        training.start()
        try:
            done = subprocess.run(
                [python, "-W", "ignore", "-c", SCRIPT, str(imported), kind, address, str(tmp_path)],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        finally:
            over.set()
            training.join()
        sent.finish()
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("TOLD")).removeprefix("TOLD "))
    assert (told["failures"], told["error"]) == (0, "")
    seen = {str(number): value for number, value in told["seen"]}
    assert len(seen) >= 2
    assert all(0.1 < value < 10 for value in seen.values())
    assert told["mlflow"] == pytest.approx(seen)
    assert told["board"] == pytest.approx(seen, rel=1e-6)
    assert told["wandb"][1] == pytest.approx(seen[str(told["wandb"][0])])
    assert {"netmon/step_s", "netmon/sent_bytes", "netmon/others_bytes"} <= set(told["tags"])
