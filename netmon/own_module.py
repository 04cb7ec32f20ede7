# SPDX-License-Identifier: Apache-2.0
"""Processes of our own modules."""

import os
import sys
from typing import Any


def own_module(name: str, *arguments: object) -> dict[str, Any]:
    """What subprocess takes to run a module with what this process imports from: args, cwd and env.

    Not in the folder that the user stands in: Python would import what somebody has put there, with our capabilities.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    command = [sys.executable, "-m", name, *map(str, arguments)]
    return {"args": command, "cwd": "/", "env": os.environ | {"PYTHONPATH": path}}
