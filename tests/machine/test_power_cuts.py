# SPDX-License-Identifier: Apache-2.0
"""The power of a whole machine is cut, again and again, while rows are acknowledged and batches are spooled."""

import random
import threading
from pathlib import Path

import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, acknowledged, configure, works
from sent_agent import Sent, check_whole

pytestmark = [pytest.mark.machine, pytest.mark.timeout(4 * 3600)]

CUTS = 6


def test_acknowledged_rows_and_spooled_batches_outlive_power_cuts(guest: Guest, here: Here, tmp_path: Path):
    """The guest's collector is sent to from here; its agent sends to here, where nobody answers when power is cut."""
    chance = random.Random(1)
    configure(guest, here.port, agent='durability = "power"\n', collector='flush = "500ms"\n')
    guest.run("systemctl enable --now netmon-collector netmon-agent", BOOTS_S)
    sent = Sent(tmp_path / "spool", f"127.0.0.1:{guest.ports[9400]}")
    sent.start()
    enough, promised = threading.Event(), []

    def go_on() -> None:
        while not enough.wait(0.2):
            sent.append()

    appending = threading.Thread(target=go_on)
    appending.start()
    at_cuts = []
    try:
        for cut in range(CUTS):
            works(guest)
            here.end()
            before = sent.spool.acknowledged
            enough.wait(chance.uniform(1, 8))
            acknowledged(sent, before)
            promised.append(guest.metrics()["netmon_agent_batches_spooled_total"])
            guest.kill()
            at_cuts.append(sent.spool.acknowledged)
            here.start()
            guest.start()
            acknowledged(sent, at_cuts[-1])
            print(f"cut {cut}: {at_cuts[-1]} acknowledged, {promised[-1]:.0f} of the agent's spooled", flush=True)
        works(guest)
        guest.wait_for("[ $(ls /var/lib/netmon-agent/*.spool | wc -l) = 1 ]", BOOTS_S)
    finally:
        enough.set()
        appending.join()
        sent.finish(600)
    guest.run("systemctl stop netmon-agent netmon-collector", BOOTS_S)
    guest.fetch("/var/lib/netmon", tmp_path / "fetched")
    check_whole(tmp_path / "fetched", sent)
    here.end()
    print(f"{sent.rows} rows sent, none missing, none doubled")
    print(f"the agent's batches: {here.batches()}, of which were spooled: {promised}")
    stored = list(here.batches().values())
    for number in sorted(promised, reverse=True):  # each session has at least what its agent had spooled
        found = next(value for value in sorted(stored) if value >= number)
        stored.remove(found)
    assert "never arrived" not in here.said()
