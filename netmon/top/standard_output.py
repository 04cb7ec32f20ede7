# SPDX-License-Identifier: Apache-2.0
"""Textual draws on standard error; a program that shows something belongs on standard output."""

import sys
from typing import Any

from textual.drivers.linux_driver import LinuxDriver


class StandardOutput(LinuxDriver):
    """The driver of a terminal that standard output is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As Textual's own."""
        super().__init__(*args, **kwargs)
        if sys.__stdout__ is not None:
            self._file = sys.__stdout__
