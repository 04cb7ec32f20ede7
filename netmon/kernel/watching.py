# SPDX-License-Identifier: Apache-2.0
"""Interfaces that are watched for as long as the agent lives, though they may go, come back or change their name."""

import contextlib
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from netmon.errors import UnsupportedError
from netmon.kernel.hooks import Attachment, attach_program
from netmon.kernel.meter.link_numbers import forget_interface, number_interface
from netmon.kernel.probe import bpf
from netmon.kernel.probe.hook import choose_hook
from netmon.kernel.probe.interfaces import InterfaceFacts, interface_facts
from netmon.records import Direction

log = logging.getLogger(__name__)

_LOOKS = 10  # at an interface whose name changes between two questions about it


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
        fact = self._found()
        if self.wanted_hook == "xdp" and fact.xdp_program:
            taken = "cannot attach to %s by XDP: its slot is taken by %s; tc is used"
            log.warning(taken, fact.name, fact.xdp_holder)
        choice = choose_hook(fact, tcx=bpf.has_tcx(), wanted=self.wanted_hook)
        attached: list[Attachment] = []
        with contextlib.ExitStack() as undo:
            number_interface(programs["interfaces"], fact.index, self.number)
            undo.callback(forget_interface, programs["interfaces"], fact.index)
            for direction, hook in zip(Direction, (choice.rx, choice.tx), strict=True):
                attachment = attach_program(programs, fact.index, fact.name, hook, direction)
                undo.callback(attachment.detach)
                attached.append(attachment)
            undo.pop_all()
        self.index, self.name = fact.index, fact.name
        self._attached = attached
        self.hooks = (attached[0].hook, attached[1].hook)

    def _found(self) -> InterfaceFacts:
        """By its index, where that is known: it may be getting another name just now. Raises UnsupportedError."""
        for _ in range(_LOOKS):
            there = interface_facts()
            for fact in there.watchable:
                if fact.index == self.known_index or (not self.known_index and fact.name == self.asked_name):
                    return fact
            if not _name_of(self.known_index):
                break
        why = next((line for line in there.refused if f" {self.asked_name}:" in line), "")
        raise UnsupportedError(why or f"cannot watch {self.asked_name}: no such interface")

    def follow(self, programs: Mapping[str, int]) -> None:
        """Takes in what has happened to it. Raises as attach does, when it is back and refuses."""
        if self.index:
            self.name = _name_of(self.index)
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


def _name_of(index: int) -> str:
    """What it is called now; empty where it is not there."""
    try:
        return socket.if_indextoname(index)
    except (OSError, OverflowError):
        return ""
