# SPDX-License-Identifier: Apache-2.0
"""What a session's restart needs to know, so that batches sent again are stored once.

Rows settle by time, not by batch: the state that is stored with the rows says which of them are there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.timemap import TimeMap
from netmon.records import CLASS_NAMES, Class, Direction, Flow, Hello, Owner

FLOW_OVER_NS = 600_000_000_000  # an agent gives a flow that was idle for half of it a new number
RECENT_NS = 60_000_000_000  # a rank whose last stored iteration is older has to join again


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class RankState:
    """A rank whose iterations up to end_utc are stored."""

    job: str
    rank: int
    size: int
    parameters: int
    end_utc: int
    number: int  # of the last of them, as the rank counts
    trust: int  # of its own numbers
    shift: int  # from them to the job's


@dataclass(frozen=True)
class StoredFlow:
    """A flow as its row tells it."""

    flow: Flow
    last_ns: int  # mono
    shared: bool


@dataclass(frozen=True)
class SessionState:
    """What is stored of a session as of one write."""

    host: str = ""
    last_sequence: int = 0  # of these batches, all rows that start before settled_ns are stored
    complete_sequence: int = 0  # of these batches, all rows are stored
    settled_ns: int = -1
    clock: TimeMap | None = None  # as the rows used it
    ledger_until_utc: dict[int, int] = field(default_factory=dict)  # by link
    ledger_totals: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    ledger_open: dict[int, Sequence[int]] = field(default_factory=dict)  # by link, see LedgerAccounts.open_samples
    ranks: tuple[RankState, ...] = ()

    def text(self) -> str:
        document = vars(self) | {
            "clock": None,
            "ledger_totals": {link: total.tolist() for link, total in self.ledger_totals.items()},
            "ranks": [vars(rank) for rank in self.ranks],
        }
        text = _ENCODE(document)
        # The clock's map is the same in most writes, and most of the text.
        return text.replace('"clock":null', f'"clock":{self.clock.text}', 1) if self.clock else text

    @classmethod
    def from_text(cls, text: str) -> "SessionState":
        """The reverse of text. Raises ValueError, KeyError, TypeError."""
        document: dict[str, Any] = json.loads(text)
        clock = document["clock"]
        decoded = {
            "clock": clock and TimeMap.from_document(clock),
            "ledger_until_utc": {int(link): until for link, until in document["ledger_until_utc"].items()},
            "ledger_totals": {int(k): np.array(total, np.int64) for k, total in document["ledger_totals"].items()},
            "ledger_open": {int(link): sample for link, sample in document["ledger_open"].items()},
            "ranks": tuple(RankState(**rank) for rank in document["ranks"]),
        }
        return cls(**(document | decoded))


@dataclass(frozen=True)
class Resume(SessionState):
    """The state of a session that comes back; the default is one that the dataset has never seen."""

    flows: tuple[StoredFlow, ...] = ()  # in the order of their appearance


def resume_from(state: SessionState, rows: list[dict[str, Any]], hello: Hello) -> Resume:
    """What a state says to a session that comes back. rows: of its flows, as the table `flows` has them.

    Raises ValueError, KeyError, TypeError.
    """
    recent = tuple(rank for rank in state.ranks if rank.end_utc > hello.clock.utc_ns - RECENT_NS)
    indices = {interface.name: interface.index for interface in hello.interfaces}
    clock = state.clock or TimeMap.constant(hello.clock.offset_ns)
    flows = tuple(_stored_flow(row, indices[row["interface"]], clock) for row in rows)
    return Resume(**(vars(state) | {"ranks": recent}), flows=flows)


def over_before(clock: TimeMap | None, settled_ns: int, hello: Hello) -> int:
    """Flows that were last seen earlier (UTC) are over for a session that comes back.

    What comes next may have waited for long: flows that went on then were alive at the last that is stored.
    """
    stored_utc = clock.utc(settled_ns) if clock else 0
    return min(stored_utc, hello.clock.utc_ns) - FLOW_OVER_NS


def _stored_flow(row: dict[str, Any], interface: int, clock: TimeMap) -> StoredFlow:
    known = {name: row[name] for name in ("pid", "process", "container", "job", "rank")}
    user = row.get("user") or ""  # a netmon before did not store it
    owner = Owner(**known, source=row["class_source"], user=user)
    flow = Flow(
        flow_id=row["flow_id"],
        interface=interface,
        direction=Direction[row["direction"].upper()],
        src=row["src"],
        dst=row["dst"],
        src_port=row["src_port"],
        dst_port=row["dst_port"],
        protocol=row["protocol"],
        first_ns=clock.mono(row["first_ns"]),
        owner=owner,
        members=row.get("members") or 0,  # of a netmon before there were aggregates
        prefix_bits=row.get("prefix_bits") or 0,
    )
    return StoredFlow(flow, clock.mono(row["last_ns"]), row["class"] == CLASS_NAMES[Class.DL_SHARED])
