# SPDX-License-Identifier: Apache-2.0
"""Where a page's contents come from: a dataset, or a collector. All that is asked blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from netmon.views import Verdict
from netmon.web.grid import SERIES, Floats
from netmon.web.lanes import Catalogue
from netmon.web.steps import Lanes


@dataclass(frozen=True)
class Rates:
    """Bytes of some hosts in some bins."""

    wire_bytes: Floats  # (hosts, SERIES, bins)
    resolution_ns: int  # what they are really known to
    pending: bool = False  # there is more, which is being read

    @classmethod
    def nothing(cls, hosts: int, bins: int) -> "Rates":
        """No bytes at all."""
        return cls(np.zeros((hosts, SERIES, bins)), 0)


@dataclass(frozen=True)
class State:
    """How it stands, looked at once a second."""

    generation: int  # of the catalogue
    end_ns: int  # of what is known, UTC
    live: bool  # it goes on
    verdicts: int  # how many there are
    trouble: str = ""  # empty: there is none
    reading: float = 1.0  # how much of what there is has been read
    warnings: tuple[str, ...] = field(default=())


class Source(Protocol):
    """What a server shows. May be asked on several threads at once."""

    title: str
    synthetic: bool  # nobody measured it

    def state(self) -> State:
        """How it stands; does not block for long."""

    def catalogue(self) -> Catalogue:
        """Its lanes."""

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """What hosts carried. full: agents may be requested full resolution."""

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        """(SERIES, bins): bytes of all these hosts together, as well as is known without reading on."""

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        """Iterations that may overlap a time, each once, and whether there are more that are being read."""

    def verdicts(self) -> list[Verdict]:
        """By time; jobs called what people call them."""

    def explain(self, job: str, iteration: int) -> dict[str, Any]:
        """A verdict with its arithmetic, and where each rank's time went. Raises NetmonError."""

    def advice(self) -> dict[str, Any]:
        """As netmon.dl.sharing.advice_text.document has it. Raises NetmonError where there is nothing to go by."""

    def flows(self, host: str, begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
        """The largest flows of a host in a time: who, where to, which class, how many bytes. Raises NetmonError."""

    def close(self) -> None:
        """Let go of what it holds."""
