# SPDX-License-Identifier: Apache-2.0
"""What netmon knows of the last steps, in the script that trains and where it logs its experiments."""

import json
import os
import struct
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from collector_thread import collecting
from sent_agent import Sent
from snapshot_example import example
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from waiting import wait_for

from netmon.dl.verdict.incidents import incidents
from netmon.training import Known, Scalars, Steps, keras_scalars, lightning_callback, transformers_callback
from netmon.training.scalars import scalars_of
from netmon.views import Cause, Verdict

ROOT = Path(__file__).parents[2]
STEP = {
    "iteration": 7,
    "duration_ns": 3e8,
    "exposed_ns": 1e8,
    "communication_ns": None,
    "sent_bytes": 9,
    "baseline_ns": 2e8,
}
WHY = {"iteration": 7, "cause": "cross", "culprit": "iperf3", "excess_ns": 1e8, "verdict": "because of iperf3"}
VALUES = {"netmon/step_s": 0.3, "netmon/waited_for_gradients_s": 0.1, "netmon/sent_bytes": 9.0}


@pytest.fixture
def steps(monkeypatch):
    monkeypatch.setenv("NETMON_SOCKET", "/nowhere/marks.sock")
    return Steps("train", 0, 2)


def saying(steps, *lines, then="import time; time.sleep(600)"):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return Known(steps, command=[sys.executable, "-c", f"print({text!r}, flush=True)\n{then}"])


def taken(known):
    found = []
    wait_for(lambda: found.extend(known.take()) or bool(found) or bool(known.error))
    known.close()
    return found


def test_what_is_new_is_handed_over(steps):
    known = saying(steps, STEP, {"iteration": 8, "sent_bytes": 5}, WHY)
    assert known.take() == []  # nothing is waited for
    assert [step["iteration"] for step in taken(known)] == [7, 8]
    assert known.steps[0] == STEP | WHY
    assert known.take() == [] or known.failures == 0


def test_scalars_of_a_step():
    assert scalars_of(STEP) == VALUES
    assert scalars_of(STEP | WHY)["netmon/beyond_baseline_s"] == 0.1


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"iteration": "x"}', "\x00" * 99])
def test_nonsense_is_counted_and_never_raised(steps, line):
    known = saying(steps, line)
    assert taken(known) == []
    assert known.failures == 1


def test_a_program_that_ends_is_told(steps):
    known = Known(steps, command=[sys.executable, "-c", "raise SystemExit(3)"])
    assert taken(known) == []
    assert "status 3" in known.error


@pytest.mark.parametrize("command", [["/no/such/program"], []])
def test_without_a_program_nothing_happens(steps, command):
    known = Known(steps, command=command)
    assert known.take() == []
    assert known.take() == []
    known.close()


def test_a_child_is_told_nothing(steps):
    known = saying(steps, STEP)
    known.take()
    known._pid += 1
    assert known.take() == []
    known._pid -= 1
    known.close()


class Writes:
    def __init__(self):
        self.calls = []


class Wandb(Writes):
    def define_metric(self, *names, **options):
        self.calls.append((*names, options))

    def log(self, values):
        self.calls.append(values)


class Mlflow(Writes):
    def log_metrics(self, values, step, synchronous):
        self.calls.append((values, step, synchronous))


class Knows:
    def take(self):
        return [STEP | WHY]

    def close(self):
        pass


def test_each_writer_is_written_to_as_it_likes(steps):
    wandb, mlflow, own = Wandb(), Mlflow(), []
    broken = types.SimpleNamespace(add_scalar=lambda *_: 1 / 0)
    scalars = Scalars(steps, "", wandb, mlflow, broken, object(), lambda *told: own.append(told), known=Knows())
    scalars.write()
    values = VALUES | {"netmon/beyond_baseline_s": 0.1}
    assert wandb.calls[-1] == {"netmon/iteration": 7, **values, "netmon/verdict": "because of iperf3"}
    assert mlflow.calls == [(values, 7, False)]
    assert own == [(7, values, "because of iperf3")]
    assert scalars.failures == 2


def events(folder):
    for path in folder.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length


