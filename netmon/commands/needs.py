# SPDX-License-Identifier: Apache-2.0
"""Packages that some commands need and the rest does without."""

from collections.abc import Sequence
from importlib.util import find_spec

from netmon.errors import UnsupportedError
from netmon.own_module import to_install


def require(packages: Sequence[str], what: str, extra: str) -> None:
    """Raise UnsupportedError if a package is missing. what: the action that needs it; extra: what installs it."""
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise UnsupportedError(f"cannot {what}: {', '.join(absent)} not installed; {to_install(extra)}")
