# SPDX-License-Identifier: Apache-2.0
"""Interfaces that are watched for as long as the agent lives, though they may go, come back or change their name."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from netmon.kernel.apart import call_named_apart
from netmon.kernel.hooks import Attachment, attach_program
from netmon.records import Direction


@dataclass
class WatchedInterface:
    """One interface. It is known by its index while it is there, and found again by the name it was asked for by."""

    asked_name: str
    wanted_hook: str  # as of choose_hook
    index: int = 0  # 0: it is not there
    name: str = ""  # now
    hooks: tuple[str, str] = ("", "")  # rx, tx
    _attached: list[Attachment] = field(default_factory=list)

    def attach(self, programs: Mapping[str, int]) -> None:
        """Attaches both directions. Raises UnsupportedError, KernelError; then nothing is attached."""
        name = self.asked_name
        index, hooks = call_named_apart("netmon.kernel.probe.hook:choose_for", self.asked_name, self.wanted_hook)
        attached: list[Attachment] = []
        with contextlib.ExitStack() as undo:
            for direction, hook in zip(Direction, hooks, strict=True):
                attachment = attach_program(programs, index, name, hook, direction)
                undo.callback(attachment.detach)
                attached.append(attachment)
            undo.pop_all()
        self.index, self.name = index, name
        self._attached = attached
        self.hooks = (attached[0].hook, attached[1].hook)

    def follow(self, programs: Mapping[str, int]) -> None:
        """Takes in what has happened to it. Raises as attach does, when it is back and refuses."""
        if self.index:
            try:
                self.name = socket.if_indextoname(self.index)
            except OSError:
                self.detach()
        if not self.index and any(name == self.asked_name for _, name in socket.if_nameindex()):
            self.attach(programs)

    def detach(self) -> None:
        """Takes the programs away, where the interface has not taken them with it."""
        self.index, self.name = 0, ""
        while self._attached:
            self._attached.pop().detach()
