# SPDX-License-Identifier: Apache-2.0
"""Whose flows a capture's are: it has no sockets to ask, so the user says which are the training's."""

from dataclasses import dataclass

from netmon.records import Direction, Flow, Owner

JOB = "training"


@dataclass(frozen=True)
class Rule:
    """A flow is the training's if it has one of the ports at either end, and one of the addresses at the far end.

    What is empty is not asked for; without both, every flow's owner is unknown.
    """

    ports: frozenset[int] = frozenset()
    addresses: frozenset[str] = frozenset()

    def owner(self, flow: Flow) -> Owner:
        """The training's, somebody else's (cross), or not known."""
        if not self.ports and not self.addresses:
            return Owner()
        port = not self.ports or not self.ports.isdisjoint((flow.src_port, flow.dst_port))
        far = flow.dst if flow.direction is Direction.TX else flow.src
        training = port and (not self.addresses or far in self.addresses)
        return Owner(job=JOB if training else "", source="rule")
