# SPDX-License-Identifier: Apache-2.0
"""The hook in real training scripts: PyTorch's optimizer and Keras, in Horovod's environment, not netmon's."""

import os
import subprocess
from pathlib import Path

import pytest

from netmon.agent.training_marks import MarkSocket
from netmon.lab.training import horovod_python
from netmon.records import Moment

ROOT = Path(__file__).parents[2]

PYTORCH = """
import torch
from netmon.horovod import watch
model = torch.nn.Linear(4, 3)
optimizer = watch(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(8):
    optimizer.zero_grad()
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
optimizer.netmon.close()
"""

KERAS = """
import keras, numpy
from netmon.horovod import keras_callback
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile("sgd", "mse")
data = numpy.zeros((32, 4)), numpy.zeros((32, 3))
model.fit(*data, batch_size=8, epochs=2, verbose=0, callbacks=[keras_callback()])
"""


@pytest.mark.parametrize(
    ("script", "framework"),
    [(PYTORCH, "torch"), (KERAS, "torch"), pytest.param(KERAS, "tensorflow", marks=pytest.mark.tensorflow)],
    ids=["PyTorch", "Keras on PyTorch", "Keras on TensorFlow"],
)
def test_every_step_is_marked(script: str, framework: str, tmp_path: Path) -> None:
    python = horovod_python(framework)
    path = tmp_path / "marks.sock"
    marks = MarkSocket(path)
    launched = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "NETMON_JOB": "hooked", "NETMON_SOCKET": str(path)}
    environment = {**os.environ, **launched, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": framework}
    subprocess.run([python, "-c", script], env=environment, check=True, timeout=120)
    got = marks.take()
    marks.close()
    steps = [(mark.iteration, mark.moment) for mark in got if mark.moment in (Moment.STEP_START, Moment.STEP_END)]
    expected = [(i, moment) for i in range(8) for moment in (Moment.STEP_START, Moment.STEP_END)]
    assert steps[:16] == expected
    assert (got[0].moment, got[-1].moment) == (Moment.JOIN, Moment.LEAVE)
    assert {(mark.job, mark.rank, mark.size, mark.parameters) for mark in got} == {("hooked", 1, 2, 15)}
