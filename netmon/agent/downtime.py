# SPDX-License-Identifier: Apache-2.0
"""The time in which no agent counted: the next one ends the account of a session whose agent was killed.

The spool keeps, alongside the batches, how the ledger was reported last. Where the next agent finds a session that
nobody ended, it appends a batch with one more sample of each link: the NIC's counter when its own ledger begins, and
the word that nobody has counted since the sample before.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from netmon.agent.spool_folder import BatchTable, Change, Kept, SpoolFolder
from netmon.errors import DataError
from netmon.records import BUCKET, Batch, ClockSample, Direction, LedgerSample
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_body

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NIC = ("interface", "direction", "time_ns", "nic_bytes", "nic_packets", "nic_header_bytes")
OWN_COUNTERS = tuple(field.name for field in fields(LedgerSample) if field.name not in _NIC)
"""Of a sample: not the NIC's."""

ENDED = b"null"
"""In place of accounts: the agent ended in order, and whoever stopped it knows that nobody counts."""

Counted = tuple[int, int]
"""(bytes, packets) of a NIC's own counters."""


@dataclass(frozen=True)
class LinkAccount:
    """A link as it was reported last."""

    name: str  # of the interface
    index: int  # ifindex
    counter: Counted  # the NIC's, as last read
    sample: LedgerSample


@dataclass(frozen=True)
class Beginning:
    """When an agent's ledger began, and the NICs' counters then: by (name, ifindex, direction)."""

    time_ns: int  # mono
    counters: Mapping[tuple[str, int, Direction], Counted]


def encode_accounts(links: Sequence[LinkAccount]) -> bytes:
    """For the spool. The boot is named: with another one the clock and the counters begin anew."""
    accounts = [(link.name, link.index, link.counter, list(vars(link.sample).values())) for link in links]
    return json.dumps({"boot": _boot(), "links": accounts}).encode()


def _decode_accounts(text: bytes) -> list[LinkAccount]:
    """Of this boot. Raises ValueError, KeyError, TypeError."""
    document = json.loads(text)
    if document is None or document["boot"] != _boot():
        return []
    names = [field.name for field in fields(LedgerSample)]
    found = []
    for name, index, counter, values in document["links"]:
        account = dict(zip(names, values, strict=True))
        sample = LedgerSample(**account | {"direction": Direction(account["direction"])})
        found.append(LinkAccount(name, index, (counter[0], counter[1]), sample))
    return found


def end_accounts(folder: SpoolFolder, own: str, began: Beginning, clock: Callable[[], ClockSample]) -> None:
    """Of the sessions that nobody ended, the newest's account lasts until ours begins. Blocks for the disk.

    own: our session. What cannot be read is left to who sends it.
    """
    newest: tuple[int, str] = 0, ""
    for session in folder.left_behind():
        if session.partition(".")[0] != own and (until_ns := _reported_until(folder, session)) > newest[0]:
            newest = until_ns, session
    table = _taken_over(folder, newest[1]) if newest[1] else None
    if table:
        with closing(table):
            _end_account(table, began, clock())


def _taken_over(folder: SpoolFolder, session: str) -> BatchTable | None:
    try:
        return folder.take_over(session)
    except DataError:
        return None


def _accounts(table: BatchTable) -> list[LinkAccount]:
    try:
        return _decode_accounts(table.account()[1] or ENDED)
    except (ValueError, KeyError, TypeError):
        return []


def _reported_until(folder: SpoolFolder, session: str) -> int:
    """Mono; 0: its agent lives, or reported nothing in this boot."""
    table = _taken_over(folder, session)
    if table is None:
        return 0
    with closing(table):
        return max((link.sample.time_ns for link in _accounts(table)), default=0)


def _end_account(table: BatchTable, began: Beginning, clock: ClockSample) -> None:
    """Links whose interface is gone, or was made anew, have no more to report."""
    ended = []
    for link in _accounts(table):
        now, last = began.counters.get((link.name, link.index, link.sample.direction)), link.sample
        if now is None or now[0] < link.counter[0] or last.time_ns >= began.time_ns:
            continue
        sample = replace(
            last,
            nic_bytes=last.nic_bytes + now[0] - link.counter[0],
            nic_packets=last.nic_packets + now[1] - link.counter[1],
            time_ns=began.time_ns,
            uncounted=1,
        )
        ended.append(replace(link, counter=now, sample=sample))
    if not ended:
        return
    sequence = max(table.last(), table.account()[0]) + 1
    batch = Batch(sequence, clock, began.time_ns, np.zeros(0, BUCKET), ledger=[link.sample for link in ended])
    body = netmon_pb2.AgentMessage(batch=encode_body(batch)).SerializeToString()
    table.apply(Change([Kept(sequence, body, b"", b"")], (sequence, encode_accounts(ended))))


@functools.cache
def _boot() -> str:
    return _BOOT.read_text().strip()
