# SPDX-License-Identifier: Apache-2.0
"""The bounds of both units under systemd with cgroup v2: they hold, and who was ended by one begins again."""

from pathlib import Path

import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, acknowledged, configure, works
from sent_agent import Sent, check_whole
from waiting import wait_for

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

INSIDE = "echo $$ >/sys/fs/cgroup/system.slice/netmon-{unit}.service/cgroup.procs; exec {command}"
EATS = "python3 -c 'kept = []\nwhile True: kept.append(b\"x\" * (16 << 20))'"
SPINS = "python3 -c 'import os, time\nos.fork()\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass'"
SPAWNS = 'python3 -c \'import subprocess\nwhile True: subprocess.Popen(["sleep", "60"])\''


def inside(guest: Guest, unit: str, command: str) -> str:
    """A process among those of a unit; what systemd and the kernel do to it is no failure."""
    return guest.run(INSIDE.format(unit=unit, command=command), check=False)


def shown(guest: Guest, unit: str, name: str) -> str:
    return guest.run(f"systemctl show -P {name} netmon-{unit}").strip()


def begins_again(guest: Guest, unit: str, before: int) -> None:
    guest.wait_for(
        f"[ $(systemctl show -P NRestarts netmon-{unit}) -gt {before} ] && systemctl -q is-active netmon-{unit}",
        BOOTS_S,
    )


def test_who_eats_the_memory_of_the_collector_costs_nothing_that_was_acknowledged(guest: Guest, tmp_path: Path):
    configure(guest, 9)
    guest.write(  # less than the machine has
        "/etc/systemd/system/netmon-collector.service.d/test.conf", "[Service]\nMemoryHigh=infinity\nMemoryMax=1G\n"
    )
    guest.run("systemctl daemon-reload; systemctl start netmon-collector", BOOTS_S)
    sent = Sent(tmp_path / "spool", f"127.0.0.1:{guest.ports[9400]}")
    sent.start()
    try:
        for round_ in range(2):
            before = sent.spool.acknowledged
            sent.append(20)
            acknowledged(sent, before)
            sent.append(20)
            inside(guest, "collector", EATS)
            begins_again(guest, "collector", round_)
        sent.append(20)
        wait_for(lambda: not sent.spool.waits, BOOTS_S)
    finally:
        sent.finish(600)
    guest.run("systemctl stop netmon-collector", BOOTS_S)
    assert "killed by the OOM killer" in guest.journal("netmon-collector")
    guest.fetch("/var/lib/netmon", tmp_path / "data")
    check_whole(tmp_path / "data", sent)


def test_the_agent_s_bounds_hold_and_what_is_ended_begins_again(guest: Guest, here: Here):
    configure(guest, here.port)
    guest.write(  # above MemoryHigh the kernel makes who eats wait, for minutes, before MemoryMax ends it
        "/etc/systemd/system/netmon-agent.service.d/test.conf", "[Service]\nMemoryHigh=infinity\n"
    )
    guest.run("systemctl daemon-reload; systemctl start netmon-agent", BOOTS_S)
    works(guest)
    assert int(shown(guest, "agent", "MemoryCurrent")) < int(shown(guest, "agent", "MemoryMax")) // 4
    group = "/sys/fs/cgroup/system.slice/netmon-agent.service"

    def used() -> dict[str, int]:
        lines = guest.run(f"cat {group}/cpu.stat; echo now $(($(date +%s%N) / 1000))").splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    before = used()
    inside(guest, "agent", SPINS)  # two processes, which want two CPUs
    after = used()
    assert after["nr_throttled"] > before["nr_throttled"]
    spent = (after["usage_usec"] - before["usage_usec"]) / (after["now"] - before["now"])
    print(f"two busy processes in the agent's group: {spent:.2f} of a CPU")
    assert spent < 1.2  # of two

    guest.begin(INSIDE.format(unit="agent", command=SPAWNS))
    guest.wait_for(f"grep -q 'max [1-9]' {group}/pids.events")
    assert int(guest.run(f"cat {group}/pids.current")) <= int(shown(guest, "agent", "TasksMax"))
    guest.run("pkill -x sleep; pkill -f sleep.*60; pkill -x sleep", check=False)

    restarts = int(shown(guest, "agent", "NRestarts"))
    inside(guest, "agent", EATS)
    begins_again(guest, "agent", restarts)
    assert "killed by the OOM killer" in guest.journal("netmon-agent")
    works(guest)

    restarts = int(shown(guest, "agent", "NRestarts"))
    guest.run("kill -STOP $(systemctl show -P MainPID netmon-agent)")
    begins_again(guest, "agent", restarts)  # the unit's own WatchdogSec
    assert "Watchdog timeout" in guest.journal("netmon-agent")
    works(guest)
    made = guest.metrics()["netmon_agent_batches_total"]
    guest.run("systemctl stop netmon-agent", BOOTS_S)
    here.end()
    stored = here.batches()
    assert len(stored) == 3  # sessions: what the first two left behind was sent by the next
    assert max(stored.values()) >= made
    assert "never arrived" not in here.said()
