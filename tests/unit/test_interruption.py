# SPDX-License-Identifier: Apache-2.0
"""A signal ends a command with a status of its own, wherever it meets it. That each command ends: tests/kernel."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Dataclasses are made so, as long as modules are imported.
PROGRAM = """
import sys
from netmon import cli
from netmon.commands import doctor
def run(args):
    exec("import os, sys; os.kill(os.getpid(), int(sys.argv[2])); sys.exit('not interrupted')")
doctor.run, doctor.arguments = run, lambda parser: parser.add_argument("number")
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_while_modules_are_imported_is_not_taken_for_unhandled(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "program", "doctor", str(int(number))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
