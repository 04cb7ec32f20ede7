# SPDX-License-Identifier: Apache-2.0
"""Processes of our own modules, how a user starts one, where they import from, and what installs more of them."""

import multiprocessing
import os
import resource
import shlex
import shutil
import stat
import sys
from collections.abc import Sequence
from importlib import import_module, machinery
from importlib.abc import PathEntryFinder
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from netmon.errors import KernelError, NetmonError, UnsupportedError

_DESCRIPTORS = 16_384


def own_module(name: str, *arguments: object) -> dict[str, Any]:
    """What subprocess takes to run a module with what this process imports from: args, cwd and env.

    Not in the folder that the user stands in: Python would import what somebody has put there, with our capabilities.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    command = [sys.executable, "-m", name, *map(str, arguments)]
    return {"args": command, "cwd": "/", "env": os.environ | {"PYTHONPATH": path}}


def allow_descriptors() -> None:
    """As many open files as this process may have at all, up to a number that is enough for everything."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_DESCRIPTORS, most) if most != resource.RLIM_INFINITY else _DESCRIPTORS
    if now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def keep_importable() -> None:
    """What this process imports from now it can import from as any other user, for as long as it lives.

    An open folder is reached without those above it, such as a home folder that is its owner's alone.
    """
    entries = {os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry)}
    previous = {entry: os.open(entry, os.O_PATH | os.O_DIRECTORY) for entry in entries if not _reached_by_all(entry)}
    in_folder = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
    )

    def find(path: str) -> PathEntryFinder:
        for entry, descriptor in previous.items():
            if path == entry or path.startswith(entry + os.sep):
                return in_folder(f"/proc/self/fd/{descriptor}{path[len(entry) :]}")
        raise ImportError(path)

    sys.path_hooks.insert(0, find)
    sys.path_importer_cache.clear()


def _reached_by_all(folder: str) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (Path(folder), *Path(folder).parents))


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


def to_install(extra: str) -> str:
    """The command with which a user installs what an extra of ours needs, next to netmon.

    By the pip of this installation, which knows ours: in another one "netmon" is somebody else's project on PyPI.
    """
    return f"{typed('python')} -m pip install 'netmon[{extra}]'"


# --- Calls in a process of their own, for what needs a large library once: its memory goes with the process.


_FORK = multiprocessing.get_context("fork")
_LIMIT_S = 60


def call_by_name(name: str, *arguments: object) -> Any:
    """The result of MODULE:FUNCTION, in a copy of this process, which must have no other thread.

    Blocks. Raises NetmonError as the function does, and KernelError where the process ends without an answer.
    """
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(theirs, name, arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_LIMIT_S):
            raise KernelError(f"cannot request {name}: no answer after {_LIMIT_S} s")
        answer, error = ours.recv()
    except EOFError:
        raise KernelError(f"cannot request {name}: the process that was to answer has ended") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if error is not None:
        raise error
    return answer


def _answer(theirs: Connection, name: str, arguments: tuple[object, ...]) -> None:
    """In the process of its own."""
    module, function = name.split(":")
    answer, failure = None, None
    try:
        answer = getattr(import_module(module), function)(*arguments)
    except NetmonError as error:
        failure = error
    theirs.send((answer, failure))


def require(packages: Sequence[str], what: str, extra: str) -> None:
    """Raise UnsupportedError if a package is missing. what: the action that needs it; extra: what installs it."""
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise UnsupportedError(f"cannot {what}: {', '.join(absent)} not installed; {to_install(extra)}")
