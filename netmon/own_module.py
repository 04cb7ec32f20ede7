# SPDX-License-Identifier: Apache-2.0
"""Processes of our own modules, and how a user starts one."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any


def own_module(name: str, *arguments: object) -> dict[str, Any]:
    """What subprocess takes to run a module with what this process imports from: args, cwd and env.

    Not in the folder that the user stands in: Python would import what somebody has put there, with our capabilities.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    command = [sys.executable, "-m", name, *map(str, arguments)]
    return {"args": command, "cwd": "/", "env": os.environ | {"PYTHONPATH": path}}


def typed(program: str) -> str:
    """How the user of a shell here starts a program that was installed with us: "netmon" or "python".

    By its name where that means this installation, else by its path, from the folder that the user stands in.
    """
    own = Path(sys.executable).with_name(program)
    if not own.exists():
        return f"{typed('python')} -m {program}" if program != "python" else shlex.quote(sys.executable)
    if (found := shutil.which(program)) and Path(found).exists() and os.path.samefile(Path(found).parent, own.parent):
        return program
    return shlex.quote(str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own))
