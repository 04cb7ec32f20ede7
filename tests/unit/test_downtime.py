# SPDX-License-Identifier: Apache-2.0
"""What a session that was killed leaves of its ledger, and how the next agent ends it: real spools."""

import sqlite3
from pathlib import Path

import pytest
from collector_stream import clock
from waiting import wait_for

from netmon.agent import downtime
from netmon.agent.downtime import Beginning, LinkAccount, encode_accounts, end_accounts
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.records import Direction, LedgerSample
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch

LINK = "eth0", 3, Direction.RX
NOW = Beginning(9_000, {LINK: (5_000, 50)})


def told(time_ns: int, counter: tuple[int, int] = (2_000, 20)) -> bytes:
    """Of a link whose interface was made again once: 700 B and 7 packets went before."""
    sample = LedgerSample(1, Direction.RX, time_ns, counter[0] + 700, counter[1] + 7, 14, *[11] * 13)
    return encode_accounts([LinkAccount(LINK[0], LINK[1], counter, sample)])


def killed(folder: SpoolFolder, session: str, ledger: bytes, acknowledged: int) -> None:
    """With 3 batches."""
    spool = Spool(folder, session, 1 << 20, lambda lost: None)
    spool.hello, spool.ledger = b"hello", ledger
    for sequence in (1, 2, 3):
        spool.append(sequence, b"body", b"", b"")
    wait_for(lambda: spool.spooled == 3)
    spool.acknowledge(acknowledged)
    wait_for(lambda: not (spool._is_due or spool._busy_since))
    assert spool._table
    spool._table.close()


def last_words(folder: SpoolFolder, session: str) -> list[tuple[int, list[LedgerSample]]]:
    """Batches that a ledger was appended in."""
    table = folder.take_over(session)
    assert table
    found = [(one.sequence, netmon_pb2.AgentMessage.FromString(one.body)) for one in table.read(4, 1 << 30)]
    table.close()
    return [(number, list(decode_batch(message.batch).ledger)) for number, message in found]


@pytest.mark.parametrize("acknowledged", [0, 2, 3])
def test_the_account_of_a_killed_session_lasts_until_the_next_one_begins(tmp_path: Path, acknowledged: int) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    killed(folder, "old", told(1_000), 0)
    killed(folder, "s1", told(8_000), acknowledged)
    end_accounts(folder, "s2", NOW, clock)
    assert last_words(folder, "old") == []  # s1 has counted since
    ((number, (sample,)),) = last_words(folder, "s1")
    assert (number, sample.time_ns, sample.nic_bytes, sample.nic_packets) == (4, 9_000, 5_700, 57)
    assert (sample.uncounted, sample.frames, sample.wire_bytes, sample.nic_header_bytes) == (1, 11, 11, 14)
    later = Beginning(10_000, {LINK: (6_000, 60)})  # the next one was killed before it told anything
    end_accounts(folder, "s3", later, clock)
    assert [(n, sample.nic_bytes) for n, (sample,) in last_words(folder, "s1")] == [(4, 5_700), (5, 6_700)]


def test_what_cannot_be_known_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    killed(folder, "s1", told(8_000), 3)
    for counters in ({}, {("eth0", 4, Direction.RX): (5_000, 50)}, {LINK: (1_999, 50)}):
        end_accounts(folder, "s2", Beginning(9_000, counters), clock)
    monkeypatch.setattr(downtime, "_boot", lambda: "another")
    end_accounts(folder, "s2", NOW, clock)
    monkeypatch.undo()
    killed(folder, "ended", downtime.ENDED, 0)
    end_accounts(folder, "s2", Beginning(9_000, {}), clock)
    assert last_words(folder, "s1") == last_words(folder, "ended") == []


def test_a_spool_of_an_earlier_netmon_has_no_account(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    killed(folder, "s1", told(8_000), 0)
    with sqlite3.connect(tmp_path / "spool" / "s1.spool") as file:
        file.execute("DROP TABLE account")
    file.close()
    end_accounts(folder, "s2", NOW, clock)
    assert last_words(folder, "s1") == []
