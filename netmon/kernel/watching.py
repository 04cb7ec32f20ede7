# SPDX-License-Identifier: Apache-2.0
"""Interfaces that are watched for as long as the agent lives, though they may go, come back or change their name."""

import contextlib
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from netmon.kernel.apart import call_named_apart
from netmon.kernel.hooks import Attachment, attach_program
from netmon.kernel.meter.link_numbers import forget_interface, number_interface
from netmon.kernel.nic import name_of
from netmon.records import Direction

log = logging.getLogger(__name__)

_CHOOSE = "netmon.kernel.probe.hook:choose_for"  # needs libraries that a long-lived process does not want to keep


@dataclass
class WatchedInterface:
    """One interface. It is known by its index while it is there, and found again by the name it was asked for by."""

    number: int  # from 1, stays when it is made again
    asked_name: str
    wanted_hook: str  # as of choose_hook
    known_index: int = 0  # by which it is attached the first time, whatever its name is then; 0: by its name
    index: int = 0  # 0: it is not there
    name: str = ""  # now
    hooks: tuple[str, str] = ("", "")  # rx, tx
    _attached: list[Attachment] = field(default_factory=list)

    def attach(self, programs: Mapping[str, int]) -> None:
        """Attaches both directions. Raises UnsupportedError, KernelError; then nothing is attached."""
        index, name, hooks, holder = call_named_apart(_CHOOSE, self.asked_name, self.known_index, self.wanted_hook)
        if holder:
            log.warning("cannot attach to %s by XDP: its slot is taken by %s; tc is used", name, holder)
        attached: list[Attachment] = []
        with contextlib.ExitStack() as undo:
            number_interface(programs["interfaces"], index, self.number)
            undo.callback(forget_interface, programs["interfaces"], index)
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
            self.name = name_of(self.index)
            if not self.name:
                forget_interface(programs["interfaces"], self.index)
                self.detach()
        if not self.index and any(name == self.asked_name for _, name in socket.if_nameindex()):
            self.attach(programs)

    def detach(self) -> None:
        """Takes the programs away, where the interface has not taken them with it."""
        self.index, self.name, self.known_index = 0, "", 0
        while self._attached:
            self._attached.pop().detach()
