# SPDX-License-Identifier: Apache-2.0
"""Calls in a process of their own, for what needs a large library once: its memory goes with the process."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from netmon.errors import KernelError, NetmonError
from netmon.own_module import own_module

R = TypeVar("R")
_LIMIT_S = 60


def call_in_subprocess(function: Callable[..., R], *arguments: object) -> R:
    """The function's result; it stands in a module by its name, and has the caller's capabilities and namespaces.

    Blocks for about a tenth of a second more than the function does. Raises NetmonError as the function does, and
    KernelError where the process ends without an answer.
    """
    answer: R = call_by_name(f"{function.__module__}:{function.__qualname__}", *arguments)
    return answer


def call_by_name(name: str, *arguments: object) -> Any:
    """The same for MODULE:FUNCTION, which the caller then need not import."""
    command = own_module(__name__, name)
    question = pickle.dumps(arguments)
    try:
        done = subprocess.run(**command, input=question, capture_output=True, timeout=_LIMIT_S, check=True)
        answer, error = pickle.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, EOFError, pickle.UnpicklingError) as failure:
        raise KernelError(f"cannot ask for {name}: {failure}") from failure
    if error is not None:
        raise error
    return answer


def main(name: str) -> None:
    """The process: arguments in, answer out."""
    import importlib

    module, function = name.split(":")
    answer, failure = None, None
    try:
        answer = getattr(importlib.import_module(module), function)(*pickle.load(sys.stdin.buffer))
    except NetmonError as error:
        failure = error
    sys.stdout.buffer.write(pickle.dumps((answer, failure)))


if __name__ == "__main__":
    main(sys.argv[1])