def test_tensorboard_reads_it(steps, tmp_path):
    with SummaryWriter(str(tmp_path / "run")) as writer:
        Scalars(steps, "", writer, known=Knows()).close()
    told = {v.tag: v.simple_value for event in events(tmp_path / "run") for v in event.summary.value if event.step == 7}
    assert told["netmon/waited_for_gradients_s"] == pytest.approx(0.1)
    assert "netmon/verdict/text_summary" in told


@pytest.mark.parametrize(
    ("make", "module", "base", "call"),
    [
        (lightning_callback, "lightning.pytorch", "Callback", "on_train_batch_end"),
        (transformers_callback, "transformers", "TrainerCallback", "on_step_end"),
        (keras_scalars, "keras.callbacks", "Callback", "on_train_batch_end"),
    ],
)
def test_loops_of_others_write(steps, monkeypatch, make, module, base, call):
    own = []
    scalars = Scalars(steps, "", lambda *told: own.append(told), known=Knows())
    for name in ("lightning.pytorch", "pytorch_lightning", "transformers", "keras.callbacks", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(LookupError, match="import it before"):
        make(scalars)
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**{base: type(base, (), {})}))
    callback = make(scalars)
    getattr(callback, call)(3)
    assert len(own) == 1


def test_a_collectors_steps_reach_the_script(steps, tmp_path, monkeypatch):
    address = f"unix:{tmp_path}/collector.sock"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    sent = Sent(tmp_path / "spool", address)
    sent.append(30)
    with collecting(address, tmp_path / "data"):
        sent.start()
        wait_for(lambda: sent.spool.acknowledged > 0)
        known = Known(steps, address)
        found = []
        wait_for(lambda: found.extend(known.take()) or bool(found))
        known.close()
        sent.finish()
    assert found[0]["duration_ns"] > 0
    assert found[0]["sent_bytes"] > 0


def test_a_slow_step_tells_of_its_incident():
    from netmon.commands.steps import _Printed, _words

    second = 1_000_000_000
    slow = [
        Verdict("j", n, n * second, (n + 1) * second, 700, 400, 300, Cause.CROSS, "iperf3", "h0", cross_ns=300)
        for n in (3, 4)
    ]
    verdicts, found = tuple(reversed(slow)), tuple(incidents(slow))
    view = replace(example().jobs[0], job="j", name="train.py", verdicts=verdicts, incidents=found)
    first, last = (line for line in _Printed(0).news(view) if "verdict" in line)
    assert first["incident"] == last["incident"]
    assert last["incident_lost_ns"] == 600
    assert last["incident"].startswith("train.py 1.8 × slower ")
    assert last["incident"].endswith("iperf3 into h0; 2 steps, 600 ns lost")
    assert _words(last) == f"{last['verdict']} · {last['incident']}"
    assert scalars_of(last)["netmon/incident_lost_s"] == pytest.approx(6e-7)


def test_who_has_nobody_to_tell_ends(tmp_path, monkeypatch):
    from netmon.commands.steps import _nobody_reads

    here, there = os.pipe()
    with os.fdopen(there, "w") as writing:
        monkeypatch.setattr(sys, "stdout", writing)
        assert not _nobody_reads()
        os.close(here)
        assert _nobody_reads()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mlflow_and_wandb_for_real(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "mlflow-skinny[sqlalchemy]", "sqlalchemy", "alembic", "wandb"],
        check=True,
    )
    script = f"""
import sys, mlflow, wandb
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests/unit")!r}]
from netmon.training import Scalars, Steps
class Knows:
    def take(self): return [{STEP | WHY!r}]
    def close(self): pass
mlflow.set_tracking_uri("sqlite:///{tmp_path}/mlflow.db")
with mlflow.start_run() as mine, wandb.init(mode="offline", dir={str(tmp_path)!r}, project="x") as run:
    scalars = Scalars(Steps("train", 0, 2), "", run, mlflow, known=Knows())
    scalars.close()
    assert not scalars.failures
    mlflow.flush_async_logging()
    assert run.summary["netmon/sent_bytes"] == 9
client = mlflow.MlflowClient()
assert [m.value for m in client.get_metric_history(mine.info.run_id, "netmon/waited_for_gradients_s")] == [0.1]
"""
    subprocess.run([python, "-W", "ignore", "-c", script], check=True, env=os.environ | {"NETMON_SOCKET": "/nowhere"})
